"""Compiled code is kept between processes, wherever Numba keeps it, and does not outlive its sources."""

import ast
import os
import shutil
import subprocess
import sys
from pathlib import Path
from types import FunctionType, ModuleType

import pytest
from numba.core.dispatcher import Dispatcher
from numba.core.extending import _Intrinsic

import pesky
from pesky.compiling import cache
from pesky.online import blocks, kernels

PACKAGE = Path(pesky.__file__).parent
KERNELS = {
    "online": PACKAGE / "online" / "kernels.py",
    "torch": PACKAGE / "torch" / "passes" / "kernels.py",
}

# Each prints a digest of what was learnt, and how often a kernel was loaded and how often compiled.
SCRIPTS = {
    "online": """
import numpy as np
from pesky.online import Amari, Network, fit
from pesky.online.kernels import look, train
X = np.random.default_rng(0).normal(size=(500, 5)).astype(np.float32)
network = Network([5, 4, 2], l2=1e-4)
fit(network, Amari(0.001, tau=50), X, (X[:, 0] > 0).astype(int), epochs=3)
learnt, used = network.theta, [look, train]
""",
    "torch": """
import torch
from pesky.torch import VSGD
from pesky.torch.passes.kernels import update_chunks
theta = torch.ones(3, requires_grad=True)
optimizer = VSGD([theta], dialect="paper", init_batches=1)
for k in range(4):
    optimizer.minimize(lambda: (theta - k).square().sum())
learnt, used = theta.detach().numpy(), [update_chunks]
""",
}
REPORT = """
import hashlib
print(hashlib.sha256(learnt.tobytes()).hexdigest())
print(sum(sum(kernel.stats.cache_hits.values()) for kernel in used))
print(sum(sum(kernel.stats.cache_misses.values()) for kernel in used))
"""


@pytest.fixture
def copied(tmp_path):
    """A copy of the package, without anything compiled."""
    return Path(
        shutil.copytree(PACKAGE, tmp_path / PACKAGE.name, ignore=shutil.ignore_patterns("__pycache__"))
    )


def functions_in(kernel):
    """All functions of this package that a kernel calls, however indirectly, as their names tell."""
    found, waiting = set(), [kernel]
    while waiting:
        function = waiting.pop()
        if isinstance(function, Dispatcher):
            function = function.py_func
        elif isinstance(function, _Intrinsic):
            function = function._defn
        if not isinstance(function, FunctionType) or function in found:
            continue
        if Path(function.__code__.co_filename).is_relative_to(PACKAGE):
            found.add(function)
            names = function.__code__.co_names
            values = [function.__globals__.get(name) for name in names]
            modules = [value for value in values if isinstance(value, ModuleType)]
            waiting += values + [vars(module).get(name) for module in modules for name in names]
    return found


def files_in(engine):
    """The files that the functions of an engine's kernels stand in."""
    if engine == "online":
        first = [kernels.look, kernels.train, *blocks._bodies.values()]
    else:
        torch_kernels = pytest.importorskip("pesky.torch.passes.kernels", exc_type=ModuleNotFoundError)
        first = [getattr(torch_kernels, name) for name in torch_kernels.__all__]
    return {Path(function.__code__.co_filename) for one in first for function in functions_in(one)}


def stamp(kernels_file):
    return cache._digest_of_sources.__wrapped__(str(kernels_file))


@pytest.mark.parametrize("engine", KERNELS)
def test_an_edit_of_any_file_a_kernel_is_made_of_changes_its_stamp(engine, copied, monkeypatch):
    monkeypatch.setattr(cache, "_PACKAGE", copied)
    kernels_file = copied / KERNELS[engine].relative_to(PACKAGE)
    parts = [copied / path.relative_to(PACKAGE) for path in files_in(engine)]
    known = {"rule.py", "direction.py", "compiling/compiled.py", "compiling/subnormals.py"}
    known |= (
        {"online/methods/robust.py", "length.py"} if engine == "online" else {"torch/passes/kernels.py"}
    )
    assert {copied / name for name in known} <= set(parts), "files_in has to find what is in a kernel"
    before = stamp(kernels_file)
    for path in parts:
        source = path.read_bytes()
        path.write_bytes(source + b"\n# edited\n")
        assert stamp(kernels_file) != before, path.name
        path.write_bytes(source)
        assert stamp(kernels_file) == before


def test_an_edit_elsewhere_leaves_the_stamp(copied, monkeypatch):
    monkeypatch.setattr(cache, "_PACKAGE", copied)
    files = [copied / path.relative_to(PACKAGE) for path in KERNELS.values()]
    before = [stamp(file) for file in files]
    (copied / "lab" / "paper.py").write_text("")
    (copied / "torch" / "vsgd.py").write_text("")
    assert [stamp(file) for file in files] == before


def imported_by(path):
    """The modules of this package that a file imports, by Python's own grammar."""
    for node in ast.walk(ast.parse(path.read_bytes())):
        if isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}: a relative import, which cache.sources_of does not know"
            yield node.module
            yield from (f"{node.module}.{alias.name}" for alias in node.names)
        elif isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)


def test_imports_are_found_as_a_parser_finds_them():
    for path in PACKAGE.rglob("*.py"):
        modules = {name for name in imported_by(path) if name.split(".")[0] == PACKAGE.name}
        parents = {name[:at] for name in modules for at, letter in enumerate(name) if letter == "."}
        assert set(cache._imported_by(path.read_text())) >= modules | parents, path


def result_of(script, package, cache):
    """Run a script on a copy of the package in a process of its own."""
    environment = dict(os.environ, PYTHONPATH=str(package.parent))
    environment.pop("NUMBA_CACHE_DIR", None)
    if cache is not None:
        environment["NUMBA_CACHE_DIR"] = str(cache)
    process = subprocess.run(
        [sys.executable, "-c", script + REPORT],
        cwd=package.parent,
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )
    assert process.returncode == 0, process.stderr
    digest, loaded, made = process.stdout.split()
    return digest, int(loaded), int(made)


@pytest.mark.subprocess
@pytest.mark.parametrize(("engine", "is_told_where"), [("online", True), ("torch", False)])
def test_compiled_code_is_kept_gives_equal_results_and_notices_an_edit_of_the_rule(
    engine, is_told_where, copied, tmp_path
):
    if engine == "torch":
        pytest.importorskip("torch")
    cache = tmp_path / "cache" if is_told_where else None
    first, loaded, made = result_of(SCRIPTS[engine], copied, cache)
    assert (loaded, made > 0) == (0, True)
    assert list((copied if cache is None else cache).rglob("*.nbc"))
    second, loaded, again = result_of(SCRIPTS[engine], copied, cache)
    assert (loaded, again) == (made, 0), "the second process compiles nothing"
    assert second == first

    rule = copied / "rule.py"
    old, new = "(sample - mean) / memory", "(sample - mean) / (memory + memory)"
    assert old in rule.read_text(), "the edit below has to change the rule"
    rule.write_text(rule.read_text().replace(old, new))
    third, loaded, again = result_of(SCRIPTS[engine], copied, cache)
    assert (loaded, again) == (0, made)
    assert third != first

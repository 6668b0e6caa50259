"""Imports point one way: nothing lower imports anything higher. The lists below are the architecture."""

import ast
from pathlib import Path

import pytest

import pesky

PACKAGE = Path(pesky.__file__).parent

# From low to high. What stands in one line is on one level; members of a level do not import each other.
LEVELS = (
    ("__init__", "errors", "interrupts"),
    ("files",),
    ("rule",),
    ("direction", "length"),
    ("compiling", "quadratic"),
    ("online", "torch"),
    ("lab",),
    ("cli",),
    ("__main__",),
)
# The same within pesky/torch: calls of a step go up this list from its end.
TORCH_LEVELS = (
    ("outcome", "processes", "settings", "words"),
    ("shards",),
    ("passes",),
    ("curvature",),
    ("loss",),
    ("step",),
    ("checkpoints", "explain", "portable", "progress"),
    ("stepping",),
    ("watching",),
    ("vsgd",),
    ("__init__",),
)


def imported_by(path):
    """Yield the modules of this package that a file imports, wherever in it."""
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module is not None:
            inside = is_package(node.module)
            yield from (f"{node.module}.{alias.name}" if inside else node.module for alias in node.names)


def is_package(module):
    return PACKAGE.parent.joinpath(*module.split("."), "__init__.py").is_file()


def part_of(module, prefix):
    """Return which part below the prefix a module belongs to; None if it is not below it."""
    parts = module.split(".")
    if parts[: len(prefix)] != list(prefix):
        return None
    below = parts[len(prefix) :]
    is_there = below and PACKAGE.joinpath(*prefix[1:], below[0]).exists()
    is_file = below and PACKAGE.joinpath(*prefix[1:], f"{below[0]}.py").is_file()
    return below[0] if is_there or is_file else "__init__"


def level_of(part, levels):
    (found,) = [number for number, names in enumerate(levels) if part in names]
    return found


def upward_imports(folder, prefix, levels):
    """Return what points up, or to another part of the same level."""
    found = []
    for path in sorted(folder.rglob("*.py")):
        own = path.relative_to(folder).parts[0].removesuffix(".py")
        for module in imported_by(path):
            part = part_of(module, prefix)
            if part is not None and part != own and level_of(part, levels) >= level_of(own, levels):
                found.append(f"{path.relative_to(folder)} imports {module}")
    return found


CASES = {"pesky": (("pesky",), LEVELS), "pesky.torch": (("pesky", "torch"), TORCH_LEVELS)}


@pytest.mark.parametrize("name", CASES)
def test_imports_point_down(name):
    prefix, levels = CASES[name]
    assert upward_imports(PACKAGE.joinpath(*prefix[1:]), prefix, levels) == []


@pytest.mark.parametrize("name", CASES)
def test_every_part_has_its_level(name):
    prefix, levels = CASES[name]
    folder = PACKAGE.joinpath(*prefix[1:])
    there = {path.stem for path in folder.glob("*.py")}
    there |= {path.parent.name for path in folder.glob("*/__init__.py")}
    assert there == {part for level in levels for part in level}


def test_an_import_that_points_up_is_found(tmp_path):
    (tmp_path / "rule.py").write_text("from pesky.online import VSGD\nimport math\n")
    (tmp_path / "length.py").write_text("from pesky import direction, rule\n")
    found = upward_imports(tmp_path, ("pesky",), LEVELS)
    assert found == ["length.py imports pesky.direction", "rule.py imports pesky.online.VSGD"]


def test_no_test_imports_from_another():
    tests = Path(__file__).parent
    found = [
        f"{path.relative_to(tests)} imports {node.module}"
        for path in sorted(tests.rglob("*.py"))
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8")))
        if isinstance(node, ast.ImportFrom) and ".test_" in f".{node.module}"
    ]
    assert found == [], "helpers have files of their own"

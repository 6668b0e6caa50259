"""The tests' own settings: Ctrl-C wherever they are started, marks that are true, lowered processors."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests import portable

HERE = Path(__file__).relative_to(Path(__file__).parents[1])


@pytest.mark.subprocess
def test_processes_that_tests_start_can_be_interrupted():
    code = "import signal; print(signal.getsignal(signal.SIGINT) is signal.default_int_handler)"
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert result.stdout == "True\n"


@pytest.mark.subprocess
@pytest.mark.skipif(sys.platform == "win32", reason="no shell that ignores SIGINT")
def test_tests_of_interrupts_hold_where_a_script_starts_them_in_the_background():
    chosen = [
        "tests/lab/runs/test_threads.py",
        f"{HERE}::test_processes_that_tests_start_can_be_interrupted",
    ]
    result = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", *chosen],
        cwd=Path(__file__).parents[1],
        preexec_fn=portable.ignore_interrupts,
        capture_output=True,
        text=True,
        check=False,
    )
    assert result.returncode == 0, result.stdout


def test_a_test_that_starts_a_process_has_to_say_so():
    with pytest.raises(AssertionError, match="mark it"):
        subprocess.run([sys.executable, "--version"], check=True)


CAPABILITIES = """
import json
import numba
import numpy as np
import torch
from numpy._core._multiarray_umath import __cpu_features__ as has
total = numba.njit(fastmath=True)(lambda x: x.sum())
total(np.ones(9))
(assembly,) = total.inspect_asm().values()
print(json.dumps({
    "torch": torch.backends.cpu.get_cpu_capability(),
    "numpy": [name for name in ("X86_V3", "X86_V4") if has[name]],
    "numba": [register for register in ("ymm", "zmm") if register in assembly],
    "threads": torch.get_num_threads(),
}))
"""


@pytest.mark.subprocess
@pytest.mark.parametrize(
    ("setting", "expected"),
    [
        ("default", {"torch": "DEFAULT", "numpy": [], "numba": [], "threads": 1}),
        ("avx2", {"torch": "AVX2", "numpy": ["X86_V3"], "numba": ["ymm"]}),
    ],
)
def test_a_setting_takes_instructions_away_from_every_library(setting, expected):
    pytest.importorskip("torch")
    if not portable.has_avx2():
        pytest.skip("there is nothing to take away")
    result = subprocess.run(
        [sys.executable, "-W", "error", "-c", CAPABILITIES],
        env=os.environ | portable.environment_of(setting),
        capture_output=True,
        text=True,
        check=False,
    )
    assert result.returncode == 0, result.stderr
    assert json.loads(result.stdout).items() >= expected.items()

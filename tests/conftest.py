import os
import secrets
import signal
import sys
from pathlib import Path

import pytest

# Files all of whose tests bear a mark; other tests bear theirs where they stand.
WHOLE_FILES = {
    "subprocess": (
        "cli/test_cli.py",
        "cli/test_race.py",
        "cli/test_torch_table.py",
        "cli/test_train.py",
        "lab/race/test_cluster.py",
        "lab/race/test_kills.py",
        "test_site.py",
        "torch/loss/test_data_parallel.py",
    ),
    "peers": ("torch/test_loops.py", "torch/promise/test_stock_models.py"),
    "slow": (
        "lab/torch_table/test_tasks.py",
        "test_site.py",
        "torch/curvature/test_finite.py",
        "torch/promise/test_interrupts.py",
        "torch/promise/test_promise.py",
        "torch/test_devices.py",
        "torch/test_golden.py",
        "torch/test_matrix.py",
    ),
}

_unmarked: list[str] = []  # the running test, unless it is marked to start processes


def pytest_configure():
    """Let Ctrl-C work in tests and in what they start, also where a shell script runs them.

    A shell starts its background jobs with SIGINT ignored, and that is inherited. A handler is not: a
    process started from here begins with the system's own.
    """
    signal.signal(signal.SIGINT, signal.default_int_handler)
    sys.addaudithook(_refuse_unmarked_processes)
    # Some virtual machines list AMX and then refuse it: torch's products in bfloat16 end the process.
    os.environ.setdefault("ONEDNN_MAX_CPU_ISA", "AVX512_CORE_BF16")


def pytest_itemcollected(item):
    for mark, files in WHOLE_FILES.items():
        if item.path in [Path(__file__).parent / file for file in files]:
            item.add_marker(mark)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_protocol(item):
    _unmarked[:] = [] if item.get_closest_marker("subprocess") else [item.nodeid]
    try:
        return (yield)
    finally:
        _unmarked.clear()


def _refuse_unmarked_processes(event, arguments):
    """Fail a test that starts Python or a shell without its mark: `make test-fast` leaves these out."""
    if event == "subprocess.Popen" and _unmarked:
        command = [str(part) for part in (arguments[0], *arguments[1])]
        assert not {sys.executable, "/bin/sh"} & set(command), (
            f"{_unmarked[0]} starts a process: mark it, @pytest.mark.subprocess"
        )


@pytest.fixture
def fresh_seed() -> int:
    """A new seed every time, shown on failure: a test that states a statistical bound holds for any."""
    seed = secrets.randbelow(2**31)
    print(f"fresh_seed = {seed}")
    return seed

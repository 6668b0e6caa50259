"""Several processes, each with a part of every batch and of the parameters, against one alone."""

import os
import re
import socket
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from tests.torch.loops import close, same
from tests.torch.shards.process import LOADED, RUNS, SAVED, SPOILED, WAYS
from tests.torch.shards.training import CASES, SAMPLES, found, model_of, optimizer_of, train

pytestmark = [
    pytest.mark.subprocess,
    pytest.mark.slow,
    pytest.mark.filterwarnings("ignore:.*no curvature of its own"),
]

PAGE = Path(__file__).parents[3] / "docs" / "distributed.md"
COUNTS = (4, 2, 1)
# Trajectories amplify rounding, as sums are in another order.
TOLERANCES = {"rtol": 1e-6, "atol": 1e-8}


def started(folder, count):
    """Start so many processes."""
    command = [sys.executable, "-m", "tests.torch.shards.process", str(folder)]
    environment = os.environ | {"OMP_NUM_THREADS": "1"}
    ranks = [[*command, str(rank), str(count)] for rank in range(count)]
    return [subprocess.Popen(of_rank, env=environment) for of_rank in ranks]


@pytest.fixture(scope="module")
def processes(tmp_path_factory):
    """What every process found, by their number: [count][rank]."""
    folder = tmp_path_factory.mktemp("processes")
    first, *others = COUNTS  # which go on from what the first have saved
    for counts in ([first], others):
        running = [process for count in counts for process in started(folder, count)]
        assert [process.wait(timeout=1200) for process in running] == [0] * len(running)
    return {
        count: [torch.load(folder / f"{count}-{rank}.pt", weights_only=True) for rank in range(count)]
        for count in COUNTS
    }


@pytest.fixture(scope="module")
def alone():
    """What one process finds that has all of each batch, by the name of the case."""
    results = {}
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    for name, case in CASES.items():
        net = model_of(case.model)
        optimizer = optimizer_of(net, case)
        train(net, optimizer, case, slice(0, SAMPLES))
        results[name] = found(net, optimizer)
    torch.set_num_threads(threads)
    return results


def are_alike(one, other):
    close(one["parameters"], other["parameters"], **TOLERANCES)
    assert one["counters"] == other["counters"]
    for name in ("scale", "caution"):
        assert one[name] == pytest.approx(other[name], rel=1e-6)


@pytest.mark.parametrize(
    ("count", "how", "name"), [(count, *run) for count in COUNTS for run in RUNS[count]]
)
def test_processes_learn_as_one_does(processes, alone, count, how, name):
    for of_rank in processes[count]:
        are_alike(of_rank[how, name], alone[name])


@pytest.mark.parametrize("count", COUNTS)
def test_all_processes_have_the_same_bits(processes, count):
    first, *others = processes[count]
    for other in others:
        for key, result in first.items():
            if isinstance(result, dict):
                assert same(result["parameters"], other[key]["parameters"]), key
                assert result["counters"] == other[key]["counters"], key


@pytest.mark.parametrize("count", LOADED)
@pytest.mark.parametrize("name", SAVED)
def test_what_four_have_saved_others_go_on_from(processes, alone, count, name):
    for of_rank in processes[count]:
        are_alike(of_rank["loaded", name], alone[name])


@pytest.mark.parametrize("name", SPOILED)
@pytest.mark.parametrize("how", WAYS)
def test_a_loss_that_is_not_finite_in_one_process_is_skipped_by_all(processes, how, name):
    results = [of_rank[f"spoiled {how}", name] for of_rank in processes[2]]
    assert [sum(one["counters"]["skipped"].values()) for one in results] == [1, 1]
    assert results[0]["counters"] == results[1]["counters"]
    assert same(results[0]["parameters"], results[1]["parameters"])
    assert all(bool(one.isfinite().all()) for one in results[0]["parameters"])


def test_an_exception_in_one_process_ends_others_that_wait_for_it_elsewhere(processes):
    told, raised = [of_rank["failing early", ""] for of_rank in processes[2]]
    assert raised == "ValueError: no such batch"
    assert told.startswith("RuntimeError")


@pytest.mark.parametrize("how", WAYS)
def test_an_exception_in_one_process_ends_the_step_of_all(processes, how):
    told, raised = [of_rank[f"failing {how}", ""] for of_rank in processes[2]]
    assert raised == "ValueError: no such batch"
    assert told.startswith("RuntimeError: the loss could not be computed in another one")


def test_a_process_explains_the_part_that_it_has(processes):
    there = [of_rank["explained", ""] for of_rank in processes[4]]
    # Three outputs are too few for the last of four processes to have one.
    assert there == [[6, 6, 6], [6, 6, 6], [6, 6, 6], [6, 4, 6]]
    assert processes[1][0]["explained", ""] == [6, 6, 6]


@pytest.mark.parametrize(("how", "sent"), [("fsdp", 4), ("ddp", 1)])
def test_a_settled_step_sends_few_messages(processes, how, sent):
    assert [of_rank[f"messages {how}", ""] for of_rank in processes[2]] == [sent, sent]


def test_the_recipe_runs_in_two_processes(tmp_path):
    (recipe,) = re.findall(r"```py\n(.*?)```", PAGE.read_text(encoding="utf-8"), flags=re.DOTALL)
    (tmp_path / "recipe.py").write_text(recipe)
    with socket.socket() as free:
        free.bind(("localhost", 0))
        port = free.getsockname()[1]
    shared = {"WORLD_SIZE": "2", "MASTER_ADDR": "localhost", "MASTER_PORT": str(port)}
    own = [os.environ | shared | {"RANK": str(rank), "OMP_NUM_THREADS": "1"} for rank in range(2)]
    command = [sys.executable, "recipe.py"]
    running = [subprocess.Popen(command, cwd=tmp_path, env=environment) for environment in own]
    assert [process.wait(timeout=600) for process in running] == [0, 0]
    assert list((tmp_path / "checkpoint").glob("*.distcp"))

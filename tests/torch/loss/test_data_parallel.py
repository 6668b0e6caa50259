"""Two processes under DistributedDataParallel against one with the joined batch."""

import subprocess
import sys

import pytest
import torch

from tests.torch.loops import close, same
from tests.torch.loss.data_parallel import CASES, SPOILED, model_of, train


@pytest.fixture(scope="module")
def ranks(tmp_path_factory):
    folder = tmp_path_factory.mktemp("ranks")
    command = [sys.executable, "-m", "tests.torch.loss.data_parallel", str(folder)]
    started = [subprocess.Popen([*command, str(rank)]) for rank in range(2)]
    assert [process.wait(timeout=600) for process in started] == [0, 0]
    return [torch.load(folder / f"{rank}.pt", weights_only=True) for rank in range(2)]


@pytest.mark.parametrize("case", [*CASES, *(f"spoiled {case}" for case in SPOILED)])
def test_replicas_stay_identical(ranks, case):
    assert same(ranks[0][case][0], ranks[1][case][0])
    assert ranks[0][case][1] == ranks[1][case][1]


@pytest.mark.parametrize("case", CASES)
def test_they_learn_as_one_process_does(ranks, case):
    alone, _ = train(case, model_of(case), slice(0, 8))
    close(alone, ranks[0][case][0], rtol=2e-3, atol=2e-4)


@pytest.mark.parametrize("case", SPOILED)
def test_what_is_bad_in_one_process_is_skipped_by_all(ranks, case):
    assert [found[f"spoiled {case}"][1] for found in ranks] == [{SPOILED[case]: 1}] * 2

"""Checkpoints of the first version go on."""

import json

import pytest
import torch

from tests.torch.promise.first_version import CASES, FILE, from_plain, start, train
from tests.torch.promise.watching import same_bits

CHECKPOINTS = json.loads(FILE.read_text())


@pytest.mark.parametrize(("form", "granularity"), CASES)
def test_a_checkpoint_of_the_first_version_goes_on(form, granularity):
    saved = from_plain(CHECKPOINTS[f"{form} {granularity}"])
    model, optimizer = start(form, granularity, seed=3)
    model.load_state_dict(saved["model"])
    optimizer.load_state_dict(saved["optimizer"])
    assert all(same_bits(one, saved["model"][name]) for name, one in model.named_parameters())
    told = optimizer.explain()
    assert told.steps == saved["optimizer"]["counters"]["steps"] == 45
    if form == "paper":
        assert all(rate > 0 for rate in optimizer.rates().values())
    else:  # along other directions, of which nothing is known before the next step
        assert optimizer.collective.scale == 0
    first = train(form, model, optimizer, 1, seed=2)[0]
    assert all(rate > 0 for rate in optimizer.rates().values())
    last = train(form, model, optimizer, 40, seed=2)[-1]
    assert optimizer.explain().steps == 86
    assert not optimizer.explain().skipped
    assert last < first
    assert all(bool(torch.isfinite(one).all()) for one in model.parameters())

"""States as `torch.distributed.checkpoint` takes them, in one process; see `shards` for several."""

import pytest
import torch
from torch.distributed import checkpoint
from torch.distributed.checkpoint.state_dict import get_state_dict, set_state_dict
from torch.nn.functional import cross_entropy

from pesky.errors import InputError
from pesky.torch import VSGD
from tests.torch.loops import (
    FORMS,
    batches,
    dialect_of,
    model,
    parameters,
    same,
    train,
    train_in_form,
)

pytestmark = pytest.mark.filterwarnings("ignore:torch.distributed is disabled")
GRANULARITIES = ("element", "block", "global")


def made(form, granularity, **settings):
    net = model()
    return net, VSGD(net.parameters(), dialect=dialect_of(form), granularity=granularity, **settings)


def states(net, optimizer):
    weights, state = get_state_dict(net, optimizer)
    return {"model": weights, "optimizer": state}


@pytest.mark.parametrize("granularity", GRANULARITIES)
@pytest.mark.parametrize("form", FORMS)
def test_a_fresh_optimizer_goes_on_from_what_another_has_saved(tmp_path, form, granularity):
    net, optimizer = made(form, granularity)
    states(net, optimizer)  # says that states are to be portable, as a group of processes does
    train_in_form(form, net, optimizer, steps=25)
    checkpoint.save(states(net, optimizer), checkpoint_id=tmp_path)
    other, follower = made(form, granularity)
    loaded = states(other, follower)
    checkpoint.load(loaded, checkpoint_id=tmp_path)
    set_state_dict(
        other, follower, model_state_dict=loaded["model"], optim_state_dict=loaded["optimizer"]
    )
    for each, its in ((net, optimizer), (other, follower)):
        train_in_form(form, each, its, steps=10, seed=3)
    assert same(parameters(net), parameters(other))
    assert optimizer.counters == follower.counters
    assert optimizer.collective == follower.collective
    assert optimizer.progress == follower.progress


@pytest.mark.parametrize("form", FORMS)
def test_asking_for_a_state_changes_no_step(form):
    (net, optimizer), (other, asked) = made(form, "element"), made(form, "element")
    states(other, asked)
    for each, its in ((net, optimizer), (other, asked)):
        train_in_form(form, each, its)
    assert same(parameters(net), parameters(other))
    assert not any(one.grad is not None for one in made(form, "element")[0].parameters())


def test_all_states_have_the_same_tensors():
    seen = set()
    for form in ("measuring", "following"):
        for steps in (0, 5, 15):
            net, optimizer = made(form, "element", weight_decay=0.1, decoupled_weight_decay=True)
            states(net, optimizer)
            train_in_form(form, net, optimizer, steps=steps)
            for state in optimizer.state_dict()["state"].values():
                seen.add(tuple(sorted(state)))
    assert len(seen) == 1


def test_a_step_without_curvature_is_still_refused():
    net, optimizer = made("measuring", "element")
    ((x, y),) = batches(1)
    cross_entropy(net(x), y).backward()
    for group in optimizer.param_groups:
        group["lr"] = 0.0
    with pytest.raises(InputError, match="no curvature"):
        optimizer.step()


def test_a_portable_state_is_loaded_with_weights_only(tmp_path):
    net, optimizer = made("measuring", "element")
    states(net, optimizer)
    train(net, optimizer)
    torch.save(optimizer.state_dict(), tmp_path / "state.pt")
    other, follower = made("measuring", "element")
    other.load_state_dict(net.state_dict())
    follower.load_state_dict(torch.load(tmp_path / "state.pt", weights_only=True))
    for each, its in ((net, optimizer), (other, follower)):
        train(each, its, steps=5, seed=3)
    assert same(parameters(net), parameters(other))

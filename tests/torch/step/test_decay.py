"""Decoupled weight decay: a step takes weight_decay times its size of each parameter off it.

A twin takes the same step without decay, from the same parameters; what decay is to add follows by hand.
"""

import math
import pickle

import pytest
import torch
from torch import nn

from pesky.errors import InputError
from pesky.torch import VSGD
from pesky.torch.passes.bundle import Part
from pesky.torch.step import decay
from tests.torch.loops import FORMS, dialect_of, same, step_in_form
from tests.torch.matrix import Combination, Run

WAY_TO = {"paper": "minimize", "measuring": "minimize", "following": "backward"}
GRANULARITIES = ("element", "block", "global")
# Kernels work on the first two, torch operations on the others.
TOLERANCES = {
    "float64": {"rtol": 1e-12, "atol": 1e-14},
    "float32": {"rtol": 1e-5, "atol": 1e-7},
    "strided": {"rtol": 1e-5, "atol": 1e-7},
    "bfloat16": {"rtol": 2.0**-6, "atol": 1e-4},
}


def trained(form, kind="float64", **settings):
    run = Run(Combination(form, WAY_TO[form], kind), **settings)
    run.train(8)
    return run


def iterates(run):
    """Where steps begin, in float64."""
    states = [run.optimizer.state[one] for one in run.model.parameters()]
    shown = zip(states, run.model.parameters(), strict=True)
    return [state.get("iterate", one).detach().to(torch.float64, copy=True) for state, one in shown]


def stepped(run, weight_decay):
    """Take a step of a copy that decays; return where it leads, and the copy."""
    other = run.copied("deepcopy")
    for group in other.optimizer.param_groups:
        group.update(weight_decay=weight_decay, decoupled_weight_decay=True)
    other.train(1, seed=5)
    return iterates(other), other


def size_of(ends, starts):
    """The root mean square of a step."""
    return root_mean_square([end - start for end, start in zip(ends, starts, strict=True)])


def root_mean_square(changes):
    return torch.cat([one.flatten() for one in changes]).double().square().mean().sqrt().item()


def size_before_rounding(run):
    """The root mean square of a step of the following form, most of which half precision rounds away."""
    states = [run.optimizer.state[one] for one in run.model.parameters()]
    return root_mean_square([state["length"] * state["direction"] for state in states])


# --- One step by hand ---------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", TOLERANCES)
@pytest.mark.parametrize("granularity", GRANULARITIES)
@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("lr", [1.0, 0.5])
def test_a_step_takes_its_size_times_weight_decay_of_parameters_off(form, granularity, kind, lr):
    run = trained(form, kind, granularity=granularity, lr=lr)
    starts = iterates(run)
    plain, other = stepped(run, 0.0)
    size = size_before_rounding(other) if form == "following" else size_of(plain, starts)
    weight_decay = 0.25 / size  # much, so that half precision can tell
    ends, _ = stepped(run, weight_decay)
    for end, without, start in zip(ends, plain, starts, strict=True):
        torch.testing.assert_close(end, without - weight_decay * size * start, **TOLERANCES[kind])


@pytest.mark.parametrize("kind", TOLERANCES)
@pytest.mark.parametrize("form", FORMS)
def test_a_step_takes_no_more_off_than_there_is(form, kind):
    run = trained(form, kind)
    starts = iterates(run)
    plain, _ = stepped(run, 0.0)
    ends, _ = stepped(run, 1e30)
    for end, without, start in zip(ends, plain, starts, strict=True):
        tolerance = torch.finfo(run.model.net[0].weight.dtype).eps * start.abs().max().item()
        torch.testing.assert_close(end, without - start, rtol=0.0, atol=4 * tolerance)


@pytest.mark.parametrize("granularity", GRANULARITIES)
@pytest.mark.parametrize("form", FORMS)
def test_gradients_curvatures_and_losses_know_nothing_of_it(form, granularity):
    run = trained(form, granularity=granularity)
    _, plain = stepped(run, 0.0)
    _, other = stepped(run, 10.0)
    assert other.optimizer.collective == plain.optimizer.collective
    for one, two in zip(plain.model.parameters(), other.model.parameters(), strict=True):
        known, found = dict(plain.optimizer.state[one]), dict(other.optimizer.state[two])
        for state in (known, found):  # the average has not seen the step yet
            state.pop("iterate", None)
            state.pop("decayed", None)
        torch.testing.assert_close(found, known, rtol=0.0, atol=0.0)


@pytest.mark.parametrize("form", FORMS)
def test_groups_have_sizes_and_weight_decays_of_their_own(form):
    run = trained(form, "two groups")
    starts = iterates(run)
    plain, _ = stepped(run, 0.0)
    other = run.copied("deepcopy")
    parts = ((slice(0, 2), 0.5), (slice(2, 4), 0.1))
    for group, (members, share) in zip(other.optimizer.param_groups, parts, strict=True):
        weight_decay = share / size_of(plain[members], starts[members])
        group.update(weight_decay=weight_decay, decoupled_weight_decay=True)
    other.train(1, seed=5)
    ends = iterates(other)
    for members, share in parts:
        for end, without, start in zip(ends[members], plain[members], starts[members], strict=True):
            torch.testing.assert_close(end, without - share * start, rtol=1e-3, atol=1e-5)


@pytest.mark.parametrize("form", FORMS)
def test_one_group_that_decays_leaves_the_steps_of_others_alone(form):
    run = trained(form, "two groups")
    plain, _ = stepped(run, 0.0)
    other = run.copied("deepcopy")
    settings = zip(other.optimizer.param_groups, (0.0, 5.0), strict=True)
    for group, weight_decay in settings:
        group.update(weight_decay=weight_decay, decoupled_weight_decay=True)
    other.train(1, seed=5)
    ends = iterates(other)
    assert same(ends[:2], plain[:2])
    assert not same(ends[2:], plain[2:])


# --- AdamW --------------------------------------------------------------------------------------------


@pytest.mark.parametrize("form", FORMS)
def test_where_all_entries_step_alike_it_is_adamw(form):
    """Gradients are plus or minus one everywhere: an entry changes by AdamW's rate exactly."""
    torch.manual_seed(0)
    signs = torch.randn(30, dtype=torch.float64).sign()
    start = torch.randn(30, dtype=torch.float64)
    plain, ours, theirs = (nn.Parameter(start.clone()) for _ in range(3))
    settings = {
        "dialect": dialect_of(form),
        "init_batches": 1,
        "curvature": lambda loss, ones: [torch.full_like(one, 10.0) for one in ones],
    }
    without = VSGD([plain], **settings)
    optimizer = VSGD([ours], weight_decay=0.1, decoupled_weight_decay=True, **settings)
    adamw = torch.optim.AdamW([theirs], weight_decay=0.1, eps=0.0)
    for _ in range(6):
        before = iterate_of(without, plain)
        for its, one in ((without, plain), (optimizer, ours)):
            way = "following" if form == "following" else "measuring"
            step_in_form(way, its, lambda one=one: signs @ one)
        rates = (iterate_of(without, plain) - before).abs()
        torch.testing.assert_close(rates, rates[:1].expand_as(rates))
        adamw.param_groups[0]["lr"] = rates[0].item()
        theirs.grad = signs
        if rates[0] > 0:  # after the initial batch
            adamw.step()
        torch.testing.assert_close(iterate_of(optimizer, ours), theirs.detach())
    assert (theirs.detach() - plain.detach()).abs().max() > 1e-4


def iterate_of(optimizer, parameter):
    return optimizer.state[parameter].get("iterate", parameter).detach().clone()


# --- What does not decay ------------------------------------------------------------------------------


@pytest.mark.parametrize("form", FORMS)
def test_without_weight_decay_the_option_changes_no_bit(form):
    runs = [trained(form, "float32", decoupled_weight_decay=flag) for flag in (False, True)]
    for run in runs:
        run.train(20)
    assert same(*(iterates(run) for run in runs))


@pytest.mark.parametrize("form", FORMS)
def test_where_lr_is_zero_nothing_decays(form):
    run = trained(form)
    for group in run.optimizer.param_groups:
        group["lr"] = 0.0
    starts = iterates(run)
    assert same(stepped(run, 1e6)[0], starts)


@pytest.mark.parametrize("form", FORMS)
def test_a_step_that_is_not_taken_does_not_decay(form):
    run = trained(form, weight_decay=1.0, decoupled_weight_decay=True)
    starts = iterates(run)
    run.poison(math.nan)
    assert same(iterates(run), starts)


@pytest.mark.parametrize("form", FORMS)
def test_what_is_frozen_or_has_no_gradient_does_not_decay(form):
    torch.manual_seed(0)
    used, frozen, late = (nn.Parameter(torch.randn(5)) for _ in range(3))
    optimizer = VSGD(
        [used, frozen, late],
        weight_decay=0.1,
        decoupled_weight_decay=True,
        dialect=dialect_of(form),
        init_batches=2,
    )
    way = "following" if form == "following" else "measuring"

    def loss(*ones):
        return sum((one - 1).square().sum() for one in ones)

    for _ in range(8):
        step_in_form(way, optimizer, lambda: loss(used, frozen, late))
    frozen.requires_grad_(False)
    before = [frozen.clone(), iterate_of(optimizer, late)]
    start = iterate_of(optimizer, used)
    for _ in range(3):
        step_in_form(way, optimizer, lambda: loss(used))
    assert same([frozen, iterate_of(optimizer, late)], before)
    assert not torch.equal(iterate_of(optimizer, used), start)


def test_parameters_without_a_finite_size_of_a_step_do_not_decay():
    group = {"weight_decay": 0.1, "decoupled_weight_decay": True}
    thetas = torch.tensor([math.inf, 1.0]), torch.tensor([2.0, 3.0])
    copies = {Part(one, one, None, group, {}): one - 0.5 for one in thetas}
    assert not decay.pull(copies)
    assert thetas[0].tolist() == [math.inf, 1.0]
    assert thetas[1].tolist() == [2.0, 3.0]


# --- Going back, and going on -------------------------------------------------------------------------


@pytest.mark.parametrize("weight_decay", [1.0, 1e30])
def test_a_step_that_is_undone_has_not_decayed(weight_decay):
    """Even where decay took all of the parameters."""
    run = trained("following")
    starts = iterates(run)
    ends, other = stepped(run, weight_decay)
    assert not same(ends, starts)
    other.poison(math.nan)
    other.poison(math.nan)
    assert other.optimizer.collective.restored == 1
    for end, start in zip(iterates(other), starts, strict=True):
        torch.testing.assert_close(end, start)


@pytest.mark.parametrize("form", FORMS)
def test_decay_can_be_switched_off_again(form):
    """What a step took off is not put back by undoing a later one that took nothing off."""
    run = trained(form, weight_decay=1.0, decoupled_weight_decay=True)
    starts = iterates(run)
    _, other = stepped(run, 0.0)
    assert not same(iterates(other), starts)
    other.poison(math.nan)
    other.poison(math.nan)
    if form == "following":
        for end, start in zip(iterates(other), starts, strict=True):
            torch.testing.assert_close(end, start)


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("way", ["state_dict", "pickle"])
def test_the_option_is_saved(form, way):
    run = trained(form, weight_decay=0.1, decoupled_weight_decay=True)
    if way == "state_dict":
        other = run.resumed()
    else:
        other = run.copied("pickle")
        assert pickle.loads(pickle.dumps(run.optimizer)).defaults["decoupled_weight_decay"] is True
    assert other.optimizer.param_groups[0]["decoupled_weight_decay"] is True
    for each in (run, other):
        each.train(10, seed=2)
    assert same(iterates(run), iterates(other))


@pytest.mark.parametrize("form", FORMS)
def test_a_state_from_before_there_was_the_option_goes_on_with_l2(form):
    run = trained(form, weight_decay=0.1)
    other = run.copied("deepcopy")
    old = run.optimizer.state_dict()
    for group in old["param_groups"]:
        del group["decoupled_weight_decay"]
    other.optimizer.load_state_dict(old)
    assert other.optimizer.param_groups[0]["decoupled_weight_decay"] is False
    for each in (run, other):
        each.train(10, seed=2)
    assert same(iterates(run), iterates(other))


# --- What is refused ----------------------------------------------------------------------------------


def test_a_value_that_is_no_flag_is_refused_where_it_is_set_later():
    run = trained("measuring")
    starts = iterates(run)
    run.optimizer.param_groups[0]["decoupled_weight_decay"] = "yes"
    with pytest.raises(InputError, match="decoupled_weight_decay must be True or False; got 'yes'"):
        run.train(1)
    assert same(iterates(run), starts)


@pytest.mark.parametrize("form", FORMS)
def test_sparse_gradients_are_refused_by_name(form):
    run = Run(Combination(form, WAY_TO[form], "sparse"), weight_decay=0.1, decoupled_weight_decay=True)
    with pytest.raises(InputError, match=r"decoupled_weight_decay must be False .*sparse.* got True"):
        run.train(1)
    embedding = run.model.net[0].weight
    assert not run.optimizer.state[embedding]
    run.optimizer.param_groups[0]["decoupled_weight_decay"] = False
    run.train(8)

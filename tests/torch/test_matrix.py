"""What every form promises, whichever way it is called and whatever the parameters: see `matrix.py`."""

import json
import math
import weakref
from functools import lru_cache

import pytest
import torch
from torch.nn.modules import module as torch_module

from pesky.errors import InputError
from tests.torch.loops import close, same
from tests.torch.matrix import (
    ALL_KINDS,
    COMBINATIONS,
    FORMS,
    IMPOSSIBLE,
    INITIAL,
    ONE_WAY,
    OTHER_STEPS,
    WAYS,
    Combination,
    Run,
)

WORDS = ("starting", "learning", "stuck", "skipping", "diverging")
SOME = INITIAL + 4  # steps, after which there were moves

every = pytest.mark.parametrize("combination", COMBINATIONS, ids=str)
one_way_each = pytest.mark.parametrize("combination", ONE_WAY, ids=str)


def trained(combination, steps=SOME, **settings):
    run = Run(combination, **settings)
    run.train(steps)
    return run


@lru_cache(maxsize=2 * len(COMBINATIONS))
def looked_at(combination):
    """A run that is looked at only: nobody may go on with it."""
    return trained(combination)


# --- The list -------------------------------------------------------------------------------------


def test_every_form_way_and_kind_is_run():
    for names, used in zip((FORMS, WAYS, ALL_KINDS), zip(*COMBINATIONS, strict=True), strict=True):
        assert set(names) == set(used)
    assert {(one.form, one.kind) for one in COMBINATIONS} == {(one.form, one.kind) for one in ONE_WAY}


@pytest.mark.parametrize("reason", IMPOSSIBLE, ids=lambda reason: "-".join(map(str, reason[:3])))
def test_what_is_called_impossible_is_refused_or_leads_to_another_form(reason):
    for form in [reason.form] if reason.form else FORMS:
        run = Run(Combination(form, reason.way, reason.kind or "float32"))
        refused = ""
        try:
            run.train(1)
        except InputError as error:
            refused = str(error)
        assert "again" in refused or run.optimizer.counters["form"] != form


@pytest.mark.parametrize("reason", OTHER_STEPS, ids=lambda reason: "-".join(map(str, reason[:3])))
def test_ways_that_are_said_to_take_other_steps_do(reason):
    runs = [looked_at(one) for one in COMBINATIONS if reason.concerns(*one)]
    assert not all(same(run.iterate(), runs[0].iterate()) for run in runs)


# --- It learns ------------------------------------------------------------------------------------


@every
def test_it_learns(combination):
    run = Run(combination)
    assert run.optimizer.counters["form"] == ("paper" if combination.form == "paper" else None)
    before, resting = run.loss(), [one.clone() for one in run.kind.resting(run.model)]
    run.train(FORMS[combination.form].steps)
    assert run.optimizer.counters["form"] == combination.form
    assert run.loss() < 0.9 * before
    assert same(resting, run.kind.resting(run.model))


@pytest.mark.slow
# Sparse rows follow the paper's rule, which goes astray for a while: the dense ones wait.
@pytest.mark.filterwarnings("ignore:the scale of the steps has been below")
@one_way_each
def test_it_learns_well(combination):
    """To a stated loss, and not worse than SGD with an ordinary rate."""
    steps = FORMS[combination.form].many
    run = trained(combination, steps)
    assert run.loss() < run.kind.enough
    other = Run(combination)
    sgd = torch.optim.SGD([one for one in other.model.parameters() if one.requires_grad], lr=0.01)
    torch.manual_seed(1)
    for x, y in other.kind.batches(steps, seed=1):
        sgd.zero_grad()
        other.model(x, y).backward()
        sgd.step()
    assert run.loss() < 1.1 * other.loss()


@pytest.mark.parametrize(
    "combination",
    [one for one in ONE_WAY if not any(why.concerns(*one) for why in OTHER_STEPS)],
    ids=str,
)
def test_all_ways_of_a_form_take_the_same_steps(combination):
    runs = [looked_at(one) for one in COMBINATIONS if one[::2] == combination[::2]]
    for run in runs:
        if run.way not in (WAYS["minimize"], WAYS["step"], WAYS["step again"]):  # which show averages
            assert same(run.iterate(), run.parameters())
        close(run.iterate(), runs[0].iterate(), rtol=1e-4, atol=1e-5)
        if combination.form != "measuring":
            assert same(run.parameters(), runs[0].parameters())


# --- It goes on -----------------------------------------------------------------------------------


def assert_go_on_alike(run, *others, steps=3):
    """All go on for some steps, with a bad batch before them, and differ in nothing."""
    run.poison(math.nan)
    losses = run.train(steps, seed=2)
    for other in others:
        other.poison(math.nan)
        assert other.train(steps, seed=2) == losses
        assert same(run.parameters(), other.parameters())
        assert same(run.model.buffers(), other.model.buffers())
        assert run.optimizer.counters == other.optimizer.counters
        assert run.optimizer.collective == other.optimizer.collective
        assert run.optimizer.progress == other.optimizer.progress


@every
def test_resuming_goes_on_bit_for_bit(combination):
    """From where batches are still collected, from the first moves, and from later."""
    run = trained(combination, INITIAL - 1)
    for _ in range(3):
        assert_go_on_alike(run, run.resumed())


@pytest.mark.slow
@one_way_each
def test_going_on_late_is_bit_for_bit(combination):
    """From where curvature is measured seldom, and more so."""
    run = trained(combination, 60)
    for _ in range(2):
        assert_go_on_alike(run, run.resumed(), run.copied("deepcopy"), steps=20)
        run.train(70)


@every
def test_a_copy_goes_on_alike(combination):
    run = trained(combination)
    assert_go_on_alike(run, run.copied("deepcopy"))


@one_way_each
def test_a_pickled_copy_goes_on_alike(combination):
    run = trained(combination)
    assert_go_on_alike(run, run.copied("pickle"))


# --- Accidents ------------------------------------------------------------------------------------


@every
def test_bad_batches_do_no_harm_and_are_counted(combination):
    run = trained(combination)
    before, steps = run.parameters(), run.optimizer.counters["steps"]
    run.poison(math.nan)
    assert same(before, run.parameters())
    run.poison(math.inf)
    run.poison(math.nan)
    assert all(one.isfinite().all() for one in run.parameters())
    assert sum(run.optimizer.explain().skipped.values()) == 3
    assert run.optimizer.counters["steps"] == steps
    before = run.iterate()
    assert all(math.isfinite(loss) for loss in run.train(3, seed=2))
    assert run.optimizer.counters["steps"] == steps + 3
    assert not same(before, run.iterate())
    assert all(one.isfinite().all() for one in run.parameters())


# --- What does not move ---------------------------------------------------------------------------


def assert_frozen_until_let_go(combination, steps):
    """What is frozen from the start on, or after some steps, keeps its bits until it is let go."""
    run = Run(combination)
    frozen = [one for one in run.model.parameters() if not one.requires_grad]
    if not frozen:
        run.train(steps)
        frozen = [next(run.model.parameters()).requires_grad_(False)]
    before = [one.detach().clone() for one in frozen]
    run.train(steps, seed=2)
    assert same(before, frozen)
    for one in frozen:
        one.requires_grad_(True)
    run.train(SOME, seed=3)
    assert not any(torch.equal(*pair) for pair in zip(before, frozen, strict=True))


@every
def test_what_is_frozen_keeps_its_bits_until_it_is_let_go(combination):
    assert_frozen_until_let_go(combination, SOME)


@pytest.mark.slow
@one_way_each
def test_what_is_frozen_late_keeps_its_bits_until_it_is_let_go(combination):
    """Where averages are visible by now."""
    assert_frozen_until_let_go(combination, 50)


def assert_plain_at_lr_zero(combination, steps):
    """Parameters keep their bits; losses, buffers and the generator are as after one call a step."""
    run = Run(combination)
    for group in run.optimizer.param_groups:
        group["lr"] = 0.0
    plain = run.kind.make()
    losses = run.train(steps)
    torch.manual_seed(1)
    expected = [plain(x, y).item() for x, y in run.kind.batches(steps, seed=1)]
    assert run.optimizer.counters["steps"] == steps
    assert same(run.parameters(), plain.parameters())
    assert torch.equal(torch.get_rng_state(), run.generator)
    assert losses == pytest.approx(expected, rel=1e-5)
    close(run.model.buffers(), plain.buffers())


@every
def test_an_lr_of_zero_changes_nothing_visible(combination):
    assert_plain_at_lr_zero(combination, SOME)


@pytest.mark.slow
@one_way_each
def test_an_lr_of_zero_changes_nothing_visible_for_long(combination):
    assert_plain_at_lr_zero(combination, 60)


# --- Traces ---------------------------------------------------------------------------------------


@every
def test_the_generator_moves_on_once_a_step_while_parameters_move(combination):
    run = looked_at(combination)
    plain = run.kind.make()
    torch.manual_seed(1)
    for x, y in run.kind.batches(SOME, seed=1):
        plain(x, y)
    assert torch.equal(torch.get_rng_state(), run.generator)


@every
def test_explain_has_a_verdict_and_a_row_for_each_parameter(combination):
    run = looked_at(combination)
    explained = run.optimizer.explain()
    assert explained.verdict.split(":")[0] in WORDS
    shapes = [tuple(one.shape) for group in run.optimizer.param_groups for one in group["params"]]
    assert [row.shape for row in explained.parameters] == shapes
    told = json.loads(json.dumps(explained.as_dict()))
    assert len(told["parameters"]) == len(shapes)
    lines = str(explained).splitlines()
    assert lines[0] == explained.verdict
    assert [line.split("  ")[0] for line in lines[-len(shapes) :]] == list(run.optimizer.rates())
    assert all(math.isfinite(rate) and rate >= 0 for rate in run.optimizer.rates().values())


@every
def test_no_hooks_and_no_graph_are_left_behind(combination):
    run = Run(combination)
    seen = []

    def note(module, inputs, output):
        seen.append(weakref.ref(output))

    layers = [one for one in run.model.modules() if not list(one.children())]
    handles = [layer.register_forward_hook(note) for layer in layers]
    run.train(SOME)
    for handle in handles:
        handle.remove()
    if run.handle is not None:
        run.handle.remove()
    assert len(seen) >= SOME
    assert not any(one() is not None for one in seen)
    for module in run.model.modules():
        assert not module._forward_hooks
        assert not module._forward_pre_hooks
        assert not module._backward_hooks
        assert not module._backward_pre_hooks
    assert not torch_module._global_forward_hooks
    for one in run.model.parameters():
        assert not one._backward_hooks
        assert not one._post_accumulate_grad_hooks
        assert one.is_leaf
        assert one.grad is None or one.grad.grad_fn is None
    kept = [value for state in run.optimizer.state.values() for value in state.values()]
    assert not any(value.requires_grad for value in kept if isinstance(value, torch.Tensor))

"""The level of a tensor: the root mean square of z * Hz for random signs z, measured now and then."""

import warnings

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from pesky import length
from pesky.torch import VSGD
from pesky.torch.curvature.sources import hutchinson
from pesky.torch.outcome import NO_GRADIENT
from pesky.torch.step.levels import level_of, take_levels
from pesky.torch.step.parts import part_of
from tests.torch.loops import step_in_form, through_file
from tests.torch.robust import classes, mlp, robust, train, values

D = torch.float64
SHAPES = ((3, 2), (3,), (2, 3), (2,))
both_forms = pytest.mark.parametrize("form", ["measuring", "following"])


def network(seed=0):
    generator = torch.Generator().manual_seed(seed)
    theta = [torch.randn(shape, generator=generator, dtype=D) for shape in SHAPES]
    return [nn.Parameter(one) for one in theta]


def loss_at(theta, count=6, seed=1):
    """Return the loss of a small network on a batch, as a function of nothing."""
    generator = torch.Generator().manual_seed(seed)
    x = torch.randn(count, 2, generator=generator, dtype=D)
    y = torch.randint(0, 2, (count,), generator=generator)

    def loss(*ones):
        a, b, c, d = ones or theta
        return F.cross_entropy(F.linear(torch.tanh(F.linear(x, a, b)), c, d), y)

    return loss


def row_lengths(loss, theta):
    """Return the root mean square length of the exact Hessian's rows, tensor by tensor."""
    blocks = torch.autograd.functional.hessian(loss, tuple(one.detach() for one in theta))
    found = []
    for one, row in zip(theta, blocks, strict=True):
        matrix = torch.cat([block.reshape(one.numel(), -1) for block in row], 1)
        found.append(matrix.square().sum(1).mean().sqrt().item())
    return found


def levels(optimizer, theta):
    return [level_of(optimizer.state[one], optimizer.param_groups[0]).curvature for one in theta]


def one_sample(loss, theta, seed):
    """Return the root mean square of z * Hz, tensor by tensor, for the signs of a step."""
    found = hutchinson(loss(), theta, seed)
    return [found[one].square().mean().sqrt().item() for one in theta]


# --- What is measured -----------------------------------------------------------------------------


@both_forms
@pytest.mark.parametrize("granularity", ["element", "block", "global"])
def test_over_many_signs_levels_are_the_lengths_of_the_hessians_rows(form, granularity):
    theta = network()
    loss = loss_at(theta)
    optimizer = VSGD(theta, init_batches=600, granularity=granularity)
    for _ in range(600):
        step_in_form(form, optimizer, loss)
    assert levels(optimizer, theta) == pytest.approx(row_lengths(loss, theta), rel=0.1)


@pytest.mark.parametrize("source", [None, "finite-difference", "hutchinson"])
def test_initial_batches_are_averaged_by_their_squares(source):
    theta = network()
    loss = loss_at(theta)
    optimizer = VSGD(theta, init_batches=4, curvature=source)
    squares = torch.zeros(4, dtype=D)
    for step in range(4):
        squares += torch.tensor(one_sample(loss, theta, step), dtype=D).square() / 4
        optimizer.minimize(loss)
    # Over a finite step the third derivative has a say.
    tolerance = 1e-9 if source == "hutchinson" else 1e-2
    assert levels(optimizer, theta) == pytest.approx(squares.sqrt().tolist(), rel=tolerance)


@both_forms
def test_later_ones_are_averaged_over_a_few(form):
    theta = network()
    loss = loss_at(theta)
    optimizer = VSGD(theta, init_batches=2, curvature="hutchinson", lr=0.0)
    expected, memory = torch.zeros(4, dtype=D), 0.0
    for step in range(30):
        memory = memory + 1 if step < 2 else 1 + memory * (1 - 1 / length.FEWEST)
        squares = torch.tensor(one_sample(loss, theta, step), dtype=D).square()
        expected += (squares - expected) / memory
        before = optimizer.counters["sources"].get("hutchinson", 0)
        step_in_form(form, optimizer, loss)
        assert optimizer.counters["sources"]["hutchinson"] == before + 1
    assert levels(optimizer, theta) == pytest.approx(expected.sqrt().tolist(), rel=1e-9)
    assert 4 < memory < 5


def test_of_bbprop_it_is_the_root_mean_square_of_its_curvatures():
    theta = nn.Parameter(torch.tensor([1.0, 2.0, 3.0], dtype=D))
    bends = torch.tensor([1.0, 4.0, 7.0], dtype=D)
    optimizer = VSGD([theta], init_batches=2, curvature="bbprop")
    optimizer.minimize(lambda: (bends * theta**2).sum() / 2)
    assert levels(optimizer, [theta]) == pytest.approx([bends.square().mean().sqrt().item()])


@pytest.mark.parametrize("source", ["finite-difference", "hutchinson"])
def test_micro_batches_give_the_level_of_the_whole_batch(source):
    """As signs are the same in all passes of a step: levels of parts alone would add up to more."""
    found = []
    for pieces in (1, 3):
        theta = network()
        optimizer = VSGD(theta, init_batches=3, curvature=source)
        generator = torch.Generator().manual_seed(2)
        for _ in range(3):
            x = torch.randn(6, 2, generator=generator, dtype=D)
            y = torch.randint(0, 2, (6,), generator=generator)
            optimizer.zero_grad()
            for some in torch.arange(6).chunk(pieces):

                def loss(x=x[some], y=y[some], theta=theta, pieces=pieces):
                    a, b, c, d = theta
                    output = F.linear(torch.tanh(F.linear(x, a, b)), c, d)
                    return F.cross_entropy(output, y) / pieces

                optimizer.backward(loss(), again=loss)
            optimizer.step()
        found.append(levels(optimizer, theta))
    assert found[0] == pytest.approx(found[1], rel=1e-6)


@both_forms
@pytest.mark.parametrize("decay", [0.0, 0.3])
def test_decay_is_as_a_penalty_in_the_loss(form, decay):
    found = []
    for inside in (False, True):
        theta = network()
        plain = loss_at(theta)

        def loss(inside=inside, theta=theta, plain=plain):
            penalty = sum(one.square().sum() for one in theta) / 2
            return plain() + inside * decay * penalty

        optimizer = VSGD(theta, init_batches=4, weight_decay=0.0 if inside else decay)
        for _ in range(3):
            step_in_form(form, optimizer, loss)
        found.append(levels(optimizer, theta))
    assert found[0] == pytest.approx(found[1], rel=1e-6)


def test_a_floor_is_the_least_a_level_can_be():
    theta = nn.Parameter(torch.ones(3, dtype=D))
    optimizer = VSGD([theta], init_batches=2, curvature_floor=5.0)
    optimizer.minimize(lambda: theta.square().sum())
    assert optimizer.state[theta]["level_square"] == pytest.approx(4.0, rel=1e-6)
    assert levels(optimizer, [theta]) == [5.0]


@pytest.mark.parametrize("factor", [0.25, 2.0**16])
def test_what_a_scaler_multiplied_is_taken_off(factor):
    theta = torch.ones(3, requires_grad=True)
    theta.grad = torch.ones(3)
    group = {
        "weight_decay": 0.5,
        "decoupled_weight_decay": False,
        "curvature_floor": None,
        "granularity": "element",
        "lr": 1.0,
    }
    part = part_of(theta, factor * torch.tensor([-1.0, 2.0, 3.0]), group, {}, True)
    part.curvature_factor = 1 / factor
    take_levels([part])
    expected = torch.tensor([-0.5, 2.5, 3.5]).square().mean().item()
    assert part.state["level_square"] == pytest.approx(expected)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_finite_differences_in_other_types_find_the_levels_of_float64(dtype):
    """A step that half precision rounds away would find nothing, or noise."""
    found = []
    for kind in (D, dtype):
        torch.manual_seed(0)
        net = mlp().to(kind)
        optimizer = VSGD(net.parameters(), init_batches=40)
        for x, y in classes(40):
            wide = torch.promote_types(kind, torch.float32)
            inputs = x.to(kind)
            optimizer.minimize(
                lambda x=inputs, y=y, net=net, wide=wide: F.cross_entropy(net(x).to(wide), y)
            )
        assert list(optimizer.counters["sources"]) == ["finite-difference"]
        found.append(levels(optimizer, net.parameters()))
    tolerance = 1e-3 if dtype == torch.float32 else 0.1
    assert found[0] == pytest.approx(found[1], rel=tolerance)


# --- Where there is none --------------------------------------------------------------------------


@both_forms
def test_a_tensor_that_the_loss_is_linear_in_has_polyaks_curvature(form):
    """The squared length of the whole gradient over the loss, in every batch, not in the first only."""
    curved = nn.Parameter(torch.ones(2, dtype=D))
    linear = nn.Parameter(torch.zeros(3, dtype=D))
    slopes = torch.tensor([1.0, -2.0, 2.0], dtype=D)
    optimizer = VSGD([curved, linear], init_batches=10)

    def loss():
        return curved.square().sum() + slopes @ linear + 10

    for _ in range(10):
        step_in_form(form, optimizer, loss)
    assert levels(optimizer, [curved, linear]) == pytest.approx([2.0, (8 + 9) / 12], rel=1e-6)


def test_a_level_that_was_measured_stays_where_a_loss_happens_to_be_flat():
    theta = nn.Parameter(torch.full((2,), 2.0, dtype=D))
    optimizer = VSGD([theta], init_batches=20)
    for step in range(20):
        optimizer.minimize(lambda step=step: (theta**2 if step == 0 else theta).sum())
    assert levels(optimizer, [theta]) == pytest.approx([(4 / 20) ** 0.5], rel=1e-3)


def test_without_gradient_there_is_neither_level_nor_step():
    theta = nn.Parameter(torch.ones(2))
    optimizer = VSGD([theta], init_batches=2)
    for _ in range(5):
        optimizer.minimize(lambda: (0 * theta).sum() + 1)
    assert levels(optimizer, [theta]) == [0.0]
    assert torch.equal(theta, torch.ones(2))


# --- Checkpoints ----------------------------------------------------------------------------------


@both_forms
@pytest.mark.parametrize("granularity", ["element", "block", "global"])
@pytest.mark.parametrize("steps", [5, 47])
def test_a_loaded_state_has_the_same_levels_and_goes_on_bit_for_bit(form, granularity, steps):
    theta = network()
    optimizer = VSGD(theta, granularity=granularity)
    for step in range(steps):
        step_in_form(form, optimizer, loss_at(theta, seed=step))
    others = [nn.Parameter(one.detach().clone()) for one in theta]
    resumed = VSGD(others, granularity=granularity)
    resumed.load_state_dict(through_file(optimizer.state_dict()))
    names = ("level_square", "level_memory", "typical_square")
    for one, other in zip(theta, others, strict=True):
        saved, loaded = optimizer.state[one], resumed.state[other]
        assert [loaded[name] for name in names] == [saved[name] for name in names]
        assert "mean_curvature" not in loaded
    assert resumed.counters["measured"] == optimizer.counters["measured"]
    for step in range(100, 140):
        step_in_form(form, optimizer, loss_at(theta, seed=step))
        step_in_form(form, resumed, loss_at(others, seed=step))
    assert resumed.counters == optimizer.counters
    assert levels(resumed, others) == levels(optimizer, theta)
    assert all(torch.equal(one, other) for one, other in zip(theta, others, strict=True))


def test_a_state_in_a_narrower_type_keeps_its_levels():
    theta = network()
    optimizer = VSGD(theta, init_batches=3)
    for step in range(8):
        optimizer.minimize(loss_at(theta, seed=step))
    narrow = [nn.Parameter(one.detach().float()) for one in theta]
    resumed = VSGD(narrow, init_batches=3)
    resumed.load_state_dict(optimizer.state_dict())
    assert levels(resumed, narrow) == levels(optimizer, theta)


def test_the_papers_dialect_has_none():
    theta = network()
    optimizer = VSGD(theta, dialect="paper", init_batches=2)
    for _ in range(3):
        optimizer.minimize(loss_at(theta))
    for one in theta:
        assert "level_square" not in optimizer.state[one]
        assert "mean_curvature" in optimizer.state[one]


def test_a_loss_that_depends_on_no_parameter_is_a_step_not_taken():
    torch.manual_seed(0)
    model, stranger = mlp(), torch.nn.Parameter(torch.ones(1))
    optimizer = robust(model)
    train(optimizer, model, classes(15))
    before = values(model)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # it is said, too
        assert optimizer.minimize(lambda: (2 * stranger).sum()) == 2
    assert optimizer.counters["skipped"] == {NO_GRADIENT: 1}
    assert torch.equal(values(model), before)

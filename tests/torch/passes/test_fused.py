"""Compiled kernels and eager operations do the same, whatever the sizes, types and threads."""

import numpy as np
import pytest
import torch

from pesky.torch import VSGD
from pesky.torch.passes.bundle import Level, Part
from pesky.torch.passes.eager import EagerBundle
from pesky.torch.passes.fused import FusedBundle, Move, are_same, is_fusible, move
from pesky.torch.passes.kernels import CHUNK
from pesky.torch.step.parts import part_of

SIZES = ((), (1,), (7, 3), (CHUNK,), (CHUNK + 1,), (3, CHUNK + 5))
TOLERANCES = {torch.float32: {"rtol": 2e-4, "atol": 1e-5}, torch.float64: {"rtol": 1e-9, "atol": 1e-12}}


def parts(granularity, dtype, fresh=True, has_levels=False, **settings):
    generator = torch.Generator().manual_seed(0)
    group = {
        "lr": 0.7,
        "weight_decay": 0.1,
        "decoupled_weight_decay": False,
        "curvature_floor": 0.2,
        "granularity": granularity,
        **settings,
    }
    made = []
    for shape in SIZES:
        theta = torch.randn(shape, generator=generator, dtype=dtype).requires_grad_()
        theta.grad = torch.randn(shape, generator=generator, dtype=dtype)
        curvature = torch.rand(shape, generator=generator, dtype=dtype) if fresh else None
        part = part_of(theta, curvature, group, {}, has_levels)
        for name in ("mean_gradient", "mean_square", "mean_curvature"):
            if name in part.state:
                part.state[name].copy_(torch.rand(shape, generator=generator, dtype=dtype))
        part.gradient_factor, part.curvature_factor = 0.5, 0.25
        made.append(part)
    return made


def tensors(of):
    found = []
    for part in of:
        found.append(part.theta.detach())
        found += [value for value in part.state.values() if isinstance(value, torch.Tensor)]
    return found


LEVELS = [Level(0.1 * k, 0.5 * k, 1 / (k + 2)) for k in range(len(SIZES))]  # the first tensor is flat


def directed(batch):
    """Write directions, which are then compared as the averages are."""
    directed, means = batch.direct(LEVELS, buffer_of, slowed=False)
    for part, direction in zip(batch.parts, directed.values, strict=True):
        part.state["direction"] = direction
    return [sum(directed.slopes), *means.signals, *means.squares]


def buffer_of(part):
    return torch.empty_like(part.theta)


# What a pass works on (levels are the robust dialect's), and what it does.
PASSES = {
    "update": ("element", False, lambda batch: batch.update()),
    "direct": ("element", True, directed),
    "observe": ("element", False, lambda batch: batch.observe([3.0] * len(SIZES))),
    "observe levels": ("element", True, lambda batch: batch.observe([3.0] * len(SIZES))),
    "observe together": ("block", False, lambda batch: batch.observe([3.0] * len(SIZES))),
    "average": ("block", False, lambda batch: batch.average([3.0] * len(SIZES))),
    "average levels": ("block", True, lambda batch: batch.average([3.0] * len(SIZES))),
    "descend": ("block", False, lambda batch: batch.descend([0.1 * k for k in range(len(SIZES))])),
    "powers": ("element", False, lambda batch: batch.powers()),
}


@pytest.mark.parametrize("fresh", [True, False])
@pytest.mark.parametrize("name", PASSES)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_kernels_do_as_eager_operations(name, dtype, fresh):
    granularity, has_levels, run = PASSES[name]
    settings = {"weight_decay": 0.0} if name == "powers" else {}  # which eager powers include
    fused, eager = (parts(granularity, dtype, fresh, has_levels, **settings) for _ in range(2))
    assert all(map(is_fusible, fused))
    with torch.no_grad():
        numbers = run(FusedBundle(fused)), run(EagerBundle(eager))
    if numbers[0] is not None:
        tolerances = {"rtol": 1e-3, "atol": 1e-5} if dtype == torch.float32 else TOLERANCES[dtype]
        torch.testing.assert_close(*(torch.tensor(each, dtype=dtype) for each in numbers), **tolerances)
    for ours, theirs in zip(tensors(fused), tensors(eager), strict=True):
        torch.testing.assert_close(ours, theirs, **TOLERANCES[dtype])


@pytest.mark.parametrize("kind", [FusedBundle, EagerBundle])
def test_a_direction_is_the_rules_with_a_curvature_from_the_level(kind):
    """Written out in NumPy: h = level max(sqrt(v / mean v), 1), and p = g^2 / (h v) gradient."""
    made = parts("element", torch.float64, has_levels=True)
    before = [
        [value.numpy().copy() for value in (part.theta.detach(), part.gradient)]
        + [part.state[name].numpy().copy() for name in ("mean_gradient", "mean_square")]
        for part in made
    ]
    with torch.no_grad():
        directed, means = kind(made).direct(LEVELS, buffer_of, slowed=False)
    directions, (signals, mean_squares) = directed.values, means
    expected_slope = 0.0
    for k, (theta, gradient, g, v) in enumerate(before):
        level, inverse, _ = LEVELS[k]
        tau = k + 2
        gradient = 0.5 * gradient + 0.1 * theta  # with the factor and the decay of the parts
        g = (1 - 1 / tau) * g + gradient / tau
        v = (1 - 1 / tau) * v + gradient**2 / tau
        ratio = np.minimum(g**2 / v, 1)
        h = level * np.maximum(np.sqrt(v * inverse), 1)
        p = ratio / h * gradient if level > 0 else np.zeros_like(gradient)
        expected_slope += (gradient * p).sum()
        state = made[k].state
        found = [directions[k], state["mean_gradient"], state["mean_square"]]
        for one, other in zip(found, (p, g, v), strict=True):
            np.testing.assert_allclose(one.numpy(), other, rtol=1e-9, atol=1e-12)
        assert signals[k] == pytest.approx((g**2).mean(), rel=1e-9)
        assert mean_squares[k] == pytest.approx(v.mean(), rel=1e-9)
    assert sum(directed.slopes) == pytest.approx(expected_slope, rel=1e-9)


@pytest.mark.parametrize("granularity", ["element", "block", "global"])
def test_the_number_of_threads_makes_no_difference(granularity):
    found = []
    for threads in (1, 2):
        torch.set_num_threads(threads)
        generator = torch.Generator().manual_seed(0)
        theta = torch.randn(40 * CHUNK + 3, generator=generator).requires_grad_()
        optimizer = VSGD([theta], granularity=granularity, init_batches=2, slow_start=2)
        for _ in range(4):
            theta.grad = torch.randn(theta.shape, generator=generator)
            optimizer._pending.add({theta: torch.rand(theta.shape, generator=generator)})
            optimizer.step()
        found.append(theta.detach().clone())
    assert torch.equal(*found)


@pytest.mark.parametrize("dialect", ["paper", "robust"])
@pytest.mark.parametrize("granularity", ["element", "block"])
def test_a_graph_of_parameters_before_the_step_is_refused(dialect, granularity):
    """As with torch's own optimizers: the backward pass would use parameters that are no more."""
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(3, 4), torch.nn.Tanh(), torch.nn.Linear(4, 1))
    optimizer = VSGD(model.parameters(), dialect=dialect, granularity=granularity, init_batches=1)
    x = torch.randn(5, 3)
    for _ in range(3):
        optimizer.minimize(lambda: model(x).square().mean())
    stale = model(x).square().mean()
    optimizer.minimize(lambda: model(x).square().mean())
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        stale.backward()


@pytest.mark.parametrize("kind", [torch.float32, torch.float64, torch.bfloat16])
def test_any_changed_entry_is_seen(kind):
    torch.manual_seed(0)
    one = torch.randn(3, 7).to(kind)
    pairs = [(torch.ones(2), torch.ones(2)), (one, one.clone()), (one.T, one.T.clone())]
    assert are_same(pairs)
    assert are_same([])
    for number, (_, other) in enumerate(pairs):
        for place in range(other.numel()):
            before = other.clone()
            index = divmod(place, other.shape[-1]) if other.dim() == 2 else (place,)
            other[index] += 0.5
            assert not are_same(pairs), (number, place)
            other.copy_(before)
    assert are_same(pairs)


@pytest.mark.parametrize("shows_average", [True, False])
@pytest.mark.parametrize("kind", [torch.float32, torch.float64])
def test_a_move_is_an_addition_and_an_average(kind, shows_average):
    torch.manual_seed(0)
    moves, expected = [], []
    for shape, scale in zip(SIZES, (0.5, 1.0, 2.0, 0.0, 3.0, 0.1), strict=True):
        theta, iterate, direction, average = (torch.randn(shape, dtype=kind) for _ in range(4))
        moved = iterate - scale * direction
        mean = average.lerp(iterate, 0.3)
        moves.append(Move(theta, iterate, direction, average, scale))
        expected.append((mean if shows_average else moved, moved, direction.clone(), mean))
    assert all(each.is_fusible for each in moves)
    move(moves, 0.3, shows_average)
    for each, wanted in zip(moves, expected, strict=True):
        torch.testing.assert_close(each[:4], wanted)


def test_nothing_depends_on_where_arrays_lie_in_memory():
    """A compiler may choose between two orders of a sum by how near to each other its arrays are."""
    generator = np.random.default_rng(0)
    memory = torch.empty(100_000)
    for size in range(1, 70):
        values = {name: torch.rand(size) + 0.1 for name in PIECES}
        values["mean_square"] += values["mean_gradient"].square()
        near = passed(*laid_out(memory, values, generator.permutation(len(values)), gap=0))
        far = passed(*laid_out(memory, values, range(len(values)), gap=5000))
        assert all(torch.equal(one, other) for one, other in zip(near, far, strict=True))


AVERAGES = ("mean_gradient", "mean_square")
PIECES = ("theta", "gradient", "curvature", *AVERAGES, "direction")


def laid_out(memory, values, order, gap):
    """Copy values into one piece of memory; return them as a part of a step, and its direction."""
    names, place, there = list(values), 0, {}
    for number in order:
        name = names[number]
        there[name] = memory[place : place + len(values[name])].copy_(values[name])
        place += len(values[name]) + gap
    group = {
        "granularity": "element",
        "curvature_floor": None,
        "weight_decay": 0.01,
        "decoupled_weight_decay": False,
        "lr": 1.0,
    }
    state = {"memory": 2.0, **{name: there[name] for name in AVERAGES}}
    return Part(there["theta"], there["gradient"], there["curvature"], group, state), there["direction"]


def passed(part, direction):
    """Return what all passes of a robust step compute."""
    directed, means = FusedBundle([part]).direct(
        [Level(0.3, 2.0, 0.5)], lambda part: direction, slowed=False
    )
    numbers = [*directed.slopes, *means.signals, *means.squares]
    found = [torch.tensor(numbers, dtype=torch.float64), direction.clone()]
    found.append(torch.tensor(FusedBundle([part]).powers()))
    return found + [part.state[name].clone() for name in AVERAGES]

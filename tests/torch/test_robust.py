"""The robust dialect: it trains small networks with nothing set, and survives what happens to them."""

import copy
import gc
import math

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from pesky import length
from pesky.errors import InputError
from pesky.torch import VSGD
from tests.torch.curvature.models import Characters


def robust(model, **settings):
    return VSGD(model.parameters(), dialect="robust", **settings)


def mlp(inputs=8, outputs=3, width=16, unit=nn.Tanh):
    return nn.Sequential(nn.Linear(inputs, width), unit(), nn.Linear(width, outputs))


def classes(count, seed=0):
    """Batches of 32 with labels that a small network can learn."""
    generator = torch.Generator().manual_seed(seed)
    teacher = torch.randn(8, 3, generator=generator)
    for _ in range(count):
        x = torch.randn(32, 8, generator=generator)
        yield x, (x @ teacher).argmax(1)


def train(optimizer, model, batches, loss_of=F.cross_entropy, factor=1.0):
    losses = []
    for x, y in batches:
        losses.append(optimizer.minimize(lambda x=x, y=y: factor * loss_of(model(x), y)).item())
    return losses


def values(model):
    return nn.utils.parameters_to_vector(model.parameters()).detach().clone()


# --- It learns ------------------------------------------------------------------------------------


def test_a_regression_learns():
    torch.manual_seed(0)
    model, teacher = mlp(outputs=1), mlp(outputs=1)
    batches = [(x, teacher(x).detach()) for x in torch.randn(400, 32, 8)]
    train(robust(model), model, batches, F.mse_loss)
    x = torch.randn(1000, 8)
    assert F.mse_loss(model(x), teacher(x)) < 0.05 * teacher(x).var()


def test_a_network_with_batch_norm_learns_and_is_as_good_in_evaluation():
    torch.manual_seed(0)
    model = nn.Sequential(
        *(nn.Conv2d(1, 8, 3), nn.BatchNorm2d(8), nn.ReLU(), nn.Flatten(), nn.Linear(8 * 36, 4))
    )
    patterns = torch.randn(4, 1, 8, 8)

    def batch():
        y = torch.randint(0, 4, (32,))
        return patterns[y] + torch.randn(32, 1, 8, 8), y

    train(robust(model), model, (batch() for _ in range(200)))
    model.eval()
    x, y = batch()
    assert F.cross_entropy(model(x), y) < 0.1


def test_a_transformer_learns():
    torch.manual_seed(0)
    model = Characters()
    nn.init.normal_(model.embedding.weight, std=0.25)  # 1 would saturate the softmax
    step = torch.arange(12)

    def batch():
        start, stride = torch.randint(0, 20, (16, 1)), torch.randint(1, 3, (16, 1))
        x = (start + stride * step) % 20
        return x, (start + stride * (step + 1)) % 20

    def loss_of(logits, y):
        return F.cross_entropy(logits.flatten(0, 1), y.flatten())

    train(robust(model), model, (batch() for _ in range(250)), loss_of)
    x, y = batch()
    assert loss_of(model(x), y) < 1.0  # log 20 is 3


def test_a_rotated_noisy_quadratic_ends_near_its_optimum():
    torch.manual_seed(0)
    rotation, _ = torch.linalg.qr(torch.randn(20, 20))
    eigenvalues = torch.cat([torch.rand(18), 30 + 30 * torch.rand(2)])
    hessian = rotation * eigenvalues @ rotation.T
    theta = nn.Parameter(rotation @ torch.randn(20) * 3)

    def excess(at):
        return float(at @ hessian @ at / 2)

    optimizer = VSGD([theta], dialect="robust", curvature=lambda loss, ones: [hessian.diagonal()])
    start = excess(theta.detach())
    for _ in range(1500):
        centre = 0.3 * torch.randn(20)
        optimizer.minimize(lambda c=centre: (theta - c) @ hessian @ (theta - c) / 2)
    assert excess(theta.detach()) < 0.03 * start
    assert excess(theta.detach()) < 0.1 * 0.09 * float(eigenvalues.sum()) / 2  # of one sample's optimum


@pytest.mark.parametrize("factor", [2.0**-20, 2.0**20])
def test_the_units_of_the_loss_do_not_matter(factor):
    ends = []
    for unit in (1.0, factor):
        torch.manual_seed(0)
        model = mlp()
        optimizer = robust(model)
        train(optimizer, model, classes(80), factor=unit)
        ends.append((values(model), optimizer.collective.scale))
    torch.testing.assert_close(ends[0][0], ends[1][0], rtol=1e-4, atol=1e-5)
    assert ends[0][1] == pytest.approx(ends[1][1], rel=1e-3)


def test_weight_decay_is_part_of_the_loss_that_sets_the_scale():
    """Decay by the optimizer and by the loss are the same thing."""
    ends = []
    for inside in (False, True):
        torch.manual_seed(0)
        model = nn.Linear(8, 3).double()
        optimizer = robust(model, weight_decay=0.0 if inside else 0.1)
        for x, y in classes(60):

            def loss(x=x, y=y, model=model, inside=inside):
                penalty = sum(one.square().sum() for one in model.parameters()) / 2
                return F.cross_entropy(model(x.double()), y) + inside * 0.1 * penalty

            optimizer.minimize(loss)
        ends.append(values(model))
    torch.testing.assert_close(*ends)


# --- The same randomness, the right buffers, the better parameters --------------------------------


def test_every_evaluation_sees_the_same_dropout_and_the_generator_moves_on_once():
    torch.manual_seed(0)
    masks, last, counts = [], [], []
    dropout = nn.Dropout(0.5)
    dropout.register_forward_hook(lambda module, inputs, output: masks.append(output.detach() == 0))
    model = nn.Sequential(nn.Linear(8, 16), dropout, nn.Linear(16, 3))
    optimizer = robust(model)
    for x, y in classes(40):
        masks.clear()
        optimizer.minimize(lambda x=x, y=y: F.cross_entropy(model(x), y))
        assert all(torch.equal(mask, masks[0]) for mask in masks)
        last.append(masks[0])
        counts.append(len(masks))
    assert sorted(counts[-2:]) == [2, 3]  # a first pass, the end of the step, and in turns the average
    assert not torch.equal(last[-1], last[-2])
    torch.manual_seed(0)
    plain = nn.Sequential(nn.Linear(8, 16), dropout, nn.Linear(16, 3))
    for x, _ in classes(40):
        plain(x)
    state = torch.get_rng_state()
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(8, 16), nn.Dropout(0.5), nn.Linear(16, 3))
    train(robust(model), model, classes(40))
    assert torch.equal(torch.get_rng_state(), state)


def test_augmentation_in_the_closure_is_the_same_in_every_evaluation():
    """Drawing in the closure gives the same steps as drawing before it."""
    ends = []
    for inside in (True, False):
        torch.manual_seed(0)
        model = mlp()
        optimizer = robust(model)
        for x, y in classes(80):
            if inside:
                optimizer.minimize(
                    lambda x=x, y=y, model=model: F.cross_entropy(model(x + torch.rand(32, 8)), y)
                )
            else:
                moved = x + torch.rand(32, 8)
                optimizer.minimize(lambda x=moved, y=y, model=model: F.cross_entropy(model(x), y))
        ends.append((values(model), torch.rand(1), optimizer.collective.scale))
    assert torch.equal(ends[0][0], ends[1][0])
    assert torch.equal(ends[0][1], ends[1][1])
    assert ends[0][2] == ends[1][2]


@pytest.mark.filterwarnings("ignore:Using `torch.compile")
def test_a_compiled_model_is_compiled_once_and_its_buffers_are_put_back():
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(8, 16), nn.BatchNorm1d(16), nn.Tanh(), nn.Linear(16, 3))
    plain = copy.deepcopy(model)
    graphs = []

    def backend(graph, inputs):
        graphs.append(graph)
        return graph.forward

    compiled = torch.compile(model, backend=backend)
    optimizer = robust(model, lr=0.0, curvature="finite-difference")
    train(optimizer, compiled, classes(14))
    count = len(graphs)
    train(optimizer, compiled, classes(14))
    assert len(graphs) == count
    for _ in range(2):
        for x, _ in classes(14):
            plain(x)
    for one, other in zip(model.buffers(), plain.buffers(), strict=True):
        torch.testing.assert_close(one, other)


def test_batch_norms_averages_are_of_the_visible_parameters():
    torch.manual_seed(0)
    norm = nn.BatchNorm1d(16, momentum=1.0)  # its averages are those of one batch
    model = nn.Sequential(nn.Linear(8, 16), norm, nn.Tanh(), nn.Linear(16, 3))
    optimizer = robust(model)
    compared = set()
    for x, y in classes(300):
        collective, first = optimizer.collective, model[0]
        name = "average" if collective.shows_average else "iterate"
        due = length.is_average_due(collective) and optimizer._is_loss_due()
        place = name if due else "iterate"  # without a pass at the average, the other one must do
        if collective.averaged:
            weight, bias = (optimizer.state[one][place].clone() for one in first.parameters())
        train(optimizer, model, [(x, y)])
        if collective.averaged > 1:
            torch.testing.assert_close(norm.running_mean, (x @ weight.T + bias).mean(0))
            compared.add((name, due))
    assert compared >= {("iterate", False), ("average", True), ("average", False)}


def test_the_visible_parameters_are_the_average_where_it_is_better():
    torch.manual_seed(0)
    model = mlp()
    optimizer = robust(model)
    shown = set()
    for batch in classes(300):
        train(optimizer, model, [batch])
        better = optimizer.collective.lead > 0
        if optimizer.collective.averaged:
            name = "average" if better else "iterate"
            assert all(torch.equal(one, optimizer.state[one][name]) for one in model.parameters())
            shown.add(name)
    assert shown == {"average", "iterate"}


@pytest.mark.parametrize("in_data", [False, True])
def test_parameters_changed_from_outside_are_gone_on_from(in_data):
    torch.manual_seed(0)
    model = mlp()
    optimizer = robust(model, lr=0.0)
    train(optimizer, model, classes(100))
    new = [torch.randn_like(one) for one in model.parameters()]
    with torch.no_grad():
        for one, value in zip(model.parameters(), new, strict=True):
            (one.data if in_data else one).copy_(value)
    train(optimizer, model, classes(3))
    for one, value in zip(model.parameters(), new, strict=True):
        torch.testing.assert_close(one.detach(), value)


def test_an_exception_in_the_closure_changes_nothing():
    torch.manual_seed(0)
    model = mlp()
    optimizer = robust(model)
    train(optimizer, model, classes(100))
    before, moves = values(model), optimizer.collective.averaged

    def fail():
        raise KeyError

    with pytest.raises(KeyError):
        optimizer.minimize(fail)
    assert torch.equal(values(model), before)
    train(optimizer, model, classes(1))
    assert optimizer.collective.averaged == moves + 1


def test_an_error_while_a_loss_is_given_again_leaves_the_iterate():
    torch.manual_seed(0)
    model = mlp()
    optimizer = robust(model, curvature_every=1)
    calls = []

    def again(x, y, fails):
        calls.append(1)
        if fails and len(calls) == 2:  # the first is the one before the step
            raise KeyError
        return F.cross_entropy(model(x), y)

    for number, (x, y) in enumerate(classes(30)):
        fails = number == 29
        before = values(model)
        calls.clear()
        optimizer.zero_grad()
        loss = F.cross_entropy(model(x), y)
        optimizer.backward(loss, again=lambda x=x, y=y, fails=fails: again(x, y, fails))
        if fails:
            with pytest.raises(KeyError):
                optimizer.step()
        else:
            optimizer.step()
    assert torch.equal(values(model), before)


# --- Accidents ------------------------------------------------------------------------------------


@pytest.mark.parametrize("poison", [math.nan, math.inf, 1e30, 1e6])
def test_a_poisoned_batch_does_no_harm_and_is_counted(poison):
    torch.manual_seed(0)
    model = mlp()
    optimizer = robust(model)
    train(optimizer, model, classes(150), F.cross_entropy)
    x, y = next(classes(1))
    for _ in range(3):
        optimizer.minimize(lambda: F.cross_entropy(model(x), y) * poison)
    assert values(model).isfinite().all()
    if poison != 1e6:
        assert sum(optimizer.counters["skipped"].values()) == 3
    if not math.isfinite(poison):
        assert optimizer.collective.restored == 0  # it was no fault of a step
    train(optimizer, model, classes(150), F.cross_entropy)
    # What only looks like a loss is learnt from, and averages forget it slowly; knowing nothing is 1.1.
    assert F.cross_entropy(model(x), y) < (1.0 if poison == 1e6 else 0.5)


def test_a_step_into_a_wall_is_shortened():
    torch.manual_seed(0)
    theta = nn.Parameter(torch.ones(1))
    optimizer = VSGD([theta], dialect="robust", curvature=lambda loss, ones: [torch.ones(1)])
    for centre in torch.randn(60, 1):
        optimizer.minimize(lambda c=centre: (theta - c).square().sum() / 2)
    here = optimizer.state[theta]["iterate"].clone()

    def walled():
        return (theta - 3).square().sum() / 2 + 1e6 * F.relu(abs(theta - here) - 1e-5).sum()

    optimizer.minimize(walled)
    assert optimizer.collective.shortened == 1
    assert abs(optimizer.state[theta]["iterate"] - here) < 1e-3


def test_memory_does_not_grow():
    torch.manual_seed(0)
    model = mlp()
    optimizer = robust(model)
    counts = []
    for _ in range(2):
        train(optimizer, model, classes(150))
        gc.collect()
        counts.append(sum(type(one) is torch.Tensor for one in gc.get_objects()))
    assert counts[0] == counts[1]
    assert len(optimizer.collective.history) <= 64


# --- State ----------------------------------------------------------------------------------------


def test_explain_tells_scale_caution_and_accidents():
    torch.manual_seed(0)
    model = mlp()
    optimizer = robust(model)
    assert optimizer.explain().collective is None
    train(optimizer, model, classes(60))
    told = optimizer.explain().as_dict()["collective"]
    assert told["scale"] == optimizer.collective.scale
    assert told["caution"] == optimizer.collective.caution
    assert told["shortened"] == told["restored"] == 0
    assert len(told["history"]) > 10
    assert "scale" in str(optimizer.explain())
    assert all(rate > 0 for rate in optimizer.rates().values())


# --- Other ways to call it ------------------------------------------------------------------------


def test_backward_with_again_keeps_the_iterate_and_moves_alike():
    ends = []
    for by_hand in (False, True):
        torch.manual_seed(0)
        model = mlp()
        optimizer = robust(model)
        for x, y in classes(120):

            def loss(x=x, y=y, model=model):
                return F.cross_entropy(model(x), y)

            if by_hand:
                optimizer.zero_grad()
                optimizer.backward(loss(), again=loss)
                optimizer.step()
            else:
                optimizer.minimize(loss)
        ends.append([optimizer.state[one]["iterate"] for one in model.parameters()])
        if by_hand:
            assert all(torch.equal(*pair) for pair in zip(ends[-1], model.parameters(), strict=True))
    torch.testing.assert_close(*ends, rtol=1e-4, atol=1e-5)


def test_two_halves_of_a_batch_add_up_where_no_unit_saturates():
    ends = []
    for halves in (1, 2):
        torch.manual_seed(0)
        model = mlp(unit=nn.GELU).double()
        optimizer = robust(model)
        for x, y in classes(60):
            optimizer.zero_grad()
            for part, goal in zip(x.double().chunk(halves), y.chunk(halves), strict=True):

                def loss(part=part, goal=goal, model=model, halves=halves):
                    return F.cross_entropy(model(part), goal) / halves

                optimizer.backward(loss(), again=loss)
            optimizer.step()
        ends.append(values(model))
    torch.testing.assert_close(*ends)


def by_watch(optimizer, model, x, y):
    loss = nn.CrossEntropyLoss()
    handle = optimizer.watch(loss)
    loss(model(x), y).backward()
    handle.remove()


def test_what_began_with_second_evaluations_goes_on_with_them():
    model = mlp()
    optimizer = robust(model)
    train(optimizer, model, classes(3))
    x, y = next(classes(1))
    with pytest.raises(InputError, match="again"):
        optimizer.backward(F.cross_entropy(model(x), y))
    by_watch(optimizer, model, x, y)
    with pytest.raises(InputError, match="again"):
        optimizer.step()


@pytest.mark.parametrize("unscale", [False, True])
def test_a_scaler_changes_nothing(unscale):
    ends = []
    for scaling in (False, True):
        torch.manual_seed(0)
        model = mlp().double()
        optimizer = robust(model)
        scaler = torch.amp.GradScaler("cpu", init_scale=1024.0, enabled=scaling)
        for x, y in classes(80):

            def loss(x=x, y=y, model=model):
                return F.cross_entropy(model(x.double()), y)

            optimizer.zero_grad()
            optimizer.backward(loss(), again=loss, scaler=scaler)
            if unscale:
                scaler.unscale_(optimizer)
            scaler.step(optimizer)
            scaler.update()
        ends.append(values(model))
        assert optimizer.collective.averaged == 70
    torch.testing.assert_close(*ends, rtol=1e-6, atol=1e-8)


def test_a_step_that_the_scaler_skips_leaves_everything():
    torch.manual_seed(0)
    model = mlp()
    optimizer, scaler = robust(model), torch.amp.GradScaler("cpu", init_scale=1024.0)
    for step, (x, y) in enumerate(classes(31)):

        def loss(x=x, y=y):
            return F.cross_entropy(model(x), y)

        before, scale = values(model), optimizer.collective.scale
        optimizer.zero_grad()
        optimizer.backward(loss(), again=loss, scaler=scaler)
        if step == 30:
            model[0].bias.grad[0] = math.inf
        scaler.step(optimizer)
        scaler.update()
    assert torch.equal(values(model), before)
    assert optimizer.collective.scale == scale
    assert optimizer.collective.averaged == 20
    assert sum(optimizer.counters["skipped"].values()) == 1


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_half_precision_keeps_places_in_float32(dtype):
    torch.manual_seed(0)
    model = mlp().to(dtype)
    optimizer = robust(model)
    for x, y in classes(100):
        optimizer.minimize(lambda x=x, y=y: F.cross_entropy(model(x.to(dtype)).float(), y))
    for one in model.parameters():
        state = optimizer.state[one]
        assert {state[name].dtype for name in ("iterate", "previous", "average")} == {torch.float32}
        name = "average" if optimizer.collective.shows_average else "iterate"
        assert torch.equal(one, state[name].to(dtype))


@pytest.mark.parametrize("curvature", [True, False])
def test_the_compiled_passes_agree_with_the_eager_ones(curvature):
    from pesky.torch.passes.bundle import Part
    from pesky.torch.passes.eager import EagerBundle
    from pesky.torch.passes.fused import FusedBundle
    from pesky.torch.step.parts import _begin

    torch.manual_seed(0)
    group = {"granularity": "element", "weight_decay": 0.1, "lr": 1.0, "curvature_floor": None}
    found = []
    for kind in (EagerBundle, FusedBundle):
        torch.manual_seed(0)
        parts = []
        for size in (7, 40_000, 1):
            theta = torch.randn(size)
            state = _begin(theta, "element", by_rows=False)
            state["mean_curvature"].uniform_()
            bend = torch.rand(size) if curvature else None
            parts.append(Part(theta, torch.randn(size), bend, group, state, 0.5, 0.25, 3.0))
        batch = kind(parts)
        totals = batch.learn()
        means = [total / len(part.theta) for total, part in zip(totals, parts, strict=True)]
        directions = [torch.empty_like(part.theta) for part in parts]
        slope = batch.direct(means, directions)
        found.append([torch.tensor(totals), *directions, torch.tensor(slope)])
    torch.testing.assert_close(*found, rtol=1e-4, atol=1e-6)

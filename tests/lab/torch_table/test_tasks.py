"""The tasks: each begins alike at a seed, can be learnt, and is what its title says."""

import math
import os
import pickle
import threading
from dataclasses import replace

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from pesky.lab.torch_table import changing, generative, policy, selfsupervised, text
from pesky.lab.torch_table.contestants import begin
from pesky.lab.torch_table.instance import generator
from pesky.lab.torch_table.lora import LowRank
from pesky.lab.torch_table.poisson import _residual, _solution
from pesky.lab.torch_table.rows import TABLE_VERSION, RunKey, parse_mark
from pesky.lab.torch_table.running import run
from pesky.lab.torch_table.splits import DEVELOPMENT, FIRST, TEST
from pesky.lab.torch_table.tasks import TASKS
from tests.real_data import needs_data

NEW = [name for name in TASKS if name not in FIRST]
STOCK = ("bert", "gpt2", "llama", "vit", "t5", "opt")
STEPS = {"policy-gradient": 150, "sine-20k": 150, "lora": 10, "unet": 25, "recommender": 60}


def marks_of(name):
    task = TASKS[name]
    is_missing = pytest.mark.skipif("PESKY_DATA" not in os.environ, reason="PESKY_DATA is not set")
    marks = [pytest.mark.data, is_missing] if task.dataset is not None else []
    return [*marks, pytest.mark.peers, pytest.mark.slow] if task.package is not None else marks


def every(names):
    return [pytest.param(name, marks=marks_of(name)) for name in names]


def begun(name, seed=0):
    if TASKS[name].package is not None:
        pytest.importorskip(TASKS[name].package)
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        return TASKS[name].begin(seed, None)


def first_loss(instance):
    with torch.random.fork_rng():
        torch.manual_seed(0)  # of dropout, if there is any
        return instance.loss(instance.model, instance.batch(0))


def row_of(name, method="adam", settings="lr=1e-3", steps=25):
    if TASKS[name].package is not None:
        pytest.importorskip(TASKS[name].package)
    key = RunKey(name, "any", method, settings, steps, 0, 1, TABLE_VERSION)
    return run(TASKS[name], key, None, threading.Event())


def test_there_are_thirty_tasks_and_ten_of_them_are_the_test():
    assert len(TASKS) >= 30
    assert list(TASKS) == [*DEVELOPMENT, *TEST]
    assert len(set(TEST)) == len(TEST) == 10
    assert not set(TEST) & set(DEVELOPMENT)
    assert not set(TEST) & set(FIRST)
    assert {name for name, task in TASKS.items() if task.split == "test"} == set(TEST)
    assert sum(task.is_changing for task in TASKS.values()) >= 3
    assert [name for name, task in TASKS.items() if task.is_first] == list(FIRST)
    assert max(task.steps for name, task in TASKS.items() if name in NEW) == 20_000


@pytest.mark.parametrize("name", every(NEW))
def test_new_tasks_begin_alike_at_a_seed(name):
    first, again, other = begun(name, 1), begun(name, 1), begun(name, 2)
    assert all(map(torch.equal, first.model.parameters(), again.model.parameters()))
    assert torch.equal(first_loss(first), first_loss(again))
    for step in (0, 3):
        assert all(map(torch.equal, first.batch(step), again.batch(step)))
    assert not torch.equal(first.batch(3)[0], first.batch(4)[0])
    assert not torch.equal(first.batch(3)[0], other.batch(3)[0])
    loss = first_loss(first)
    assert loss.shape == ()
    assert loss.isfinite()
    measured = first.evaluate(first.model)
    assert measured == first.evaluate(first.model)  # the same random numbers judge
    assert all(map(math.isfinite, measured))


@pytest.mark.slow
@pytest.mark.parametrize("name", every(NEW))
def test_adam_learns_every_new_task(name):
    instance = begun(name)
    training = begin("adam", "lr=1e-3", instance.model.train())
    first = [instance.batch(step) for step in range(5)]

    def mean_loss():
        with torch.no_grad():
            model = instance.model.eval()
            loss = sum(float(instance.loss(model, batch).detach()) for batch in first) / 5
            model.train()
        return loss

    def measured():
        return instance.evaluate(instance.model).train

    # A residual differentiates, and a policy's batches are what it does itself.
    judge = measured if name in ("pinn", "policy-gradient") else mean_loss
    before = judge()
    for step in range(STEPS.get(name, 25)):
        batch = instance.batch(step)
        training.step(lambda batch=batch: instance.loss(instance.model, batch))
    assert judge() < before


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:bbprop has no rule")  # for derivatives in a loss
@pytest.mark.parametrize("name", every(["bert", "policy-gradient", "vae", "recommender", "pinn"]))
def test_runs_of_new_tasks_repeat_exactly(name):
    for method, settings in (("adam", "lr=1e-3"), ("vsgd", "dialect=robust")):
        first, second = (row_of(name, method, settings, steps=8) for _ in range(2))
        assert (first.train, first.test) == (second.train, second.test)
        assert parse_mark(first.curve, "start") == parse_mark(second.curve, "start")


@pytest.mark.parametrize("name", every(STOCK))
def test_stock_models_have_the_stated_shape_and_their_default_dropout(name):
    instance = begun(name)
    model = instance.model.model
    config, default = model.config, type(model.config)()
    assert config.hidden_size == 64
    assert config.num_hidden_layers == 2
    names = [one for one in vars(default) if "drop" in one and isinstance(getattr(default, one), float)]
    assert all(getattr(config, one) == getattr(default, one) for one in names)
    rates = {one.p for one in model.modules() if isinstance(one, nn.Dropout)}
    assert rates <= {0.0, 0.1}
    seen = []
    norm = next(one for one in model.modules() if "Norm" in type(one).__name__)
    norm.register_forward_hook(lambda module, inputs, output: seen.append(output.shape))
    instance.loss(instance.model, instance.batch(0))
    assert seen[0][1] >= 32
    assert seen[0][2] == 64


def test_tied_embeddings_have_variance_one_and_saturate_the_softmax():
    instance = begun("tied-transformer")
    assert instance.model.head.weight is instance.model.embedding.weight
    assert float(instance.model.embedding.weight.detach().var()) == pytest.approx(1, abs=0.1)
    assert float(first_loss(instance).detach()) > 4 * math.log(text.source_text().symbols)


@pytest.mark.peers
@pytest.mark.slow
def test_low_rank_layers_begin_as_the_model_that_was_trained():
    instance = begun("lora")
    learning = {name for name, one in instance.model.named_parameters() if one.requires_grad}
    assert learning
    assert all(".up." in name or ".down." in name for name in learning)
    layers = [one for one in instance.model.modules() if isinstance(one, LowRank)]
    assert len(layers) == 2 * 7
    inputs = torch.randn(3, layers[0].layer.in_features)
    assert torch.equal(layers[0](inputs), layers[0].layer(inputs))
    # Trained on text, it is better than nothing even where that is turned round.
    assert float(first_loss(instance).detach()) < math.log(text.source_text().symbols)


def test_sparse_embeddings_are_dense_for_those_who_refuse_them():
    instance = begun("recommender")
    assert all(one.sparse for one in instance.model.children())
    begin("vsgd", "dialect=robust", instance.model)
    first_loss(instance).backward()
    assert all(one.grad.is_sparse for one in instance.model.parameters())
    instance = begun("recommender")
    begin("adam", "lr=1e-3", instance.model)
    first_loss(instance).backward()
    assert not any(one.grad.is_sparse for one in instance.model.parameters())


def test_a_policys_loss_is_its_cost_and_its_gradient_is_reinforces():
    instance = begun("policy-gradient")
    seen, records = instance.batch(0)
    cost = records[..., policy._COST]
    loss = instance.loss(instance.model, (seen, records))
    torch.testing.assert_close(loss, cost.sum(1).mean())
    loss.backward()
    found = [one.grad.clone() for one in instance.model.parameters()]
    instance.model.zero_grad()
    actions = records[..., policy._ACTION].long()
    chances = F.log_softmax(instance.model(seen), 2)
    total = torch.zeros(())
    for walk in range(len(seen)):
        for move in range(policy._LENGTH):
            to_come = cost[:, move:].sum(1)
            advantage = to_come[walk] - to_come.mean()
            total = total + advantage * chances[walk, move, actions[walk, move]]
    (total / len(seen)).backward()
    for one, other in zip(instance.model.parameters(), found, strict=True):
        torch.testing.assert_close(one.grad, other, atol=1e-5, rtol=1e-4)


def test_actions_follow_the_policy_and_walls_hold():
    instance = begun("policy-gradient")
    with torch.no_grad():
        instance.model[-1].bias.copy_(torch.tensor([0.0, 0.0, 50.0, 0.0]))
    seen, records = instance.batch(0)
    assert records[..., policy._ACTION].eq(2).all()  # down, and down again
    rows = seen[:, -1, : policy._PLACES].argmax(1) // policy._SIDE
    assert rows.eq(policy._SIDE - 1).all()


def test_the_flows_density_sums_to_one():
    instance = begun("flow")
    side = torch.linspace(-8, 8, 401)
    places = torch.cartesian_prod(side, side)
    with torch.no_grad():
        total = instance.model(places).exp().double().sum() * 0.04**2
    assert float(total) == pytest.approx(1.0, abs=0.02)


def test_poissons_solution_has_no_residual():
    class Solved(nn.Module):
        def forward(self, places):
            return _solution(places)[:, None]

    batch = begun("pinn").batch(0)
    assert float(_residual(Solved(), batch).detach()) < 1e-6
    on_edge = (batch[1] == 0) | (batch[1] == 1)
    assert on_edge.any(1).all()


def test_patches_are_squares_of_the_image():
    image = torch.arange(784.0)
    patches = selfsupervised._patches(image[None])
    assert torch.equal(patches[0, 1].view(4, 4), image.view(28, 28)[:4, 4:8])


@needs_data
def test_digits_drawn_by_a_sure_code_cost_no_more_than_their_squares():
    instance = begun("vae")
    inputs, noise = instance.batch(0)
    with torch.no_grad():
        for one in instance.model.parameters():
            one.zero_()
        loss = instance.loss(instance.model, (inputs, noise))
    # Means 0 and variances 1 are the prior's, and the drawing is blank.
    torch.testing.assert_close(loss, inputs.square().sum(1).mean() / (2 * generative._VARIANCE))


@needs_data
def test_pixels_are_in_another_order_after_each_change():
    usual, instance = begun("permuted-mnist"), begun("permuted-mnist")
    every_step = changing._PERMUTED_EVERY
    sorted_pixels = [instance.batch(step)[0].sort(1).values for step in (every_step, every_step + 1)]
    assert torch.equal(usual.batch(every_step)[0].sort(1).values, sorted_pixels[0])
    orders = [changing._order(784, number) for number in range(3)]
    assert torch.equal(orders[0], torch.arange(784))
    assert not torch.equal(orders[1], orders[2])
    assert torch.equal(orders[1].sort().values, orders[0])


def test_digits_get_other_names():
    instance = begun("relabelled-digits")
    inputs, labels = instance.batch(changing._RELABELLED_EVERY)
    digits, names = changing._digits()
    known = [int(names[(digits == one).all(1)][0]) for one in inputs]
    order = changing._order(10, 1)
    assert labels.tolist() == [int(order[one]) for one in known]


def test_weights_turn_at_an_even_pace():
    start, later = changing._weights(0), changing._weights(1500)
    assert float(start @ later) == pytest.approx(0, abs=1e-4)  # a quarter of a turn
    assert float(start.norm()) == pytest.approx(float(later.norm()))


def test_text_comes_in_three_kinds():
    instance = begun("switching-text")
    found = text.source_text()
    each = changing._SWITCHED_EVERY
    for which in range(3):
        inputs, targets = instance.batch(which * each)
        assert torch.equal(inputs[:, 1:], targets[:, :-1])
    turned = instance.batch(each)[0].flip(1)
    starts = torch.randint(len(found.train) - text.LENGTH, (16,), generator=generator(0, each))
    assert torch.equal(turned, found.train[starts[:, None] + 1 + torch.arange(text.LENGTH)])


def test_tasks_can_be_sent_to_other_processes():
    for name, task in TASKS.items():
        assert pickle.loads(pickle.dumps(task)).name == name


def test_a_made_task_says_so():
    made = [task for task in TASKS.values() if task.data() == "made"]
    assert {"pinn", "flow", "rotating-regression"} <= {task.name for task in made}
    assert replace(made[0], name="flow").split == "test"

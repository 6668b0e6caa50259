"""Other people's training loops, each to a stated accuracy on the problem of `loops`."""

import pytest
import torch
from torch import nn
from torch.nn.functional import cross_entropy
from torch.utils.data import DataLoader, TensorDataset

from pesky.torch import VSGD
from tests.torch.loops import DIALECTS, accuracy, batches, data, model

# What these libraries warn of is theirs.
pytestmark = pytest.mark.filterwarnings("ignore")

EPOCHS, ENOUGH = 15, 0.7  # without a second evaluation steps are timid; guessing has 0.45


def loader(**settings):
    return DataLoader(TensorDataset(*data()), batch_size=8, shuffle=True, **settings)


def test_plain_loop():
    net = model()
    optimizer = VSGD(net.parameters())
    for _ in range(EPOCHS):
        for x, y in loader():
            optimizer.zero_grad()
            optimizer.backward(cross_entropy(net(x), y))
            optimizer.step()
    assert accuracy(net) > ENOUGH


def test_lightning(tmp_path):
    lightning = pytest.importorskip("lightning")

    class Classifier(lightning.LightningModule):
        def __init__(self):
            super().__init__()
            self.net, self.criterion = model(), nn.CrossEntropyLoss()

        def training_step(self, batch, _):
            x, y = batch
            return self.criterion(self.net(x), y)

        def configure_optimizers(self):
            optimizer = VSGD(self.parameters())
            optimizer.watch(self.criterion)
            return optimizer

    classifier = Classifier()
    trainer = lightning.Trainer(
        max_epochs=EPOCHS,
        accelerator="cpu",
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
        default_root_dir=tmp_path,
        gradient_clip_val=10.0,
    )
    trainer.fit(classifier, loader())
    assert accuracy(classifier.net) > ENOUGH
    trainer.save_checkpoint(tmp_path / "all.ckpt")
    saved = torch.load(tmp_path / "all.ckpt", weights_only=True)["optimizer_states"][0]
    assert saved["counters"]["steps"] == EPOCHS * 50


def test_accelerate():
    accelerate = pytest.importorskip("accelerate")
    accelerator = accelerate.Accelerator(cpu=True, gradient_accumulation_steps=2)
    net, criterion = model(), nn.CrossEntropyLoss()
    optimizer = VSGD(net.parameters())
    optimizer.watch(criterion)
    prepared, prepared_optimizer, pairs = accelerator.prepare(net, optimizer, loader())
    for _ in range(2 * EPOCHS):
        for x, y in pairs:
            with accelerator.accumulate(prepared):
                accelerator.backward(criterion(prepared(x), y))
                prepared_optimizer.step()
                prepared_optimizer.zero_grad()
    assert accuracy(net) > ENOUGH
    assert optimizer.counters["steps"] == EPOCHS * 50


def test_hugging_face_trainer(tmp_path):
    transformers = pytest.importorskip("transformers")
    config = transformers.BertConfig(
        vocab_size=20,
        hidden_size=16,
        num_hidden_layers=1,
        num_attention_heads=2,
        intermediate_size=32,
        max_position_embeddings=16,
        num_labels=2,
        hidden_dropout_prob=0.0,
        attention_probs_dropout_prob=0.0,
    )
    torch.manual_seed(0)
    net = transformers.BertForSequenceClassification(config)
    words = torch.randint(1, 20, (400, 6), generator=torch.Generator().manual_seed(0))
    rows = [{"input_ids": row, "labels": int(row[0] > 9)} for row in words]
    optimizer = VSGD(net.parameters(), granularity="global")
    optimizer.watch(net)
    settings = transformers.TrainingArguments(
        output_dir=str(tmp_path),
        per_device_train_batch_size=16,
        num_train_epochs=24,
        report_to=[],
        save_strategy="no",
        use_cpu=True,
        disable_tqdm=True,
        lr_scheduler_type="constant",
        logging_strategy="no",
    )
    constant = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: 1.0)
    trainer = transformers.Trainer(net, settings, train_dataset=rows, optimizers=(optimizer, constant))
    trainer.train()
    with torch.no_grad():
        guesses = net(words).logits.argmax(1)
    labels = torch.tensor([row["labels"] for row in rows])
    assert (guesses == labels).float().mean() > 0.9


def test_skorch():
    skorch = pytest.importorskip("skorch")

    class Watch(skorch.callbacks.Callback):
        def on_train_begin(self, net, **kwargs):
            net.optimizer_.watch(net.criterion_)

    classifier = skorch.NeuralNetClassifier(
        model(),
        criterion=nn.CrossEntropyLoss,
        optimizer=VSGD,
        lr=1.0,
        batch_size=8,
        max_epochs=EPOCHS,
        train_split=None,
        callbacks=[Watch()],
        verbose=0,
    )
    x, y = data()
    classifier.fit(x.numpy(), y.numpy())
    assert accuracy(classifier.module_) > ENOUGH


@pytest.mark.parametrize("dialect", DIALECTS)
@pytest.mark.parametrize(
    ("way", "expected"),
    [
        ("minimize", "finite-difference"),
        ("again", "finite-difference"),
        ("backward", "polyak"),
        ("watch", "polyak"),
    ],
)
def test_a_compiled_model_has_the_source_that_its_docs_name(way, expected, dialect):
    net = model()
    compiled, loss_of = torch.compile(net, backend="aot_eager"), nn.CrossEntropyLoss()
    optimizer = VSGD(net.parameters(), dialect=dialect, init_batches=2)
    if way == "watch":
        optimizer.watch(loss_of)
    for x, y in batches(4):

        def closure(x=x, y=y):
            return loss_of(compiled(x), y)

        optimizer.zero_grad()
        if way == "minimize":
            optimizer.minimize(closure)
            continue
        if way == "watch":
            closure().backward()
        else:
            optimizer.backward(closure(), again=closure if way == "again" else None)
        optimizer.step()
    assert list(optimizer.explain().curvature_sources) == [expected]


@pytest.mark.parametrize("again", [True, False])
def test_compiled_model(again):
    net = model()
    compiled = torch.compile(net, backend="aot_eager")
    optimizer = VSGD(net.parameters())
    for x, y in batches(300):
        if again:
            optimizer.minimize(lambda x=x, y=y: cross_entropy(compiled(x), y))
        else:
            optimizer.zero_grad()
            optimizer.backward(cross_entropy(compiled(x), y))
            optimizer.step()
    assert accuracy(net) > (ENOUGH if again else 0.7)
    expected = "finite-difference" if again else "polyak"
    assert list(optimizer.explain().curvature_sources) == [expected]

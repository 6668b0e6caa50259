"""Whether two trees of this project compute the same bits on this machine.

Run: python benchmarks/same_bits.py TREE [TREE], for example a checkout of the commit before a change and
the present one. Every case trains something small through the public API; its fingerprint is a digest of
all parameters and of all that is kept for them. What differs is listed, and the exit code is 1.
"""

import argparse
import hashlib
import itertools
import json
import os
import subprocess
import sys
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np

STEPS = 60


def digest_of(value: Any) -> str:
    """Digest whatever a state consists of; keys are taken in order, floats as their bits."""
    digest = hashlib.sha256()
    _feed(digest, value)
    return digest.hexdigest()[:16]


def _feed(digest: Any, value: Any) -> None:
    if isinstance(value, dict):
        for key in sorted(value, key=str):
            digest.update(str(key).encode())
            _feed(digest, value[key])
    elif isinstance(value, list | tuple):
        for one in value:
            _feed(digest, one)
    elif isinstance(value, bool | int | str) or value is None:
        digest.update(repr(value).encode())
    elif isinstance(value, float):
        digest.update(value.hex().encode())
    elif isinstance(value, np.ndarray | np.generic):
        digest.update(np.ascontiguousarray(value).tobytes())
    else:
        import torch

        assert isinstance(value, torch.Tensor), type(value)
        dense = value.detach().to_dense() if value.is_sparse else value.detach()
        digest.update(dense.contiguous().flatten().view(torch.uint8).numpy().tobytes())


# --- PyTorch ------------------------------------------------------------------------------------------

Case = tuple[str, Callable[[], Any]]


def torch_cases() -> Iterator[Case]:
    import torch

    dtypes = (torch.float64, torch.float32, torch.bfloat16)
    for dialect, granularity, dtype, way in itertools.product(
        ("paper", "robust"), ("element", "block", "global"), dtypes, WAYS
    ):
        settings = {"dialect": dialect, "granularity": granularity}
        name = f"torch {dialect} {granularity} {str(dtype).split('.')[1]} {way}"
        yield name, lambda s=settings, d=dtype, w=way: train_torch(mlp, d, w, s)
    extras: dict[str, dict[str, Any]] = {
        "decay": {"weight_decay": 1e-3},
        "lr": {"lr": 0.5},
        "every step": {"curvature_every": 1},
        "every tenth": {"curvature_every": 10},
        "finite-difference": {"curvature": "finite-difference"},
        "hutchinson": {"curvature": "hutchinson"},
        "floor": {"curvature_floor": 1e-2},
    }
    for label, settings in extras.items():
        yield f"torch {label}", lambda s=settings: train_torch(mlp, torch.float64, "minimize", s)
    for model in (convolutional, embedding, attention):
        for way in WAYS:
            if model is not embedding or way != "backward again":
                name = f"torch {model.__name__} {way}"
                yield name, lambda m=model, w=way: train_torch(m, torch.float32, w, {})


def mlp() -> Any:
    from torch import nn

    return nn.Sequential(nn.Linear(8, 16), nn.Tanh(), nn.Linear(16, 8), nn.ReLU(), nn.Linear(8, 3))


def convolutional() -> Any:
    from torch import nn

    return nn.Sequential(
        nn.Unflatten(1, (1, 2, 4)),
        nn.Conv2d(1, 4, 2, padding=1),
        nn.BatchNorm2d(4),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Flatten(),
        nn.Dropout(0.2),
        nn.LazyLinear(3),
    )


def embedding() -> Any:
    import torch
    from torch import nn

    class Rows(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.rows = nn.Embedding(20, 4, sparse=True)
            self.out = nn.Linear(32, 3)

        def forward(self, x: Any) -> Any:
            return self.out(self.rows((x.abs() * 7).to(torch.int64) % 20).flatten(1))

    return Rows()


def attention() -> Any:
    from torch import nn

    return nn.Sequential(
        nn.Unflatten(1, (4, 2)),
        nn.Linear(2, 8),
        nn.TransformerEncoderLayer(8, 2, 16, batch_first=True),
        nn.Flatten(),
        nn.Linear(32, 3),
    )


WAYS = ("minimize", "backward again", "backward", "watch")


def train_torch(make: Callable[[], Any], dtype: Any, way: str, settings: dict[str, Any]) -> Any:
    import torch

    from pesky.torch import VSGD

    torch.manual_seed(0)
    numbers = np.random.default_rng(1)
    model = make()
    model(torch.zeros(2, 8))  # lazy layers take their shape
    model.to(dtype)
    loss_of = torch.nn.CrossEntropyLoss()
    optimizer = VSGD(model.parameters(), **settings)
    if way == "watch":
        optimizer.watch(loss_of)
    losses = []
    for _ in range(STEPS):
        x = torch.from_numpy(numbers.normal(size=(16, 8))).to(dtype)
        y = (x[:, 0] > 0).long() + (x[:, 1] > 0.5).long()

        def closure(x: Any = x, y: Any = y) -> Any:
            return loss_of(model(x), y)

        if way == "minimize":
            losses.append(float(optimizer.minimize(closure)))
            continue
        optimizer.zero_grad()
        loss = closure()
        if way == "watch":
            loss.backward()
        else:
            optimizer.backward(loss, again=closure if way == "backward again" else None)
        optimizer.step()
        losses.append(float(loss.detach()))
    return losses, model.state_dict(), optimizer.state_dict()


# --- One sample at a time ------------------------------------------------------------------------------


def online_cases() -> Iterator[Case]:
    from pesky import online

    methods: dict[str, Callable[[], Any]] = {
        "vsgd-l": lambda: online.VSGD("element"),
        "vsgd-b": lambda: online.VSGD("block"),
        "vsgd-g": lambda: online.VSGD("global"),
        "vsgd-l seldom": lambda: online.VSGD("element", curvature_every=3),
        "robust": lambda: online.VSGD(dialect="robust"),
        "robust seldom": lambda: online.VSGD(dialect="robust", curvature_every=3),
        "sgd": lambda: online.SGD(0.05),
        "adagrad": lambda: online.AdaGrad(0.1),
        "amari": lambda: online.Amari(1e-3, 100.0),
        "almeida": lambda: online.Almeida(1e-3, 100.0),
        "smd": lambda: online.SMD(0.01, 1e-3, 100.0),
    }
    for (name, method), sizes in itertools.product(methods.items(), ([6, 3], [6, 9, 3], [6, 9, 5, 3])):
        yield f"online {name} {sizes}", lambda m=method, s=sizes: train_online(m(), s)


def train_online(method: Any, sizes: list[int]) -> Any:
    from pesky import online

    numbers = np.random.default_rng(2)
    inputs = numbers.normal(size=(400, sizes[0])).astype(np.float32)
    labels = (inputs[:, 0] > 0).astype(np.int64) + (inputs[:, 1] > 0.5)
    network = online.Network(sizes, l2=1e-4, seed=3)
    result = online.fit(network, method, inputs, labels, epochs=2, seed=4)
    return network.parameters, [float(one) for one in result.loss]


# --- Comparing -----------------------------------------------------------------------------------------


def fingerprints() -> dict[str, str]:
    """Train every case of the tree that is imported; what fails is told by its error."""
    found = {}
    for name, run in itertools.chain(online_cases(), torch_cases()):
        try:
            found[name] = digest_of(run())
        except Exception as error:
            found[name] = f"{type(error).__name__}: {error}"
    return found


def fingerprints_of(tree: Path) -> dict[str, str]:
    threads = {f"{library}_NUM_THREADS": "1" for library in ("MKL", "NUMBA", "OMP", "OPENBLAS")}
    environment = os.environ | threads | {"PYTHONPATH": str(tree.resolve())}
    command = [sys.executable, str(Path(__file__).resolve()), "--print"]
    done = subprocess.run(command, cwd=tree, env=environment, check=True, stdout=subprocess.PIPE)
    return json.loads(done.stdout)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("trees", nargs="*", type=Path)
    parser.add_argument("--print", action="store_true", help="fingerprints of the tree that is imported")
    asked = parser.parse_args()
    if asked.print:
        warnings.simplefilter("ignore")
        print(json.dumps(fingerprints()))
        return 0
    before, after = (fingerprints_of(tree) for tree in (*asked.trees, Path())[:2])
    names = [*before, *(name for name in after if name not in before)]
    different = [name for name in names if before.get(name) != after.get(name)]
    for name in different:
        print(f"differs: {name}: {before.get(name)} | {after.get(name)}")
    failed = sum(":" in one for one in after.values())
    print(
        f"{len(names) - len(different)} of {len(names)} cases have the same bits ({failed} of them fail)"
    )
    return 1 if different else 0


if __name__ == "__main__":
    sys.exit(main())

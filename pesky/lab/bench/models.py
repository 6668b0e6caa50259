"""What curvature and whole training steps cost on small models: ratios within one run."""

import warnings
from collections.abc import Sequence
from itertools import cycle
from time import perf_counter
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from pesky.errors import check_count
from pesky.lab.bench.update import THREADS, Run, Say, in_turns, with_threads
from pesky.lab.torch_models import MODELS, Case
from pesky.torch import VSGD, bbprop

__all__ = ["bench_models"]

_RARELY = 10  # steps to a measurement of curvature, in the cheaper setting
_FIRST = 330  # robust steps that are timed apart, until losses are evaluated as seldom as they may be
_TURN = 16  # steps in which a robust run then does everything but measure curvature
_BATCHES = 16  # that a robust run sees in turn: a single one would soon be known by heart
_BACKPACK = ("LeNet", "MLP")  # it wants sequences of layers that it knows


def bench_models(
    *,
    repeats: int = 5,
    names: Sequence[str] = tuple(MODELS),
    threads: Sequence[int] = THREADS[:1],
    with_backpack: bool = False,
    say: Say = lambda text: None,
) -> list[dict[str, Any]]:
    """Time forward and backward passes, with bbprop, and whole steps beside fused Adam's; batch 64.

    `threads` are how many torch may use; `with_backpack` also times BackPACK, where it is installed.
    """
    check_count("repeats", repeats)
    rows = []
    for count in with_threads(threads):
        for name in names:
            say(f"{name}, {count} thread{'s' * (count > 1)}")
            row = {"model": name, "threads": count, **_bench_model(name, repeats)}
            rows.append(row | (_backpack(name, repeats) if with_backpack and name in _BACKPACK else {}))
    return rows


def _bench_model(name: str, repeats: int) -> dict[str, Any]:
    torch.manual_seed(0)
    runs: dict[str, Run] = {
        "plain": _backward(MODELS[name]()),
        "bbprop": _with_bbprop(MODELS[name]()),
        "adam": _adam(MODELS[name]()),
        "paper": _paper(MODELS[name]()),
    }
    seconds = in_turns(runs, repeats)
    rarely = _paper(MODELS[name](), curvature_every=_RARELY)
    ten = in_turns(
        {"adam": _times(runs["adam"], _RARELY), "rarely": _times(rarely, _RARELY)}, max(3, repeats // 5)
    )
    robust = _robust(name)
    start = perf_counter()
    _times(robust, _FIRST)()
    first = (perf_counter() - start) / _FIRST
    turn = in_turns({"adam": _times(runs["adam"], _TURN), "robust": _times(robust, _TURN)}, repeats)
    return {
        "parameters": sum(one.numel() for one in MODELS[name]().model.parameters()),
        "plain_milliseconds": 1e3 * seconds["plain"],
        "with_bbprop_over_plain": seconds["bbprop"] / seconds["plain"],
        "paper_step_over_adam_step": seconds["paper"] / seconds["adam"],
        f"paper_step_over_adam_step_curvature_every_{_RARELY}": ten["rarely"] / ten["adam"],
        "robust_step_over_adam_step": turn["robust"] / turn["adam"],
        "first_robust_steps_over_adam_step": first / turn["adam"] * _TURN,
    }


def _times(run: Run, count: int) -> Run:
    def repeated() -> None:
        for _ in range(count):
            run()

    return repeated


def _loss(case: Case) -> Tensor:
    return F.cross_entropy(case.model(case.inputs), case.targets)


def _backward(case: Case) -> Run:
    def run() -> None:
        case.model.zero_grad()
        torch.autograd.backward(_loss(case))

    return run


def _with_bbprop(case: Case) -> Run:
    parameters = list(case.model.parameters())

    def run() -> None:
        case.model.zero_grad()
        loss = _loss(case)
        bbprop(loss, parameters)
        torch.autograd.backward(loss)

    return run


def _adam(case: Case) -> Run:
    optimizer = torch.optim.Adam(case.model.parameters(), fused=True)

    def run() -> None:
        optimizer.zero_grad()
        torch.autograd.backward(_loss(case))
        optimizer.step()

    return run


def _paper(case: Case, **settings: Any) -> Run:
    optimizer = VSGD(case.model.parameters(), dialect="paper", init_batches=1, **settings)

    def run() -> None:
        optimizer.minimize(lambda: _loss(case))

    run()
    return run


def _robust(name: str) -> Run:
    made = [MODELS[name]() for _ in range(_BATCHES)]
    cases = cycle(case._replace(model=made[0].model) for case in made)
    optimizer = VSGD(made[0].model.parameters())

    def run() -> None:
        case = next(cases)
        optimizer.minimize(lambda: _loss(case))

    return run


def _backpack(name: str, repeats: int) -> dict[str, float]:
    """Time BackPACK's diagonals, where it is installed."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # it hooks into modules in a way that torch warns of
        try:
            from backpack import backpack, extend, extensions
        except ImportError:
            return {}
        found = {}
        for extension in ("DiagGGNMC", "DiagGGNExact", "DiagHessian"):
            case = MODELS[name]()
            model, head = extend(case.model), extend(nn.CrossEntropyLoss())
            measured = getattr(extensions, extension)()

            def run(
                case: Case = case, model: Any = model, head: Any = head, measured: Any = measured
            ) -> None:
                model.zero_grad()
                loss = head(model(case.inputs), case.targets)
                with backpack(measured):
                    loss.backward()

            both = {"backpack": run, "plain": _backward(MODELS[name]())}
            seconds = in_turns(both, max(3, repeats // 5))
            found[f"backpack_{extension}_over_plain"] = seconds["backpack"] / seconds["plain"]
    return found

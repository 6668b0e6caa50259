"""What an optimizer says: what is wrong, and what to do."""

import sys
import warnings
from collections.abc import Sequence

__all__ = [
    "FOREIGN",
    "HELD",
    "IDLE",
    "NOT_GATHERED",
    "NO_AGAIN",
    "NO_CURVATURE",
    "NO_REPEATS",
    "REPEATS_NOT",
    "RUNS_BACKWARD",
    "WATCHES_SHARDS",
    "idle",
    "low_lr",
    "say",
    "unreached",
    "watched",
]

REPEATS_NOT = (
    "closure that computes the same loss when it is called again, and this one does not: draw the batch "
    "(and random numbers other than torch's) before optimizer.minimize(closure), not inside the closure"
)
NO_REPEATS = f"losses are evaluated again, which needs a {REPEATS_NOT}; going on without"
RUNS_BACKWARD = (
    "closure must only compute the loss; got one that called backward(), which minimize() does itself: "
    "leave zero_grad() and backward() out of it"
)
HELD = (
    "some entries of parameters stayed where they are, as their step would have led to inf: the loss "
    "may be unbounded, or parameters in half precision too large for it"
)
NO_AGAIN = (
    "steps began with losses that can be evaluated again: go on with "
    "optimizer.minimize(closure) or optimizer.backward(loss, again=closure)"
)
NO_CURVATURE = (
    "step() found gradients but no curvature. Three ways to get it: "
    "optimizer.minimize(lambda: loss_fn(model(x), y)) for a whole step; "
    "optimizer.backward(loss) in place of loss.backward(); or, once, "
    "optimizer.watch(model, loss_module), or optimizer.watch(model) if it returns its loss, where the "
    "loop is not yours"
)
WATCHES_SHARDS = (
    "watch cannot measure the curvature of parameters that are sharded (DTensors), whose gradients are "
    "still on their way: use optimizer.minimize(closure), or optimizer.backward(loss) in place of "
    "loss.backward()"
)
NOT_GATHERED = (
    "curvature cannot be measured on the graph of parameters that are DTensors, unless fully_shard "
    "gathers all of them: use optimizer.minimize(closure), with no curvature or 'finite-difference'"
)
FOREIGN = (
    "load_state_dict: this is the state of another optimizer, of which nothing can be used; "
    "VSGD goes on with its own"
)
IDLE = 5  # steps without a loss from a watched module

_LOW_LR = 0.1  # below, it is one that somebody is used to, or a framework's default


def idle(names: Sequence[str]) -> str:
    """Say which watched modules have had no loss to see; nothing if there are none."""
    if not names:
        return ""
    return f"the watched {', '.join(names)} has produced no loss yet: watch the module that computes it"


def watched(problem: str | None) -> str:
    """Say that a watched loss cannot be evaluated again, and why, if that is known."""
    why = problem or "its loss is another one when the same forward pass is done again"
    return (
        f"the loss cannot be evaluated again: {why}. Going on without second evaluations, which "
        "learns more slowly; optimizer.minimize(closure) needs no watch"
    )


def unreached(count: int, of: int) -> str:
    """Say that some parameters have a gradient, but no curvature."""
    return (
        f"{count} of {of} parameters with a gradient have no curvature: "
        "no loss that was watched or given to optimizer.backward() depends on them"
    )


def low_lr(lr: float) -> str | None:
    """Say that an lr is one of an ordinary optimizer; none at all is meant."""
    if not 0 < lr < _LOW_LR:
        return None
    return (
        f"lr={lr:g} multiplies the rates, which set themselves, and makes them too small: leave it out, "
        "or set lr=1 where a framework passes another (skorch: NeuralNet(..., lr=1))"
    )


def say(message: str) -> None:
    """Warn whoever called the library, from whatever depth of it or of torch."""
    level, frame = 1, sys._getframe()
    while frame.f_back is not None and _is_inside(frame.f_globals.get("__name__", "")):
        level, frame = level + 1, frame.f_back
    warnings.warn(message, stacklevel=level)


def _is_inside(module: str) -> bool:
    return module.split(".")[0] in ("pesky", "torch", "contextlib")

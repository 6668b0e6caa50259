"""The two loops that Python starts: look at the initial samples, and train."""

from typing import Any

import numpy as np

from pesky import rule
from pesky.compiling.compiled import compiled, kernel
from pesky.compiling.subnormals import flush_subnormals, restore_mode
from pesky.online.blocks import (
    accept,
    apply,
    block_of,
    conclude,
    gather,
    observe,
    prepare,
    preview,
    settle,
)
from pesky.online.passes import (
    Floats,
    Integers,
    Samples,
    Shape,
    Work,
    backward,
    forward,
    head,
    largest_powers,
)

__all__ = ["RUNNING", "SINCE_CALL", "SINCE_EPOCH", "SINCE_NOTE", "look", "train"]

LOSS_MEMORY = 1000.0  # samples over which the watch for an exploding loss averages
WORST_LOSS = 100.0  # in limits: what one sample counts at most, so that ten in a row end a run
RUNNING, SINCE_NOTE, SINCE_EPOCH, SINCE_CALL = 0, 1, 2, 3  # the entries of `losses`


@compiled
def _gradients(
    shape: Shape,
    theta: Floats,
    work: Work,
    samples: Samples,
    index: int,
    with_curvature: bool,
) -> float:
    """Fill `work` for one sample and return its loss."""
    work.output[: shape.sizes[0]] = samples.inputs[index]
    forward(shape, theta, work)
    if samples.labels.size > 0:
        loss = head(shape, work, samples.labels[index], samples.targets[0])
    else:
        loss = head(shape, work, 0, samples.targets[index])
    backward(shape, theta, work, with_curvature)
    return loss


@kernel
def look(
    shape: Shape,
    theta: Floats,
    work: Work,
    state: Any,
    samples: Samples,
    order: Integers,
    with_curvature: bool,
    factor: Any,
) -> tuple[float, int]:
    """Average the samples in `order` without moving; return their total loss and how many counted.

    A sample counts unless a square times `factor` is not finite.
    """
    total, count = 0.0, 0
    mode = flush_subnormals()
    for n in range(order.size):
        loss = _gradients(shape, theta, work, samples, order[n], with_curvature)
        power, bend = largest_powers(shape, work, with_curvature)
        usable = rule.is_finite_power(factor * power) and rule.is_finite_power(factor * bend)
        if usable and np.isfinite(loss):
            count += 1
            total += loss
            preview(state, shape, theta, work)
            for number in range(2 * shape.sizes.size - 2):
                observe(state, block_of(shape, theta, work, number, with_curvature), count)
    restore_mode(mode)
    return total, count


@kernel
def train(
    shape: Shape,
    theta: Floats,
    work: Work,
    state: Any,
    samples: Samples,
    order: Integers,
    step: int,
    bbprop_every: int,
    losses: Any,
    limit: float,
) -> tuple[int, int, bool]:
    """Learn from the samples in `order`, one at a time.

    `step` is the number of samples seen before. A sample whose loss, squared gradient or curvature is
    not finite, or that the method does not accept, is rejected: nothing is learnt. `losses` holds a
    running average of the loss and its sums; when the average is above `limit`, training stops. Returns
    how many samples were seen, how many of them were rejected, and whether it diverged at the last.
    """
    rejected = 0
    mode = flush_subnormals()
    blocks = 2 * shape.sizes.size - 2
    for n in range(order.size):
        fresh = bbprop_every > 0 and (step + n) % bbprop_every == 0
        loss = _gradients(shape, theta, work, samples, order[n], fresh)
        worst = WORST_LOSS * limit
        counted = loss if loss < worst else worst
        losses[RUNNING] += (counted - losses[RUNNING]) / LOSS_MEMORY
        losses[SINCE_NOTE] += counted
        losses[SINCE_EPOCH] += counted
        losses[SINCE_CALL] += counted
        if losses[RUNNING] > limit:
            restore_mode(mode)
            return n + 1, rejected, True
        power, bend = largest_powers(shape, work, fresh)
        usable = rule.is_finite_power(power) and rule.is_finite_power(bend)
        accepted = accept(state, shape, theta, samples, order[n], loss)
        if not (accepted and usable and np.isfinite(loss)):
            rejected += 1
            continue
        prepare(state, shape, theta, work)
        for number in range(blocks):
            gather(state, block_of(shape, theta, work, number, fresh))
        conclude(state)
        for number in range(blocks):
            apply(state, block_of(shape, theta, work, number, fresh))
        settle(state, shape, theta, work, samples, order[n])
    restore_mode(mode)
    return order.size, rejected, False

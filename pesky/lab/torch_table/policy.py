"""A policy gradient: walks to a goal on a grid, learnt from the walks that the policy itself makes.

The random numbers of a batch are fixed by seed and step, as everybody's batches are; where they lead
is up to the policy as it is when the step begins. The loss is then a function of the parameters: costs
of the same actions, weighted by how much more probable these are than when they were taken. Its value
at first is the mean cost of the walks, its gradient that of REINFORCE with a baseline.
"""

from pathlib import Path

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from pesky.lab.torch_table.instance import Batch, Instance, Measured, generator, in_eval_mode
from pesky.lab.torch_table.task import Task

__all__ = ["TASKS", "walking"]

_SIDE = 5  # of the grid
_PLACES = _SIDE * _SIDE
_MOVES = torch.tensor([[0, 1], [0, -1], [1, 0], [-1, 0]])
_LENGTH = 10  # moves of a walk
_WALKS, _JUDGED_WALKS = 32, 1000
_JUDGED = 7  # seed of the walks that are judged


def walking(seed: int, folder: Path | None) -> Instance:
    """Walk from a place to a goal; a move that does not end there costs 1 / 10. No folder is needed."""
    model = nn.Sequential(nn.Linear(2 * _PLACES, 64), nn.Tanh(), nn.Linear(64, len(_MOVES)))

    def batch(step: int) -> Batch:
        return _walks(model, _WALKS, generator(seed, step))

    def evaluate(trained: nn.Module) -> Measured:
        with in_eval_mode(trained):
            _, records = _walks(trained, _JUDGED_WALKS, generator(_JUDGED))
            return Measured(float(records[..., _COST].sum(1).mean()), _percent_lost(trained))

    return Instance(model, batch, _expected_cost, evaluate)


_ACTION, _LOG_PROBABILITY, _ADVANTAGE, _COST = range(4)  # what is kept of each move


@torch.no_grad()
def _walks(policy: nn.Module, walks: int, random: torch.Generator) -> Batch:
    """Return what the policy saw on its walks, and a record of each move."""
    here, goal = torch.randint(_PLACES, (2, walks), generator=random)
    seen, actions, chances, costs = [], [], [], []
    for numbers in torch.rand(_LENGTH, walks, 1, generator=random):
        seen.append(_seen(here, goal))
        logits: Tensor = policy(seen[-1])
        action = (logits.softmax(1).cumsum(1)[:, :-1] < numbers).sum(1)
        actions.append(action)
        chances.append(logits.log_softmax(1).gather(1, action[:, None]).squeeze(1))
        here = _moved(here, action)
        costs.append((here != goal).float() / _LENGTH)
    cost = torch.stack(costs, 1)
    to_come = cost.flip(1).cumsum(1).flip(1)
    advantage = to_come - to_come.mean(0)  # of the walks at the same move
    record = (torch.stack(actions, 1).float(), torch.stack(chances, 1), advantage, cost)
    return torch.stack(seen, 1), torch.stack(record, 2)


def _seen(here: Tensor, goal: Tensor) -> Tensor:
    return torch.cat((F.one_hot(here, _PLACES), F.one_hot(goal, _PLACES)), 1).float()


def _moved(here: Tensor, action: Tensor) -> Tensor:
    """Return where moves lead; walls hold."""
    place = torch.stack((here // _SIDE, here % _SIDE), 1) + _MOVES[action]
    row, column = place.clamp(0, _SIDE - 1).unbind(1)
    return row * _SIDE + column


def _expected_cost(model: nn.Module, batch: Batch) -> Tensor:
    seen, records = batch
    actions = records[..., _ACTION].long()
    now = model(seen).log_softmax(2).gather(2, actions[..., None]).squeeze(2)
    more_probable = (now - records[..., _LOG_PROBABILITY]).exp()
    weighted: Tensor = ((more_probable - 1) * records[..., _ADVANTAGE] + records[..., _COST]).sum(1)
    return weighted.mean()


def _percent_lost(policy: nn.Module) -> float:
    """Return from how many places the likeliest moves do not lead to the goal, over all goals."""
    here, goal = torch.cartesian_prod(torch.arange(_PLACES), torch.arange(_PLACES)).unbind(1)
    for _ in range(_LENGTH):
        action = policy(_seen(here, goal)).argmax(1)
        here = torch.where(here == goal, here, _moved(here, action))
    return 100 * float((here != goal).double().mean())


TASKS = (
    Task.made("policy-gradient", "Policy gradient on a grid of 5 x 5", 1500, "goals missed, %", walking),
)

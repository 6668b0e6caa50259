"""One rule for each operation, by family; the walk that uses them knows no operation."""

from pesky.torch.curvature.rules import (
    attention,
    normalisation,
    pooling,
    products,
    recurrent,
    reductions,
    simple,
    softmax,
)
from pesky.torch.curvature.rules.rule import Rule

__all__ = ["FAMILIES", "RULES", "Rule"]

FAMILIES = (simple, reductions, softmax, products, normalisation, pooling, attention, recurrent)

RULES: dict[str, Rule] = {name: rule for family in FAMILIES for name, rule in family.RULES.items()}

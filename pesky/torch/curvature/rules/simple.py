"""Operations whose squared Jacobian follows from their own backward pass. Most of them do.

Two families are enough. If each input goes to one output only (elementwise operations, broadcasting
arithmetic before its sum, reductions), then the backward pass of sqrt(h) has one term, and its square
is J^2 h. If all entries of the Jacobian are 0 or 1 (views, gathers, rectifiers, pooling by
maximum, sums), then J^2 = J, and h itself passes backward.
"""

from collections.abc import Iterable

import torch
from torch import Tensor
from torch.autograd.graph import GradientEdge

from pesky.torch.curvature.node import Edge, Node, Tensors
from pesky.torch.curvature.rules.rule import Rule

__all__ = ["RULES", "curve", "one_output_each"]


def unit_entries(node: Node, curvature: Tensors) -> Tensors:
    """J^2 h = J h for a Jacobian of zeros and ones."""
    return node.backward(curvature)


def sum_or_difference(node: Node, curvature: Tensors) -> Tensors:
    """y = a + alpha b, mostly with alpha 1 or -1: then h goes to both as it is."""
    (h,) = curvature
    factor = float(getattr(node.function, "_saved_alpha", 1)) ** 2
    return [h, None if h is None else h if factor == 1 else h * factor][: len(node.edges)]


def one_output_each(node: Node, curvature: Tensors) -> Tensors:
    """J^2 h = (J sqrt(h))^2 if no input goes to two outputs.

    An input that is given twice, as in x * x, has the sum of both derivatives.
    """
    roots = [None if one is None else one.sqrt() for one in curvature]
    passed = node.backward(roots)
    if len(passed) == 1 and passed[0] is not None and passed[0].is_contiguous():
        return [passed[0].square_()]  # in place: on a CPU, fresh memory costs more than the arithmetic
    first: dict[Edge, int] = {}
    for number, (edge, one) in enumerate(zip(node.edges, passed, strict=True)):
        if edge is None or one is None:
            continue
        twin = first.setdefault(edge, number)
        earlier = passed[twin]
        if twin != number and earlier is not None and earlier.shape == one.shape:
            passed[twin], passed[number] = earlier + one, None
    return [None if one is None else one.square() for one in passed]


def curve(node: Node, slopes: Tensors, signs: bool = False) -> Tensors:
    """sum_i s_i d^2 y_i / dx_j^2, by differentiating the operation's own backward pass.

    Exact if dL/dx_j depends on x_j alone; else `signs` makes it an unbiased estimate.
    """
    distinct = list(dict.fromkeys(edge for edge in node.edges if edge is not None))
    found: dict[Edge, Tensor | None] = {}
    with torch.enable_grad():
        passed, scale = node.scaled_backward(slopes)
        for edge in distinct:
            mine = [one for to, one in zip(node.edges, passed, strict=True) if to == edge]
            terms = [one for one in mine if one is not None and one.requires_grad]
            second = _derivative(terms, edge, node if signs else None) if terms else None
            # Only now: the operation's own type may be too narrow for it.
            found[edge] = second if second is None or scale is None else node.in_full(second) * scale
    result: list[Tensor | None] = []
    for to in node.edges:
        result.append(None if to is None else found.pop(to, None))
    return result


def _derivative(terms: list[Tensor], edge: Edge, signs_from: Node | None) -> Tensor | None:
    signs = None if signs_from is None else signs_from.signs_like(terms[0])
    weighted = terms if signs is None else [term * signs for term in terms]
    total = torch.stack([term.sum() for term in weighted]).sum()
    source = GradientEdge(edge.function, edge.output)
    (second,) = torch.autograd.grad(total, [source], retain_graph=True, allow_unused=True)
    if second is None:
        return None
    return second if signs is None else second * signs


def _named(names: str, rule: Rule) -> Iterable[tuple[str, Rule]]:
    return ((name, rule) for name in names.split())


_SHAPES = """
    View UnsafeView Reshape ReshapeAlias T Transpose Permute Unsqueeze Squeeze Expand Repeat Select
    Slice Narrow Split UnsafeSplit SplitWithSizes UnsafeSplitWithSizes Chunk Unbind Cat Stack
    ConstantPadNd ReflectionPad1D ReflectionPad2D ReflectionPad3D ReplicationPad1D ReplicationPad2D
    ReplicationPad3D AsStrided Diagonal DiagEmbed Tril Triu PixelShuffle PixelUnshuffle Unfold Im2Col
    Col2Im Roll Flip Movedim Index IndexSelect IndexPut IndexPutImpl IndexAdd IndexCopy IndexFill
    Gather Scatter ScatterAdd SelectScatter SliceScatter Take Embedding MaskedSelect Alias Clone
    CopyBackwards ToCopy Contiguous Detach Cumsum UpsampleNearest1D UpsampleNearest2D
    UpsampleNearest3D UpsampleNearestExact1D UpsampleNearestExact2D UpsampleNearestExact3D Rot90
    MaskedFill MaskedScatter Where Sort Topk Kthvalue Mode Median RegisterPostBackwardFunction
"""
_RECTIFIERS = """
    Relu Threshold Hardtanh Clamp ClampMin ClampMax MaxPool2DWithIndices MaxPool3DWithIndices
    MkldnnMaxPool2D AdaptiveMaxPool2D AdaptiveMaxPool3D FractionalMaxPool2D FractionalMaxPool3D
    Hardshrink Softshrink Max Min Sum Nansum
"""
# Several of these have factors that are not one; they are (piecewise) linear all the same.
_LINEAR = """
    Neg Rsub Mean LeakyRelu PreluKernel RreluWithNoise Hardsigmoid NativeDropout Amax Amin Maximum
    Minimum Fmax Fmin Fmod Remainder NllLoss NllLoss2D MultiMarginLoss MultilabelMarginLoss
"""
# CopySlices is an operation in place on a part of a tensor; those are elementwise.
_CURVED = """
    Mul Div Addcmul Addcdiv Lerp Pow Square Reciprocal Rsqrt Exp Exp2 Expm1 Sigmoid Tanh Gelu Silu Elu
    Celu Softplus Mish Hardswish Glu Sin Cos Tan Asin Acos Atan Sinh Cosh Asinh Acosh Atanh Erf Erfc
    Erfinv Logit Xlogy Xlog1Py Logaddexp Logaddexp2 Atan2 Hypot Sinc LogSigmoid Entr Lgamma Digamma
    MseLoss SmoothL1Loss HuberLoss SoftMarginLoss BinaryCrossEntropyWithLogits CopySlices
"""
_OUTER = "Log Log10 Log2 Log1P Sqrt BinaryCrossEntropy"

RULES: dict[str, Rule] = dict(
    [
        *_named(_SHAPES, Rule(unit_entries)),
        *_named(_RECTIFIERS, Rule(unit_entries)),
        *_named(_LINEAR, Rule(one_output_each)),
        *_named(_CURVED, Rule(one_output_each, curve)),
        *_named(_OUTER, Rule(one_output_each, curve, outer=True)),
        *_named("Add Sub", Rule(sum_or_difference)),
        ("Abs", Rule(one_output_each, kinked=True)),
    ]
)

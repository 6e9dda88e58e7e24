"""onnxruntime's fused products and convolutions (its ContribOperators.md), in operators that MNN has."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from graphkit.graph import Graph
from graphkit.node import Node
from graphkit.passes._emit import Emit
from graphkit.passes.lowering import contrib_moves, rotary, weight_only
from graphkit.passes.lowering._forms import Floats, gelu_tanh
from graphkit.rewrite import Outcome, Rule, rule

_CONV_ATTRIBUTES = ("auto_pad", "dilations", "group", "kernel_shape", "pads", "strides")

# What onnxruntime's kernels assume for parameters that are not given (those of the ONNX operators).
_PARAMETERS: dict[str, tuple[tuple[str, float], ...]] = {
    "Relu": (),
    "Sigmoid": (),
    "Tanh": (),
    "Softplus": (),
    "Softsign": (),
    "LeakyRelu": (("alpha", 0.01),),
    "Elu": (("alpha", 1.0),),
    "ThresholdedRelu": (("alpha", 1.0),),
    "HardSigmoid": (("alpha", 0.2), ("beta", 0.5)),
    "Selu": (("alpha", 1.67326319217681884765625), ("gamma", 1.05070102214813232421875)),
}


@rule("com.microsoft::FusedMatMul", "com.microsoft::TransposeMatMul", name="fused-matmul")
def fused_matmul(graph: Graph, node: Node) -> Outcome:
    """MatMul with operands that are transposed before and a factor behind."""
    build, dtype = Emit(graph, node), graph.dtype(node.inputs[0]) or graph.dtype(node.inputs[1])
    factors = []
    for x, side in zip(node.inputs, "AB", strict=True):
        flips = bool(node.attr(f"trans{side}", 0)), bool(node.attr(f"transBatch{side}", 0))
        rank = graph.rank(x)
        if any(flips) and rank is None:
            return fused_matmul.refuse(node, f"the rank of '{x}' is unknown")
        factors.append(_transposed(build, x, rank or 0, *flips))
    alpha = node.attr("alpha", 1.0)
    if alpha != 1 and not dtype:
        return fused_matmul.refuse(node, "the element type is unknown")
    constant = graph.is_constant(node.inputs[1])
    if alpha != 1 and constant:
        factors[1] = build.op("Mul", factors[1], build.number(alpha, dtype))
    y = build.op("MatMul", *factors)
    y = build.op("Mul", y, build.number(alpha, dtype)) if alpha != 1 and not constant else y
    return build.rewrite({node.outputs[0]: y}, f"{node.op_type} as MatMul")


def _transposed(build: Emit, x: str, rank: int, matrix: bool, batch: bool) -> str:
    """`batch` takes axis 0 behind the batch axes, `matrix` swaps the last two then; a vector stays."""
    perm = list(range(rank))
    if batch and rank > 2:
        perm = [*range(1, rank - 1), 0, rank - 1]
    if matrix and rank > 1:
        perm[-2:] = perm[:-3:-1]
    return build.op("Transpose", x, perm=perm) if perm != sorted(perm) else x


@rule("com.microsoft::FusedGemm", name="fused-gemm")
def fused_gemm(graph: Graph, node: Node) -> Outcome:
    """Gemm with an activation behind it."""
    build, dtype = Emit(graph, node), graph.dtype(node.inputs[0]) or graph.dtype(node.inputs[1])
    attrs = {name: node.attr(name) for name in ("alpha", "beta", "transA", "transB")}
    y = build.op("Gemm", *[name for name in node.inputs if name], **attrs)
    values = [node.attr(f"activation_{name}") for name in ("alpha", "beta")]
    result = _activate(build, y, node.attr("activation", ""), values, dtype)
    if result is None:
        return fused_gemm.refuse(node, f"activation '{node.attr('activation')}' is unknown")
    return build.rewrite({node.outputs[0]: result}, "FusedGemm as Gemm and its activation")


@rule("com.microsoft::GemmFastGelu", name="gemm-fast-gelu")
def gemm_fast_gelu(graph: Graph, node: Node) -> Outcome:
    """MatMul, bias, and Gelu by tanh."""
    build = Emit(graph, node)
    at = Floats(build, *node.inputs)
    if not at.outside:
        return gemm_fast_gelu.refuse(node, "the element type is unknown")
    y = build.op("MatMul", at.up(node.inputs[0]), at.up(node.inputs[1]))
    y = build.op("Add", y, at.up(node.input(2))) if node.input(2) else y
    return build.rewrite({node.outputs[0]: at.down(gelu_tanh(at, y))}, "GemmFastGelu spelled out")


@rule("com.microsoft::FusedConv", "com.microsoft::NhwcFusedConv", "com.microsoft::NhwcConv", name="fused-convolution")
def fused_convolution(graph: Graph, node: Node) -> Outcome:
    """Conv, the sum with Z, then the activation; channels-last ones between two Transposes."""
    build, last = Emit(graph, node), node.op_type.startswith("Nhwc")
    rank, dtype = graph.rank(node.inputs[1]), graph.dtype(node.inputs[1])
    if rank is None:
        return fused_convolution.refuse(node, "the rank of the weights is unknown")
    x, (weights, bias, other) = node.inputs[0], (node.input(index) for index in (1, 2, 3))
    x = build.op("Transpose", x, perm=[0, rank - 1, *range(1, rank - 1)]) if last else x
    attrs: dict[str, Any] = {name: node.attr(name) for name in _CONV_ATTRIBUTES}
    y = build.op("Conv", x, weights, *([bias] if bias else []), **attrs)
    y = build.op("Transpose", y, perm=[0, *range(2, rank), 1]) if last else y
    y = build.op("Add", y, other) if other else y
    result = _activate(build, y, node.attr("activation", ""), node.attr("activation_params", []), dtype)
    if result is None:
        return fused_convolution.refuse(node, f"activation '{node.attr('activation')}' is unknown")
    return build.rewrite({node.outputs[0]: result}, f"{node.op_type} as Conv and what follows")


@rule("com.microsoft::ConvTransposeWithDynamicPads", name="contrib-conv-transpose-pads")
def conv_transpose_pads(graph: Graph, node: Node) -> Outcome:
    """ConvTranspose whose pads are an input; constant ones become the attribute."""
    pads, build = graph.constant(node.input(2)) if node.input(2) else None, Emit(graph, node)
    if node.input(2) and pads is None:
        return conv_transpose_pads.refuse(node, "the pads are known at run time only")
    attrs: dict[str, Any] = {name: node.attr(name) for name in (*_CONV_ATTRIBUTES, "output_padding")}
    attrs["pads"] = attrs["pads"] if pads is None else [int(pad) for pad in pads.reshape(-1)]
    y = build.op("ConvTranspose", *node.inputs[:2], *([node.input(3)] if node.input(3) else []), **attrs)
    return build.rewrite({node.outputs[0]: y}, "ConvTranspose with its pads as an attribute")


@rule("com.microsoft::GatedAdd", name="gated-add")
def gated_add(graph: Graph, node: Node) -> Outcome:
    """x + y · gate; the gate may be the sigmoid of a projection."""
    build, gate = Emit(graph, node), node.inputs[2]
    gate = build.op("Sigmoid", build.op("MatMul", gate, node.input(3))) if node.input(3) else gate
    total = build.op("Add", node.inputs[0], build.op("Mul", node.inputs[1], gate))
    return build.rewrite({node.outputs[0]: total}, "GatedAdd spelled out")


@rule("com.microsoft::CDist", name="cdist")
def cdist(graph: Graph, node: Node) -> Outcome:
    """(Squared) Euclidean distance of each row of A to each row of B."""
    metric, build = node.attr("metric", "sqeuclidean"), Emit(graph, node)
    if metric not in ("sqeuclidean", "euclidean"):
        return cdist.refuse(node, f"metric '{metric}'")
    apart = build.op("Sub", build.unsqueeze(node.inputs[0], 1), build.unsqueeze(node.inputs[1], 0))
    y = build.reduce("ReduceSum", build.op("Mul", apart, apart), [2], keepdims=False)
    y = build.op("Sqrt", y) if metric == "euclidean" else y
    return build.rewrite({node.outputs[0]: y}, "CDist spelled out")


def _activate(build: Emit, y: str, activation: str, values: Sequence[float | None], dtype: int) -> str | None:
    """The activation of `y` with its parameters in order (None: the default); None for one that is unknown."""
    if not activation:
        return y
    if activation == "HardSwish":
        return _hard_swish(build, y)
    if activation == "Clip" and dtype:
        low, high = (*values, None, None)[:2]
        y = y if low is None else build.op("Max", y, build.number(low, dtype))
        return y if high is None else build.op("Min", y, build.number(high, dtype))
    if activation not in _PARAMETERS:
        return None
    given = (*values, None, None)
    attrs: dict[str, Any] = {
        name: default if given[index] is None else given[index]
        for index, (name, default) in enumerate(_PARAMETERS[activation])
    }
    return build.op(activation, y, **attrs)


def _hard_swish(build: Emit, y: str) -> str:
    """x · max(0, min(1, x/6 + ½)); an operator of its own from opset 14 on."""
    if build.opset >= 14:
        return build.op("HardSwish", y)
    return build.op("Mul", y, build.op("HardSigmoid", y, alpha=1 / 6, beta=0.5))


RULES: tuple[Rule, ...] = (
    fused_matmul,
    fused_gemm,
    gemm_fast_gelu,
    fused_convolution,
    conv_transpose_pads,
    gated_add,
    cdist,
    *weight_only.RULES,
    *rotary.RULES,
    *contrib_moves.RULES,
)

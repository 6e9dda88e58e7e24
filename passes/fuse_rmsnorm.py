"""RMSNorm in the spellings of exporters → the one that MNN fuses, or RMSNormalization."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import ClassVar, Literal

import numpy as np
import onnx
from onnx import TensorProto

from graphkit.graph import Graph
from graphkit.node import Node
from graphkit.passes import _match, _norm
from graphkit.passes._norm import NormMatch
from graphkit.rewrite import Builder, Outcome, PassResult, Refusal, Rule, apply_rules

OP_OPSET = 23
REDUCE_AXES_INPUT = 18  # ReduceMean reads its axes from an input from this opset on
_NAME = "rmsnorm"
_FUSED_BY_MNN = {
    (square, f"ReduceMean({axes})", "Add(1,#)", "Sqrt(2)", "Div(x,3)")
    for square in ("Pow(x,#)", "Mul(x,x)")
    for axes in ("0", "0,#")
}


@dataclass(frozen=True)
class FuseRmsnorm:
    """Turn RMSNorm into the spelling that MNN fuses into one operator, or into RMSNormalization.

    Rewrites x / √(mean(x²) + ε) over the last axis, whether with Sqrt, Reciprocal, 1/·, Pow with ½ or −½, Pow
    or Mul for the square, operands in any order, as Hugging Face and torch export it: five nodes remain (Pow,
    ReduceMean, Add, Sqrt, Div), and the Mul by the weight as it stands. `form=decomposed` also spells
    RMSNormalization out, which MNN 3.6 refuses. `form=op` (opset 23) writes RMSNormalization, takes the Mul
    by a constant weight in, and Casts to float32 and back, which it does inside; several trailing axes are
    allowed there. `form=auto` writes the operator where the opset has it, else the spelling.

    Refuses values inside that are used elsewhere or are graph outputs, axes other than the last (`op`:
    trailing) ones, axes of unknown size (`op`), and `form=op` below opset 23.
    """

    name: ClassVar[str] = "fuse-rmsnorm"
    summary: ClassVar[str] = "RMSNorm becomes the spelling that MNN fuses, or RMSNormalization (opset 23)"

    form: Literal["auto", "decomposed", "op"] = field(
        default="auto",
        metadata={"help": "decomposed: what MNN fuses; op: RMSNormalization (opset 23); auto: op if it exists"},
    )

    def run(self, graph: Graph) -> PassResult:
        """Rewrite the graph in place."""
        return apply_rules(graph, self.rules())

    def rules(self) -> tuple[Rule, ...]:
        """The rules of this pass with its options bound."""
        spelled = Rule(_NAME, ("Sqrt", "Pow"), self._match_spelled)
        lowered = Rule("rmsnorm-op", ("RMSNormalization",), _match_op)
        return (spelled, lowered) if self.form == "decomposed" else (spelled,)

    def _match_spelled(self, graph: Graph, root: Node) -> Outcome:
        found = _norm.find_norm(graph, root)
        if isinstance(found, str):
            return Refusal(_NAME, root.label, found)
        if found is None or found.centred:
            return None
        if self.form == "op" and graph.opset() < OP_OPSET:
            reason = f"ONNX has RMSNormalization from opset {OP_OPSET}, the model is opset {graph.opset()}"
            return Refusal(_NAME, root.label, reason)
        as_op = self.form == "op" or (self.form == "auto" and graph.opset() >= OP_OPSET)
        return _as_op(graph, root, found) if as_op else _as_spelling(graph, root, found)


def _as_spelling(graph: Graph, root: Node, found: NormMatch) -> Outcome:
    if found.axes != (-1,):
        reason = f"it normalizes over axes {list(found.axes)}; MNN fuses the last axis only"
        return Refusal(_NAME, root.label, reason)
    if _match.spelling(graph, found.nodes, found.x) in _FUSED_BY_MNN:
        return None
    dtype = _match.np_dtype(graph, found.x)
    if dtype is None:
        return Refusal(_NAME, root.label, f"the element type of '{found.x}' is unknown")
    build = Builder(graph, root)
    y = write_spelling(build, found.x, found.axes, found.epsilon, dtype)
    return build.rewrite({found.output: y}, f"RMSNorm spelled as MNN fuses it, from {len(found.nodes)} nodes")


def write_spelling(build: Builder, x: str, axes: tuple[int, ...], epsilon: float, dtype: np.dtype) -> str:
    """Add x / √(mean(x²) + ε) in the five nodes that MNN 3.6 fuses; returns the result."""
    square = build.op("Pow", x, build.const(np.array(2, dtype), "two"))
    if build.graph.opset() >= REDUCE_AXES_INPUT:
        mean = build.op("ReduceMean", square, build.ints(*axes), keepdims=1)
    else:
        mean = build.op("ReduceMean", square, axes=list(axes), keepdims=1)
    shifted = build.op("Add", mean, build.const(np.array(epsilon, dtype), "epsilon"))
    return build.op("Div", x, build.op("Sqrt", shifted))


def _as_op(graph: Graph, root: Node, found: NormMatch) -> Outcome:
    shape = _norm.normalized_shape(graph, found.x, found.axes)
    if not found.trailing or shape is None:
        reason = f"it normalizes over axes {list(found.axes)}; RMSNormalization takes the last ones only"
        reason = reason if not found.trailing else f"the size of the last axes of '{found.x}' is unknown"
        return Refusal(_NAME, root.label, reason)
    source = _norm.op_source(graph, found)
    if isinstance(source, str):
        return Refusal(_NAME, root.label, source)
    x, output = source
    dtype = _match.np_dtype(graph, x)
    if dtype is None:
        return Refusal(_NAME, root.label, f"the element type of '{x}' is unknown")
    affine = _norm.find_affine(graph, output, shape, graph.rank(x), bias=False)
    build = Builder(graph, root)
    scale = affine.scale_in(build, np.ones(shape, dtype))
    y = build.op("RMSNormalization", x, scale, axis=found.axes[0], epsilon=found.epsilon)
    what = f"RMSNormalization from {len(found.nodes) + len(affine.nodes)} nodes"
    return build.rewrite({affine.output: y}, what)


def _match_op(graph: Graph, node: Node) -> Outcome:
    """Spell RMSNormalization out; half precision computes in float32, as `stash_type` asks."""
    x, axis, rank = node.inputs[0], node.attr("axis", -1), graph.rank(node.inputs[0])
    dtype, kind = _match.np_dtype(graph, x), graph.dtype(x)
    if dtype is None or (axis >= 0 and rank is None):
        return Refusal("rmsnorm-op", node.label, f"the element type or the rank of '{x}' is unknown")
    axes = tuple(range(axis if axis < 0 else axis - (rank or 0), 0))
    build = Builder(graph, node)
    half = kind in (TensorProto.FLOAT16, TensorProto.BFLOAT16) and node.attr("stash_type", 1) == 1
    value = build.op("Cast", x, to=TensorProto.FLOAT) if half else x
    y = write_spelling(build, value, axes, node.attr("epsilon", 1e-5), np.dtype(np.float32) if half else dtype)
    y = build.op("Cast", y, to=kind) if half else y
    y = y if _is_ones(graph, node.inputs[1]) else build.op("Mul", y, node.inputs[1])
    return build.rewrite({node.outputs[0]: y}, "RMSNormalization spelled out")


def _is_ones(graph: Graph, scale: str) -> bool:
    """True for a scale of ones, also one that dynamo makes to the size of x when the model runs."""
    fill = _match.made_by(graph, scale, "ConstantOfShape")
    if fill is not None:
        value = fill.attr("value")
        return value is not None and bool((onnx.numpy_helper.to_array(value) == 1).all())
    array = graph.constant(scale)
    return array is not None and bool((array == 1).all())

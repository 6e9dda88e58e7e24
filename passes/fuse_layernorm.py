"""LayerNorm spelled out → LayerNormalization, or below opset 17 the spelling that MNN fuses."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import ClassVar, Literal

import numpy as np

from graphkit.graph import Graph
from graphkit.node import Node
from graphkit.passes import _match, _norm
from graphkit.passes._norm import Affine, NormMatch
from graphkit.rewrite import Builder, Outcome, PassResult, Refusal, Rewrite, Rule, apply_rules

OP_OPSET = 17
_NAME = "layernorm"
_HEAD = ("ReduceMean(x)", "Sub(x,0)", "Pow(1,#)", "ReduceMean(2)", "Add(3,#)", "Sqrt(4)", "Div(1,5)")
_FUSED_BY_MNN = {(*_HEAD, mul, "Add(7,#)") for mul in ("Mul(6,#)", "Mul(#,6)")}


@dataclass(frozen=True)
class FuseLayernorm:
    """Turn LayerNorm spelled out in simpler operators into one LayerNormalization.

    Rewrites ReduceMean, Sub, square (Pow or Mul), ReduceMean, Add ε, Sqrt, then Div, Reciprocal and Mul, or
    Pow with −½, with the Mul and Add of constant scale and bias that follow; operands in any order, the
    difference written once or twice (TorchScript), axes as attribute or input, computed in float32 between
    Casts or not. Without scale, ones take its place. A LayerNormalization takes in a constant Mul and Add
    behind it, and a non-negative axis becomes a negative one (MNN: 1 operator instead of 18). Below opset 17,
    which has no such operator, `form=auto` and `form=mnn` put the nodes in the order that MNN 3.6 fuses;
    `mnn` also adds a scale of ones and a bias of zeros where they are missing: MNN fuses nothing less.

    Refuses axes other than the last ones, axes whose size is unknown, values inside that are used elsewhere
    or are graph outputs, and with `form=op` opsets below 17. ε outside of the root is another function.
    """

    name: ClassVar[str] = "fuse-layernorm"
    summary: ClassVar[str] = "LayerNorm spelled out becomes LayerNormalization with a negative axis"

    form: Literal["auto", "op", "mnn"] = field(
        default="auto",
        metadata={"help": "below opset 17: auto, mnn: the spelling MNN fuses (mnn completes it); op: refuse"},
    )

    def run(self, graph: Graph) -> PassResult:
        """Rewrite the graph in place."""
        return apply_rules(graph, self.rules())

    def rules(self) -> tuple[Rule, ...]:
        """The rules of this pass with its options bound."""
        return (
            Rule(_NAME, ("Sqrt", "Pow"), self._match_spelled),
            Rule("layernorm-op", ("LayerNormalization",), _match_op),
        )

    def _match_spelled(self, graph: Graph, root: Node) -> Outcome:
        found = _norm.find_norm(graph, root)
        if isinstance(found, str):
            return Refusal(_NAME, root.label, found) if _looks_centred(graph, root) else None
        if found is None or not found.centred:
            return None
        if not found.trailing:
            reason = f"it normalizes over axes {list(found.axes)}; LayerNormalization takes the last ones only"
            return Refusal(_NAME, root.label, reason)
        shape = _norm.normalized_shape(graph, found.x, found.axes)
        if shape is None:
            return Refusal(_NAME, root.label, f"the size of the normalized axes of '{found.x}' is unknown")
        if graph.opset() >= OP_OPSET:
            return _as_op(graph, root, found, shape)
        if self.form == "op":
            reason = f"ONNX has LayerNormalization from opset {OP_OPSET}, the model is opset {graph.opset()}"
            return Refusal(_NAME, root.label, reason)
        return _as_spelling(graph, root, found, shape, complete=self.form == "mnn")


def _looks_centred(graph: Graph, root: Node) -> bool:
    """A refusal is worth a word when a mean is subtracted; otherwise it is RMSNorm, another pass's matter."""
    add = _match.made_by(graph, root.inputs[0], "Add")
    means = [_match.made_by(graph, value, "ReduceMean") for value in (add.inputs if add else ())]
    squares = [graph.producer(mean.inputs[0]) for mean in means if mean is not None]
    return any(_match.made_by(graph, square.inputs[0], "Sub", "Cast") for square in squares if square)


# -- writing ----------------------------------------------------------------------------------------------


def _as_op(graph: Graph, root: Node, found: NormMatch, shape: tuple[int, ...]) -> Outcome:
    source = _norm.op_source(graph, found)
    if isinstance(source, str):
        return Refusal(_NAME, root.label, source)
    x, output = source
    dtype = _match.np_dtype(graph, x)
    if dtype is None:
        return Refusal(_NAME, root.label, f"the element type of '{x}' is unknown")
    affine = _norm.find_affine(graph, output, shape, graph.rank(x))
    build = Builder(graph, root)
    inputs = [x, affine.scale_in(build, np.ones(shape, dtype))]
    if bias := affine.bias_in(build):
        inputs.append(bias)
    y = build.op("LayerNormalization", *inputs, axis=found.axes[0], epsilon=found.epsilon)
    return build.rewrite({affine.output: y}, f"LayerNormalization from {_count(found, affine)} nodes")


def _count(found: NormMatch, affine: Affine) -> int:
    return len(found.nodes) + len(affine.nodes)


def _as_spelling(graph: Graph, root: Node, found: NormMatch, shape: tuple[int, ...], *, complete: bool) -> Outcome:
    affine = _norm.find_affine(graph, found.output, shape, graph.rank(found.x))
    dtype = _match.np_dtype(graph, found.x)
    if dtype is None or graph.dtype(found.value) not in (0, graph.dtype(found.x)):
        return None
    scale, bias = affine.scale, affine.bias
    lacking = scale is None or bias is None
    if _is_fused_by_mnn(graph, found, affine) or (lacking and not complete and _is_ordered(graph, found)):
        return None
    if complete:
        scale = np.ones(shape, dtype) if scale is None else scale
        bias = np.zeros(shape, dtype) if bias is None else bias
    return _write_spelling(graph, root, found, affine.output, (scale, bias), dtype)


def _is_fused_by_mnn(graph: Graph, found: NormMatch, affine: Affine) -> bool:
    return _match.spelling(graph, (*found.nodes, *affine.nodes), found.x) in _FUSED_BY_MNN


def _is_ordered(graph: Graph, found: NormMatch) -> bool:
    return _match.spelling(graph, found.nodes, found.x) == _HEAD


def _write_spelling(
    graph: Graph,
    root: Node,
    found: NormMatch,
    output: str,
    affine: Sequence[np.ndarray | None],
    dtype: np.dtype,
) -> Rewrite:
    build = Builder(graph, root)
    axes = list(found.axes)
    value = build.op("Sub", found.x, build.op("ReduceMean", found.x, axes=axes, keepdims=1))
    square = build.op("Pow", value, build.const(np.array(2, dtype), "two"))
    variance = build.op("ReduceMean", square, axes=axes, keepdims=1)
    shifted = build.op("Add", variance, build.const(np.array(found.epsilon, dtype), "epsilon"))
    y = build.op("Div", value, build.op("Sqrt", shifted))
    for op_type, array in zip(("Mul", "Add"), affine, strict=True):
        if array is not None:
            y = build.op(op_type, y, build.const(array, "scale" if op_type == "Mul" else "bias"))
    return build.rewrite({output: y}, "LayerNorm spelled as MNN fuses it")


# -- the operator -----------------------------------------------------------------------------------------


def _match_op(graph: Graph, node: Node) -> Outcome:
    """Take a constant scale and bias behind a LayerNormalization in, and count its axis from the end."""
    axis, rank = node.attr("axis", -1), graph.rank(node.inputs[0])
    if axis >= 0 and rank is None:
        return Refusal("layernorm-op", node.label, "its axis counts from the front and the rank is unknown")
    negative = axis if axis < 0 else axis - (rank or 0)
    affine = _affine_behind(graph, node, -negative, rank)
    if affine is None and negative == axis:
        return None
    build = Builder(graph, node)
    inputs, output, what = list(node.inputs), node.outputs[0], f"axis {axis} to {negative}"
    if affine is not None:
        inputs, output, what = [node.inputs[0]], affine.output, "scale and bias into LayerNormalization"
        inputs += [build.const(array, hint) for hint, array in _merged(graph, node, affine).items()]
    attrs = {**node.attrs, "axis": negative}
    y = build.op("LayerNormalization", *inputs, outputs=len(node.outputs), **attrs)
    further = {old: f"{y}:{index}" for index, old in enumerate(node.outputs) if index and old}
    return build.rewrite({output: y, **further}, what)


def _affine_behind(graph: Graph, node: Node, count: int, rank: int | None) -> Affine | None:
    scale = graph.constant(node.inputs[1])
    has_bias = bool(node.input(2))
    if scale is None or len(node.outputs) > 1 or (has_bias and graph.constant(node.input(2)) is None):
        return None
    if scale.ndim != count:
        return None
    affine = _norm.find_affine(graph, node.outputs[0], scale.shape, rank)
    return affine if affine.nodes else None


def _merged(graph: Graph, node: Node, affine: Affine) -> dict[str, np.ndarray]:
    """Scale and bias of (n·s + b)·s' + b', computed in double precision."""
    scale, bias = graph.constant(node.inputs[1]), graph.constant(node.input(2))
    assert scale is not None
    factor = np.float64(1) if affine.scale is None else affine.scale.astype(np.float64)
    merged = {"scale": (scale * factor).astype(scale.dtype)}
    if bias is not None or affine.bias is not None:
        shift = np.zeros(scale.shape) if bias is None else bias * factor
        shift = shift if affine.bias is None else shift + affine.bias
        merged["bias"] = shift.astype(scale.dtype)
    return merged

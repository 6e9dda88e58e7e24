"""Attributes made explicit or brought into the one form that MNN reads right; values never change."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import lru_cache
from typing import Any

import numpy as np
import onnx
from onnx import AttributeProto, NodeProto

from graphkit.graph import Graph
from graphkit.node import Node, attribute_value
from graphkit.passes._cleanup_noops import const_ints
from graphkit.rewrite import Builder, Outcome, Rewrite, rule

POOLS = ("MaxPool", "AveragePool", "LpPool")

# Operators and those of their attributes with a default in ONNX that a converter may not assume.
_DEFAULTS: dict[str, tuple[str, ...]] = {
    "MaxPool": ("ceil_mode",),
    "AveragePool": ("ceil_mode", "count_include_pad"),
    "LpPool": ("p",),
    "Conv": ("group",),
    "ConvTranspose": ("group",),
    "Gemm": ("alpha", "beta", "transA", "transB"),
    "BatchNormalization": ("epsilon",),
    "InstanceNormalization": ("epsilon",),
    "LayerNormalization": ("axis", "epsilon"),
    "GroupNormalization": ("epsilon",),
    "ArgMax": ("axis", "keepdims"),
    "ArgMin": ("axis", "keepdims"),
    "TopK": ("axis", "largest", "sorted"),
    "LeakyRelu": ("alpha",),
    "Elu": ("alpha",),
    "HardSigmoid": ("alpha", "beta"),
    "Pad": ("mode",),
    "DepthToSpace": ("mode",),
    "CumSum": ("exclusive", "reverse"),
    "Resize": ("coordinate_transformation_mode", "mode", "nearest_mode"),
    **dict.fromkeys(("Softmax", "LogSoftmax", "Hardmax", "Flatten", "Gather", "GatherElements"), ("axis",)),
    **dict.fromkeys(("Split", "OneHot", "ScatterElements"), ("axis",)),
    **{
        f"Reduce{kind}": ("keepdims",)
        for kind in ("Sum", "Mean", "Max", "Min", "Prod", "L1", "L2", "LogSum", "LogSumExp", "SumSquare")
    },
}


def with_attributes(
    node: Node,
    what: str,
    add: Mapping[str, Any] | None = None,
    *,
    drop: Sequence[str] = (),
    inputs: Sequence[str] | None = None,
    constants: Mapping[str, np.ndarray] | None = None,
) -> Rewrite:
    """The rewrite that leaves a node as it is except for some attributes and, if given, its inputs."""
    proto = NodeProto()
    proto.CopyFrom(node.proto)
    kept = [a for a in node.proto.attribute if a.name not in drop and a.name not in (add or {})]
    del proto.attribute[:]
    proto.attribute.extend(kept)
    proto.attribute.extend(onnx.helper.make_attribute(name, value) for name, value in (add or {}).items())
    if inputs is not None:
        del proto.input[:]
        proto.input.extend(inputs)
    return Rewrite(what, {out: out for out in node.outputs if out}, (proto,), constants or {})


@lru_cache(maxsize=1024)
def schema_defaults(op_type: str, opset: int) -> Mapping[str, Any]:
    """Attributes of an operator at an operator set version, with their defaults (None for none)."""
    if not onnx.defs.has(op_type):
        return {}
    try:
        schema = onnx.defs.get_schema(op_type, opset)
    except onnx.defs.SchemaError:
        return {}
    return {
        name: attribute_value(attribute.default_value)
        if attribute.default_value.type != AttributeProto.UNDEFINED
        else None
        for name, attribute in schema.attributes.items()
    }


@rule(*sorted({*_DEFAULTS, "Transpose"}))
def explicit_defaults(graph: Graph, node: Node) -> Outcome:
    """Write ONNX's defaults out."""
    known = schema_defaults(node.op_type, graph.opset())
    have = {attribute.name for attribute in node.proto.attribute}
    wanted = {name: known.get(name) for name in _DEFAULTS.get(node.op_type, ())}
    wanted.update(_computed(graph, node))
    missing = {
        name: value for name, value in wanted.items() if name in known and name not in have and value is not None
    }
    return with_attributes(node, "write attributes with defaults out", missing) if missing else None


def _computed(graph: Graph, node: Node) -> dict[str, Any]:
    if node.op_type in POOLS:
        return _window(node, node.attr("kernel_shape"))
    if node.op_type in ("Conv", "ConvTranspose"):
        return _window(node, kernel_shape(graph, node), transposed=node.op_type == "ConvTranspose")
    if node.op_type == "Transpose" and (rank := graph.rank(node.inputs[0])):
        return {"perm": list(range(rank))[::-1]}
    return {}


def kernel_shape(graph: Graph, node: Node) -> list[int] | None:
    """Spatial size of a pool's or convolution's kernel, from its attribute or its weight."""
    found: list[int] | None = node.attr("kernel_shape")
    if found is not None or node.op_type in POOLS:
        return found
    shape = graph.shape(node.inputs[1])
    if shape is None or len(shape) < 3:
        return None
    sizes = [dim for dim in shape[2:] if isinstance(dim, int)]
    return sizes if len(sizes) == len(shape) - 2 else None


def _window(node: Node, kernel: list[int] | None, *, transposed: bool = False) -> dict[str, Any]:
    if kernel is None:
        return {}
    ones = [1] * len(kernel)
    found: dict[str, Any] = {"kernel_shape": kernel, "strides": ones, "dilations": ones}
    if node.attr("auto_pad", "NOTSET") == "NOTSET" and node.attr("output_shape") is None:
        found["pads"] = [0] * (2 * len(kernel))
    if transposed:
        found["output_padding"] = [0] * len(kernel)
    return found


@rule("Conv", *POOLS)
def explicit_pads(graph: Graph, node: Node) -> Outcome:
    """auto_pad as numbers, where these do not depend on an unknown size."""
    mode = node.attr("auto_pad", "NOTSET")
    kernel, shape = kernel_shape(graph, node), graph.shape(node.inputs[0])
    if mode == "NOTSET" or kernel is None or node.attr("ceil_mode", 0):
        return None
    rank = len(kernel)
    if mode == "VALID":
        pads: list[int] | None = [0] * (2 * rank)
    elif mode in ("SAME_UPPER", "SAME_LOWER"):
        sizes = shape[2:] if shape is not None and len(shape) == rank + 2 else (None,) * rank
        pads = _same_pads(node, kernel, sizes, upper=mode == "SAME_UPPER")
    else:
        return None
    if pads is None:
        return None
    return with_attributes(node, f"write auto_pad {mode} as pads", {"pads": pads}, drop=("auto_pad",))


def _same_pads(node: Node, kernel: list[int], sizes: Sequence[object], *, upper: bool) -> list[int] | None:
    ones = [1] * len(kernel)
    if node.attr("dilations", ones) != ones:
        return None  # onnxruntime and the specification disagree on these
    begin, end = [], []
    for size, window, stride in zip(sizes, kernel, node.attr("strides", ones), strict=True):
        if isinstance(size, int):
            total = max((-(-size // stride) - 1) * stride + window - size, 0)
        elif stride == 1:
            total = window - 1
        else:
            return None
        small, large = total // 2, total - total // 2
        begin.append(small if upper else large)
        end.append(large if upper else small)
    return begin + end


@rule("LayerNormalization")
def last_axis(graph: Graph, node: Node) -> Outcome:
    """LayerNormalization over the last axis says -1: one operator in MNN instead of eighteen."""
    axis, rank = node.attr("axis", -1), graph.rank(node.inputs[0])
    if axis < 0 or rank is None or axis != rank - 1:
        return None
    return with_attributes(node, "write the last axis as -1", {"axis": -1})


@rule("Squeeze", "Unsqueeze")
def nonnegative_axes(graph: Graph, node: Node) -> Outcome:
    """Axes counted from the front; Squeeze without axes names them when all sizes are known."""
    as_attribute = "axes" in schema_defaults(node.op_type, graph.opset())
    axes = node.attr("axes") if as_attribute else const_ints(graph, node.input(1))
    shape = graph.shape(node.inputs[0])
    if shape is None:
        return None
    if axes is None:
        if node.op_type == "Unsqueeze" or node.input(1) or not all(isinstance(dim, int) for dim in shape):
            return None
        new = [axis for axis, dim in enumerate(shape) if dim == 1]
    else:
        rank = len(shape) + (len(axes) if node.op_type == "Unsqueeze" else 0)
        new = [axis % rank for axis in axes] if rank else list(axes)
    if axes is not None and list(axes) == new:
        return None
    what = "count axes from the front" if axes is not None else "name the axes to squeeze"
    if as_attribute:
        return with_attributes(node, what, {"axes": new})
    build = Builder(graph, node)
    name = build.ints(*new)
    return with_attributes(node, what, inputs=[node.inputs[0], name], constants=build.constants)


@rule("Reshape")
def plain_zero(graph: Graph, node: Node) -> Outcome:
    """allowzero means nothing when the shape has no zero; MNN does not know it."""
    if not node.attr("allowzero", 0):
        return None
    target = const_ints(graph, node.inputs[1])
    if target is None or 0 in target:
        return None
    return with_attributes(node, "drop allowzero", drop=("allowzero",))


ATTRIBUTE_RULES = (explicit_pads, last_axis, nonnegative_axes, plain_zero, explicit_defaults)

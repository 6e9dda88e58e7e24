"""Resize and Upsample: what MNN refuses or computes wrong, one axis after the other.

MNN 3.6.1 runs rank 3 and 4 with the last axes resized, linear in all but the symmetric form, nearest with `floor`
and `round_prefer_floor`. All else is separable, and with static sizes each axis is a Gather (nearest), a sum of
weighted Gathers (linear, cubic) or a MatMul (antialias). Semantics: ONNX Operators, Resize 10–19.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import onnx
from onnx import TensorProto

from graphkit.graph import Graph
from graphkit.node import Node
from graphkit.passes._emit import Emit
from graphkit.passes.lowering import _interpolation as interpolation
from graphkit.passes.lowering._interpolation import Axis, Kernel, Taps
from graphkit.passes.lowering._resampling_computed import resize_computed
from graphkit.passes.lowering._tools import elements, refuse, transpose
from graphkit.rewrite import Outcome, rule

_RULE = "resize"
_FLOATS = (TensorProto.FLOAT, TensorProto.FLOAT16)
_FEW = 4  # taps up to which weighted Gathers are cheaper than a matrix
_NATIVE_LINEAR = ("half_pixel", "pytorch_half_pixel", "asymmetric", "align_corners")
_NATIVE_NEAREST = {
    ("floor", "asymmetric"), ("round_prefer_floor", "half_pixel"), ("round_prefer_floor", "asymmetric"),
    ("round_prefer_floor", "pytorch_half_pixel"),
}  # fmt: skip


@dataclass(frozen=True)
class _Plan:
    """A Resize as it is asked for: which axes, at which scales, and how elements are mixed."""

    axes: tuple[int, ...]
    scales: tuple[float, ...] | None
    sizes: tuple[int, ...] | None
    roi: tuple[tuple[float, float], ...]
    transformation: str
    kernel: Kernel
    policy: str
    fill: float


def _plan(graph: Graph, node: Node, rank: int) -> _Plan | str:
    """The plan, or what is not known for it."""
    old = node.op == "Upsample" or graph.opset() < 11
    axes = tuple(axis % rank for axis in node.attr("axes", list(range(rank))))
    scales, sizes, roi = _parameters(graph, node, old)
    if scales is None and (old or not node.input(3)):
        return "its scales are computed"
    transformation = "asymmetric" if old else node.attr("coordinate_transformation_mode", "half_pixel")
    if transformation == "tf_crop_and_resize" and roi is None:
        return "its region of interest is computed"
    corners = np.asarray([] if roi is None else roi, np.float64).reshape(-1)
    regions = [(float(a), float(b)) for a, b in zip(corners[: len(axes)], corners[len(axes) :], strict=True)]
    kernel = Kernel(
        node.attr("mode", "nearest"), "simple" if old else node.attr("nearest_mode", "round_prefer_floor"),
        node.attr("cubic_coeff_a", -0.75), bool(node.attr("antialias", 0)), bool(node.attr("exclude_outside", 0)),
    )  # fmt: skip
    return _Plan(
        axes, None if scales is None else tuple(np.asarray(scales, np.float32).reshape(-1).tolist()),
        None if sizes is None else tuple(int(size) for size in sizes.reshape(-1)),
        tuple(regions) or ((0.0, 1.0),) * len(axes), transformation, kernel,
        node.attr("keep_aspect_ratio_policy", "stretch"), node.attr("extrapolation_value", 0.0),
    )  # fmt: skip


def _parameters(
    graph: Graph, node: Node, old: bool
) -> tuple[Sequence[float] | np.ndarray | None, np.ndarray | None, np.ndarray | None]:
    """Constant scales, sizes and region of interest; None for what is computed or not given."""
    if old:
        given = node.attr("scales")
        return given if given is not None else graph.constant(node.input(1)), None, None
    scales = graph.constant(node.input(2)) if node.input(2) else None
    scales = None if scales is not None and scales.size == 0 else scales
    return scales, graph.constant(node.input(3)) if node.input(3) else None, graph.constant(node.input(1))


@rule("Resize", "Upsample", name=_RULE)
def resize(graph: Graph, node: Node) -> Outcome:
    """Modes, axes, ranks and policies that MNN does not run right, axis by axis."""
    x, rank = node.inputs[0], graph.rank(node.inputs[0])
    if rank is None:
        return refuse(_RULE, node, f"the rank of '{x}' is not known")
    plan = _plan(graph, node, rank)
    axes = plan if isinstance(plan, str) else _axes(graph, node, plan)
    if isinstance(plan, str) or isinstance(axes, str):
        return _of_open_sizes(graph, node, plan, rank, str(axes))
    if _fractional(plan, axes):
        return refuse(_RULE, node, "onnxruntime and the standard differ on aligned corners at fractional lengths")
    spatial = rank in (3, 4) and all(axis >= 2 for axis in axes) and graph.dtype(x) in _FLOATS
    if spatial and _native_modes(node, graph.opset()):
        return _in_two_dims(graph, node, rank)
    return _axis_by_axis(graph, node, plan, axes)


def _of_open_sizes(graph: Graph, node: Node, plan: _Plan | str, rank: int, why: str) -> Outcome:
    """Where sizes, scales or the region are not known: MNN's own if it is right, else places that are computed."""
    scales = node.input(1 if node.op == "Upsample" or graph.opset() < 11 else 2)
    given = scales in graph.input_infos and scales not in graph.initializers  # may change batch and channels
    if rank in (3, 4) and _native_modes(node, graph.opset()) and not given:
        return _in_two_dims(graph, node, rank)
    if given and node.attr("coordinate_transformation_mode") in ("align_corners", "tf_crop_and_resize"):
        return refuse(_RULE, node, "onnxruntime and the standard differ on aligned corners at fractional lengths")
    stretches = isinstance(plan, _Plan) and plan.policy == "stretch" and min(plan.axes) >= 2
    if isinstance(plan, _Plan) and stretches and node.attr("axes") and rank in (3, 4) and _plain_modes(node):
        return _without_axes(graph, node, plan, rank)
    return resize_computed(graph, node, rank) if "known" in why or "computed" in why else refuse(_RULE, node, why)


def _in_two_dims(graph: Graph, node: Node, rank: int) -> Outcome:
    """One spatial dim at half pixels, where MNN reads an offset that it never set: a second dim of size 1."""
    if rank != 3 or graph.opset() < 11 or "half_pixel" not in node.attr("coordinate_transformation_mode", "half_pixel"):
        return None
    build = Emit(graph, node)
    scales = node.input(2) if not node.input(3) else ""
    sizes = "" if scales else node.inputs[3]
    values = [_with_one(build, value) for value in (scales, sizes)]
    wide = build.unsqueeze(node.inputs[0], 2)
    attrs = {key: value for key, value in node.attrs.items() if key != "axes"}
    value = build.op("Resize", wide, "", *(values if sizes else values[:1]), **attrs)
    return build.rewrite({node.outputs[0]: build.squeeze(value, 2)}, "Resize of one dim as one of two")


def _with_one(build: Emit, numbers: str) -> str:
    """Scales or sizes of three axes with a 1 before the last."""
    if not numbers:
        return ""
    known, dtype = build.graph.constant(numbers), build.graph.dtype(numbers) or TensorProto.FLOAT
    if known is not None:
        return build.const(np.insert(known, 2, 1), "numbers")
    one = build.const(np.ones(1, onnx.helper.tensor_dtype_to_np_dtype(dtype)), "one")
    return build.op("Concat", build.slice(numbers, 0, 0, 2), one, build.slice(numbers, 0, 2), axis=0)


def _without_axes(graph: Graph, node: Node, plan: _Plan, rank: int) -> Outcome:
    """The same with all axes in order, which MNN runs."""
    plain = {"axes": None, "keep_aspect_ratio_policy": None}
    attrs = {key: value for key, value in node.attrs.items() if key not in plain}
    build = Emit(graph, node)
    order = [plan.axes.index(axis) if axis in plan.axes else None for axis in range(rank)]
    if plan.scales is not None:
        scales = [1.0 if place is None else plan.scales[place] for place in order]
        inputs = [node.inputs[0], "", build.const(np.array(scales, np.float32), "scales")]
    else:
        shape = build.op("Shape", node.inputs[0])
        parts = [
            build.slice(*((shape, 0, axis, axis + 1) if place is None else (node.inputs[3], 0, place, place + 1)))
            for axis, place in enumerate(order)
        ]
        inputs = [node.inputs[0], "", "", build.op("Concat", *parts, axis=0)]
    value = build.op("Resize", *inputs, **attrs)
    return build.rewrite({node.outputs[0]: value}, "Resize of all axes in place of named ones")


def _axes(graph: Graph, node: Node, plan: _Plan) -> dict[int, Axis] | str:
    """The axes that change, or why they are not known."""
    shape, result = graph.shape(node.inputs[0]) or (), graph.shape(node.outputs[0])
    wanted = elements(graph, node.inputs[3]) if plan.scales is None else plan.sizes
    if plan.policy != "stretch" and plan.scales is None:
        return _with_policy(plan, shape)
    found = {}
    for position, axis in enumerate(plan.axes):
        size, region = shape[axis], plan.roi[position]
        cropped = plan.transformation == "tf_crop_and_resize" and region != (0.0, 1.0)
        scale = plan.scales[position] if plan.scales is not None else None
        if scale == 1 and not cropped:
            continue
        new = wanted[position] if wanted is not None else result[axis] if result else None
        if scale is None and not cropped and size is not None and size == new:
            continue
        if not isinstance(size, int) or not isinstance(new, int):
            return f"the size of axis {axis} is not known"
        if size == 0 or new == 0:
            return f"axis {axis} has no elements"
        if cropped and size == new:
            return f"onnxruntime ignores the region of axis {axis}, whose size stays"
        if size != new or scale is not None:
            found[axis] = Axis(size, new, new / size if scale is None else scale, region)
    return found


def _with_policy(plan: _Plan, shape: Sequence[object]) -> dict[int, Axis] | str:
    """With an aspect ratio to keep, the axes have one scale: the least or the greatest that the sizes ask for."""
    dims = [dim for dim in (shape[axis] for axis in plan.axes) if isinstance(dim, int) and dim]
    if plan.sizes is None or len(dims) != len(plan.axes):
        return "the sizes that its aspect ratio policy needs are not known"
    scales = [size / dim for size, dim in zip(plan.sizes, dims, strict=True)]
    scale = min(scales) if plan.policy == "not_larger" else max(scales)
    return {
        axis: Axis(dim, int(scale * dim + 0.5), scale, region)
        for axis, dim, region in zip(plan.axes, dims, plan.roi, strict=True)
    }


def _fractional(plan: _Plan, axes: dict[int, Axis]) -> bool:
    """True when scale x size is no whole number and the transformation uses it."""
    if plan.transformation not in ("align_corners", "tf_crop_and_resize") or plan.scales is None:
        return False
    return any(abs(axis.scale * axis.size - axis.result) > 1e-4 for axis in axes.values())


def _native_modes(node: Node, opset: int) -> bool:
    """True when MNN runs the Resize right, whatever the sizes (of the last axes)."""
    if node.op == "Upsample" or opset < 11:
        scales = node.graph.constant(node.input(1)) if node.input(1) else np.asarray(node.attr("scales", [0.5]))
        whole = scales is not None and bool((scales == np.round(scales)).all()) and bool((scales >= 1).all())
        return whole and node.attr("mode", "nearest") == "nearest"
    if node.attr("axes") or node.attr("keep_aspect_ratio_policy", "stretch") != "stretch":
        return False
    return _plain_modes(node)


def _plain_modes(node: Node) -> bool:
    """True for the modes of Resize 11 and later that MNN runs right."""
    mode, transformation = node.attr("mode", "nearest"), node.attr("coordinate_transformation_mode", "half_pixel")
    if node.attr("antialias", 0):
        return False
    if mode == "linear":
        return transformation in _NATIVE_LINEAR and not node.attr("exclude_outside", 0)
    return mode == "nearest" and (node.attr("nearest_mode", "round_prefer_floor"), transformation) in _NATIVE_NEAREST


def _axis_by_axis(graph: Graph, node: Node, plan: _Plan, axes: dict[int, Axis]) -> Outcome:
    x, rank = node.inputs[0], graph.rank(node.inputs[0]) or 0
    dtype, mixes = graph.dtype(x), plan.kernel.mode != "nearest"
    if mixes and dtype not in _FLOATS:
        return refuse(_RULE, node, f"mode '{plan.kernel.mode}' of numbers that are not float")
    build = Emit(graph, node)
    value = build.cast(x, TensorProto.FLOAT) if mixes and dtype != TensorProto.FLOAT else x
    outside: dict[int, np.ndarray] = {}
    for axis, spec in sorted(axes.items(), key=lambda item: item[1].result / item[1].size):
        at = interpolation.positions(spec, plan.transformation)
        if not mixes and interpolation.undecided(at, plan.kernel.nearest, plan.transformation):
            return refuse(_RULE, node, "a position falls on a whole number, where float32 decides")
        outside[axis] = (at < 0) | (at > spec.size - 1)
        if mixes:
            value = _mixed(build, value, axis, rank, spec, interpolation.taps(spec, at, plan.kernel))
        else:
            places = interpolation.nearest(spec, at, plan.kernel.nearest)
            value = build.op("Gather", value, build.const(places, "places"), axis=axis)
    if plan.transformation == "tf_crop_and_resize":
        value = _extrapolated(build, value, outside, rank, plan.fill, TensorProto.FLOAT if mixes else dtype)
    value = build.cast(value, dtype) if mixes and dtype != TensorProto.FLOAT else value
    value = value if value != x else build.op("Identity", x)
    return build.rewrite({node.outputs[0]: value}, f"{node.op_type} ({plan.kernel.mode}) axis by axis")


def _mixed(build: Emit, x: str, axis: int, rank: int, spec: Axis, found: Taps) -> str:
    """One axis mixed: few taps as weighted Gathers, many as a MatMul."""
    if found.places.shape[1] > _FEW:
        perm = [*(i for i in range(rank) if i != axis), axis]
        full = build.const(np.ascontiguousarray(interpolation.matrix(found, spec.size).T), "matrix")
        value = build.op("MatMul", transpose(build, x, perm), full)
        return transpose(build, value, [perm.index(i) for i in range(rank)])
    total = ""
    for tap in range(found.places.shape[1]):
        weights = found.weights[:, tap]
        if not weights.any():
            continue
        part = build.op("Gather", x, build.const(found.places[:, tap], "places"), axis=axis)
        if not (weights == 1).all():
            part = build.op("Mul", part, build.const(weights.reshape(-1, *([1] * (rank - 1 - axis))), "weights"))
        total = build.op("Add", total, part) if total else part
    return total


def _extrapolated(build: Emit, x: str, outside: dict[int, np.ndarray], rank: int, fill: float, dtype: int) -> str:
    """The extrapolation value where any axis lies outside."""
    mask = np.zeros([1] * rank, bool)
    for axis, flags in outside.items():
        mask = mask | flags.reshape([-1 if i == axis else 1 for i in range(rank)])
    if not mask.any():
        return x
    return build.op("Where", build.const(mask, "outside"), build.number(fill, dtype), x)


RULES = (resize,)

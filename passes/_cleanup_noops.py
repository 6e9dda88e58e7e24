"""Rules for nodes that only pass their input on; `cleanup` applies them all."""

from __future__ import annotations

import math

from graphkit.graph import Graph
from graphkit.node import Node
from graphkit.rewrite import Outcome, Refusal, Rewrite, rule

UNBOUNDED = 2**31 - 1  # ends of a Slice from here on mean "to the end" in all exporters

_NEUTRAL = {  # operator: its neutral element, and whether it may stand on the left as well
    "Add": (0, True),
    "Sub": (0, False),
    "Mul": (1, True),
    "Div": (1, False),
    "Pow": (1, False),
    "Or": (0, True),
    "And": (1, True),
}

_SMALL = 1 << 20  # bytes of a constant that is read to see whether it is all zeros


def same_shape(graph: Graph, first: str, second: str) -> bool:
    """True when two values surely have the same shape: all sizes known or named, and equal."""
    shape = graph.shape(first)
    return shape is not None and None not in shape and shape == graph.shape(second)


def const_ints(graph: Graph, value: str) -> tuple[int, ...] | None:
    """Elements of a constant integer tensor (axes, shapes, pads), None when it is not constant."""
    array = graph.constant(value) if value else None
    if array is None or array.dtype.kind not in "iu":
        return None
    return tuple(int(item) for item in array.reshape(-1))


def ints_of(graph: Graph, node: Node, index: int, attribute: str) -> tuple[int, ...] | None:
    """Integers that an operator takes as an attribute in old operator sets and as an input in new ones."""
    found = node.attr(attribute)
    if found is not None:
        return tuple(found) if isinstance(found, list) else (int(found),)
    return const_ints(graph, node.input(index))


def pass_on(node: Node, source: str, what: str) -> Rewrite:
    """The rewrite that lets `source` stand for the node's first output."""
    return Rewrite(what, {node.outputs[0]: source})


@rule("Identity")
def identity(graph: Graph, node: Node) -> Outcome:
    """Identity goes, unless it makes an output of an input, a constant, an outer value or another output."""
    source, out = node.input(0), node.outputs[0]
    if graph.is_output(out) and (graph.producer(source) is None or graph.is_output(source)):
        return None
    if not source:
        return None
    return pass_on(node, source, "remove Identity")


@rule("Dropout")
def dropout(graph: Graph, node: Node) -> Outcome:
    """Dropout passes its input on in inference; the rules for that changed with operator sets 7 and 12."""
    if any(graph.is_used(out) for out in node.outputs[1:] if out):
        return Refusal("dropout", node.label, "its mask output is used")
    if not _is_inference(graph, node):
        return Refusal("dropout", node.label, "it runs in training mode, or may")
    return pass_on(node, node.inputs[0], "remove Dropout (inference)")


def _is_inference(graph: Graph, node: Node) -> bool:
    opset = graph.opset()
    if opset < 7:
        return bool(node.attr("is_test", 0))
    if opset < 12 or not node.input(2) or graph.scalar(node.input(1)) == 0:
        return True
    return graph.scalar(node.input(2)) == 0


@rule("Cast", "CastLike")
def same_cast(graph: Graph, node: Node) -> Outcome:
    """A cast to the type that the value has already."""
    dtype = node.attr("to") if node.op_type == "Cast" else graph.dtype(node.inputs[1])
    if not dtype or graph.dtype(node.inputs[0]) != dtype:
        return None
    return pass_on(node, node.inputs[0], f"remove {node.op_type} to the same type")


@rule("Reshape", "Flatten", "Squeeze", "Expand", "Tile")
def same_shape_result(graph: Graph, node: Node) -> Outcome:
    """A reshaping operator whose result has the shape of its input."""
    if same_shape(graph, node.inputs[0], node.outputs[0]):
        return pass_on(node, node.inputs[0], f"remove {node.op_type} to the same shape")
    return None


@rule("Reshape")
def keeping_reshape(graph: Graph, node: Node) -> Outcome:
    """Reshape to a constant that copies every size but one, which -1 then can only restore."""
    shape = graph.shape(node.inputs[0])
    target = ints_of(graph, node, 1, "shape")
    if shape is None or target is None or len(shape) != len(target):
        return None
    copies_zero = not node.attr("allowzero", 0)
    open_ = [t for t, dim in zip(target, shape, strict=True) if t != dim and not (t == 0 and copies_zero)]
    if open_ in ([], [-1]):
        return pass_on(node, node.inputs[0], "remove Reshape to the same shape")
    return None


@rule("Expand")
def keeping_expand(graph: Graph, node: Node) -> Outcome:
    """Expand to a constant shape that the input has already, or to ones, whatever the other sizes are."""
    target = const_ints(graph, node.inputs[1])
    if target is None:
        return None
    shape = graph.shape(node.inputs[0])
    if target and (shape is None or len(target) > len(shape)):
        return None
    tail = shape[len(shape) - len(target) :] if shape and target else ()
    if all(t in (1, dim) for t, dim in zip(target, tail, strict=True)):
        return pass_on(node, node.inputs[0], "remove Expand to the same shape")
    return None


@rule("Transpose")
def same_order(graph: Graph, node: Node) -> Outcome:
    """Transpose that leaves every axis in its place."""
    perm = node.attr("perm")
    rank = graph.rank(node.inputs[0])
    if perm == list(range(len(perm or []))) if perm else rank is not None and rank <= 1:
        return pass_on(node, node.inputs[0], "remove Transpose that moves nothing")
    return None


@rule("Slice")
def whole_slice(graph: Graph, node: Node) -> Outcome:
    """Slice by steps of 1 that takes every element of every axis."""
    steps = const_ints(graph, node.input(4)) if node.input(4) else (1,)
    if steps is None or set(steps) - {1}:
        return None
    if same_shape(graph, node.inputs[0], node.outputs[0]) or _takes_all(graph, node):
        return pass_on(node, node.inputs[0], "remove Slice of everything")
    return None


def _takes_all(graph: Graph, node: Node) -> bool:
    starts, ends = ints_of(graph, node, 1, "starts"), ints_of(graph, node, 2, "ends")
    axes = ints_of(graph, node, 3, "axes")
    if starts is None or ends is None or (node.input(3) and axes is None):
        return False
    shape = graph.shape(node.inputs[0])
    for axis, start, end in zip(axes or range(len(starts)), starts, ends, strict=True):
        dim = shape[axis] if shape is not None else None
        size = dim if isinstance(dim, int) else math.inf
        if not (start == 0 or start <= -size) or end < min(size, UNBOUNDED):
            return False
    return True


@rule("Split")
def single_part(graph: Graph, node: Node) -> Outcome:
    """Split into one part."""
    return pass_on(node, node.inputs[0], "remove Split into one") if len(node.outputs) == 1 else None


@rule("Concat", "Sum", "Max", "Min", "Mean")
def single_input(graph: Graph, node: Node) -> Outcome:
    """An operator over a list of inputs that has one."""
    if len(node.inputs) != 1:
        return None
    return pass_on(node, node.inputs[0], f"remove {node.op_type} of one input")


@rule("Pad")
def zero_pad(graph: Graph, node: Node) -> Outcome:
    """Pad by nothing, in every mode."""
    pads = ints_of(graph, node, 1, "pads" if node.attr("paddings") is None else "paddings")
    if pads is None or any(pads):
        return None
    return pass_on(node, node.inputs[0], "remove Pad by nothing")


@rule("ReduceSum", "ReduceMean", "ReduceMax", "ReduceMin", "ReduceProd")
def single_element_reduce(graph: Graph, node: Node) -> Outcome:
    """A reduction that keeps its axes, all of which have one element."""
    if node.attr("keepdims", 1) and same_shape(graph, node.inputs[0], node.outputs[0]):
        return pass_on(node, node.inputs[0], f"remove {node.op_type} over axes of size 1")
    return None


@rule(*_NEUTRAL)
def neutral_element(graph: Graph, node: Node) -> Outcome:
    """Arithmetic with a neutral constant that changes neither value nor shape nor type."""
    neutral, either = _NEUTRAL[node.op_type]
    if node.attrs or len(node.inputs) != 2:
        return None  # before operator set 7 the attributes say how to broadcast
    for constant, other in ((1, 0), (0, 1)) if either else ((1, 0),):
        if graph.scalar(node.inputs[constant]) == neutral:
            return _without(graph, node, node.inputs[constant], node.inputs[other])
        if neutral == 0 and _is_zero_bias(graph, node.inputs[constant], node.inputs[other]):
            return pass_on(node, node.inputs[other], f"remove {node.op_type} of zeros")
    return None


def _is_zero_bias(graph: Graph, constant: str, other: str) -> bool:
    """True for a small constant of zeros that surely broadcasts into `other`.

    After a Mul it stays: that is the end of a spelled-out LayerNorm, which MNN fuses only when it is whole.
    """
    weight = graph.weight(constant)
    if weight is None or weight.nbytes > _SMALL:
        return False
    shape, maker = graph.shape(other), graph.producer(other)
    if shape is None or len(weight.dims) > len(shape) or (maker and maker.op == "Mul"):
        return False
    tail = shape[len(shape) - len(weight.dims) :]
    fits = all(size in (1, dim) for size, dim in zip(weight.dims, tail, strict=True))
    return fits and not weight.array().any()


def _without(graph: Graph, node: Node, constant: str, other: str) -> Outcome:
    rank, needed = graph.rank(other), graph.rank(constant)
    if needed and (rank is None or rank < needed):
        return Refusal("neutral-element", node.label, "the constant may add axes to the result")
    return pass_on(node, other, f"remove {node.op_type} with its neutral element")


NOOPS = (
    identity,
    dropout,
    same_cast,
    same_shape_result,
    keeping_reshape,
    keeping_expand,
    same_order,
    whole_slice,
    single_part,
    single_input,
    zero_pad,
    single_element_reduce,
    neutral_element,
)

"""IsNaN, IsInf, and the guards against NaN that exporters put behind Softmax.

MNN 3.6 has neither operator, and its Equal takes NaN for equal to itself; its GreaterOrEqual, LessOrEqual and
Greater are those of IEEE 754.
"""

from __future__ import annotations

import numpy as np
from onnx import TensorProto

from graphkit.graph import Graph
from graphkit.node import Node
from graphkit.passes._emit import Emit
from graphkit.passes.lowering._open_rows import keeps_finite
from graphkit.rewrite import Outcome, Rule, rule

_COMPARABLE = (TensorProto.FLOAT, TensorProto.DOUBLE)
_LARGEST = float(np.finfo(np.float32).max)


def _comparable(build: Emit, x: str) -> tuple[str, int]:
    """A value in an element type whose comparisons all runtimes have: half precision becomes float32."""
    dtype = build.graph.dtype(x)
    if dtype in _COMPARABLE:
        return x, dtype
    return build.cast(x, TensorProto.FLOAT), TensorProto.FLOAT


def _is_number(build: Emit, x: str) -> str:
    """x ≥ x, which is false for NaN only; below opset 12 x > −1 or x < 1."""
    x, dtype = _comparable(build, x)
    if build.opset >= 12:
        return build.op("GreaterOrEqual", x, x)
    above = build.op("Greater", x, build.number(-1, dtype))
    return build.op("Or", above, build.op("Greater", build.number(1, dtype), x))


@rule("IsNaN", name="is-nan")
def is_nan(graph: Graph, node: Node) -> Outcome:
    """IsNaN is not there in MNN: not (x ≥ x) says the same; guards have a rule of their own."""
    users = graph.consumers(node.outputs[0])
    if not graph.is_output(node.outputs[0]) and all(_guards(user, node.outputs[0]) for user in users):
        return None
    build = Emit(graph, node)
    value = build.op("Not", _is_number(build, node.inputs[0]))
    return build.rewrite({node.outputs[0]: value}, "IsNaN by comparisons")


def _guards(user: Node, value: str) -> bool:
    return user.op == "Where" and user.inputs[0] == value and value not in user.inputs[1:]


@rule("Where", name="nan-guard")
def nan_guard(graph: Graph, node: Node) -> Outcome:
    """Where(IsNaN(x), a, b): nothing is left when x is a Softmax that has no NaN, else one comparison.

    What became a comparison is looked at again, for more may be known about the mask by then.
    """
    test = graph.producer(node.inputs[0])
    guarded = test is not None and (test.op == "IsNaN" or (test.op == "GreaterOrEqual" and len(set(test.inputs)) == 1))
    if test is None or not guarded:
        return None
    is_nan, x = test.op == "IsNaN", test.inputs[0]
    a, b = node.inputs[1:] if is_nan else (node.inputs[2], node.inputs[1])
    build = Emit(graph, node)
    if b == x and _is_scalar(graph, a, x) and _never_nan(graph, x):
        return build.rewrite({node.outputs[0]: x}, "no row of the Softmax can be masked: its NaN guard is gone")
    if not is_nan:
        return None
    value = build.op("Where", _is_number(build, x), b, a)
    return build.rewrite({node.outputs[0]: value}, "NaN guard by a comparison that MNN has")


def _is_scalar(graph: Graph, value: str, x: str) -> bool:
    """True for one number that does not change the shape of x."""
    rank, whole = graph.rank(value), graph.rank(x)
    return graph.scalar(value) is not None and rank is not None and whole is not None and rank <= whole


def _never_nan(graph: Graph, x: str) -> bool:
    """True for a Softmax over the last axis of scores that keep a finite entry in every row."""
    softmax, rank = graph.producer(x), graph.rank(x)
    if softmax is None or softmax.op != "Softmax" or rank is None:
        return False
    axis = softmax.attr("axis", -1 if graph.opset() >= 13 else 1)
    return axis in (-1, rank - 1) and keeps_finite(graph, softmax.inputs[0])


@rule("IsInf", name="is-inf")
def is_inf(graph: Graph, node: Node) -> Outcome:
    """IsInf is not there in MNN: more than the largest number says the same."""
    build = Emit(graph, node)
    x, dtype = _comparable(build, node.inputs[0])
    above, below = bool(node.attr("detect_positive", 1)), bool(node.attr("detect_negative", 1))
    if above and below:
        value = _over(build, build.op("Abs", x), dtype)
    elif above:
        value = _over(build, x, dtype)
    elif below:
        value = _over(build, build.op("Neg", x), dtype)
    else:
        over = _over(build, x, dtype)
        value = build.op("And", over, build.op("Not", over))
    return build.rewrite({node.outputs[0]: value}, "IsInf by comparisons")


def _over(build: Emit, x: str, dtype: int) -> str:
    """True for +inf; a double is compared with infinity itself, for the largest one is infinite in MNN."""
    if dtype == TensorProto.DOUBLE:
        return build.op("Equal", x, build.number(np.inf, dtype))
    return build.op("Greater", x, build.number(_LARGEST, dtype))


RULES: tuple[Rule, ...] = (nan_guard, is_nan, is_inf)

"""CumProd, which MNN 3.6 does not have (ONNX Operators, CumProd)."""

from __future__ import annotations

import numpy as np

from graphkit.graph import Graph
from graphkit.node import Node
from graphkit.passes._emit import Emit
from graphkit.passes.lowering._numbers import FLOATS, INTEGERS, np_dtype, static
from graphkit.rewrite import Outcome, Refusal, rule

_LONGEST = 1 << 16  # elements along the axis of a CumProd


@rule("CumProd", name="cumulative-product")
def cumprod(graph: Graph, node: Node) -> Outcome:
    """CumProd is not there in MNN: log₂ n steps, each multiplies by the values 2ᵏ before (Hillis and Steele 1986)."""
    x, dtype, axis = node.inputs[0], graph.dtype(node.inputs[0]), graph.scalar(node.input(1))
    sizes = static(graph.shape(x))
    if axis is None or sizes is None or dtype not in FLOATS | INTEGERS:
        return Refusal("cumulative-product", node.label, "its axis is not constant or its shape not known")
    along = int(axis) % len(sizes)
    if sizes[along] > _LONGEST or 0 in sizes:
        return Refusal("cumulative-product", node.label, f"{sizes[along]} elements along its axis")
    emit, reverse = Emit(graph, node), bool(node.attr("reverse", 0))
    y = x
    if node.attr("exclusive", 0):
        y = _shifted(emit, y, sizes, along, 1, reverse, dtype)
    step = 1
    while step < sizes[along]:
        y = emit.op("Mul", y, _shifted(emit, y, sizes, along, step, reverse, dtype))
        step *= 2
    y = emit.op("Identity", y) if y == x else y
    return emit.rewrite({node.outputs[0]: y}, "CumProd in doubling steps")


def _shifted(emit: Emit, x: str, sizes: list[int], axis: int, step: int, reverse: bool, dtype: int) -> str:
    """The values `step` places before (after, in reverse) along an axis; ones come in."""
    size = sizes[axis]
    ones = emit.const(np.ones([step if dim == axis else n for dim, n in enumerate(sizes)], np_dtype(dtype)), "ones")
    if step >= size:
        return ones
    kept = emit.slice(x, axis, step) if reverse else emit.slice(x, axis, 0, size - step)
    return emit.op("Concat", *((kept, ones) if reverse else (ones, kept)), axis=axis)


RULES = (cumprod,)

"""Attributes and inputs as the model's own operator set has them.

Editors and converters leave files that say, for example, `axes` as an attribute where the operator set takes
an input: such a file is read differently by every tool, or not at all. The operator set is never changed.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import onnx

from graphkit.graph import Graph
from graphkit.node import Node
from graphkit.passes._canonical_attributes import with_attributes
from graphkit.rewrite import Builder, Outcome, Refusal, rule

_AXES_13 = (("axes", 1),)
_MOVED: dict[str, tuple[int, tuple[tuple[str, int], ...]]] = {  # operator: (first version with inputs, them)
    "Squeeze": (13, _AXES_13),
    "Unsqueeze": (13, _AXES_13),
    "ReduceSum": (13, _AXES_13),
    **{
        f"Reduce{kind}": (18, _AXES_13)
        for kind in ("Mean", "Max", "Min", "Prod", "L1", "L2", "LogSum", "LogSumExp", "SumSquare")
    },
    "Split": (13, (("split", 1),)),
    "Slice": (10, (("starts", 1), ("ends", 2), ("axes", 3))),
    "Clip": (11, (("min", 1), ("max", 2))),
    "Pad": (11, (("pads", 1), ("value", 2))),
    "TopK": (10, (("k", 1),)),
}


@rule(*_MOVED)
def attributes_of_the_opset(graph: Graph, node: Node) -> Outcome:
    """Attributes that became inputs, and inputs that are not there yet."""
    since, moved = _MOVED[node.op_type]
    if not graph.opset():
        return None
    if graph.opset() >= since:
        return _to_inputs(graph, node, moved)
    return _to_attributes(graph, node, moved)


def _to_inputs(graph: Graph, node: Node, moved: tuple[tuple[str, int], ...]) -> Outcome:
    given = {name: node.attr(name) for name, _ in moved}
    given = {name: value for name, value in given.items() if value is not None}
    if not given:
        return None
    inputs = [node.input(index) for index in range(max(len(node.inputs), 1 + len(moved)))]
    build = Builder(graph, node)
    for name, index in moved:
        if name in given and not inputs[index]:
            inputs[index] = build.const(_tensor(graph, node, name, given[name]), name)
    while not inputs[-1]:
        inputs.pop()
    what = f"make {' and '.join(given)} an input, as in operator set {graph.opset()}"
    return with_attributes(node, what, drop=tuple(given), inputs=inputs, constants=build.constants)


def _tensor(graph: Graph, node: Node, name: str, value: object) -> np.ndarray:
    if name in ("min", "max", "value"):
        dtype = graph.dtype(node.inputs[0]) or onnx.TensorProto.FLOAT
        return np.array(value, dtype=onnx.helper.tensor_dtype_to_np_dtype(dtype))
    return np.array(value if isinstance(value, list) else [value], dtype=np.int64)


def _to_attributes(graph: Graph, node: Node, moved: tuple[tuple[str, int], ...]) -> Outcome:
    given = [(name, node.input(index)) for name, index in moved if node.input(index)]
    if not given:
        return None
    values = {name: graph.constant(value) for name, value in given}
    unknown = [name for name, array in values.items() if array is None]
    if unknown or any(node.inputs[1 + len(moved) :]):
        name = unknown[0] if unknown else node.inputs[-1]
        return Refusal(
            "attributes-of-the-opset",
            node.label,
            f"operator set {graph.opset()} takes no input '{name}' here, and it cannot be an attribute",
        )
    attributes = {name: _plain(name)(array) for name, array in values.items() if array is not None}
    what = f"make {' and '.join(attributes)} an attribute, as in operator set {graph.opset()}"
    return with_attributes(node, what, attributes, inputs=[node.inputs[0]])


def _plain(name: str) -> Callable[[np.ndarray], object]:
    if name in ("min", "max", "value"):
        return lambda array: float(array.reshape(-1)[0])
    if name == "k":
        return lambda array: int(array.reshape(-1)[0])
    return lambda array: [int(item) for item in array.reshape(-1)]

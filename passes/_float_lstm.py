"""onnxruntime's DynamicQuantizeLSTM as an LSTM with float weights: its inputs are no longer rounded at each step."""

from __future__ import annotations

import numpy as np

from graphkit.graph import Graph
from graphkit.node import Node
from graphkit.passes._quantized_params import guarded
from graphkit.rewrite import Builder, Outcome, Refusal, Rule, rule

_NAME = "float-lstm"


@rule("com.microsoft::DynamicQuantizeLSTM", name=_NAME)
def _float_lstm(graph: Graph, node: Node) -> Outcome:
    """DynamicQuantizeLSTM keeps W and R as codes [directions, inputs, 4·hidden]; LSTM reads floats, transposed."""
    weights = [_weights(graph, node, 1, 8), _weights(graph, node, 2, 10)]
    if any(array is None for array in weights):
        return Refusal(_NAME, node.label, "its weights, scales or zero points are not constant, or do not fit")
    build = Builder(graph, node)
    names = [build.const(array, hint) for array, hint in zip(weights, ("W", "R"), strict=True) if array is not None]
    ins = [node.input(0), *names, *(node.input(i) for i in range(3, 8))]
    while not ins[-1]:
        ins.pop()
    first = build.op("LSTM", *ins, outputs=len(node.outputs), **node.attrs)
    made = [first, *build.nodes[-1].output[1:]]
    outputs = {old: new for old, new in zip(node.outputs, made, strict=True) if old}
    return build.rewrite(outputs, f"'{node.inputs[0]}' is not rounded at each step any more")


def _weights(graph: Graph, node: Node, codes: int, scale: int) -> np.ndarray | None:
    """[directions, 4·hidden, inputs] in float32; scales a direction, or a column of each direction."""
    values, factors, zeros = (graph.constant(node.input(i)) for i in (codes, scale, scale + 1))
    if values is None or factors is None or zeros is None or values.ndim != 3 or not values.size:
        return None
    shapes = [_spread(array, values.shape) for array in (zeros, factors)]
    if None in shapes:
        return None
    steps = values.astype(np.float32) - zeros.astype(np.float32).reshape(shapes[0] or ())
    floats = steps * factors.astype(np.float32).reshape(shapes[1] or ())
    return np.ascontiguousarray(floats.transpose(0, 2, 1))


def _spread(array: np.ndarray, shape: tuple[int, ...]) -> tuple[int, int, int] | None:
    if array.size == 1:
        return (1, 1, 1)
    if array.size == shape[0]:
        return (shape[0], 1, 1)
    return (shape[0], 1, shape[2]) if array.size == shape[0] * shape[2] else None


FLOAT_LSTM: Rule = guarded(_float_lstm)[0]

"""Graphs inside nodes: written out in place, and put together anew as the body of a Loop."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import numpy as np
import onnx
from onnx import NodeProto, TensorProto

from graphkit import _body
from graphkit.graph import Graph
from graphkit.node import TensorType
from graphkit.passes._constant_if import renamed
from graphkit.passes._emit import Emit

# (where to write, the number of the iteration, the states) → (new states, what each iteration hands out)
Step = Callable[[Emit, str, tuple[str, ...]], tuple[Sequence[str], Sequence[str]]]


def write_out(emit: Emit, body: Graph, arguments: Mapping[str, str]) -> list[str]:
    """Add the nodes of `body` under new names; `arguments` maps its inputs to values. Returns its outputs."""
    names = dict(arguments)
    for inner in body.walk():
        for value in inner.all_names():
            if value and inner.defines(value) and value not in names:
                names[value] = emit.graph.new_name(f"{emit.near.label}/{value}")
    for name, weight in body.initializers.items():
        if name in body.input_infos:
            continue
        emit.constants[names[name]] = weight.array()
    for node in body.nodes:
        proto = renamed(_body.write_node(node), names)
        proto.name = emit.graph.new_name(f"{emit.near.label}/{node.label}")
        emit.nodes.append(proto)
    return [names.get(value, value) for value in body.outputs]


def write_loop(emit: Emit, count: str, initial: Sequence[str], types: Sequence[TensorType], step: Step) -> list[str]:
    """Add a Loop of `count` (int64 scalar) iterations without condition; returns final states, then what they handed
    out, stacked along a new axis 0. `types` are those of the states and of what is handed out."""
    graph, label = emit.graph, emit.near.label
    inner = Emit(graph, emit.near)
    number, condition = graph.new_name(f"{label}/number"), graph.new_name(f"{label}/condition")
    states = [graph.new_name(f"{label}/state") for _ in initial]
    after, rows = step(inner, number, tuple(states))
    outputs = [inner.op("Identity", value) for value in (condition, *after, *rows)]
    scalar_int, scalar_bool = TensorType(TensorProto.INT64, ()), TensorType(TensorProto.BOOL, ())
    infos_in = _infos([number, condition, *states], [scalar_int, scalar_bool, *types[: len(states)]])
    infos_out = _infos(outputs, [scalar_bool, *types])
    body = onnx.helper.make_graph([*_constants(inner), *inner.nodes], f"{label}_body", infos_in, infos_out)
    # MNN 3.6 crashes running a Loop that has neither condition nor state.
    given = "" if initial else emit.const(np.array(True), "condition")
    emit.op("Loop", count, given, *initial, outputs=len(types), body=body)
    return list(emit.nodes[-1].output)


def _infos(names: Sequence[str], types: Sequence[TensorType]) -> list[onnx.ValueInfoProto]:
    return [
        onnx.helper.make_tensor_value_info(name, type_.dtype, type_.shape)
        for name, type_ in zip(names, types, strict=True)
    ]


def _constants(inner: Emit) -> list[NodeProto]:
    """What the body needs, as Constant nodes: MNN finds weights for its convolutions only inside the body."""
    return [
        onnx.helper.make_node("Constant", [], [name], value=onnx.numpy_helper.from_array(np.asarray(array)))
        for name, array in inner.constants.items()
    ]

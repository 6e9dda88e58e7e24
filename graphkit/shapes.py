"""Shape inference on the graph: symbolic, and on what can be trusted only.

Shapes that a file declares for inner values and outputs are left out: exporters and editors leave wrong ones
behind, and a shape that is believed is folded into the model for good. Sizes are symbolic expressions over
the named sizes of the graph inputs ("batch", "2*seq + 1"); equal texts are equal sizes. A size that nobody
named is called after where it first appears: `x[0]` is axis 0 of value `x`.
"""

from __future__ import annotations

from collections.abc import Iterator

from onnx import ModelProto, TypeProto, ValueInfoProto

from graphkit._evaluate import Evaluator, Scope, evaluate
from graphkit._state import State
from graphkit.graph import Graph
from graphkit.node import TensorType, make_info, type_of_info

_Protos = dict[tuple[int, object], tuple[TensorType, TypeProto]]


def infer(graph: Graph) -> int:
    """Infer types of all values of a root graph and its subgraphs; returns how many node outputs have one.

    One sweep in linear time; weights are not read, except integers of at most 256 elements. Source of the
    method: abstract interpretation with our transfer functions where values matter, and ONNX's own inference
    of single nodes (onnx.shape_inference.infer_node_outputs) elsewhere.
    """
    return publish(evaluate(graph))


def publish(evaluator: Evaluator) -> int:
    """Record an evaluator's result as the types of its graph; returns how many node outputs have one."""
    protos: _Protos = {}
    return sum(_publish(scope, protos) for scope in scopes(evaluator.root))


def scopes(scope: Scope) -> Iterator[Scope]:
    """A scope and those of all graphs inside it, outer ones first."""
    yield scope
    for inner in scope.inner.values():
        yield from scopes(inner)


def _publish(scope: Scope, protos: _Protos) -> int:
    infos: dict[str, ValueInfoProto] = {}
    types: dict[str, TensorType] = {}
    for node in scope.graph.nodes:
        for value in node.outputs:
            state = scope.states.get(value) if value else None
            if state is None or not state.dtype:
                continue
            types[value], proto = _type(state, protos)
            infos[value] = info = ValueInfoProto(name=value)
            info.type.CopyFrom(proto)
    scope.graph.set_inferred(infos)
    scope.graph._types.update(types)
    for value in scope.graph.input_infos:
        state = scope.states.get(value)
        if state is not None and state.dtype and value not in scope.graph.initializers:
            scope.graph._types[value] = _type(state, protos)[0]
    return len(types)


def _type(state: State, protos: _Protos) -> tuple[TensorType, TypeProto]:
    key = (state.dtype, state.shape)
    found = protos.get(key)
    if found is None:
        type_ = TensorType(state.dtype, state.shape)
        found = protos[key] = (type_, make_info("", type_).type)
    return found


def output_types(proto: ModelProto) -> dict[str, TensorType]:
    """Declared types of the outputs that are tensors."""
    types = {info.name: type_of_info(info) for info in proto.graph.output}
    return {name: type_ for name, type_ in types.items() if type_ is not None}

"""Shape inference on the graph: symbolic, and on what can be trusted only.

Shapes that a file declares for inner values and outputs are left out: exporters and editors leave wrong ones
behind, and a shape that is believed is folded into the model for good. Sizes are symbolic expressions over
the named sizes of the graph inputs ("batch", "2*seq + 1"); equal texts are equal sizes. A size that nobody
named is called after where it first appears: `x[0]` is axis 0 of value `x`.
"""

from __future__ import annotations

from collections.abc import Iterator

from graphkit.graph import Graph
from graphkit.node import TensorType
from graphkit.symbolic.evaluate import Evaluator, Scope, evaluate
from graphkit.symbolic.state import State

_Types = dict[tuple[int, object], TensorType]


def infer(graph: Graph) -> int:
    """Infer types of all values of a root graph and its subgraphs; returns how many node outputs have one.

    One sweep in linear time; weights are not read, except integers of at most 256 elements. Source of the
    method: abstract interpretation with our transfer functions where values matter, and ONNX's own inference
    of single nodes (onnx.shape_inference.infer_node_outputs) elsewhere.
    """
    return publish(evaluate(graph))


def publish(evaluator: Evaluator) -> int:
    """Record an evaluator's result as the types of its graph; returns how many node outputs have one."""
    known: _Types = {}
    return sum(_publish(scope, known) for scope in scopes(evaluator.root))


def scopes(scope: Scope) -> Iterator[Scope]:
    """A scope and those of all graphs inside it, outer ones first."""
    yield scope
    for inner in scope.inner.values():
        yield from scopes(inner)


def _publish(scope: Scope, known: _Types) -> int:
    types: dict[str, TensorType] = {}
    for node in scope.graph.nodes:
        for value in node.outputs:
            state = scope.states.get(value) if value else None
            if state is None or not state.dtype:
                continue
            types[value] = _type(state, known)
    scope.graph.set_inferred(types)
    for value in scope.graph.input_infos:
        state = scope.states.get(value)
        if state is not None and state.dtype and value not in scope.graph.initializers:
            scope.graph._types[value] = _type(state, known)
    return len(types)


def _type(state: State, known: _Types) -> TensorType:
    key = (state.dtype, state.shape)
    found = known.get(key)
    if found is None:
        found = known[key] = TensorType(state.dtype, state.shape)
    return found

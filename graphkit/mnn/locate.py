"""Which node: name what MNN refuses, crashes on, or computes wrong, when its own messages do not.

Failures are located by converting prefixes of the graph (binary search; a prefix that fails keeps failing when
it grows), wrong values by one conversion with inner tensors as outputs, compared in order with the reference.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import numpy as np
from onnx import TensorProto, ValueInfoProto

from graphkit.compare import Tolerance, compare
from graphkit.errors import GraphkitError, NodeFault
from graphkit.graph import Graph
from graphkit.model import Model
from graphkit.node import Node, make_info
from graphkit.proof import Evidence, Feeds

RANDOM = frozenset(
    ["Bernoulli", "Multinomial", "RandomNormal", "RandomNormalLike", "RandomUniform", "RandomUniformLike"],
)
_NAMED = re.compile(r"\(node '([^']+)'\)$")
MAX_EXPOSED = 400  # inner tensors made outputs at once; MNN's converter slows down with each


def nodes_of(graph: Graph, op_types: Iterable[str]) -> tuple[NodeFault, ...]:
    """Every node, subgraphs included, whose operator type is one of those that MNN refused."""
    wanted = set(op_types)
    return tuple(
        NodeFault(node.label, node.op, "no such operator in MNN")
        for inner in graph.walk()
        for node in inner.nodes
        if node.op_type in wanted
    )


def random_nodes(graph: Graph) -> tuple[NodeFault, ...]:
    """Nodes whose outputs are random by the standard, subgraphs included."""
    return tuple(
        NodeFault(node.label, node.op, "its output is random")
        for inner in graph.walk()
        for node in inner.nodes
        if node.op in RANDOM or (node.op == "Dropout" and _trains(inner, node))
    )


def _trains(graph: Graph, node: Node) -> bool:
    """True unless Dropout is known to pass its input on."""
    mode = node.input(2)
    value = graph.constant(mode) if mode else False
    return bool(value is None or np.any(value))


def named_node(graph: Graph, reason: str) -> tuple[NodeFault, ...]:
    """The node that a reason ends with, `… (node 'x')`, when the graph still has it."""
    found = _NAMED.search(reason)
    nodes = (node for inner in graph.walk() for node in inner.nodes if found and node.label == found.group(1))
    return tuple(NodeFault(node.label, node.op, reason) for node in nodes)[:1]


def failing_node(graph: Graph, works: Callable[[Model], bool], reason: str) -> tuple[NodeFault, ...]:
    """The node with which the prefix of the graph begins to fail; the outputs' nodes when no prefix does.

    `works` converts (and runs) a model and says whether that went well.
    """
    nodes = [node for node in graph.nodes if node.op_type != "Constant"]
    low, high = 0, len(nodes)  # the prefix of `low` nodes works, that of `high` nodes fails
    if high == 0 or works(prefix(graph, nodes)):
        return tuple(fault_at(graph, name, f"fails only as a whole: {reason}") for name in graph.outputs)
    while high - low > 1:
        middle = (low + high) // 2
        if works(prefix(graph, nodes[:middle])):
            low = middle
        else:
            high = middle
    node = nodes[high - 1]
    return (NodeFault(node.label, node.op, reason),)


def prefix(graph: Graph, nodes: list[Node]) -> Model:
    """The model cut after `nodes`: outputs are what the rest would have used, and outputs reached so far."""
    kept = set(nodes)
    cut = Graph.of(graph.to_model())
    wanted = [
        out
        for node in nodes
        for out in node.outputs
        if out and (graph.is_output(out) or any(user not in kept for user in graph.consumers(out)))
    ]
    return with_outputs(cut, wanted)


def with_outputs(graph: Graph, outputs: Iterable[str]) -> Model:
    """The model with other outputs; what they do not need is removed. Changes the given graph."""
    infos = {}
    for name in outputs:
        type_ = graph.type(name)
        known = make_info(name, type_) if type_ is not None and type_.dtype else graph.declared.get(name)
        infos[name] = graph.output_infos.get(name) or known or ValueInfoProto(name=name)
    graph.output_infos = infos
    graph.remove_dead(reversed(list(graph.nodes)))
    return graph.to_model()


def first_wrong(
    graph: Graph,
    evidence: Evidence,
    check: int,
    wrong_outputs: Sequence[str],
    run: Callable[[Model, Feeds], Mapping[str, Any]],
    tolerance: Tolerance,
) -> tuple[NodeFault, ...]:
    """The first node, in order, whose value MNN gets wrong while all it depends on is right.

    `check` is the number of the sample on which it differs in `wrong_outputs`, `run` converts and runs a model.

    Inner tensors are made outputs, so that MNN cannot fuse across them: a fault that exists only in the fused
    graph is then not seen, and the answer says so.
    """
    names = _exposable(graph)
    sample = evidence.samples[check]
    feeds = sample.feeds
    try:
        with evidence.engine(graph.to_model(), outputs=names) as session:
            expected = session.run(feeds)
        exposed = with_outputs(Graph.of(_typed(graph, expected)), names)
        actual = run(exposed, feeds)
    except GraphkitError as error:
        reason = f"wrong, and the node cannot be told apart: {error.message}"
        return tuple(fault_at(graph, name, reason) for name in wrong_outputs)
    comparison = compare(expected, actual, tolerance, squeeze=True, finite_only=sample.probe)
    wrong = {output.name: output.reason for output in comparison.outputs if not output.ok}
    first = next((name for name in names if name in wrong), None)
    if first is None:
        reason = "wrong only when MNN fuses it with its neighbours: with inner tensors exposed every node is right"
        return tuple(fault_at(graph, name, reason) for name in wrong_outputs)
    node = graph.producer(first)
    assert node is not None
    return (NodeFault(node.label, node.op, f"value '{first}': {wrong[first]}"),)


def _exposable(graph: Graph) -> list[str]:
    """Values of the main graph that are worth a look, in order, thinned to MAX_EXPOSED; outputs always."""
    names = [
        out
        for node in graph.nodes
        for out in node.outputs
        if out and node.op_type != "Constant" and (graph.is_used(out) or graph.is_output(out))
    ]
    if len(names) <= MAX_EXPOSED:
        return names
    step = -(-len(names) // MAX_EXPOSED)
    return [name for i, name in enumerate(names) if i % step == 0 or graph.is_output(name)]


def _typed(graph: Graph, values: Mapping[str, Any]) -> Model:
    """The model with value_info for the exposed values, so that they may become outputs."""
    import onnx

    model = graph.to_model()
    known = {info.name for info in model.proto.graph.value_info}
    for name, array in values.items():
        if name not in known and not graph.is_output(name):
            dtype = onnx.helper.np_dtype_to_tensor_dtype(array.dtype)
            shape = [None] * array.ndim
            model.proto.graph.value_info.append(onnx.helper.make_tensor_value_info(name, dtype, shape))
    return model


def fault_at(graph: Graph, name: str, reason: str) -> NodeFault:
    """A fault of the node that makes a value, else of the first that reads it, else of the value itself."""
    node = graph.producer(name) or next(iter(graph.consumers(name)), None)
    return NodeFault(node.label, node.op, reason) if node else NodeFault(name, "value", reason)


def empty_outputs(graph: Graph) -> tuple[NodeFault, ...]:
    """Outputs that never have an element, by their inferred or by their declared shape."""
    faults = []
    for name, info in graph.output_infos.items():
        declared = any(dim.HasField("dim_value") and dim.dim_value == 0 for dim in info.type.tensor_type.shape.dim)
        if declared or 0 in (graph.shape(name) or ()):
            faults.append(
                fault_at(graph, name, f"output '{name}' has no elements, and MNN cannot hand over such a result")
            )
    return tuple(faults)


def no_tensors(graph: Graph) -> tuple[NodeFault, ...]:
    """Inputs and outputs that MNN cannot have: sequences, optionals, text."""
    faults = []
    for name in dict.fromkeys((*graph.inputs, *graph.outputs)):
        info = graph.input_infos.get(name) or graph.output_infos.get(name)
        kind = info.type.WhichOneof("value") if info is not None else None
        text = kind == "tensor_type" and graph.dtype(name) == TensorProto.STRING
        if text or kind not in (None, "tensor_type"):
            what = "text" if text else f"a {str(kind).removesuffix('_type')}"
            faults.append(fault_at(graph, name, f"'{name}' is {what}, and MNN has only tensors of numbers"))
    return tuple(faults)

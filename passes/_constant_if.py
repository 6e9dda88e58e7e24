"""Inline the branch of an If whose condition is constant."""

from __future__ import annotations

from collections.abc import Mapping

from onnx import AttributeProto, GraphProto, NodeProto

from graphkit import _body
from graphkit.graph import Graph
from graphkit.node import Node
from graphkit.rewrite import Change, PassResult, Refusal


def inline(graph: Graph, rule: str) -> PassResult:
    """Put the chosen branches of this graph in place of their If nodes."""
    changes: list[Change] = []
    refusals: list[Refusal] = []
    pending = graph.by_op("If")
    while pending:
        node = pending.pop(0)
        condition = graph.constant(node.input(0))
        if condition is None or condition.size != 1:
            continue
        branch = node.subgraphs.get("then_branch" if bool(condition.reshape(-1)[0]) else "else_branch")
        if branch is None or len(branch.outputs) != len(node.outputs):
            refusals.append(Refusal(rule, node.label, "its branch does not make the outputs it should"))
            continue
        if not graph.allows(node, f"inline {branch.name or 'branch'} of If"):
            break
        pending.extend(new for new in _inline(graph, node, branch) if new.op == "If")
        changes.append(Change(node.label, "inline the branch of an If with a constant condition"))
    counters = {"inlined if": len(changes)} if changes else {}
    return PassResult(tuple(changes), tuple(refusals), counters)


def _inline(graph: Graph, node: Node, branch: Graph) -> list[Node]:
    """Replace the node by the nodes of its branch, whose inner values get names unused elsewhere."""
    names: dict[str, str] = {}
    for inner, outer in zip(branch.outputs, node.outputs, strict=True):
        if branch.producer(inner) is not None and inner not in names and outer:
            names[inner] = outer
    for graph_inside in branch.walk():
        for value in (*graph_inside.input_infos, *graph_inside.initializers, *graph_inside._producer):
            if value and value not in names:
                names[value] = graph.new_name(f"{node.label}/{value}")
    protos = [renamed(_body.write_node(item), names) for item in branch.nodes]
    weights = {names[name]: weight.array() for name, weight in branch.initializers.items()}
    before, made = (
        node._next,
        [(o, names.get(i, i)) for i, o in zip(branch.outputs, node.outputs, strict=True)],
    )
    graph.remove(node)
    for name, array in weights.items():
        graph.define_constant(name, array)
    inserted = [graph.insert(proto, before) for proto in protos]
    for outer, value in made:
        if outer and outer != value:
            graph.bypass(outer, value)
    return inserted


def renamed(proto: NodeProto, names: Mapping[str, str]) -> NodeProto:
    """A copy of a node, graphs inside included, with values renamed."""
    copy = NodeProto()
    copy.CopyFrom(proto)
    _rename(copy, names)
    return copy


def _rename(proto: NodeProto, names: Mapping[str, str]) -> None:
    for field in (proto.input, proto.output):
        renamed = [names.get(value, value) for value in field]
        del field[:]
        field.extend(renamed)
    for attribute in proto.attribute:
        if attribute.type == AttributeProto.GRAPH:
            _rename_graph(attribute.g, names)
        for inner in attribute.graphs:
            _rename_graph(inner, names)


def _rename_graph(proto: GraphProto, names: Mapping[str, str]) -> None:
    for info in (*proto.input, *proto.output, *proto.value_info):
        info.name = names.get(info.name, info.name)
    for tensor in proto.initializer:
        tensor.name = names.get(tensor.name, tensor.name)
    for node in proto.node:
        _rename(node, names)

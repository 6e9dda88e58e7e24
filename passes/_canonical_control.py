"""Constant nodes in one form, and an If that always goes one way without the If."""

from __future__ import annotations

from onnx import NodeProto, TensorProto

from graphkit._body import write_node
from graphkit._constants import constant_proto
from graphkit.graph import Graph
from graphkit.node import Node
from graphkit.rewrite import Change
from graphkit.weights import Weight, make_weight


def unify_constants(graph: Graph) -> list[Change]:
    """Make Constant nodes initializers, under the same names; in subgraphs give them the form of a tensor.

    Empty `value_ints` stay int64, empty `value_floats` float32. Constants that are graph outputs stay nodes.
    """
    changes: list[Change] = []
    for inner in graph.walk():
        inside = inner.parent is not None
        for node in inner.by_op("Constant"):
            weight = _weight(inner, node)
            out = node.outputs[0]
            if weight is None or ((inside or inner.is_output(out)) and node.attr("value") is not None):
                continue
            what = "write Constant as a tensor" if inside else "write Constant as an initializer"
            if not graph.allows(node, what):
                return changes
            changes.append(Change(node.label, what))
            if inside or inner.is_output(out):
                inner.replace_node(node, _named(constant_proto(weight), node.name))
            else:
                inner.remove(node)
                inner.put_initializer(out, weight)
    return changes


def _weight(graph: Graph, node: Node) -> Weight | None:
    """The value of a Constant node as a weight of its output's name; bytes are not read."""
    tensor, out = node.attr("value"), node.outputs[0]
    if isinstance(tensor, TensorProto):
        proto = TensorProto()
        proto.CopyFrom(tensor)
        proto.name = out
        return Weight(proto, graph.store)
    array = graph.constant(out)
    return None if array is None else make_weight(out, array, graph.store)


def _named(proto: NodeProto, name: str) -> NodeProto:
    proto.name = name
    return proto


def choose_branches(graph: Graph) -> list[Change]:
    """Put the branch of an If whose condition is constant in its place, in all graphs."""
    changes: list[Change] = []
    for inner in graph.walk():
        todo = inner.by_op("If")
        while todo:
            node = todo.pop()
            condition = inner.constant(node.inputs[0])
            if condition is None or condition.size != 1:
                continue
            key = "then_branch" if condition.all() else "else_branch"
            what = f"put the {key} of If in its place"
            if not graph.allows(node, what):
                return changes
            changes.append(Change(node.label, what))
            todo.extend(new for new in _lift(inner, node, node.subgraphs[key]) if new.op == "If")
    return changes


def _lift(graph: Graph, node: Node, branch: Graph) -> list[Node]:
    """Move what a branch does to the graph around it; values get new names, for siblings may share theirs."""
    for name in [*branch.initializers, *(out for inner in branch.nodes for out in inner.outputs if out)]:
        branch.rename(name, graph.new_name(name))
    types = {out: branch.type(out) for inner in branch.nodes for out in inner.outputs if out}
    protos = [write_node(inner) for inner in branch.nodes]
    before = node._next
    graph.remove(node)
    for name, weight in branch.initializers.items():
        if graph.parent is None:
            graph.put_initializer(name, weight)
        else:
            graph.insert(constant_proto(weight), before)
    inserted = [graph.insert(proto, before) for proto in protos]
    for name, type_ in types.items():
        if type_ is not None and type_.dtype:
            graph.set_type(name, type_)
    for old, new in zip(node.outputs, branch.outputs, strict=True):
        if old:
            graph.bypass(old, new)
    return inserted

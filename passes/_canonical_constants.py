"""Constant nodes in one form."""

from __future__ import annotations

from onnx import NodeProto, TensorProto

from graphkit._constants import constant_proto
from graphkit.graph import Graph
from graphkit.node import Node
from graphkit.rewrite import Change
from graphkit.weights import Weight, make_weight

_HALVES = (TensorProto.FLOAT16, TensorProto.BFLOAT16)


def unify_constants(graph: Graph) -> list[Change]:
    """Make Constant nodes initializers, under the same names; in subgraphs give them the form of a tensor.

    Empty `value_ints` stay int64, empty `value_floats` float32. Constants that are graph outputs stay nodes.
    Half floats that are spelled out as integers become raw bytes: MNN's converter crashes on them.
    """
    changes = _to_raw(graph)
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


def _to_raw(graph: Graph) -> list[Change]:
    changes: list[Change] = []
    what = "store half floats as raw bytes"
    for inner in graph.walk():
        halves = [weight for weight in inner.initializers.values() if weight.data_type in _HALVES]
        spelled = [weight for weight in halves if weight.proto.int32_data]
        for weight in spelled:
            if not inner.root.gate(weight.name, what):
                return changes
            inner.put_initializer(weight.name, make_weight(weight.name, weight.array(), inner.store))
            changes.append(Change(weight.name, what))
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

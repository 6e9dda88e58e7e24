"""Removal of what nobody uses: nodes, optional outputs, outputs of If, functions, operator sets."""

from __future__ import annotations

from onnx import NodeProto

from graphkit._body import write_node
from graphkit.graph import Graph
from graphkit.node import Node, normal_domain
from graphkit.rewrite import Change

# Only operators whose other outputs do not depend on whether these are asked for: BatchNormalization before
# operator set 14 trains when they are, and MNN reads LSTM and GRU right only with all outputs in place.
_OPTIONAL_OUTPUTS = frozenset({"MaxPool", "Dropout", "LayerNormalization", "Unique"})


def remove_dead(graph: Graph) -> list[Change]:
    """Remove unused nodes of a graph and of those inside it, users before makers, as the gate allows."""
    changes: list[Change] = []
    for node in reversed(list(graph.nodes)):
        if not any(graph.is_used(out) for out in node.outputs if out):
            what = f"remove unused {node.op}"
            if not graph.allows(node, what):
                break
            graph.remove(node)
            changes.append(Change(node.label, what))
            continue
        node = _trim_outputs(graph, node, changes)
        for sub in node.subgraphs.values():
            changes.extend(remove_dead(sub))
    return changes


def _trim_outputs(graph: Graph, node: Node, changes: list[Change]) -> Node:
    """Drop unused outputs where that is safe; returns the node that stands there afterwards."""
    if node.domain:
        return node
    if node.op_type == "If":
        return _trim_if(graph, node, changes)
    keep = len(node.outputs)
    while keep > 1 and not graph.is_used(node.outputs[keep - 1]):
        keep -= 1
    if keep == len(node.outputs) or node.op_type not in _OPTIONAL_OUTPUTS:
        return node
    what = f"drop unused outputs of {node.op}"
    if not graph.allows(node, what):
        return node
    proto = NodeProto()
    proto.CopyFrom(node.proto)
    del proto.output[keep:]
    changes.append(Change(node.label, what))
    return graph.replace_node(node, proto)


def _trim_if(graph: Graph, node: Node, changes: list[Change]) -> Node:
    unused = [i for i, out in enumerate(node.outputs) if not graph.is_used(out)]
    count = len(node.outputs)
    if not unused or any(len(sub.outputs) != count for sub in node.subgraphs.values()):
        return node
    what = "drop unused outputs of If"
    if not graph.allows(node, what):
        return node
    proto = NodeProto()
    proto.CopyFrom(write_node(node))
    for index in reversed(unused):
        del proto.output[index]
        for attribute in proto.attribute:
            del attribute.g.output[index]
    types = {key: dict(sub.inferred) for key, sub in node.subgraphs.items()}
    changes.append(Change(node.label, what))
    fresh = graph.replace_node(node, proto)
    for key, inferred in types.items():
        fresh.subgraphs[key].set_inferred(inferred)
    return fresh


def called_functions(graph: Graph) -> set[tuple[str, str, str]]:
    """Keys of the local functions that a model reaches, through other functions too."""
    found: set[tuple[str, str, str]] = set()
    todo = [graph]
    while todo:
        for inner in todo.pop().walk():
            for node in inner.nodes:
                key = _function_key(graph, node)
                if key is not None and key not in found:
                    found.add(key)
                    todo.append(graph.functions[key])
    return found


def _function_key(graph: Graph, node: Node) -> tuple[str, str, str] | None:
    for domain in (node.proto.domain, node.domain):
        key = (domain, node.op_type, getattr(node.proto, "overload", ""))
        if key in graph.functions:
            return key
    return None


def remove_functions(graph: Graph) -> list[Change]:
    """Remove local functions that nothing calls."""
    if not graph.functions:
        return []
    changes: list[Change] = []
    called = called_functions(graph)
    for key in [key for key in graph.functions if key not in called]:
        name = "::".join(part for part in key if part)
        if not graph.root.gate(name, "remove unused function"):
            break
        del graph.functions[key]
        changes.append(Change(name, "remove unused function"))
    return changes


def remove_opsets(graph: Graph) -> list[Change]:
    """Remove imports of operator sets that no node of the model or its functions uses; ONNX's own stays."""
    used = {""}
    for top in (graph, *graph.functions.values()):
        used.update(normal_domain(domain) for domain in top.opsets if top is not graph)
        used.update(node.domain for inner in top.walk() for node in inner.nodes)
    changes: list[Change] = []
    for domain in [domain for domain in graph.opsets if domain not in used]:
        if not graph.root.gate(domain, "remove unused operator set import"):
            break
        del graph.opsets[domain]
        changes.append(Change(domain, "remove unused operator set import"))
    return changes

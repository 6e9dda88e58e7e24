"""Where onnxruntime computes something else than the standard says: there it is no reference.

Each entry was seen on ONNX's own backend tests (onnx 1.23, onnxruntime 1.32): the expected outputs are those of ONNX's
evaluator, and onnxruntime's differ.
"""

from __future__ import annotations

from collections.abc import Callable

from graphkit.graph import Graph
from graphkit.node import Node


def departure(graph: Graph) -> str:
    """What onnxruntime gets wrong in a graph, subgraphs included, in words; empty when nothing is known."""
    for inner in graph.walk():
        for node in inner.nodes:
            found = _KNOWN.get(node.op)
            if found is not None and found[0](inner, node):
                return f"onnxruntime departs from the standard in {found[1]} ('{node.label}')"
    return ""


def _sized(graph: Graph, node: Node) -> bool:
    return bool(node.input(2))


_KNOWN: dict[str, tuple[Callable[[Graph, Node], bool], str]] = {
    "MaxUnpool": (_sized, "MaxUnpool with output_shape"),
}

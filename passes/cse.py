"""The pass `cse`: what is computed twice from the same values is computed once."""

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import dataclass
from typing import Any, ClassVar

from onnx import AttributeProto, TensorProto

from graphkit._body import write_node
from graphkit.graph import Graph
from graphkit.node import GRAPH_KINDS, Node
from graphkit.rewrite import Change, PassResult, Refusal
from graphkit.weights import Weight

_RANDOM = frozenset(f"Random{kind}{like}" for kind in ("Normal", "Uniform") for like in ("", "Like")) | {
    "Multinomial",
    "Bernoulli",
    "Dropout",
}
_COMMUTATIVE = frozenset(("Add", "Mul", "And", "Or", "Xor", "Equal", "BitwiseAnd", "BitwiseOr", "BitwiseXor"))
# onnxruntime changes sequences that a Loop carries in place: two that are equal must stay two.
_SEQUENCES = ("Sequence", "SplitToSequence", "Optional", "Loop", "Scan")
_DOMAINS = ("", "ai.onnx.ml", "com.microsoft")
_MICROSOFT_RANDOM = ("Dropout", "Sampling", "Random")


@dataclass(frozen=True)
class Cse:
    """Merge nodes with the same operator, attributes and inputs; the later one goes.

    The operands of commutative operators may be in any order, attributes too; equal Constant nodes are
    merged. A node in a subgraph is merged with an equal one around it that runs before. Nodes with subgraphs
    are merged when these are equal to the byte. Graph outputs keep their names: of two equal ones the second
    becomes an Identity.

    Refuses random operators (each draws its own numbers) and Dropout, and what contains them. Leaves alone
    custom domains and local functions, for whether they are deterministic is not known, Loop and Scan, and
    operators that make sequences, which onnxruntime may change in place.
    """

    name: ClassVar[str] = "cse"
    summary: ClassVar[str] = "compute the same thing once (common subexpressions)"

    def run(self, graph: Graph) -> PassResult:
        """Merge equal nodes in place, in one sweep over all graphs."""
        sweep = _Sweep(graph)
        sweep.graph(graph, {})
        counters = {"merged": len(sweep.changes)} if sweep.changes else {}
        return PassResult(tuple(sweep.changes), tuple(sweep.refusals), counters)


class _Sweep:
    """One sweep in order of execution. Values are numbered, so that renamed outputs stay known."""

    def __init__(self, root: Graph) -> None:
        self.functions = {(domain, name) for domain, name, _ in root.functions}
        self.opset = root.opset()
        self.numbers: dict[str, int] = {}
        self.count = 0
        self.changes: list[Change] = []
        self.refusals: list[Refusal] = []
        self.open = True

    def graph(self, graph: Graph, known: dict[Hashable, Node]) -> None:
        """Merge nodes of a graph; `known` are nodes before it, here and around it."""
        added: list[Hashable] = []
        self.define(*graph.inputs, *graph.initializers)
        for node in graph.nodes:
            if not self.open:
                return
            for sub in node.subgraphs.values():
                self.graph(sub, known)
            key = self.key(graph, node)
            first = known.get(key)
            if key is not None and first is not None and self.worthwhile(graph, node, first):
                self.merge(graph, node, first)
                continue
            self.define(*node.outputs)
            if key is not None and first is None:
                known[key] = node
                added.append(key)
        if graph.parent is not None:
            for key in added:
                del known[key]

    def worthwhile(self, graph: Graph, node: Node, first: Node) -> bool:
        """False when merging would only put an Identity in the place of something as cheap."""
        if node.op_type not in ("Identity", "Constant") or not any(map(graph.is_output, node.outputs)):
            return True
        return first.graph is graph and not any(map(graph.is_output, first.outputs))

    def merge(self, graph: Graph, node: Node, first: Node) -> None:
        """Let the outputs of `first` stand for those of `node`."""
        what = f"use the result of '{first.label}'"
        self.open = graph.allows(node, what)
        if not self.open:
            return
        self.changes.append(Change(node.label, what))
        graph.remove(node)
        for index, old in enumerate(node.outputs):
            if old:
                new = first.outputs[index]
                self.numbers[old] = self.number(new)
                graph.bypass(old, new)

    def define(self, *values: str) -> None:
        """Give values new numbers: branches of one If may use a name for different values."""
        for value in values:
            self.count += 1
            self.numbers[value] = self.count

    def number(self, value: str) -> int:
        """The number of a value; equal values have equal numbers."""
        return self.numbers[value] if value else 0

    def key(self, graph: Graph, node: Node) -> Hashable | None:
        """What makes a node equal to another; None when it must not be merged."""
        if not node.outputs or node.domain not in _DOMAINS or (node.domain, node.op_type) in self.functions:
            return None
        if node.op_type.startswith(_SEQUENCES):
            return None
        if _is_random(node):
            self.refusals.append(Refusal("cse", node.label, f"{node.op} is random, or contains what is"))
            return None
        if node.op == "Constant":
            return _constant_key(graph, node)
        inputs = [self.number(value) for value in node.inputs]
        if node.op in _COMMUTATIVE and self.opset >= 7:
            inputs.sort()
        outputs = tuple(bool(out) for out in node.outputs)
        return node.op, tuple(inputs), outputs, _attributes(node)


def _is_random(node: Node) -> bool:
    if node.op in _RANDOM:
        return True
    if node.domain == "com.microsoft" and any(word in node.op_type for word in _MICROSOFT_RANDOM):
        return True
    return any(_is_random(inner) for sub in node.subgraphs.values() for inner in sub.nodes)


def _attributes(node: Node) -> Hashable:
    if not node.proto.attribute:
        return ()
    proto = write_node(node) if node.subgraphs else node.proto
    return tuple(sorted((a.name, _attribute(a)) for a in proto.attribute))


def _attribute(attribute: AttributeProto) -> bytes:
    if not attribute.doc_string and attribute.type not in (AttributeProto.TENSOR, *GRAPH_KINDS):
        return attribute.SerializeToString(deterministic=True)
    plain = AttributeProto()
    plain.CopyFrom(attribute)
    plain.ClearField("doc_string")
    if attribute.type == AttributeProto.TENSOR:
        plain.t.ClearField("name")
        plain.t.ClearField("doc_string")
    return plain.SerializeToString(deterministic=True)


def _constant_key(graph: Graph, node: Node) -> Hashable | None:
    tensor: Any = node.attr("value")
    if isinstance(tensor, TensorProto):
        weight = Weight(tensor, graph.store)
        if weight.ref is not None:
            return "Constant", weight.data_type, weight.dims, weight.ref
    array = graph.constant(node.outputs[0])
    if array is None:
        return None
    data = tuple(array.reshape(-1).tolist()) if array.dtype.kind in "OUS" else array.tobytes()
    return "Constant", str(array.dtype), array.shape, data

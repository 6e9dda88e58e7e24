"""Rewrite rules: pure functions of a match, refusals with reasons, and the driver that applies them.

A rule looks at one node and answers with a `Rewrite` (what to put in its place), a `Refusal` (a near miss,
and why) or None (not this pattern at all). It changes nothing itself; `apply_rules` does, asks the graph's
gate before each rewrite so that every one is numbered, and collects what happened in a `PassResult`.
The design follows MLIR's greedy pattern driver and LLVM's opt-bisect-limit.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar, Protocol, runtime_checkable

import numpy as np
import onnx
from onnx import NodeProto

from graphkit.graph import Graph
from graphkit.node import Node


@dataclass(frozen=True)
class Refusal:
    """Why a rule that nearly matched did not: rule, node and reason, for people to read."""

    rule: str
    node: str
    reason: str


@dataclass(frozen=True)
class Change:
    """One rewrite that was done: where (a node's label) and what."""

    node: str
    what: str


@dataclass(frozen=True)
class PassResult:
    """What a pass did. `counters` count kinds of changes; `notes` are sentences for the user."""

    changes: tuple[Change, ...] = ()
    refusals: tuple[Refusal, ...] = ()
    counters: Mapping[str, int] = field(default_factory=dict)
    notes: tuple[str, ...] = ()
    seconds: float = 0.0

    @property
    def modified(self) -> bool:
        """True when the pass changed the graph."""
        return bool(self.changes)

    def __add__(self, other: PassResult) -> PassResult:
        return PassResult(
            self.changes + other.changes,
            self.refusals + other.refusals,
            dict(Counter(self.counters) + Counter(other.counters)),
            self.notes + other.notes,
            self.seconds + other.seconds,
        )


@runtime_checkable
class Pass(Protocol):
    """What a pass is: a frozen dataclass whose fields are its options.

    `name` and `summary` are class constants, `run` changes the graph and says what it did. No state survives.
    """

    name: ClassVar[str]
    summary: ClassVar[str]

    def run(self, graph: Graph) -> PassResult:
        """Rewrite the graph in place."""
        ...


@dataclass(frozen=True)
class Rewrite:
    """What to put in place of matched nodes.

    `nodes` are inserted in order where the first replaced value was made, after `constants` are defined;
    then each key of `outputs` (a value of the graph) is replaced by its value (made by `nodes`, or one that
    exists already). Names of replaced values are kept. What nobody uses any more is removed.
    """

    what: str
    outputs: Mapping[str, str]
    nodes: tuple[NodeProto, ...] = ()
    constants: Mapping[str, np.ndarray] = field(default_factory=dict)


Outcome = Rewrite | Refusal | None
Match = Callable[[Graph, Node], Outcome]


@dataclass(frozen=True)
class Rule:
    """A named rule for nodes of certain operators (`Add`, `com.microsoft::Gelu`)."""

    name: str
    ops: tuple[str, ...]
    match: Match

    def refuse(self, node: Node, reason: str) -> Refusal:
        """A refusal by this rule."""
        return Refusal(self.name, node.label, reason)


def rule(*ops: str, name: str | None = None) -> Callable[[Match], Rule]:
    """Make a function of (graph, node) a rule for nodes of these operators."""

    def decorate(match: Match) -> Rule:
        return Rule(name or match.__name__.replace("_", "-"), ops, match)

    return decorate


class Builder:
    """Collects new nodes and constants for a `Rewrite` without touching the graph."""

    def __init__(self, graph: Graph, near: Node) -> None:
        self.graph = graph
        self.near = near
        self.nodes: list[NodeProto] = []
        self.constants: dict[str, np.ndarray] = {}

    def op(self, op_type: str, *inputs: str, domain: str = "", outputs: int = 1, **attrs: Any) -> str:
        """Add a node; returns the name of its first output (the others are `name + ':1'`, …)."""
        name = self.graph.new_name(f"{self.near.label}/{op_type}")
        values = [f"{name}_out", *(f"{name}_out:{i}" for i in range(1, outputs))]
        attrs = {key: value for key, value in attrs.items() if value is not None}
        self.nodes.append(onnx.helper.make_node(op_type, inputs, values, name=name, domain=domain, **attrs))
        return values[0]

    def const(self, value: np.ndarray, hint: str = "const") -> str:
        """Add a constant; returns its name."""
        name = self.graph.new_name(f"{self.near.label}/{hint}")
        self.constants[name] = np.asarray(value)
        return name

    def ints(self, *values: int) -> str:
        """Add a 1-D int64 constant (axes, shapes)."""
        return self.const(np.array(values, dtype=np.int64), "ints")

    def rewrite(self, outputs: Mapping[str, str], what: str) -> Rewrite:
        """The rewrite that replaces the keys of `outputs` by its values."""
        return Rewrite(what, outputs, tuple(self.nodes), self.constants)


def apply(graph: Graph, rewrite: Rewrite) -> list[Node]:
    """Do one rewrite; returns the nodes that were inserted."""
    replaced = [node for old in rewrite.outputs if (node := graph.producer(old)) is not None]
    anchor = replaced[0]
    made = {out for proto in rewrite.nodes for out in proto.output}
    names = {new: old for old, new in rewrite.outputs.items() if new in made}
    protos = [_with_names(proto, names, anchor) for proto in rewrite.nodes]
    for name, array in rewrite.constants.items():
        graph.define_constant(name, array)
    before = anchor._next
    feeders = {p for node in replaced for v in graph.values_used_by(node) if (p := graph.producer(v))}
    while before is not None and before in replaced:
        before = before._next
    for node in dict.fromkeys(replaced):
        graph.remove(node)
    inserted = [graph.insert(proto, before) for proto in protos]
    for old, new in rewrite.outputs.items():
        if new not in made:
            graph.bypass(old, new)
    graph.remove_dead([*(node for node in feeders if node.alive), *reversed(inserted)])
    return [node for node in inserted if node.alive]


def _with_names(proto: NodeProto, names: Mapping[str, str], anchor: Node) -> NodeProto:
    """Give replaced values their old names; the node that makes the first of them keeps its node name."""
    if any(value in names for value in (*proto.input, *proto.output)):
        inputs = [names.get(value, value) for value in proto.input]
        outputs = [names.get(value, value) for value in proto.output]
        del proto.input[:], proto.output[:]
        proto.input.extend(inputs)
        proto.output.extend(outputs)
    if anchor.name and anchor.outputs[0] in proto.output:
        proto.name = anchor.name
    return proto


def apply_rules(graph: Graph, rules: Sequence[Rule]) -> PassResult:
    """Apply rules to a graph and all graphs inside it until none matches any more.

    New nodes are looked at again; a node that a rule refused is looked at once. Stops without error when the
    gate closes. Each rule must shrink or normalize what it matches, or this does not end.
    """
    changes: list[Change] = []
    refused: list[tuple[Node, Refusal]] = []
    counters: Counter[str] = Counter()
    by_op: dict[str, list[Rule]] = {}
    for item in rules:
        for op in item.ops:
            by_op.setdefault(op, []).append(item)
    for inner in graph.walk():
        queue = deque(node for node in inner.nodes if node.op in by_op)
        while queue:
            node = queue.popleft()
            if not node.alive:
                continue
            found, outcome = _first_outcome(inner, node, by_op[node.op], refused)
            if found is None or outcome is None:
                continue
            if not graph.allows(node, outcome.what):
                return _result(changes, refused, counters)
            changes.append(Change(node.label, outcome.what))
            counters[found.name] += 1
            queue.extend(new for new in apply(inner, outcome) if new.op in by_op)
    return _result(changes, refused, counters)


def _first_outcome(
    graph: Graph, node: Node, rules: Iterable[Rule], refused: list[tuple[Node, Refusal]]
) -> tuple[Rule | None, Rewrite | None]:
    for item in rules:
        outcome = item.match(graph, node)
        if isinstance(outcome, Refusal):
            refused.append((node, outcome))
        elif outcome is not None:
            return item, outcome
    return None, None


def _result(
    changes: list[Change], refused: list[tuple[Node, Refusal]], counters: Mapping[str, int]
) -> PassResult:
    near_misses = dict.fromkeys(refusal for node, refusal in refused if node.alive)
    return PassResult(tuple(changes), tuple(near_misses), dict(counters))

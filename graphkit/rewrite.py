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
import numpy.typing as npt
import onnx
from onnx import NodeProto

from graphkit._placing import place
from graphkit.errors import GraphkitError
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


# Bounds on rewrites, far above what rules that end need; the last names tell which ones do not.
_REWRITES_PER_NODE, _REWRITES_AT_LEAST, _LATEST = 4, 1000, 100

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
        tails = ["", *(f":{i}" for i in range(1, outputs))]
        values = [self.graph.new_name(f"{name}_out{tail}") for tail in tails]
        attrs = {key: value for key, value in attrs.items() if value is not None}
        self.nodes.append(onnx.helper.make_node(op_type, inputs, values, name=name, domain=domain, **attrs))
        return values[0]

    def const(self, value: npt.ArrayLike, hint: str = "const") -> str:
        """Add a constant (an array or a numpy scalar, whose dtype counts); returns its name."""
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
    """Do one rewrite; returns the nodes that were inserted.

    Raises GraphkitError when a value to be replaced is not made by a node of this graph, or another output of its
    node is still used.
    """
    return _apply(graph, rewrite)[0]


def _apply(graph: Graph, rewrite: Rewrite) -> tuple[list[Node], list[Node]]:
    """Do one rewrite; returns the inserted nodes, and those around them that may match a rule now."""
    replaced = list(dict.fromkeys(_maker(graph, old, rewrite) for old in rewrite.outputs))
    made = {out for proto in rewrite.nodes for out in proto.output}
    names: dict[str, str] = {}
    for old, new in rewrite.outputs.items():
        if new in made:
            names.setdefault(new, old)
    protos = [_with_names(proto, names, replaced[0]) for proto in rewrite.nodes]
    for name, array in rewrite.constants.items():
        graph.define_constant(name, array)
    around = [user for old in rewrite.outputs for user in graph.consumers(old)]
    feeders = {p for node in replaced for v in graph.values_used_by(node) if (p := graph.producer(v))}
    before = place(replaced, protos)
    for node in replaced:
        graph.remove(node)
    inserted = [graph.insert(proto, before) for proto in protos]
    stands: dict[str, str] = dict(names)  # what each new value is called by now
    for old, new in rewrite.outputs.items():
        if stands.get(new) != old:
            stands[new] = graph.bypass(old, stands.get(new, new))
            around += [p] if (p := graph.producer(stands[new])) else []
    removed = graph.remove_dead([*(node for node in feeders if node.alive), *reversed(inserted)])
    read = [v for node in (*replaced, *removed) for v in node.inputs]
    around += [p for v in read if (p := graph.producer(v))]
    return [node for node in inserted if node.alive], around


def _maker(graph: Graph, value: str, rewrite: Rewrite) -> Node:
    node = graph.producer(value)
    if node is None:
        raise GraphkitError(f"'{rewrite.what}' replaces '{value}', which no node of this graph makes")
    for out in node.outputs:
        if out and out not in rewrite.outputs and graph.is_used(out):
            problem = f"'{rewrite.what}' replaces '{value}' but not '{out}', which the same node makes"
            raise GraphkitError(problem, node=node.label)
    return node


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

    New nodes and those next to a change are looked at again. Stops without error when the gate closes.
    Each rule must shrink or normalize what it matches: raises GraphkitError, naming the rules, when there
    were several rewrites for each node and still no end.
    """
    driver = _Driver(graph, rules)
    for inner in graph.walk():
        if not driver.run(inner):
            break
    return driver.result()


class _Driver:
    """The work list, and what was done and refused so far."""

    def __init__(self, graph: Graph, rules: Iterable[Rule]) -> None:
        self.graph = graph
        self.by_op: dict[str, list[Rule]] = {}
        for item in rules:
            for op in item.ops:
                self.by_op.setdefault(op, []).append(item)
        self.changes: list[Change] = []
        self.counters: Counter[str] = Counter()
        self.refused: dict[tuple[Node, str], Refusal] = {}
        self.latest: deque[str] = deque(maxlen=_LATEST)
        self.budget = _REWRITES_PER_NODE * sum(map(len, graph.walk())) + _REWRITES_AT_LEAST

    def run(self, inner: Graph) -> bool:
        """Work on one graph; False when the gate closed."""
        queue = deque(node for node in inner.nodes if node.op in self.by_op)
        waiting = set(queue)
        while queue:
            node = queue.popleft()
            waiting.discard(node)
            if not node.alive:
                continue
            found = self.first_rewrite(inner, node)
            if found is None:
                continue
            item, rewrite = found
            if not self.graph.allows(node, rewrite.what):
                return False
            self.note(item, node, rewrite)
            inserted, around = _apply(inner, rewrite)
            for near in (*inserted, *around):
                if near.alive and near.op in self.by_op and near.graph is inner and near not in waiting:
                    queue.append(near)
                    waiting.add(near)
        return True

    def first_rewrite(self, inner: Graph, node: Node) -> tuple[Rule, Rewrite] | None:
        """What the first rule that matches the node wants; refusals of the others are kept."""
        for item in self.by_op[node.op]:
            outcome = item.match(inner, node)
            if isinstance(outcome, Refusal):
                self.refused[node, item.name] = outcome
                continue
            self.refused.pop((node, item.name), None)
            if outcome is not None:
                return item, outcome
        return None

    def note(self, item: Rule, node: Node, rewrite: Rewrite) -> None:
        """Count a rewrite that is about to be done."""
        self.changes.append(Change(node.label, rewrite.what))
        self.counters[item.name] += 1
        self.latest.append(item.name)
        if len(self.changes) > self.budget:
            names = ", ".join(sorted(set(self.latest)))
            raise GraphkitError(f"no end after {self.budget} rewrites; still matching: {names}")

    def result(self) -> PassResult:
        """All that was done; refusals about nodes that are gone are left out."""
        near_misses = dict.fromkeys(refusal for (node, _), refusal in self.refused.items() if node.alive)
        return PassResult(tuple(self.changes), tuple(near_misses), dict(self.counters))

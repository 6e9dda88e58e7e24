"""Which node is to blame: from verdicts on whole graphs to nodes that went right and nodes that went wrong."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property

from conformance.features import Example, Seen
from graphkit.knowledge import Feature

Signature = frozenset[tuple[str, Feature]]


def signature(node: Seen) -> Signature:
    """All that is known of a node; NaN is left out, for it equals nothing."""
    return frozenset((name, value) for name, value in node.features.items() if value == value)


@dataclass(frozen=True)
class Blamed:
    """A node that went wrong, and in which example."""

    node: Seen
    example: Example

    @cached_property
    def signature(self) -> Signature:
        """All that is known of the node."""
        return signature(self.node)


@dataclass
class Evidence:
    """Of each operator: the nodes that went right, and those that went wrong.

    mended: cases that go right on graphkit's road; proven: forms that do, by operator.
    unresolved: bad examples in which no node could be blamed; explained: those that the graph's structure
    explains, or of which nothing could be proven;
    stale: refusals that name an operator that the passes no longer leave in the graph.
    """

    right: dict[str, dict[Signature, Seen]] = field(default_factory=lambda: defaultdict(dict))
    bad: dict[str, list[Blamed]] = field(default_factory=lambda: defaultdict(list))
    counts: dict[str, Counter[str]] = field(default_factory=lambda: defaultdict(Counter))
    mended: set[str] = field(default_factory=set)
    proven: dict[str, set[Signature]] = field(default_factory=lambda: defaultdict(set))
    unresolved: list[Example] = field(default_factory=list)
    explained: list[Example] = field(default_factory=list)
    stale: list[Example] = field(default_factory=list)

    def blame(self, node: Seen, example: Example) -> None:
        """Count a node as one that went wrong."""
        self.bad[node.op].append(Blamed(node, example))
        self.counts[node.op][example.effect] += 1

    def good(self, op: str, proven: bool) -> list[Mapping[str, Feature]]:
        """Features of the nodes that went right on graphkit's road, or (not proven) on the plain road only.

        A test that MNN passed on the plain road is one set of values; graphkit's proof tries more. Nodes whose equals
        went wrong on graphkit's road are left out.
        """
        refuted = {item.signature for item in self.bad[op] if item.example.road == "graphkit"}
        kept = [(sig, node) for sig, node in self.right[op].items() if sig not in refuted]
        return [node.features for sig, node in kept if (sig in self.proven[op]) == proven]


def attribute(examples: Sequence[Example]) -> Evidence:
    """Sort the nodes of all examples."""
    evidence = Evidence()
    for example in (example for example in examples if example.right):
        _credit(example, evidence)
    bags = []
    for example in (example for example in examples if not example.right):
        if example.structural or example.unproven:
            evidence.explained.append(example)
            continue
        if example.named and not any(_is_named(node.op, example.named) for node in example.nodes):
            evidence.stale.append(example)
            continue
        suspects = _suspects(example, evidence)
        told = len(example.nodes) == 1 or example.named or example.road == "graphkit"
        if told and len({node.op for node in suspects}) == 1:
            for node in suspects:
                evidence.blame(node, example)
        else:
            bags.append((example, suspects))
    for example, suspects in bags:
        _settle(example, suspects, evidence)
    return evidence


def _credit(example: Example, evidence: Evidence) -> None:
    """Note all nodes of a right example."""
    if example.road == "graphkit":
        evidence.mended.add(example.case)
    for node in example.nodes:
        mark = signature(node)
        evidence.right[node.op][mark] = node
        evidence.counts[node.op]["right"] += 1
        if example.road == "graphkit":
            evidence.proven[node.op].add(mark)


def _suspects(example: Example, evidence: Evidence) -> list[Seen]:
    """Nodes that may be to blame: those that the refusal named, of which no equal went right."""
    nodes = [node for node in example.nodes if _is_named(node.op, example.named)] or list(example.nodes)
    fresh = [node for node in nodes if signature(node) not in evidence.right[node.op]]
    if len(example.nodes) == 1 or (example.named and len({node.op for node in nodes}) == 1 and not fresh):
        return nodes
    return fresh


def _is_named(op: str, names: Iterable[str]) -> bool:
    return op in names or op.rsplit("::", 1)[-1] in names


def _settle(example: Example, suspects: Sequence[Seen], evidence: Evidence) -> None:
    """Several operators are suspected: those that go wrong elsewhere are to blame, if any do.

    On the plain road the rest is left open: graphkit's road shows the same operators in other graphs.
    """
    known = [node for node in suspects if any(item.signature == signature(node) for item in evidence.bad[node.op])]
    never = [node for node in suspects if not evidence.right.get(node.op)]
    for nodes in (known, never, suspects if example.road == "graphkit" else []):
        if nodes:
            for node in nodes[-1:] if nodes is suspects else nodes:
                evidence.blame(node, example)
            return
    evidence.unresolved.append(example)

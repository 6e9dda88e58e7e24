"""Preflight: what MNN will refuse or get wrong, known before anything is converted.

Judges every node by the table of operators (`graphkit.knowledge`) and the graph as a whole (`structural`), as it
stands and again after the passes, which run in memory and without verification. MNN itself does not run.
"""

from __future__ import annotations

import re
import time
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from typing import Any

from graphkit import shapes
from graphkit.graph import Graph
from graphkit.knowledge import Knowledge, table
from graphkit.manager import PassRecord
from graphkit.mnn import structural
from graphkit.mnn.findings import Finding
from graphkit.mnn.handoff import ready
from graphkit.model import Model, PathLike
from graphkit.node import Node
from graphkit.optimizer import Bindings, bound_model, optimize
from graphkit.pipeline import Pipeline
from graphkit.registry import Registry

_Key = tuple[str, str]  # label and operator of a node
_SLASH = re.compile("/")


@dataclass(frozen=True)
class CheckResult:
    """What was found in a model, what the passes leave of it, and advice.

    found: what MNN would refuse or get wrong if it got the model as it is; `fixed_by` names the pass that took it
    away, None when it is still there in some form. left: what it would get wrong after the passes, by the nodes of
    the optimized graph. advice: no faults. unjudged: nodes of the optimized graph of which too little is known (types
    that inference did not find) to rule out a fault. nodes: how many there were, and are.
    """

    found: tuple[Finding, ...]
    left: tuple[Finding, ...]
    advice: tuple[Finding, ...]
    unjudged: tuple[str, ...]
    pipeline: str
    nodes: tuple[int, int]
    seconds: float
    mnn: str

    @property
    def ok(self) -> bool:
        """True when nothing is left."""
        return not self.left

    def to_dict(self) -> dict[str, Any]:
        """A JSON-able dictionary."""
        return {
            "mnn": self.mnn,
            "pipeline": self.pipeline,
            "nodes": {"before": self.nodes[0], "after": self.nodes[1]},
            "seconds": round(self.seconds, 3),
            "found": [finding.to_dict() for finding in self.found],
            "left": [finding.to_dict() for finding in self.left],
            "advice": [finding.to_dict() for finding in self.advice],
            "unjudged": list(self.unjudged),
        }


def check(
    model: Model | PathLike,
    passes: str | Pipeline = "mnn",
    *,
    bind: Bindings | None = None,
    plugins: Iterable[str] = (),
    registry: Registry | None = None,
    knowledge: Knowledge | None = None,
) -> CheckResult:
    """Say what MNN would refuse, crash on or compute wrong, without converting.

    passes, bind, plugins, registry: as in `optimize`. knowledge: another table than graphkit's own.

    Raises what `optimize` raises: ModelError for a bad model (missing external data too), UsageError for unknown
    names or bindings, PassError for a pass that raises.
    """
    start = time.perf_counter()
    model = model if isinstance(model, Model) else Model.load(model)
    knowledge = knowledge or table()
    original = inferred(bound_model(model, bind))
    found = [*judged(original, knowledge), *structural.faults(original)]
    trace = Trace(found, original)
    registry = registry or Registry(plugins)
    result = optimize(model, passes, bind=bind, verify="none", registry=registry, watch=trace)
    after = inferred(ready(result.model))
    left = [*judged(after, knowledge), *structural.faults(after)]
    return CheckResult(
        found=tuple(trace.fixed(left)),
        left=tuple(left),
        advice=tuple(structural.advice(after)),
        unjudged=tuple(node.label for node in _nodes(after) if knowledge.open(node.graph, node)),
        pipeline=result.pipeline,
        nodes=(original.total(), after.total()),
        seconds=time.perf_counter() - start,
        mnn=knowledge.mnn,
    )


def inferred(model: Model) -> Graph:
    """The graph of a model with the types of all values."""
    graph = Graph.of(model)
    shapes.infer(graph)
    return graph


def judged(graph: Graph, knowledge: Knowledge) -> Iterator[Finding]:
    """Every node, in subgraphs too, that the table speaks against."""
    for node in _nodes(graph):
        condition = knowledge.judge(node.graph, node)
        if condition is not None:
            yield Finding(node.label, node.op, condition.effect, condition.why, condition.fix)


def _nodes(graph: Graph) -> Iterator[Node]:
    for inner in graph.walk():
        yield from inner.nodes


class Trace:
    """Watches passes run, to tell which one took each fault away: its node is gone, or was changed last by it."""

    def __init__(self, found: Iterable[Finding], graph: Graph) -> None:
        self.found = list(found)
        self.takers: dict[_Key, str] = {}
        self.pending: set[_Key] = {(finding.node, finding.op) for finding in self.found}
        self.protos = dict(self._protos(graph))

    def _protos(self, graph: Graph) -> Iterator[tuple[_Key, Any]]:
        ops = {op for _, op in self.pending}
        for node in _nodes(graph):
            if node.op in ops and (key := (node.label, node.op)) in self.pending:
                yield key, node.proto

    def __call__(self, record: PassRecord, graph: Graph) -> None:
        """Look at the graph after one pass."""
        if record.status != "changed" or not self.pending:
            return
        now = dict(self._protos(graph))
        for key, proto in self.protos.items():
            if now.get(key) is not proto:
                self.takers[key] = record.name
        self.pending &= now.keys()
        self.protos = now

    def fixed(self, left: Iterable[Finding]) -> Iterator[Finding]:
        """All that was found, each with the pass that fixed it; None for what is left, or what came of it is."""
        labels = [finding.node for finding in left]
        names = set(labels)
        # Rewrites name their nodes after the one they replace: 'attn/MatMul' comes of 'attn'.
        names.update(label[: at.start()] for label in labels for at in _SLASH.finditer(label))
        for finding in self.found:
            taker = self.takers.get((finding.node, finding.op)) or finding.fixed_by or "the passes together"
            yield replace(finding, fixed_by=None if finding.node in names else taker)

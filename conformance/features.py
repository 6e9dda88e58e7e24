"""What a test shows about nodes: the graph that MNN got, node by node with its features, and what became of it."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import onnx

from conformance import pool
from conformance.cases import Case
from conformance.roads import Result
from graphkit.errors import GraphkitError
from graphkit.graph import Graph
from graphkit.knowledge import Feature, features
from graphkit.mnn import structural
from graphkit.mnn.findings import Finding
from graphkit.mnn.preflight import Trace, inferred
from graphkit.model import Model
from graphkit.optimizer import optimize

_TOGETHER = ("only when MNN fuses", "only as a whole")  # see graphkit.mnn.locate
_NAMED = re.compile(r"MNN does not support: ([\w, ]+)")


@dataclass(frozen=True)
class Seen:
    """A node of a graph that MNN got."""

    op: str
    label: str
    features: Mapping[str, Feature]


@dataclass(frozen=True)
class Example:
    """One test down one road: the graph that MNN got and how that ended.

    named: operators that the refusal named (as they stand in the graph, or without their domain). structural: why the
    graph as a whole could not do, whatever its nodes. takers: on the plain road, the pass of the mnn preset that took
    away a node, by the node's label and operator.
    """

    case: str
    road: str
    verdict: str
    effect: str
    detail: str
    named: tuple[str, ...]
    nodes: tuple[Seen, ...]
    structural: tuple[str, ...] = ()
    takers: Mapping[tuple[str, str], str] | None = None

    @property
    def whole(self) -> bool:
        """True when the refusal says that the node goes wrong only together with its neighbours."""
        return any(text in self.detail for text in _TOGETHER)

    @property
    def unproven(self) -> bool:
        """True when it was refused because nothing runs the original, which says nothing of MNN."""
        return "nothing tells whether" in self.detail

    @property
    def right(self) -> bool:
        """True when MNN computed what it should."""
        return self.verdict == "right"


def examples(cases: Iterable[Case], results: Iterable[Result], jobs: int = 2) -> list[Example]:
    """The examples of all results whose case is there, by road and test."""
    told: dict[str, list[Result]] = defaultdict(list)
    for result in results:
        told[result.case].append(result)
    work = [(case, told[case.name]) for case in cases if case.name in told]
    made = [item for items in pool.run(of_case, work, _lost, jobs) for item in items]
    return sorted(made, key=lambda item: (item.road, item.case))


def _lost(job: Any, why: str) -> list[Example]:
    return []


def of_case(job: tuple[Case, Sequence[Result]]) -> list[Example]:
    """The examples of one test: the passes run once for all roads."""
    case, results = job
    model = Model.from_proto(onnx.ModelProto.FromString(case.model))
    original = inferred(model)
    takers, optimized, problem = _optimized(model, original)
    made = []
    for result in results:
        graph = original if result.road == "plain" else optimized
        whole = tuple(finding.why for finding in structural.faults(graph)) if graph else (problem,)
        nodes = tuple(seen(graph)) if graph else ()
        told = (case.name, result.road, result.verdict, effect(result), result.detail, named(result))
        made.append(Example(*told, nodes, whole, takers if result.road == "plain" else {}))
    return made


def _optimized(model: Model, original: Graph) -> tuple[dict[tuple[str, str], str], Graph | None, str]:
    """Which pass of the mnn preset takes away which node, and the graph after it; None and why when a pass fails."""
    nodes = [Finding(node.label, node.op, "", "") for inner in original.walk() for node in inner.nodes]
    trace = Trace(nodes, original)
    try:
        made = optimize(model, "mnn", verify="none", watch=trace).model
    except GraphkitError as error:
        return {}, None, str(error)
    return trace.takers, inferred(made) if made.proto.graph.node else original, ""


def right_model(path: Path) -> Example:
    """A model of which it is known that graphkit converts it right: what MNN gets of it are good nodes."""
    graph = inferred(optimize(Model.load(path), "mnn", verify="none").model)
    return Example(path.stem, "graphkit", "right", "", "", (), tuple(seen(graph)))


def seen(graph: Graph) -> Iterator[Seen]:
    """All nodes of a graph, in subgraphs too, constants left out."""
    for inner in graph.walk():
        for node in inner.nodes:
            if node.op != "Constant":
                yield Seen(node.op, node.label, features(inner, node))


def effect(result: Result) -> str:
    """How MNN went wrong, "" when it did not; behind graphkit's refusals it is what the refusal says of MNN."""
    if result.verdict in ("right", "wrong"):
        return "" if result.verdict == "right" else "wrong"
    if result.verdict != "refused" or result.road == "plain":
        return {"refused": "refused", "failed": "fails", "crashed": "crashes"}[result.verdict]
    if "computes the model wrong" in result.detail:
        return "wrong"
    if "crashed" in result.detail or "did not finish" in result.detail:
        return "crashes"
    return "fails" if "cannot run" in result.detail or "lost outputs" in result.detail else "refused"


def named(result: Result) -> tuple[str, ...]:
    """Operators that a refusal named."""
    if result.nodes:
        return tuple(result.nodes)
    match = _NAMED.search(result.detail)
    return tuple(match.group(1).split(", ")) if match else ()

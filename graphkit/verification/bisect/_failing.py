"""Which node makes MNN's converter or runtime refuse a model, crash, or hang."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import replace
from pathlib import Path

from graphkit.errors import GraphkitError, MnnError
from graphkit.graph import Graph
from graphkit.mnn.fileinfo import read_file_info
from graphkit.mnn.locate import nodes_of
from graphkit.node import Node
from graphkit.verification.bisect import _freshly, regions
from graphkit.verification.bisect._case import Case
from graphkit.verification.bisect.answer import BisectResult, Fault
from graphkit.verification.bisect.classify import Examiner
from graphkit.verification.bisect.conclusions import Conclusion, Witness
from graphkit.verification.bisect.cutting import cut, feeds_of
from graphkit.verification.bisect.regions import Region
from graphkit.verification.bisect.search import Exhausted

_MOST = 6  # faults that are looked for one after the other
_NOT_AGAIN = "the model does not fail when it is converted once more"


def converter(case: Case, failure: MnnError) -> BisectResult:
    """Every node that the converter refuses by name, else the nodes with which it begins to fail."""
    refused = getattr(failure, "unsupported_ops", ())
    if refused:
        faults = nodes_of(case.graph, refused)
        found = tuple(_refused(case, node.node, node.op) for node in faults)
        return BisectResult(found, wrong=failure.message)
    return _searched(case, failure, 0, run=False)


def runtime(case: Case, failure: MnnError) -> BisectResult:
    """The nodes with which MNN begins to fail when it runs what it converted."""
    return _searched(case, failure, int(getattr(failure, "sample", 0)), run=True)


def given(case: Case, failure: MnnError, candidate: Path, folder: Path) -> BisectResult:
    """What of a given file makes MNN fail: held against a fresh conversion when that runs, else as `runtime`."""
    number = int(getattr(failure, "sample", 0) or 0)
    fresh = _freshly.nearest(case, candidate, folder)
    if fresh is None or not _freshly.runs(case, fresh, number):
        return runtime(case, failure)
    info = read_file_info(candidate)
    changes = _freshly.mattering(case, candidate, fresh, number)
    told = _freshly.conclusions(case.graph, info, changes, failure.message)
    note = "" if told else "a fresh conversion runs and is right, so the fault is in the file: convert again"
    return BisectResult(tuple(Fault(found) for found in told), wrong=failure.message, note=note)


def _refused(case: Case, label: str, op: str) -> Fault:
    """A node that MNN has no operator for; alone it is refused as well, which needs no trial."""
    for place, graph in regions.places(case.graph):
        node = next((node for node in graph.nodes if node.label == label and node.op == op), None)
        if node is not None:
            witness = _witness(case, graph, node) if not place else None
            output = next((out for out in node.outputs if out), "")
            return Fault(Conclusion(
                label, op, output, "refused", (label,), "fails", place=place, reason="MNN has no such operator",
                witness=witness,
            ))  # fmt: skip
    return Fault(Conclusion(label, op, "", "refused", (label,), "fails", reason="MNN has no such operator"))


def _witness(case: Case, graph: Graph, node: Node) -> Witness | None:
    region = regions.of_nodes(graph, [node], [out for out in node.outputs if out and graph.is_used(out)])
    try:
        values = case.truth(0).of([*region.inputs, *region.outputs])
        model = cut(region, values)
    except GraphkitError:  # onnxruntime does not run it either
        return None
    return Witness(model, feeds_of(region, values), {name: values[name] for name in region.outputs}, case.tolerance)


def _searched(case: Case, failure: MnnError, sample: int, *, run: bool) -> BisectResult:
    """One node after the other: what makes MNN fail is left out, with all that looks the same, until the rest works."""
    case.progress("looking for the node")
    graph, outputs = case.graph, [name for name in case.graph.outputs if case.graph.producer(name) is not None]
    examiner = Examiner(case.lab, graph, case.truth(sample), case.tolerance)
    region, found, fed = regions.between(graph, outputs), [], set[str]()
    try:
        if examiner.fails(region, run=run) is None:
            return BisectResult((), wrong=failure.message, note=_NOT_AGAIN)
    except Exhausted:
        return BisectResult((), wrong=failure.message)
    for _ in range(_MOST):
        try:
            conclusion, group = examiner.failing(region, run=run)
        except Exhausted:
            break
        same = _alike(graph, group, conclusion, region)
        if same:
            labels = ", ".join(repr(node.label) for node in same[:3])
            note = f"{len(same)} more nodes are made alike: {labels}{', …' if len(same) > 3 else ''}"
            conclusion = replace(conclusion, note=note)
        found.append(Fault(conclusion))
        culprit = next(node for node in group.nodes if node.label == conclusion.node)
        fed |= {out for node in (culprit, *same) for out in node.outputs if out}
        wanted = [name for name in outputs if name not in fed]
        rest = regions.between(graph, wanted, fed) if wanted else None
        if rest is None or not rest.nodes or not _fails(examiner, rest, run):
            break
        region = rest
    note = "" if len(found) < _MOST else f"there may be more: the search ends after {_MOST}"
    return BisectResult(tuple(found), wrong=failure.message, note=note)


def _fails(examiner: Examiner, region: Region, run: bool) -> bool:
    """Whether the rest fails, too; no when there is no time to know."""
    try:
        return examiner.fails(region, run=run) is not None
    except Exhausted:
        return False


def _alike(graph: Graph, group: Region, conclusion: Conclusion, within: Region) -> list[Node]:
    """Nodes of the same operator whose inputs are made by the same operators."""
    culprit = next(node for node in group.nodes if node.label == conclusion.node)
    fixed = regions.constant_nodes(graph)
    pattern = _pattern(graph, culprit, fixed)
    if not any(pattern):  # nothing in front of it tells it from others
        return []
    return [
        node
        for node in within.nodes
        if node is not culprit and node.op == culprit.op and _pattern(graph, node, fixed) == pattern
    ]


def _pattern(graph: Graph, node: Node, fixed: Collection[Node]) -> tuple[str, ...]:
    """Operators that make a node's inputs; only those that compute from constants count."""
    makers = [graph.producer(name) if name else None for name in node.inputs]
    return tuple(
        maker.op if maker is not None and maker in fixed and maker.op_type != "Constant" else "" for maker in makers
    )

"""Outputs that are off because equal scores came in another order, so that something else is gathered."""

from __future__ import annotations

from pathlib import Path

from graphkit.graph import Graph
from graphkit.proof import Proof
from graphkit.verification.bisect import _recheck
from graphkit.verification.bisect._case import Case
from graphkit.verification.bisect.types import LayerRow, LayersResult

_CHOOSING = ("TopK", "ArgMax", "ArgMin")


def explained(case: Case, candidate: Path, table: LayersResult, proof: Proof) -> str:
    """Why wrong outputs are no fault, one line; empty unless all come from equal scores and are right with these put
    in the reference's order, as far as MNN shows them."""
    rows = [row for row in table.rows if _is_tie(row)]
    wrong = {
        (number, output.name)
        for number, check in enumerate(proof.checks)
        for output in check.comparison.outputs
        if not output.ok
    }
    behind = _behind(case.graph, {row.tensor for row in rows})
    if not rows or not table.forced or not {name for _, name in wrong} <= behind:
        return ""
    number = min(sample for sample, _ in wrong)
    told = _recheck.complete(
        case.graph, case.model, candidate, case.evidence.samples[number].feeds, {row.tensor for row in rows},
        case.tolerance, timeout=case.lab.timeout,
    )  # fmt: skip
    if told is not None and not told[0]:
        return ""
    nodes = ", ".join(dict.fromkeys(repr(row.node) for row in rows))
    return f"equal scores are in another order at {nodes}, which is no fault; what they choose differs"


def _is_tie(row: LayerRow) -> bool:
    return row.op in _CHOOSING and row.verdict == "agrees" and not row.place and row.dtype[:1] in "iu" and row.error > 0


def _behind(graph: Graph, tensors: set[str]) -> set[str]:
    """These values and all that is computed from them."""
    found = set(tensors)
    for node in graph.nodes:
        if graph.values_used_by(node) & found:
            found.update(out for out in node.outputs if out)
    return found

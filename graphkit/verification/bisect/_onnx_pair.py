"""Two ONNX models, value by value: the nodes in which the second computes something else, on right inputs."""

from __future__ import annotations

from graphkit.errors import UsageError
from graphkit.graph import Graph
from graphkit.model import Model
from graphkit.verification.bisect import regions
from graphkit.verification.bisect._case import Case
from graphkit.verification.bisect.answer import BisectResult, Fault
from graphkit.verification.bisect.conclusions import Conclusion
from graphkit.verification.bisect.types import LayerRow

_RTOL = 1e-4  # of the largest value: two right models may compute a value in different ways


def against_onnx(case: Case, candidate: Model) -> BisectResult:
    """The nodes in which another ONNX model computes something else, on the reference's own values.

    Raises UsageError when the two have no inner value in common, and what onnxruntime raises.
    """
    _check_inputs(case, candidate)
    proof = case.evidence.judge_model(candidate, case.tolerance)
    table = case.onnx_table(candidate, case.telling(proof))
    judged = {(row.place, row.tensor) for row in table.rows}
    if not judged:
        raise UsageError("the two models have no inner value of the same name", hint="compare their outputs: verify")
    faults = tuple(_fault(case, row) for row in table.suspects if _is_other(row))
    agreeing = [row.error for row in table.rows if row.verdict == "agrees" or not _is_other(row)]
    wrong = "" if proof.kind == "equal" else proof.reason or proof.note
    worst = max((error for error in agreeing if error == error), default=0.0)
    return BisectResult(faults, wrong, len(judged), len(judged) - len(faults), worst, layers=table)


def _check_inputs(case: Case, candidate: Model) -> None:
    graph = Graph.of(candidate)
    extra = [name for name in graph.inputs if name not in graph.initializers and name not in case.graph.inputs]
    if extra:
        raise UsageError(
            f"it has an input '{extra[0]}' that {case.model.path or 'the reference'} has not", file=candidate.path
        )


def _is_other(row: LayerRow) -> bool:
    """True for a suspect that is further off than another way to compute the same."""
    return not (row.dtype.startswith(("float", "bfloat")) and row.error <= _RTOL)


def _fault(case: Case, row: LayerRow) -> Fault:
    labels = regions.between(case.graph, [row.tensor], row.anchors).labels
    reason = row.note or (f"error {row.error:.3g} is over {row.tolerance:.1g}" if row.error == row.error else "")
    return Fault(Conclusion(
        row.node, row.op, row.tensor, "model", labels, "wrong", row.error, row.max_abs, row.max_ref, reason=reason,
    ), row, (row.tensor,))  # fmt: skip

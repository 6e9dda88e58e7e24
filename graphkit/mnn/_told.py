"""What the passes said about nodes that MNN then refused or computed wrong: the reason why they were left to it."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

from graphkit.errors import MnnError, NodeFault
from graphkit.manager import PassRecord
from graphkit.mnn.inquiry import REPLACE

_ROLLED_BACK = "rolled back"


def told(error: MnnError, records: Iterable[PassRecord]) -> MnnError:
    """The error with what is known from the passes: why a rule left a node alone, and which passes were undone.

    A node that a rule would have rewritten is not one to write a pass for: the advice to do so goes where the
    reason is another.
    """
    records = tuple(records)
    refused = {refusal.node: refusal.reason for record in _for_mnn(records) for refusal in record.refusals}
    error.faults = tuple(_with_reason(fault, refused.get(fault.node, "")) for fault in error.faults)
    undone = [record for record in records if record.status == _ROLLED_BACK]
    if undone:
        error.message = f"{error.message}; {', '.join(map(_undone, undone))}"
        error.args = (error.message,)
    if error.hint == REPLACE and (undone or any(fault.node in refused for fault in error.faults)):
        error.hint = _ADVICE_UNDONE if undone else _ADVICE_REFUSED
    return error


def _for_mnn(records: tuple[PassRecord, ...]) -> list[PassRecord]:
    """Records of passes that write operators for MNN's sake, the one that knows most of them last."""
    return sorted((record for record in records if record.name in _WRITERS), key=lambda r: _WRITERS.index(r.name))


_WRITERS = ("dequantize-weights", "split-attention", "lower-for-mnn")
_ADVICE_UNDONE = "graphkit bisect MODEL.onnx names the rewrite at fault"
_ADVICE_REFUSED = f"the reasons are those of our passes, which know the operator; else {REPLACE}"


def _with_reason(fault: NodeFault, reason: str) -> NodeFault:
    return replace(fault, reason=f"{fault.reason}; not rewritten: {reason}") if reason else fault


def _undone(record: PassRecord) -> str:
    return f"pass '{record.text}' was rolled back ({record.reason})"

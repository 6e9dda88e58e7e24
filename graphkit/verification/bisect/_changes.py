"""A given file beside a fresh conversion: which of the operators that differ make values wrong."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path

from graphkit.errors import GraphkitError
from graphkit.mnn._diff_types import OpChange
from graphkit.mnn.fileinfo import FileInfo, read_file_info
from graphkit.proof import Proof
from graphkit.verification.bisect import _altered, _freshly, _recheck
from graphkit.verification.bisect._case import Case
from graphkit.verification.bisect.answer import Fault, ordered
from graphkit.verification.bisect.conclusions import Conclusion
from graphkit.verification.bisect.types import LayerRow, LayersResult


@dataclass
class Changes:
    """What is not as a fresh conversion makes it.

    samples: that suspects were seen on. given: whether the file came from somebody; one made here has no changes.
    """

    case: Case
    candidate: Path
    folder: Path
    samples: Sequence[int]
    given: bool
    _causes: dict[tuple[str, str], OpChange] = field(default_factory=dict)
    _fresh: tuple[LayersResult | None, tuple[OpChange, ...]] | None = None

    def hidden(self, found: Sequence[Fault], proof: Proof) -> list[Fault]:
        """Changes that make outputs wrong beside those that rows showed, if these do not explain all of it."""
        fresh = self._conversion
        if fresh is None or not all(fault.kind in ("file", "quantization") for fault in found):
            return []
        rest = tuple(change for change in fresh.changes if not self._is_named(change, found))
        if not rest:
            return []
        case, (number, names) = self.case, _freshly.wrong_in(proof)
        tensors = {name for fault in found if not fault.found.place for name in fault.tensors}
        told = _recheck.complete(
            case.graph, case.model, self.candidate, case.evidence.samples[number].feeds, tensors, case.tolerance,
            timeout=case.lab.timeout, wanted=names,
        )  # fmt: skip
        if told is not None and told[0]:
            return []
        return self._altered_ops(_freshly.mattering(case, self.candidate, replace(fresh, changes=rest), number, names))

    def _is_named(self, change: OpChange, found: Sequence[Fault]) -> bool:
        """True when a fault that was found is of a changed operator, at the node that it stands for, or of codes as it
        is: what an LSTM is made of has no names."""
        named = {(fault.found.place, fault.node) for fault in found}
        rows = {fault.row.mnn_op for fault in found if fault.row is not None}
        nodes = [_altered.node_of(self.case.graph, one) for one in self._owners(change)]
        known = any(node is not None and node[:2] in named for node in nodes)
        coded = any(array.new.quantization for array in change.arrays)
        if coded and any(fault.kind == "quantization" for fault in found):
            return True
        return known or change.name in rows or change in self._causes.values()

    def _owners(self, change: OpChange) -> tuple[OpChange, ...]:
        return _freshly.owners(self.case.graph, self._info, change)

    def by_cause(self, faults: Sequence[Fault]) -> list[Fault]:
        """One fault for each changed operator: a constant that several nodes read is blamed on the first of them."""
        kept: dict[object, Fault] = {}
        for fault in ordered(self.case.graph, faults):
            cause: object = self._causes.get((fault.found.place, fault.node)) if fault.kind == "file" else None
            key = cause if cause is not None else (fault.found.place, fault.node)
            first = kept.get(key)
            if first is None:
                kept[key] = fault
            else:
                kept[key] = replace(first, tensors=tuple(dict.fromkeys((*first.tensors, *fault.tensors))))
        return list(kept.values())

    def behind(self, row: LayerRow) -> Conclusion | None:
        """A conclusion when a fresh conversion has the same row right: then the file was changed.

        A value that MNN does not show has no row of its own; what was changed there is blamed for the rows behind it.
        """
        fresh, changes = self._fresh_table()
        if fresh is None:
            return None
        again = [other for other in fresh.of(row.tensor) if (other.place, other.sample) == (row.place, row.sample)]
        if any(other.verdict != "agrees" for other in again):
            return None
        change = next((change for change in changes if row.mnn_op in (change.name, change.old_name)), None)
        reason = "a fresh conversion is right there"
        if change is not None:
            return replace(unknown(row, "right", f"{reason}: {_altered.told(change)}"), kind="file")
        for change, label, op, tensor in _altered.hidden(self.case.graph, row.place, (*row.fused, row.node), changes):
            seen = f"; seen at '{row.node}' behind it" if label != row.node else ""
            found = unknown(row, "right", f"{reason}: {_altered.told(change)}{seen}")
            self._causes[row.place, label] = change
            return replace(found, node=label, op=op, tensor=tensor, nodes=(label,), kind="file")
        for change in changes:
            if row.mnn_op in {one.name for one in self._owners(change)}:
                self._causes[row.place, row.node] = change
                return replace(unknown(row, "right", f"{reason}: {_altered.told(change)}"), kind="file")
        inside = "/".join(part for part in (row.place, row.node) if part)
        for change in changes:  # in the body of a Loop, which only runs as a whole
            body = _freshly.conclusion(self.case.graph, self._info, change, reason)
            if body is not None and f"{body.place}/".startswith(f"{inside}/"):
                self._causes[body.place, body.node] = change
                return replace(_sized(body, row), reason=f"{body.reason}; seen at '{row.node}' around it")
        return replace(unknown(row, "right", reason), kind="file") if again else None

    def _fresh_table(self) -> tuple[LayersResult | None, tuple[OpChange, ...]]:
        """The table of a fresh conversion and how the file differs from it; no table when there is nothing to tell."""
        if self._fresh is None:
            self._fresh = None, ()
            made = self._conversion
            if made is not None:
                try:
                    self._fresh = self.case.table(made.path, self.samples), made.changes
                except GraphkitError:
                    self._fresh = None, made.changes
        return self._fresh

    @cached_property
    def _conversion(self) -> _freshly.Fresh | None:
        """The fresh conversion that a given file is held against; None when there is none."""
        return _freshly.nearest(self.case, self.candidate, self.folder) if self.given else None

    @cached_property
    def _info(self) -> FileInfo:
        return read_file_info(self.candidate)

    def mattering(self, proof: Proof) -> list[Fault]:
        """Changes that make outputs wrong."""
        fresh = self._conversion
        if fresh is None:
            return []
        number, names = _freshly.wrong_in(proof)
        return self._altered_ops(_freshly.mattering(self.case, self.candidate, fresh, number, names))

    def _altered_ops(self, changes: Sequence[OpChange]) -> list[Fault]:
        """A fault for each of these operators that a fresh conversion makes otherwise."""
        said = "not as a fresh conversion makes it"
        told = _freshly.conclusions(self.case.graph, self._info, changes, said)
        return [Fault(found) for found in told]


def unknown(row: LayerRow, alone: str, reason: str) -> Conclusion:
    """A conclusion about a row, to be said more of."""
    error = row.error
    return Conclusion(
        row.node, row.op, row.tensor, "unexplained", (row.node,), alone,  # type: ignore[arg-type]  # one of Alone
        error, row.max_abs, row.max_ref, place=row.place, reason=reason,
    )  # fmt: skip


def _sized(found: Conclusion, row: LayerRow) -> Conclusion:
    return replace(found, error=row.error, max_abs=row.max_abs, max_ref=row.max_ref)

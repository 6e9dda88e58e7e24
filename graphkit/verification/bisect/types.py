"""What layer bisection finds: a row for each value of an MNN file that an ONNX tensor is known for, and the table."""

from __future__ import annotations

import csv
import io
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from graphkit.mnn.tracing import OpTrace, Target

__all__ = ["LayerRow", "LayersResult", "OpTrace", "Target", "Verdict"]

Verdict = Literal["agrees", "suspect", "unjudged"]


@dataclass(frozen=True)
class LayerRow:
    """One value of one sample, as MNN computed it and as the reference has it.

    tensor: the ONNX tensor that was compared. node, op: label and operator type of the ONNX node that the MNN operator
    stands for (the convolution or matrix product, when what follows was fused into it); `fused` are the labels of the
    other ONNX nodes between the anchors and `tensor`, inputs' side first. mnn_op, mnn_type, slot: the MNN operator's
    name and type, and which of its outputs. anchors: the nearest ONNX tensors upstream that were compared too, or are
    inputs of the model: what lies between them and `tensor` is what this row judges. place: "" for the main graph,
    else labels of nodes and branches (`cond/then_branch`), as `regions.places` names them.
    local: the error when everything the operator reads is the reference's, accumulated: the error when nothing was
    put right before; both are the largest error over the reference's largest value, None when not measured (NaN
    where NaN or infinite positions, or integers that are compared exactly, differ). max_abs and max_ref: the absolute
    figures of the error that decides (local, else accumulated). tolerance: what `local` may be, from the
    operator, the types and the measured noise; `ratio` the error over it. bits: of the codes of a quantized
    weight, else 0. verdict: "unjudged" when nothing can be said (`note` tells why).
    """

    node: str
    op: str
    tensor: str
    mnn_op: str
    mnn_type: str
    shape: tuple[int, ...]
    dtype: str
    local: float | None
    accumulated: float | None
    max_abs: float
    max_ref: float
    tolerance: float
    verdict: Verdict
    bits: int = 0
    fused: tuple[str, ...] = ()
    anchors: tuple[str, ...] = ()
    sample: int = 0
    place: str = ""
    note: str = ""
    slot: int = 0

    @property
    def error(self) -> float:
        """The error that decides: the local one, else the accumulated one; NaN when neither was measured."""
        found = self.local if self.local is not None else self.accumulated
        return math.nan if found is None else found

    @property
    def ratio(self) -> float:
        """The deciding error over what is allowed; infinite for a mismatch that has no size."""
        if math.isnan(self.error):
            return math.inf if self.verdict == "suspect" else math.nan
        return self.error / self.tolerance if self.tolerance else (math.inf if self.error else 0.0)

    def to_dict(self) -> dict[str, Any]:
        """A JSON-able dictionary; numbers that JSON does not have are null."""
        made = {name: getattr(self, name) for name in COLUMNS}
        made |= {"shape": list(self.shape), "fused": list(self.fused), "anchors": list(self.anchors)}
        return {name: _finite(value) for name, value in made.items()}


COLUMNS = (
    "node", "op", "tensor", "place", "sample", "shape", "dtype", "local", "accumulated", "tolerance", "ratio", "bits",
    "max_abs", "max_ref", "verdict", "mnn_op", "mnn_type", "slot", "fused", "anchors", "note",
)  # fmt: skip


def _finite(value: Any) -> Any:
    return None if isinstance(value, float) and not math.isfinite(value) else value


@dataclass(frozen=True)
class LayersResult:
    """All rows, in MNN's order, sample by sample.

    shapes: of the inputs, for each sample. forced: False when the reference could not be written into the run, so
    that only the first suspect of each path tells something; `note` says so, and what else is left open. unaligned:
    names and types of MNN operators whose value no ONNX tensor is known for (what they compute is judged by the next
    row downstream).
    """

    rows: tuple[LayerRow, ...]
    shapes: tuple[Mapping[str, tuple[int, ...]], ...]
    forced: bool = True
    note: str = ""
    unaligned: tuple[tuple[str, str], ...] = ()
    reference: Path | None = None
    candidate: Path | None = None
    seconds: dict[str, float] = field(default_factory=dict)

    @property
    def suspects(self) -> tuple[LayerRow, ...]:
        """Rows whose error is more than noise, one for each tensor and place: that of the sample where it is worst.

        Without forcing, only those with no suspect upstream.
        """
        worst: dict[tuple[str, str], LayerRow] = {}
        for row in self.rows:
            key = (row.place, row.tensor)
            if row.verdict == "suspect" and (key not in worst or row.ratio > worst[key].ratio):
                worst[key] = row
        found = tuple(worst.values())
        return found if self.forced else _first(found, self.rows)

    @property
    def ok(self) -> bool:
        """True when no row is a suspect and at least one was judged."""
        return not self.suspects and any(row.verdict == "agrees" for row in self.rows)

    def of(self, tensor: str) -> tuple[LayerRow, ...]:
        """The rows of an ONNX tensor, one for each sample and place where it was compared."""
        return tuple(row for row in self.rows if row.tensor == tensor)

    def sorted_by(self, column: str, *, descending: bool = True) -> tuple[LayerRow, ...]:
        """Rows by one column; what has no value comes last. Raises KeyError for a column that is not there."""
        if column not in COLUMNS:
            raise KeyError(column)
        keyed = [(getattr(row, column), row) for row in self.rows]
        some = [(value, row) for value, row in keyed if value is not None and value == value]
        none = [row for value, row in keyed if value is None or value != value]
        some.sort(key=lambda pair: pair[0], reverse=descending)
        return (*(row for _, row in some), *none)

    def csv(self, rows: Sequence[LayerRow] | None = None) -> str:
        """The table as CSV (RFC 4180) with a header line; lists within a cell are separated by a space.

        rows: these, in this order (see `sorted_by`), instead of all in MNN's.
        """
        text = io.StringIO()
        writer = csv.writer(text, lineterminator="\r\n")
        writer.writerow(COLUMNS)
        for row in self.rows if rows is None else rows:
            writer.writerow([_cell(name, getattr(row, name)) for name in COLUMNS])
        return text.getvalue()

    def to_dict(self) -> dict[str, Any]:
        """A JSON-able dictionary."""
        return {
            "reference": str(self.reference) if self.reference else None,
            "candidate": str(self.candidate) if self.candidate else None,
            "ok": self.ok,
            "forced": self.forced,
            "note": self.note,
            "samples": [{name: list(shape) for name, shape in sample.items()} for sample in self.shapes],
            "suspects": [row.to_dict() for row in self.suspects],
            "layers": [row.to_dict() for row in self.rows],
            "unaligned": [{"mnn_op": name, "mnn_type": kind} for name, kind in self.unaligned],
            "seconds": dict(self.seconds),
        }


def _cell(name: str, value: Any) -> Any:
    if name == "shape":
        return "x".join(map(str, value))
    if isinstance(value, tuple):
        return " ".join(value)
    return "" if value is None else value


def _first(found: tuple[LayerRow, ...], rows: tuple[LayerRow, ...]) -> tuple[LayerRow, ...]:
    """Those that no other of them leads to along the anchors."""
    reads = {(row.place, row.tensor): row.anchors for row in rows}
    bad = {(row.place, row.tensor) for row in found}

    def clean(row: LayerRow) -> bool:
        waiting, seen = list(row.anchors), set[str]()
        while waiting:
            name = waiting.pop()
            if (row.place, name) in bad:
                return False
            if name not in seen:
                seen.add(name)
                waiting += reads.get((row.place, name), ())
        return True

    return tuple(row for row in found if clean(row))

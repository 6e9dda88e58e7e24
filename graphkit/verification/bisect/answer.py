"""The answer of a layer bisection: independent faults, what was checked, what avoids them."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from graphkit.graph import Graph
from graphkit.model import readable
from graphkit.verification.bisect import regions
from graphkit.verification.bisect.conclusions import Conclusion, Kind, Witness
from graphkit.verification.bisect.suggest import Suggestion
from graphkit.verification.bisect.types import LayerRow, LayersResult

WORDS: dict[Kind, str] = {
    "operator": "operator fault in MNN",
    "fusion": "fusion fault",
    "layout": "layout fault",
    "quantization": "quantization fault",
    "nondeterminism": "not deterministic",
    "reference": "the reference is wrong",
    "file": "fault in the file, not in MNN",
    "refused": "refused",
    "crash": "crash",
    "model": "the candidate computes something else there",
    "unexplained": "only in the whole model",
}
_FAILS: tuple[Kind, ...] = ("refused", "crash")


@dataclass(frozen=True)
class Fault:
    """One independent fault: what is concluded of it, where it was seen, and what avoids it.

    row: the line of the table that showed it, None when it was found without one. tensors: all
    values of the table that it makes wrong. suggestion: None when nothing that
    was tried avoids it. rechecked: what the model as shipped says to the conclusion.
    """

    found: Conclusion
    row: LayerRow | None = None
    tensors: tuple[str, ...] = ()
    suggestion: Suggestion | None = None
    rechecked: str = ""

    @property
    def node(self) -> str:
        """Label of the ONNX node at fault."""
        return self.found.node

    @property
    def op(self) -> str:
        """Its operator."""
        return self.found.op

    @property
    def kind(self) -> Kind:
        """What kind of fault."""
        return self.found.kind

    @property
    def into(self) -> str:
        """The MNN operator that it was fused into, where that is another one."""
        if self.found.into:
            return self.found.into
        return self.row.mnn_type if self.row is not None and self.kind == "fusion" else ""

    @property
    def max_abs(self) -> float:
        """Largest error in the model as shipped, else in the piece that shows it."""
        return self.row.max_abs if self.row is not None else self.found.max_abs

    @property
    def max_ref(self) -> float:
        """Largest value of the reference where max_abs was measured."""
        return self.row.max_ref if self.row is not None else self.found.max_ref

    @property
    def error(self) -> float:
        """max_abs over max_ref, NaN when it has no size."""
        return self.max_abs / self.max_ref if self.max_ref else self.found.error

    @property
    def witness(self) -> Witness | None:
        """The smallest model that shows it, if one does by itself."""
        return self.found.witness

    def __str__(self) -> str:
        place = f" in {self.found.place}" if self.found.place else ""
        parts = [f"node '{self.node}' ({self.op}){place}: {self._size}"]
        if self.into and self.into != self.op:
            parts.append(f"fused by MNN into {self.into}")
        alone = {"right": "alone it is right", "wrong": "alone it is wrong too", "fails": "alone it fails too"}
        if self.found.alone in alone:
            parts.append(alone[self.found.alone])
        untried = self.kind == "unexplained" and self.found.alone == "not tried"
        return f"{'; '.join(parts)} → {'not taken apart' if untried else WORDS[self.kind]}"

    @property
    def _size(self) -> str:
        if self.kind in _FAILS:
            return self.found.reason
        if self.row is not None and math.isnan(self.row.error) and not self.max_abs:
            return "NaN or infinite in one and not in the other"
        if math.isfinite(self.max_abs) and math.isfinite(self.max_ref):
            expected = self.found.reason if self.found.reason.startswith("expected ") else ""
            return expected or f"max error {self.max_abs:.2g} of max {self.max_ref:.2g}"
        return self.found.reason

    def to_dict(self) -> dict[str, Any]:
        """A JSON-able dictionary; numbers that are not finite are null."""
        found, numbers = self.found, {name: getattr(self, name) for name in ("error", "max_abs", "max_ref")}
        return {
            "node": self.node, "op": self.op, "tensor": found.tensor, "kind": self.kind, "alone": found.alone,
            "fused_into": self.into, "nodes": list(found.nodes), "place": found.place, "reason": found.reason,
            "note": found.note, "rechecked": self.rechecked,
            **{name: value if math.isfinite(value) else None for name, value in numbers.items()},
            "row": self.row.to_dict() if self.row is not None else None,
            "suggestion": self.suggestion.to_dict() if self.suggestion is not None else None,
        }  # fmt: skip


@dataclass(frozen=True)
class BisectResult:
    """What bisection found.

    faults: independent ones, in the model's order. anchors, agreeing: values that were compared with everything in
    front of them right, and how many agree; worst: the largest error among these. quantized: rows that are off by
    what their codes say, which is no fault. conversions: of the whole model and of pieces; seconds: by step. note:
    what could not be told. instead: what avoids all faults where the suggestions for each do not. wrong: why the
    outputs are wrong, empty when they are right.
    """

    faults: tuple[Fault, ...] = ()
    wrong: str = ""
    anchors: int = 0
    agreeing: int = 0
    worst: float = 0.0
    quantized: tuple[LayerRow, ...] = ()
    layers: LayersResult | None = None
    whole_conversions: int = 0
    small_conversions: int = 0
    seconds: dict[str, float] = field(default_factory=dict)
    note: str = ""
    instead: Suggestion | None = None
    reference: Path | None = None
    candidate: Path | None = None

    @property
    def ok(self) -> bool:
        """True when there is no fault and the outputs are right."""
        return not self.faults and not self.wrong

    @property
    def answer(self) -> str:
        """The first line; characters that would break it are written as escapes."""
        return readable(self._answer)

    @property
    def _answer(self) -> str:
        if self.faults:
            first = self.faults[0]
            return f"first {'failure' if first.kind in _FAILS else 'mismatch'}: {first}"
        if self.wrong and not self.anchors:
            return f"no layer was named: {self.wrong}"
        if self.wrong:
            return f"no layer is wrong by itself, and the outputs are: {self.wrong}"
        if not self.anchors:
            return "no mismatch: the outputs agree; no value on the way could be compared"
        return f"no mismatch: {self.agreeing} of {self.anchors} values agree (max error {self.worst:.1e})"

    def lines(self) -> list[str]:
        """The whole answer as text, the first line first."""
        found = [self.answer]
        if self.faults and self.anchors:
            count = len(self.faults)
            found.append(
                f"{self.agreeing} of {self.anchors} values agree to {self.worst:.1e} when fed the reference; "
                f"{count} independent fault{'s' if count != 1 else ''}"
            )
        found += [f"also: {fault}" for fault in self.faults[1:]]
        for fault in self.faults:
            detail = [fault.found.reason, fault.found.note, fault.rechecked]
            found += [f"'{fault.node}': {text}" for text in detail if text and readable(text) not in found[0]]
        found += dict.fromkeys(_avoided(fault.suggestion) for fault in self.faults if fault.suggestion is not None)
        found += [_avoided(self.instead)] if self.instead is not None else []
        if self.quantized:
            found.append(f"{len(self.quantized)} quantized layers are off by what their codes say, which is no fault")
        return [readable(line) for line in (*found, *([self.note] if self.note else []))]

    def to_dict(self) -> dict[str, Any]:
        """A JSON-able dictionary, without the table of layers (`layers.to_dict()`)."""
        return {
            "reference": str(self.reference) if self.reference else None,
            "candidate": str(self.candidate) if self.candidate else None,
            "ok": self.ok,
            "answer": self.answer,
            "wrong": self.wrong,
            "faults": [fault.to_dict() for fault in self.faults],
            "anchors": self.anchors,
            "agreeing": self.agreeing,
            "worst": self.worst,
            "quantized": [row.to_dict() for row in self.quantized],
            "conversions": {"whole": self.whole_conversions, "small": self.small_conversions},
            "seconds": {step: round(value, 3) for step, value in self.seconds.items()},
            "note": self.note,
            "instead": self.instead.to_dict() if self.instead is not None else None,
        }


def _avoided(suggestion: Suggestion) -> str:
    if suggestion.error is not None:
        tried = f"tried: output error {suggestion.error:.1e}"
        if suggestion.before is not None and math.isfinite(suggestion.before):
            tried += f" instead of {suggestion.before:.1e}"
        if suggestion.l2 is not None and math.isfinite(suggestion.l2[0]):
            tried += f", relative L2 {suggestion.l2[1]:.1e} instead of {suggestion.l2[0]:.1e}"
    else:
        tried = f"tried on the piece alone: error {suggestion.alone:.1e}"
    return f"{'avoided' if suggestion.works else 'avoided alone'} by: {suggestion.text}   ({tried})"


def merged(faults: Sequence[Fault]) -> list[Fault]:
    """One fault for each node, that of the row where it is largest; the others' values are kept."""
    groups: dict[tuple[str, str], list[Fault]] = {}
    for fault in faults:
        groups.setdefault((fault.found.place, fault.node), []).append(fault)
    return [
        replace(max(group, key=_size), tensors=tuple(dict.fromkeys(name for one in group for name in one.tensors)))
        for group in groups.values()
    ]


def _size(fault: Fault) -> float:
    return fault.row.ratio if fault.row is not None else 0.0


def ordered(root: Graph, faults: Sequence[Fault]) -> list[Fault]:
    """In the order of the model's nodes."""
    order = {
        (place, node.label): number
        for number, (place, node) in enumerate(
            (place, node) for place, graph in regions.places(root) for node in graph.nodes
        )
    }
    return sorted(faults, key=lambda fault: order.get((fault.found.place, fault.node), len(order)))

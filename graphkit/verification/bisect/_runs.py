"""The runs that one graph of a .mnn file takes: with the reference written in, without, or of one part as a whole."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from graphkit._measure import measure
from graphkit._scratch import scratch
from graphkit.mnn import standalone, tracing, worker
from graphkit.mnn.document.files import Document, GraphView, write
from graphkit.mnn.tracing import OpTrace, Target
from graphkit.verification.bisect._rows import Rows
from graphkit.verification.bisect.alignment import CARRIERS, Alignment, region
from graphkit.verification.bisect.types import LayerRow

Array = npt.NDArray[Any]
Key = tuple[str, int]

_HEAVY = 2  # weighted nodes in one row that are looked at one by one, even when the row is right
_ELSEWHERE = "what reads it is right: it is not the value of this tensor"


@dataclass(frozen=True)
class Settings:
    """What stays the same for all runs: bytes of reference tensors at a time, MNN's memory mode, seconds for a run."""

    memory: int
    mnn_memory: int = 0
    timeout: float = 300.0


@dataclass
class Runs:
    """Runs one graph and makes rows; raises MnnError when MNN does not do it.

    unseen: operators of which no value was compared, by name and type.
    """

    document: Document
    view: GraphView
    alignments: Sequence[Alignment]
    rows: Rows
    settings: Settings

    def __post_init__(self) -> None:
        self.unseen: dict[Key, None] = {}
        blocked = standalone.channelled(self.view)
        unread = {
            (op["name"], slot)
            for op in self.view.ops
            for slot, index in enumerate(op.ints("outputIndexes"))
            if index in blocked
        }
        keys = {item.tensors[0]: (item.op.name, item.slot) for item in self.alignments if item.sure}
        self._readable = {tensor: key for tensor, key in keys.items() if key not in unread}

    # -- with the reference written in --------------------------------------------------------------------

    def forced(self, path: Path, feeds: Mapping[str, Array], given: Collection[str]) -> list[LayerRow]:
        """Rows of one run in which each value that was compared is put right; `given` are known from the start."""
        plan = {(item.op.name, item.slot): self._target(item) for item in self.alignments}
        traces = self._trace(path, feeds, plan)
        self.unseen = {(t.op, 0): None for t in traces if t.tensor is None and "_raster_" not in t.op}
        rows = self.rows.make(traces, given, forced=True)
        doubtful = self._doubtful(traces, rows)
        if not doubtful:
            return rows
        looked = {key: replace(t, sure=False, write=False) if key in doubtful else t for key, t in plan.items()}
        check = self.rows.make(self._trace(path, feeds, looked), given, forced=True)
        cleared = {key for key in doubtful if _harmless(doubtful[key], check)}
        nearest = {(trace.op, trace.slot): trace.tensor for trace in traces}
        plan = {
            key: self._decided(t, nearest[key]) if key in doubtful else t
            for key, t in plan.items()
            if key not in cleared
        }
        final = self.rows.make(self._trace(path, feeds, plan), given, forced=True)
        return [*final, *(replace(row, verdict="unjudged", note=_ELSEWHERE) for row in rows if _key(row) in cleared)]

    def _decided(self, target: Target, nearest: str | None) -> Target:
        """A doubtful target, held against one tensor: the first, or where only places differ the nearest."""
        moved = nearest is not None and self.rows.alignments[target.op, target.slot].moved
        return replace(target, sure=True, tensors=(nearest,) if moved and nearest else target.tensors)

    def _target(self, item: Alignment) -> Target:
        target = item.target
        return replace(target, near=target.near + self.rows.steps.get(item.op.name, 0.0))

    def refined(self, rows: Sequence[LayerRow], value: Callable[[Key | None], standalone.Value]) -> list[LayerRow]:
        """Rows with each suspect that stands for several named steps replaced by those steps, each by itself.

        A session does not show what only changes the layout, nor the insides of what it merged; the Module API does,
        a step at a time. value: makes what is known, but for one value.
        """
        made: list[LayerRow] = []
        for row in rows:
            steps = self._steps(row)
            parts = [part for key in steps for part in self.whole([key], value(key))]
            parts = [replace(part, accumulated=row.accumulated) if _key(part) == _key(row) else part for part in parts]
            explained = row.verdict != "suspect" or any(part.verdict == "suspect" for part in parts)
            made += parts if parts and explained else [row]
        return made

    def _steps(self, row: LayerRow) -> list[Key]:
        """The operators whose values lie between the anchors of a row and its tensor, when it is worth a look."""
        nodes = region(self.rows.graph, row.tensor, row.anchors).nodes
        inner = [name for node in nodes for name in node.outputs if name != row.tensor]
        hidden = [self._readable[name] for name in inner if name in self._readable]
        heavy = sum(node.op_type in CARRIERS for node in nodes)
        if not hidden or (row.verdict != "suspect" and heavy < _HEAVY):
            return []
        return [*hidden, _key(row)]

    def _trace(self, path: Path, feeds: Mapping[str, Array], plan: Mapping[Key, Target]) -> list[OpTrace]:
        return tracing.trace(
            path, feeds, self.rows.references, list(plan.values()),
            memory=self.settings.mnn_memory, timeout=self.settings.timeout,
        )  # fmt: skip

    def _doubtful(self, traces: Sequence[OpTrace], rows: Sequence[LayerRow]) -> dict[Key, str]:
        """Suspects that may only be held against the wrong tensor: unsure ones, and those near another one."""
        suspects = {_key(row): row.tensor for row in rows if row.verdict == "suspect"}
        found = {}
        for trace in traces:
            key = (trace.op, trace.slot)
            if key in suspects and (not self.rows.alignments[key].sure or trace.nearest != trace.tensor):
                found[key] = suspects[key]
        return found

    # -- without ------------------------------------------------------------------------------------------

    def plain(self, path: Path, feeds: Mapping[str, Array]) -> list[LayerRow]:
        """Rows of a run of the Module API in which nothing is put right."""
        named = {item.op.outputs[item.slot]: item for item in self.alignments if _visible(item)}
        run = worker.run(path, feeds, list(named), memory=self.settings.mnn_memory, winograd=0,
                         timeout=self.settings.timeout)  # fmt: skip
        return self._compared({(item.op.name, item.slot): run.outputs[name] for name, item in named.items()})

    # -- a part as a whole --------------------------------------------------------------------------------

    def whole(self, keys: Sequence[Key], value: standalone.Value) -> list[LayerRow]:
        """Rows of values that MNN's Module API computes from the nearest values that are known upstream."""
        part = standalone.between(self.document, self.view, keys, value)
        with scratch("part") as name:
            path = Path(name) / "part.mnn"
            write(part.document, path)
            run = worker.run(path, part.feeds, list(part.outputs.values()), memory=self.settings.mnn_memory,
                             winograd=0, timeout=self.settings.timeout)  # fmt: skip
        return self._compared({key: run.outputs[part.outputs[key]] for key in keys}, forced=True, given=part.given)

    def _compared(
        self, values: Mapping[Key, Array], *, forced: bool = False, given: Sequence[Key] = ()
    ) -> list[LayerRow]:
        traces = [self._compare(key, array, order) for order, (key, array) in enumerate(values.items())]
        if not forced:
            return self.rows.make(traces, forced=False)
        names = {self.rows.alignments[key].tensors[0] for key in given if key in self.rows.alignments}
        return [self.rows.row(trace, names, True) for trace in traces if trace.tensor is not None]

    def _compare(self, key: Key, actual: Array, order: int) -> OpTrace:
        item = self.rows.alignments[key]
        fitting = [name for name in item.tensors if self.rows.references.array(name).size == actual.size]
        trace = OpTrace(item.op.name, item.op.type, item.slot, order, tuple(actual.shape))
        judged = []
        for name in fitting[: 1 if item.sure else None]:
            expected = self.rows.references.array(name)
            actual = actual != 0 if expected.dtype == np.bool_ else actual
            stats = measure(expected, actual)
            stats.differing = int(np.count_nonzero(expected.reshape(-1) != actual.reshape(-1)))
            judged.append(replace(trace, tensor=name, nearest=name, stats=stats))
        return min(judged, key=lambda made: (made.mismatched, made.error)) if judged else trace


def _visible(item: Alignment) -> bool:
    return item.slot < len(item.op.outputs) and item.op.type not in standalone.CONTROL


def _key(row: LayerRow) -> Key:
    return row.mnn_op, row.slot


def _harmless(tensor: str, rows: Sequence[LayerRow]) -> bool:
    """True when what is computed from a value that was not put right is right all the same."""
    readers = [row for row in rows if tensor in row.anchors]
    return bool(readers) and all(row.verdict == "agrees" for row in readers)

"""Runs passes: numbering, verification after each, rollback, fixpoints, timing, and a reproducer on a crash.

The design is that of LLVM's pass manager with opt-bisect-limit and MLIR's crash reproducers, for ONNX.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal

from graphkit import reproducer, structure
from graphkit._body import Snapshot
from graphkit._read import collector_paused
from graphkit._runs import (
    FixpointStage,
    Ledger,
    PassRecord,
    PassStage,
    RunReport,
    Stage,
    Status,
    Verdict,
)
from graphkit.errors import GraphkitError, OutputError, PassError
from graphkit.graph import Graph
from graphkit.model import Model
from graphkit.rewrite import Change, PassResult

_ON_PURPOSE = "changes values on purpose: what follows is compared with the model as it left it"


def changes_values(stage: PassStage) -> bool:
    """True for a pass that declares that the outputs are others after it (quantization, and what undoes it)."""
    return bool(getattr(stage.pass_, "changes_values", False))


@dataclass
class Manager:
    """Runs stages over a root graph.

    verify: judges the graph after each pass that changed it (None: structure only). rebase: called instead, with the
    pass's text and the model before it, after a pass that changes values on purpose (`changes_values`); the graph is
    the reference from then on. on_mismatch: what a
    failed check leads to, "rollback" of that pass or also a "stop" of the run. stop_after: number of the last
    rewrite to do. watch: called with each record and the graph. crash_dir: where a reproducer goes when a
    pass raises or leaves an invalid graph (None: nowhere); plugins: what it needs besides (files, modules).
    """

    graph: Graph
    verify: Callable[[Graph], Verdict] | None = None
    rebase: Callable[[str, Model, Graph], Verdict] | None = None
    on_mismatch: Literal["rollback", "stop"] = "rollback"
    stop_after: int | None = None
    watch: Callable[[PassRecord, Graph], None] | None = None
    crash_dir: Path | None = None
    plugins: tuple[str, ...] = ()

    def run(self, stages: Iterable[Stage]) -> RunReport:
        """Run all stages in order.

        Raises PassError when a pass raises or leaves an invalid graph, and when a fixpoint does not settle;
        the graph is then as it was before that pass or fixpoint, and a reproducer is left. Errors about the
        user's input (UsageError, ModelError, …) that a pass raises come through as they are.
        """
        self._ledger = Ledger(self.stop_after)
        self._records: dict[int, PassRecord] = {}
        self._disabled: set[int] = set()
        self._halted = False
        self._state: Snapshot | None = None  # of the graph as it stands, as long as nothing changes it
        before = self.graph.total()
        gate, self.graph.gate = self.graph.gate, self._ledger
        try:
            self._run(tuple(stages), ())
        finally:
            self.graph.gate = gate
        return RunReport(
            records=tuple(self._records.values()),
            rewrites=self._ledger.count,
            nodes_before=before,
            nodes_after=self.graph.total(),
            stopped=self._ledger.closed,
            halted=self._halted,
            last=self._ledger.last,
        )

    @property
    def _over(self) -> bool:
        return self._ledger.closed or self._halted

    def _run(self, stages: tuple[Stage, ...], then: tuple[Stage, ...]) -> list[Stage]:
        """Run stages once; returns those that changed the graph. `then` is what follows, for reproducers."""
        changed: list[Stage] = []
        for index, stage in enumerate(stages):
            if self._over:
                break
            rest = (*stages[index:], *then)
            if isinstance(stage, FixpointStage):
                changed.extend([stage] if self._fixpoint(stage, rest) else [])
            elif id(stage) not in self._disabled and self._pass(stage, rest):
                changed.append(stage)
        return changed

    def _fixpoint(self, stage: FixpointStage, rest: tuple[Stage, ...]) -> bool:
        before = self._snapshot()
        any_change = False
        changed: list[Stage] = []
        for _ in range(stage.limit):
            changed = self._run(stage.stages, rest)
            if not changed or self._over:
                return any_change or bool(changed)
            any_change = True
        self._restore(before)
        fighting = ", ".join(str(item) for item in changed)
        problem = f"fixpoint did not settle in {stage.limit} rounds; still changing: {fighting}"
        folder, hint = self._reproduce(rest, PassError(problem))
        advice = f"take one of them out, or raise the bound with fixpoint(…){{max=N}}{hint and '; ' + hint}"
        raise PassError(problem, reproducer=folder, hint=advice)

    def _pass(self, stage: PassStage, rest: tuple[Stage, ...]) -> bool:
        held = self.graph.to_model() if self.rebase is not None and changes_values(stage) else None
        with collector_paused():
            before, size, first = self._snapshot(), self.graph.total(), self._ledger.count
            start = time.perf_counter()
            result = self._call(stage, rest, before)
            seconds = time.perf_counter() - start
            result = self._settle(stage, result, before, first)
            if result.modified:
                self._state = None
                self._check_structure(stage, rest, before)
        record = self._judge(self._record(stage, result, size, first, seconds), stage, before, held)
        known = self._records.get(id(stage))
        self._records[id(stage)] = known.merged(record) if known else record
        if self.watch is not None:
            self.watch(record, self.graph)
        return record.status == "changed"

    def _call(self, stage: PassStage, rest: tuple[Stage, ...], before: Snapshot) -> PassResult:
        try:
            result = stage.pass_.run(self.graph)
            if not isinstance(result, PassResult):
                raise TypeError(f"run returned {type(result).__name__} instead of a PassResult")
        except Exception as error:  # a pass may raise anything; the graph is put back and it is named
            self._restore(before)
            if isinstance(error, GraphkitError) and type(error) not in (GraphkitError, PassError):
                raise  # about what the user gave us, such as a binding that does not fit
            raise self._crash(stage, rest, error, f"raised {type(error).__name__}") from error
        return result

    def _settle(self, stage: PassStage, result: PassResult, before: Snapshot, first: int) -> PassResult:
        """See to it that what was done is reported and numbered."""
        if not result.modified:
            if not structure.differs(self.graph, before):
                return result
            note = "changed the graph but reported no change; counted and checked as one change"
            change = Change("", f"unreported, by {stage.text}")
            result = replace(result, changes=(change,), notes=(*result.notes, note))
        if self._ledger.count == first and not self._ledger("", stage.text):
            self._restore(before)  # a pass that is not made of numbered rewrites counts as one
            return replace(result, changes=())
        return result

    def _check_structure(self, stage: PassStage, rest: tuple[Stage, ...], before: Snapshot) -> None:
        fault = structure.find_fault(self.graph, before)
        if fault is not None:
            self._restore(before)
            raise self._crash(stage, rest, GraphkitError(fault), "left an invalid graph")

    def _record(self, stage: PassStage, result: PassResult, size: int, first: int, seconds: float) -> PassRecord:
        return PassRecord(
            name=stage.pass_.name,
            text=stage.text,
            status="changed" if result.modified else "unchanged",
            rewrites=self._ledger.count - first,
            nodes_before=size,
            nodes_after=self.graph.total(),
            seconds=seconds,
            rounds=((size, self.graph.total()),) if result.modified else (),
            numbers=((first + 1, self._ledger.count),) if self._ledger.count > first else (),
            counters=result.counters,
            refusals=result.refusals,
            notes=result.notes,
            changes=result.changes,
        )

    def _judge(self, record: PassRecord, stage: PassStage, before: Snapshot, held: Model | None) -> PassRecord:
        """Check the numbers after a change, and undo it when they are wrong."""
        if record.status != "changed":
            return record
        if held is not None and self.rebase is not None:
            verdict = self.rebase(stage.text, held, self.graph)
            record = replace(record, notes=(*record.notes, _ON_PURPOSE))
        elif self.verify is not None and not changes_values(stage):
            verdict = self.verify(self.graph)
        else:
            return record
        record = replace(record, max_error=verdict.max_error, reason=verdict.reason)
        if verdict.ok:
            return record
        self._disabled.add(id(stage))
        self._halted = self.on_mismatch == "stop"
        self._restore(before)
        return replace(record, status="rolled back", nodes_after=record.nodes_before, rounds=(), changes=())

    # -- the state to go back to --------------------------------------------------------------------------

    def _snapshot(self) -> Snapshot:
        """The graph as it stands; taken anew after a change, but for types, which passes may refresh."""
        if self._state is None:
            self._state = self.graph.snapshot()
        else:
            inner = self._state.inner and [g.inferred.copy() for g in self.graph.walk() if g is not self.graph]
            inferred, declared = self.graph.inferred.copy(), self.graph.declared.copy()
            self._state = replace(self._state, inferred=inferred, declared=declared, inner=inner)
        return self._state

    def _restore(self, state: Snapshot) -> None:
        self.graph.restore(state)
        self._state = state

    # -- crashes ------------------------------------------------------------------------------------------

    def _crash(self, stage: PassStage, rest: tuple[Stage, ...], error: Exception, what: str) -> PassError:
        """Leave a reproducer (the graph is back in the state before the pass) and say what happened."""
        folder, hint = self._reproduce(rest, error)
        return PassError(f"pass '{stage.text}' {what}: {error}", reproducer=folder, hint=hint or None)

    def _reproduce(self, rest: tuple[Stage, ...], error: Exception) -> tuple[Path | None, str]:
        if self.crash_dir is None:
            return None, ""
        types_known = bool(self.graph.inferred)
        text = ",".join([*(["infer-shapes"] if types_known else []), *map(str, rest)])
        try:
            folder = reproducer.write(self.crash_dir, self.graph.to_model(), text, error, self.plugins)
        except (OSError, OutputError) as problem:  # a full disk must not hide what the pass did
            return None, f"no reproducer could be written: {problem}"
        return folder, f"the model as it stood and the rest of the pipeline are in {folder}"


__all__ = [
    "FixpointStage",
    "Ledger",
    "Manager",
    "PassRecord",
    "PassStage",
    "RunReport",
    "Stage",
    "Status",
    "Verdict",
]

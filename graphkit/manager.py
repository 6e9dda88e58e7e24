"""Runs passes: numbering, verification after each, rollback, fixpoints, timing, and a reproducer on a crash.

The design is that of LLVM's pass manager with opt-bisect-limit and MLIR's crash reproducers, for ONNX.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Literal, Protocol

from graphkit import reproducer
from graphkit._body import Snapshot
from graphkit.errors import GraphkitError, PassError
from graphkit.graph import Graph
from graphkit.rewrite import Pass, PassResult, Refusal
from graphkit.structure import find_fault


@dataclass(frozen=True)
class PassStage:
    """One pass with its options; `text` is how the pipeline spells it."""

    pass_: Pass
    text: str

    def __str__(self) -> str:
        return self.text


@dataclass(frozen=True)
class FixpointStage:
    """Stages repeated until a round changes nothing, at most `limit` rounds."""

    stages: tuple[Stage, ...]
    limit: int = 10

    def __str__(self) -> str:
        return f"fixpoint({','.join(map(str, self.stages))}){{max={self.limit}}}"


Stage = PassStage | FixpointStage
Status = Literal["changed", "unchanged", "rolled back"]


class Verdict(Protocol):
    """What a numeric check says of the graph as it stands."""

    @property
    def ok(self) -> bool:
        """True when the outputs are those of the original."""
        ...

    @property
    def max_error(self) -> float:
        """Largest absolute error over the reference's largest absolute value, worst output."""
        ...

    @property
    def reason(self) -> str:
        """Why it is not ok, one line."""
        ...


@dataclass(frozen=True)
class PassRecord:
    """What one stage did, all its rounds together.

    `numbers` are the first and last number of its rewrites, a pair for each round; `max_error` is None when
    the numbers were not checked; `seconds` are of the pass alone.
    """

    name: str
    text: str
    status: Status
    rewrites: int
    nodes_before: int
    nodes_after: int
    seconds: float
    numbers: tuple[tuple[int, int], ...] = ()
    max_error: float | None = None
    reason: str = ""
    counters: Mapping[str, int] = field(default_factory=dict)
    refusals: tuple[Refusal, ...] = ()
    notes: tuple[str, ...] = ()

    def merged(self, later: PassRecord) -> PassRecord:
        """This record and that of a later round of the same stage as one."""
        errors = [e for e in (self.max_error, later.max_error) if e is not None]
        status = later.status if later.status != "unchanged" else self.status
        return replace(
            self,
            status=status,
            rewrites=self.rewrites + later.rewrites,
            nodes_after=later.nodes_after,
            seconds=self.seconds + later.seconds,
            numbers=self.numbers + later.numbers,
            max_error=max(errors, default=None),
            reason=later.reason or self.reason,
            counters=dict(Counter(self.counters) + Counter(later.counters)),
            refusals=later.refusals,
            notes=tuple(dict.fromkeys(self.notes + later.notes)),
        )


@dataclass(frozen=True)
class RunReport:
    """What a run did: a record for each stage in order, and the totals. `stopped` when the gate closed."""

    records: tuple[PassRecord, ...]
    rewrites: int
    nodes_before: int
    nodes_after: int
    stopped: bool = False

    @property
    def rolled_back(self) -> tuple[PassRecord, ...]:
        """Stages whose changes were undone because they broke the outputs."""
        return tuple(record for record in self.records if record.status == "rolled back")


class Ledger:
    """Numbers rewrites from 1; as the graph's gate it closes after `limit`."""

    def __init__(self, limit: int | None = None) -> None:
        self.limit = limit
        self.count = 0
        self.closed = limit == 0

    def __call__(self, node: str, what: str) -> bool:
        """Take the next number, or say no."""
        if self.limit is not None and self.count >= self.limit:
            self.closed = True
            return False
        self.count += 1
        return True


@dataclass
class Manager:
    """Runs stages over a root graph.

    verify: judges the graph after each pass that changed it (None: structure only). on_mismatch: what a
    failed check leads to, "rollback" of that pass or "stop" (CheckFailed by the caller's choice of report).
    stop_after: number of the last rewrite to do. watch: called with each record and the graph. crash_dir:
    where a reproducer goes when a pass raises or leaves an invalid graph (None: nowhere).
    """

    graph: Graph
    verify: Callable[[Graph], Verdict] | None = None
    on_mismatch: Literal["rollback", "stop"] = "rollback"
    stop_after: int | None = None
    watch: Callable[[PassRecord, Graph], None] | None = None
    crash_dir: Path | None = None

    def run(self, stages: Iterable[Stage]) -> RunReport:
        """Run all stages in order.

        Raises PassError when a pass raises or leaves an invalid graph (undone; a reproducer is left), and when
        a fixpoint does not settle; other GraphkitErrors of a pass (a wrong binding) as they are.
        """
        self._ledger = Ledger(self.stop_after)
        self._records: dict[int, PassRecord] = {}
        self._disabled: set[int] = set()
        self._halted = False
        before = len(self.graph)
        gate, self.graph.gate = self.graph.gate, self._ledger
        try:
            self._run(tuple(stages))
        finally:
            self.graph.gate = gate
        return RunReport(
            tuple(self._records.values()), self._ledger.count, before, len(self.graph), self._ledger.closed
        )

    def _run(self, stages: tuple[Stage, ...]) -> list[Stage]:
        """Run stages once; returns those that changed the graph."""
        changed: list[Stage] = []
        for index, stage in enumerate(stages):
            if self._ledger.closed or self._halted:
                break
            if isinstance(stage, FixpointStage):
                changed.extend([stage] if self._fixpoint(stage) else [])
            elif id(stage) not in self._disabled and self._pass(stage, stages[index:]):
                changed.append(stage)
        return changed

    def _fixpoint(self, stage: FixpointStage) -> bool:
        any_change = False
        for _ in range(stage.limit):
            changed = self._run(stage.stages)
            if not changed or self._ledger.closed or self._halted:
                return any_change or bool(changed)
            any_change = True
        fighting = ", ".join(str(item) for item in changed)
        raise PassError(
            f"fixpoint did not settle in {stage.limit} rounds; still changing: {fighting}",
            hint="take one of them out, or raise the bound with fixpoint(…){max=N}",
        )

    def _pass(self, stage: PassStage, rest: tuple[Stage, ...]) -> bool:
        before, size, first = self.graph.snapshot(), len(self.graph), self._ledger.count
        start = time.perf_counter()
        try:
            result = stage.pass_.run(self.graph)
        except GraphkitError as error:
            self.graph.restore(before)
            if isinstance(error, PassError) or error.exit_code != 2:
                self._crash(stage, rest, error)
            raise
        except Exception as error:  # a pass may raise anything; the graph is put back and it is named
            self.graph.restore(before)
            raise self._crash(stage, rest, error) from error
        seconds = time.perf_counter() - start
        if result.modified and self._ledger.count == first and not self._ledger("", stage.text):
            self.graph.restore(before)  # a pass that is not made of numbered rewrites counts as one
            result = replace(result, changes=())
        if result.modified:
            self._check_structure(stage, rest, before)
        record = self._record(stage, result, before, size, first, seconds)
        known = self._records.get(id(stage))
        self._records[id(stage)] = known.merged(record) if known else record
        if self.watch is not None:
            self.watch(record, self.graph)
        return record.status == "changed"

    def _check_structure(self, stage: PassStage, rest: tuple[Stage, ...], before: Snapshot) -> None:
        fault = find_fault(self.graph, before)
        if fault is not None:
            self.graph.restore(before)
            raise self._crash(stage, rest, GraphkitError(fault))

    def _record(
        self, stage: PassStage, result: PassResult, before: Snapshot, size: int, first: int, seconds: float
    ) -> PassRecord:
        record = PassRecord(
            name=stage.pass_.name,
            text=stage.text,
            status="changed" if result.modified else "unchanged",
            rewrites=self._ledger.count - first,
            nodes_before=size,
            nodes_after=len(self.graph),
            seconds=seconds,
            numbers=((first + 1, self._ledger.count),) if self._ledger.count > first else (),
            counters=result.counters,
            refusals=result.refusals,
            notes=result.notes,
        )
        if self.verify is None or not result.modified:
            return record
        verdict = self.verify(self.graph)
        record = replace(record, max_error=verdict.max_error, reason=verdict.reason)
        if verdict.ok:
            return record
        self._disabled.add(id(stage))
        self._halted = self.on_mismatch == "stop"
        self.graph.restore(before)
        return replace(record, status="rolled back", nodes_after=size)

    def _crash(self, stage: PassStage, rest: tuple[Stage, ...], error: Exception) -> PassError:
        """Leave a reproducer (the graph is back in the state before the pass) and say what happened."""
        folder = None
        if self.crash_dir is not None:
            text = ",".join(map(str, rest))
            folder = reproducer.write(self.crash_dir, self.graph.to_model(), text, error)
        kind = "left an invalid graph" if type(error) is GraphkitError else f"raised {type(error).__name__}"
        hint = f"the model as it stood and the rest of the pipeline are in {folder}" if folder else None
        return PassError(f"pass '{stage.text}' {kind}: {error}", reproducer=folder, hint=hint)

"""What the manager runs and what it says afterwards: stages, records, the report, and the ledger."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Literal, Protocol

from graphkit.rewrite import Change, Pass, Refusal


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

    `nodes_before` is the number of nodes before its first round, `nodes_after` after its last; `rounds` has both for
    every round that changed something. `numbers` are the first and last number of its rewrites, a pair for each round;
    a round that was rolled back keeps its numbers. `max_error` is None when the numbers were not checked; `seconds` are
    of the pass alone. `changes` are the rewrites that stand.
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
    changes: tuple[Change, ...] = ()
    rounds: tuple[tuple[int, int], ...] = ()

    def merged(self, later: PassRecord) -> PassRecord:
        """This record and that of a later round of the same stage as one."""
        errors = [e for e in (self.max_error, later.max_error) if e is not None]
        status = later.status if later.status != "unchanged" else self.status
        return replace(
            self,
            status=status,
            rewrites=self.rewrites + later.rewrites,
            nodes_after=later.nodes_after if later.status != "unchanged" else self.nodes_after,
            rounds=self.rounds + later.rounds,
            seconds=self.seconds + later.seconds,
            numbers=self.numbers + later.numbers,
            max_error=max(errors, default=None),
            reason=later.reason or self.reason,
            counters=dict(Counter(self.counters) + Counter(later.counters)),
            refusals=later.refusals,
            notes=tuple(dict.fromkeys(self.notes + later.notes)),
            changes=self.changes + later.changes,
        )


@dataclass(frozen=True)
class RunReport:
    """What a run did: a record for each stage in order, and the totals.

    `rewrites` counts numbered rewrites, those that were rolled back too; `last` is the one with that number.
    `stopped` when the gate closed at `stop_after`, `halted` when a failed check ended the run.
    """

    records: tuple[PassRecord, ...]
    rewrites: int
    nodes_before: int
    nodes_after: int
    stopped: bool = False
    halted: bool = False
    last: Change | None = None

    @property
    def rolled_back(self) -> tuple[PassRecord, ...]:
        """Stages whose changes were undone because they broke the outputs."""
        return tuple(record for record in self.records if record.status == "rolled back")


class Ledger:
    """Numbers rewrites from 1; as the graph's gate it closes after `limit`. `last` is the newest rewrite."""

    def __init__(self, limit: int | None = None) -> None:
        self.limit = limit
        self.count = 0
        self.closed = limit == 0
        self.last: Change | None = None

    def __call__(self, node: str, what: str) -> bool:
        """Take the next number, or say no."""
        if self.limit is not None and self.count >= self.limit:
            self.closed = True
            return False
        self.count += 1
        self.last = Change(node, what)
        return True

"""What a run of passes is compared with: the original, until a pass changes values on purpose."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from graphkit.compare import Tolerance
from graphkit.graph import Graph
from graphkit.model import Model
from graphkit.proof import Evidence, Proof

Gather = Callable[[Model], tuple[Evidence | None, str]]


@dataclass(frozen=True)
class Moved:
    """How far a pass moved the outputs on purpose; `ok` unless its result does not run."""

    max_error: float
    reason: str = ""

    @property
    def ok(self) -> bool:
        """True when what the pass left can serve as the new reference."""
        return not self.reason


@dataclass
class Baseline:
    """The reference of one run, and the verdict on all that came before it was replaced.

    evidence: of the original, None when there is none (`excuse` says why). gather: makes evidence of another model,
    on inputs chosen the same way.
    """

    evidence: Evidence | None
    excuse: str
    tolerance: Tolerance
    gather: Gather
    broken: list[Proof] = field(default_factory=list)

    def judge(self, graph: Graph) -> Proof:
        """The graph as it stands against the reference. Needs evidence."""
        assert self.evidence is not None
        return self.evidence.judge_model(graph.to_model(), self.tolerance)

    def rebase(self, name: str, before: Model, after: Graph) -> Moved:
        """Take the graph as the pass `name` left it for the reference from now on.

        What the passes before it made is judged by the old one first; a difference there makes the final proof fail.
        """
        assert self.evidence is not None
        settled = self.evidence.judge_model(before, self.tolerance)
        if not settled.ok:
            self.broken.append(settled)
        model = after.to_model()
        moved = self.evidence.judge_model(model, self.tolerance)
        evidence, excuse = self.gather(model)
        if evidence is None:
            return Moved(moved.max_error, f"the result does not run: {excuse}")
        evidence.note = f"{evidence.note}; compared with the model as {name} left it".lstrip("; ")
        self.evidence = evidence
        return Moved(moved.max_error)

    def prove(self, model: Model) -> Proof:
        """The final verdict on a result."""
        if self.evidence is None:
            return Proof(note=self.excuse)
        return self.broken[0] if self.broken else self.evidence.judge_model(model, self.tolerance)

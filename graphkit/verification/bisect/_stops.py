"""The states of a model along a pipeline: after so many rewrites, and what a check says of them."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property

from graphkit._runs import PassRecord, RunReport
from graphkit.compare import Tolerance
from graphkit.errors import PassError, UsageError
from graphkit.graph import Graph
from graphkit.manager import FixpointStage, Stage
from graphkit.model import Model
from graphkit.optimizer import Bindings, optimize
from graphkit.proof import Evidence, Feeds, Proof
from graphkit.registry import Registry
from graphkit.rewrite import Change
from graphkit.tolerances import default_tolerance
from graphkit.verification.bisect.search import Answer


@dataclass(frozen=True)
class Judgement:
    """What a check says: True for bad, False for good, None when it cannot be told; the error, and why.

    feeds: the sample on which it is worst, None when the check has none.
    """

    answer: Answer
    error: float | None = None
    reason: str = ""
    feeds: Feeds | None = None


Check = Callable[[Model], Answer | Judgement]


@dataclass(frozen=True)
class Span:
    """The numbers that one round of a pass took, both included; `change` says what a pass did that counts as one."""

    first: int
    last: int
    name: str
    text: str
    on_purpose: bool  # it declares that it changes values
    change: Change | None = None


@dataclass(frozen=True)
class State:
    """The model after so many rewrites, and the last of them; no model when it is not a valid one (`fault`)."""

    number: int
    model: Model | None
    node: str = ""
    what: str = ""
    fault: str = ""


class Stops:
    """One model and one pipeline; every state is made from the beginning, so that nothing of another is left in it.

    Raises what `optimize` raises.
    """

    def __init__(self, model: Model, asked: str, bind: Bindings | None, registry: Registry) -> None:
        self.model, self.asked, self.bind, self.registry = model, asked, bind, registry

    def other(self, asked: str) -> Stops:
        """The same model and another pipeline."""
        return Stops(self.model, asked, self.bind, self.registry)

    def run(self, number: int | None = None) -> tuple[Model, RunReport, str]:
        """The model after so many rewrites (None: all), the report, and the pipeline's text."""
        result = optimize(
            self.model, self.asked, bind=self.bind, verify="none", registry=self.registry, stop_after=number
        )
        return result.model, result.report, result.pipeline

    @cached_property
    def _all(self) -> tuple[Model, RunReport, str]:
        return self.run()

    @property
    def whole(self) -> RunReport:
        """The report of the whole pipeline."""
        return self._all[1]

    @property
    def text(self) -> str:
        """The pipeline as it was run, presets spelled out."""
        return self._all[2]

    @cached_property
    def spans(self) -> tuple[Span, ...]:
        """What numbers each round of each pass took, in order."""
        purpose = _on_purpose(self.registry.stages(self.asked))
        found = [_span(record, pair, purpose) for record in self.whole.records for pair in record.numbers]
        return tuple(sorted(found, key=lambda span: span.first))

    def segments(self, total: int) -> list[tuple[int, int]]:
        """Numbers between which one reference holds: first the original, then what a pass left that changes values."""
        found, low = [], 0
        for span in self.spans:
            if span.on_purpose:
                found.append((low, span.first - 1))
                low = span.last
        return [(start, end) for start, end in (*found, (low, total)) if start < end]

    def pass_of(self, number: int) -> str:
        """Name of the pass that a rewrite belongs to; empty for 0."""
        return next((span.name for span in self.spans if span.first <= number <= span.last), "")

    def at(self, number: int | None) -> State:
        """The state after so many rewrites, None for all of them."""
        total = self.whole.rewrites
        if number is None or number >= total:
            return self._state(total, self._all[0], self.whole.last)
        try:
            model, report, _ = self.run(number)
        except PassError as error:  # half of what a pass does need not be a valid graph
            return State(number, None, fault=f"no valid model there: {error.message}")
        return self._state(number, model, report.last)

    def _state(self, number: int, model: Model, last: Change | None) -> State:
        span = next((span for span in self.spans if span.first <= number <= span.last), None)
        change = (span.change if span is not None else None) or last
        return State(number, model, change.node if change else "", change.what if change else "")


def _span(record: PassRecord, numbers: tuple[int, int], purpose: set[str]) -> Span:
    change = record.changes[0] if len(record.changes) == record.rewrites == 1 else None
    return Span(numbers[0], numbers[1], record.name, record.text, record.name in purpose, change)


def _on_purpose(stages: Sequence[Stage]) -> set[str]:
    """Names of passes that change values on purpose."""
    found: set[str] = set()
    for stage in stages:
        if isinstance(stage, FixpointStage):
            found |= _on_purpose(stage.stages)
        elif getattr(stage.pass_, "changes_values", False):
            found.add(stage.pass_.name)
    return found


class Equal:
    """The default check: a state is bad when its outputs leave the reference's.

    The reference is the original or, after a pass that changes values on purpose, the model as that pass left it;
    within such a pass nothing can be told. Raises UsageError when there is nothing to compare with.
    """

    def __init__(self, stops: Stops, inputs: Sequence[Feeds] | None, seed: int, tolerance: Tolerance | None) -> None:
        self.stops, self.inputs, self.seed = stops, inputs, seed
        self.tolerance = tolerance or default_tolerance(Graph.of(stops.model))
        self._evidence: dict[int, Evidence] = {}

    def of(self, stops: Stops) -> Equal:
        """The same check of another pipeline."""
        return Equal(stops, self.inputs, self.seed, self.tolerance)

    def __call__(self, state: State) -> Judgement:
        """Judge one state."""
        base = 0
        for span in self.stops.spans:
            if span.on_purpose and span.last <= state.number:
                base = span.last
            elif span.on_purpose and span.first <= state.number:
                return Judgement(None, None, f"within '{span.name}', which changes values on purpose")
        evidence = self._reference(base)
        if base and base == state.number:
            return Judgement(False, 0.0, "the reference from here on: values were changed on purpose")
        assert state.model is not None
        proof = evidence.judge_model(state.model, self.tolerance)
        if proof.kind == "none":
            return Judgement(None, None, proof.note)
        error = None if math.isnan(proof.max_error) and proof.fault else proof.max_error
        return Judgement(proof.kind == "different", error, proof.reason, _worst_sample(evidence, proof))

    def _reference(self, number: int) -> Evidence:
        if number not in self._evidence:
            self._evidence[number] = self._gather(number)
        return self._evidence[number]

    def _gather(self, number: int) -> Evidence:
        if number:
            model, _, _ = self.stops.run(number)
            return _worthy(Evidence.gather(model, inputs=self.inputs, seed=self.seed), "")
        # Not Evidence.gather: sizes that the pipeline binds are those to compare at.
        result = optimize(
            self.stops.model, self.stops.asked, bind=self.stops.bind, verify="end", stop_after=0,
            registry=self.stops.registry, inputs=self.inputs, seed=self.seed,
        )  # fmt: skip
        return _worthy(result.evidence, result.proof.note)


def _worthy(evidence: Evidence | None, excuse: str) -> Evidence:
    why = excuse if evidence is None else evidence.worthless
    if evidence is None or why:
        raise UsageError(f"there is nothing to compare with: {why}", hint="bisect with --check CMD, which decides")
    return evidence


def _worst_sample(evidence: Evidence, proof: Proof) -> Feeds | None:
    """The sample of the largest error; the first when the candidate did not even run."""
    errors = [check.comparison.worst.max_error if check.comparison.worst else 0.0 for check in proof.checks]
    ranks = [math.inf if math.isnan(error) else error for error in errors] or [0.0]
    return evidence.samples[ranks.index(max(ranks))].feeds if evidence.samples else None


def judged_by(check: Check) -> Callable[[State], Judgement]:
    """A check of models as one of states."""

    def judge(state: State) -> Judgement:
        assert state.model is not None
        found = check(state.model)
        return found if isinstance(found, Judgement) else Judgement(found)

    return judge

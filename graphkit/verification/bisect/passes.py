"""Pass bisection: which pass, and which single numbered rewrite, first makes a model bad.

The pipeline is run again and again with `stop_after`; a binary search first finds the pass, over the states that whole
passes leave, then the rewrite within it (rewrites of a good pass may go in pairs, of which one alone is wrong). What
is bad, a check says: by default outputs that leave the original's, or any function or command. The search is that of
LLVM's opt-bisect-limit.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Sequence

from graphkit.compare import Tolerance
from graphkit.errors import GraphkitError, UsageError
from graphkit.model import Model, PathLike
from graphkit.optimizer import Bindings
from graphkit.pipeline import Pipeline
from graphkit.proof import Feeds
from graphkit.registry import Registry
from graphkit.verification.bisect._command import Command
from graphkit.verification.bisect._effort import Effort
from graphkit.verification.bisect._pass_result import PassBisectResult, Trial
from graphkit.verification.bisect._stops import Check, Equal, Judgement, Span, State, Stops, judged_by
from graphkit.verification.bisect.search import Answer, Exhausted, first_bad

__all__ = ["Check", "Command", "Judgement", "PassBisectResult", "Trial", "alone", "bisect_passes", "breaks"]

Progress = Callable[[str], None]


def bisect_passes(
    model: Model | PathLike,
    pipeline: str | Pipeline = "default",
    *,
    check: Check | None = None,
    inputs: Sequence[Feeds] | None = None,
    seed: int = 0,
    bind: Bindings | None = None,
    tolerance: Tolerance | None = None,
    plugins: Iterable[str] = (),
    registry: Registry | None = None,
    effort: Effort | None = None,
    progress: Progress | None = None,
) -> PassBisectResult:
    """Find the first rewrite of a pipeline that makes a model bad, and the pass it belongs to.

    check: a function of a model that answers True (bad), False (good), None (cannot be told) or a `Judgement`, or a
    `Command`; by default a model is bad when its outputs leave the original's on `inputs` (random ones otherwise) by
    more than `tolerance`. After a pass that changes values on purpose, the model as it left it is the reference.
    A state that is not valid, because a pass works in several steps, counts as one that cannot be told. The other
    arguments are those of `optimize`.

    Raises UsageError when the original is bad already, when it or the result cannot be told, when nothing can be
    compared (random outputs, a model that does not run), and what `optimize` raises.
    """
    model = model if isinstance(model, Model) else Model.load(model)
    registry = registry or Registry(plugins)
    stops = Stops(model, str(pipeline), bind, registry)
    judge = judged_by(check) if check is not None else Equal(stops, inputs, seed, tolerance)
    search = _Search(stops, judge, effort or Effort(), progress or (lambda step: None))
    return search.run()


def breaks(
    pipeline: str | Pipeline,
    *,
    plugins: Iterable[str] = (),
    registry: Registry | None = None,
    tolerance: Tolerance | None = None,
) -> Callable[[Model, Feeds], Answer]:
    """A predicate for `reduce_model`: the pipeline makes a model's outputs leave what they were on these inputs.

    None when the model does not run, or a pass raises. Raises UsageError for a bad pipeline.
    """
    registry = registry or Registry(plugins)
    registry.stages(pipeline)

    def predicate(model: Model, feeds: Feeds) -> Answer:
        try:
            stops = Stops(model, str(pipeline), None, registry)
            return Equal(stops, [feeds], 0, tolerance)(stops.at(None)).answer
        except GraphkitError:
            return None

    return predicate


def alone(
    result: PassBisectResult, *, registry: Registry | None = None, tolerance: Tolerance | None = None
) -> str | None:
    """The pipeline of the bad pass alone that is wrong on the model as it stood before the bad rewrite.

    With `infer-shapes` in front when the pass needs types. None when the pass alone does nothing wrong there, or
    nothing was found, or the check has no sample.
    """
    if result.before is None or result.feeds is None:
        return None
    for text in (result.pass_text, f"infer-shapes,{result.pass_text}"):
        if breaks(text, plugins=result.plugins, registry=registry, tolerance=tolerance)(result.before, result.feeds):
            return text
    return None


class _Search:
    """One bisection: the states it looked at, and what the check said of them."""

    def __init__(self, stops: Stops, judge: Callable[[State], Judgement], effort: Effort, progress: Progress) -> None:
        self.stops, self.judge, self.effort, self.progress = stops, judge, effort, progress
        self.trials: dict[int, Trial] = {}
        self.models: dict[int, Model] = {}
        self.samples: dict[int, Feeds | None] = {}

    def run(self) -> PassBisectResult:
        """The whole search; what must be known before it begins is asked in any case."""
        try:
            return self._run()
        except Exhausted:
            raise UsageError("the time was up before the search could begin", hint="allow more seconds") from None

    def _run(self) -> PassBisectResult:
        total = self.stops.whole.rewrites
        if self._trial(self.stops.at(0)).answer is not False:
            raise self._no_start(self.trials[0])
        for low, high in self.stops.segments(total) if isinstance(self.judge, Equal) else [(0, total)]:
            end = self._trial(self.stops.at(high))
            if end.answer is None:
                raise UsageError(
                    f"nothing can be told of the result: {end.reason or 'the check skips it'}", hint=_CHECK
                )
            if end.answer:
                return self._between(low, high)
        return self._result((), None, True)

    def _between(self, low: int, high: int) -> PassBisectResult:
        """The first bad rewrite after `low`, which is good, up to `high`, which is bad."""
        spans = [span for span in self.stops.spans if low < span.last <= high]
        numbers = [low, *(span.last for span in spans)]
        outer = first_bad(0, len(spans), lambda index: self.ask(numbers[index]))
        span = spans[outer.first_bad - 1]
        inner = first_bad(numbers[outer.last_good], span.last, self.ask)
        found = tuple(self._described(number) for number in inner.candidates)
        return self._result(found, span, outer.complete and inner.complete)

    def ask(self, number: int) -> Answer:
        """What the check says of the model after so many rewrites."""
        if number not in self.trials:
            self.effort.spend()
            self._trial(self.stops.at(number))
        return self.trials[number].answer

    def _trial(self, state: State) -> Trial:
        number = state.number
        if number in self.trials:
            return self.trials[number]
        self.progress(f"after rewrite {number} of {self.stops.whole.rewrites}")
        start = time.perf_counter()
        judgement = self.judge(state) if state.model is not None else Judgement(None, None, state.fault)
        seconds = time.perf_counter() - start
        if state.model is not None:
            self.models[number] = state.model
        self.samples[number] = judgement.feeds
        self.trials[number] = Trial(
            number, self.stops.pass_of(number), state.node, state.what,
            judgement.answer, judgement.error, judgement.reason, seconds,
        )  # fmt: skip
        return self.trials[number]

    def _described(self, number: int) -> Trial:
        """The trial of a candidate; one that the search never asked, because it ended early, is only named."""
        if number in self.trials:
            return self.trials[number]
        state = State(number, None) if self.effort.late else self.stops.at(number)
        return Trial(number, self.stops.pass_of(number), state.node, state.what, None, None, "not tried", 0.0)

    def _no_start(self, trial: Trial) -> UsageError:
        if trial.answer is None:
            reason = trial.reason or "the check skips it"
            return UsageError(f"nothing can be told of the model before any rewrite: {reason}", hint=_CHECK)
        reason = f": {trial.reason}" if trial.reason else ""
        return UsageError(
            f"the check calls the model bad before any rewrite{reason}",
            hint="no pass is at fault; bisect the model itself, or repair the check",
        )

    def _result(self, found: tuple[Trial, ...], span: Span | None, complete: bool) -> PassBisectResult:
        avoid = self._avoid(span) if span is not None and complete else None
        first = found[0].number if found else None
        return PassBisectResult(
            pipeline=self.stops.text,
            total=self.stops.whole.rewrites,
            found=found,
            tried=tuple(self.trials.values()),
            before=self.models.get(first - 1) if first is not None else None,
            after=self.models.get(found[-1].number) if found else None,
            feeds=self.samples.get(found[-1].number) if found else None,
            pass_text=span.text if span is not None else "",
            avoid=avoid,
            complete=complete,
            seconds=self.effort.elapsed,
            plugins=self.stops.registry.plugins,
        )

    def _avoid(self, span: Span) -> str | None:
        """The pipeline without the pass, if it then is good: tried, or not said."""
        if self.effort.late:
            return None
        text = f"{self.stops.asked},-{span.name}"
        self.progress(f"trying {text}")
        try:
            other = self.stops.other(text)
            if not other.text:  # nothing is left of the pipeline
                return None
            judge = self.judge.of(other) if isinstance(self.judge, Equal) else self.judge
            good = judge(other.at(other.whole.rewrites)).answer is False
        except (GraphkitError, Exhausted):
            return None
        return text if good else None


_CHECK = "look at what the check says of it, or bisect with --check CMD, which decides on its own"

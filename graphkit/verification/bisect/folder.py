"""From an answer to a folder that shows it: the witness is reduced, anonymized if asked for, and written."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

from graphkit.compare import Tolerance
from graphkit.errors import GraphkitError, MnnError, OutputError
from graphkit.mnn import proving
from graphkit.mnn.options import ConverterOptions
from graphkit.model import Model
from graphkit.proof import Evidence, Feeds
from graphkit.registry import Registry
from graphkit.verification.bisect._effort import Effort
from graphkit.verification.bisect.anonymize import Anonymized, anonymize
from graphkit.verification.bisect.answer import BisectResult, Fault
from graphkit.verification.bisect.mnn_faults import observe, same_fault
from graphkit.verification.bisect.passes import PassBisectResult, alone, breaks
from graphkit.verification.bisect.reduction import Predicate, Reduced, reduce_model
from graphkit.verification.bisect.repro import Repro, Story, file_story, mnn_story, pass_story, write_repro

Progress = Callable[[str], None]

_LEAST = 30.0  # seconds that a step may take that a folder cannot do without, when the time is up already
_LATE = "the time was up before a folder was made: allow more seconds"


@dataclass(frozen=True)
class Request:
    """Where a folder goes and what it may cost. anonymized: random weights, other names.

    effort: the tries of the reduction, and the time for all of it. When that is up, what there is by then is written,
    if it costs next to nothing.
    """

    folder: Path
    anonymized: bool = False
    effort: Effort = field(default_factory=lambda: Effort(300.0, 200))
    progress: Progress = lambda step: None

    def patience(self, seconds: float) -> float:
        """Seconds that one step may take which takes `seconds` at most."""
        return min(seconds, max(self.effort.left, _LEAST))


@dataclass(frozen=True)
class Written:
    """The folder, or why there is none."""

    repro: Repro | None
    note: str = ""


def layer_repro(
    result: BisectResult,
    request: Request,
    *,
    options: ConverterOptions | None = None,
    whole: Callable[[], tuple[Model, Evidence]],
) -> Written:
    """A folder for the first fault of a layer bisection that a small model, or the given file, can show.

    whole: the model and the samples it was compared on, for faults that lie in the candidate file alone.
    Raises OutputError when the folder cannot be written.
    """
    for fault in result.faults:
        if fault.witness is not None and fault.kind not in ("file", "model"):
            written = _of_witness(fault, request, options)
            if written is not None:
                return written
            if request.effort.late:
                break
    if not result.faults:
        return Written(None)
    if request.effort.late:
        return Written(None, _LATE)
    if result.candidate is None:
        return Written(None, "no smaller model shows the fault by itself; the whole model does")
    return _of_file(result, result.candidate, request, whole())


def _of_witness(fault: Fault, request: Request, options: ConverterOptions | None) -> Written | None:
    """None when the witness does not show the fault again."""
    witness = fault.witness
    assert witness is not None
    tolerance = witness.tolerance
    patience = request.patience(120.0)
    seen = observe(witness.model, witness.feeds, options=options, tolerance=tolerance, timeout=patience)
    if not seen.faulty:
        return None
    predicate = same_fault(seen, options=options, tolerance=tolerance, effort=request.effort)
    reduced = _reduced(witness.model, witness.feeds, predicate, request, (fault.node,))
    if reduced.steps:
        seen = observe(reduced.model, reduced.feeds, options=options, tolerance=tolerance, timeout=patience)
    story = mnn_story(seen, reduced.model, answer=str(fault), options=options, tolerance=tolerance.rtol)
    return _write(reduced, story, predicate, request)


def _of_file(result: BisectResult, candidate: Path, request: Request, whole: tuple[Model, Evidence]) -> Written:
    if request.anonymized:
        return Written(None, "a fault of the given file cannot be anonymized: the file holds the weights")
    model, evidence = whole
    feeds, runs = _telling(evidence, candidate)
    story = file_story(result.answer, candidate, runs=runs)
    reduced = Reduced(model, dict(feeds), (), True)
    return Written(write_repro(request.folder, reduced, None, story, timeout=request.patience(300.0)))


def _telling(evidence: Evidence, candidate: Path) -> tuple[Feeds, bool]:
    """The inputs on which a file is most wrong, and whether MNN runs it; the first ones where none shows it."""
    worst, most = evidence.samples[0].feeds, 0.0
    try:
        if candidate.suffix.lower() == ".mnn":
            proof = proving.judge(evidence, candidate, Tolerance())
        else:
            proof = evidence.judge_model(Model.load(candidate), Tolerance())
    except MnnError as error:  # MNN cannot run it
        return evidence.samples[int(getattr(error, "sample", 0) or 0)].feeds, False
    except GraphkitError:
        return worst, True
    for sample, check in zip(evidence.samples, proof.checks, strict=True):
        found = check.comparison.worst
        if found is not None and not found.ok and not found.max_error <= most:
            worst, most = sample.feeds, found.max_error
    return worst, True


def pass_repro(
    result: PassBisectResult,
    request: Request,
    *,
    registry: Registry | None = None,
    tolerance: Tolerance | None = None,
) -> Written:
    """A folder for a pass that changes what a model computes. Raises OutputError when it cannot be written."""
    if result.ok:
        return Written(None)
    if result.before is None or result.feeds is None:
        return Written(None, "the check gives no sample that a folder could show")
    if request.effort.late:
        return Written(None, _LATE)
    pipeline = alone(result, registry=registry, tolerance=tolerance)
    if pipeline is None:
        return Written(None, "the pass alone does nothing wrong to the model as it stood; the whole pipeline does")
    predicate = breaks(pipeline, plugins=result.plugins, registry=registry, tolerance=tolerance)
    reduced = _reduced(result.before, result.feeds, predicate, request, ())
    story = pass_story(result.answer, pipeline, result.plugins)
    return _write(reduced, story, predicate, request)


def _reduced(model: Model, feeds: Feeds, predicate: Predicate, request: Request, near: tuple[str, ...]) -> Reduced:
    try:
        return reduce_model(
            model, feeds, predicate, effort=request.effort, near=near, progress=request.progress
        )  # fmt: skip
    except OutputError:
        raise
    except GraphkitError:  # what shows the fault cannot be run piece by piece
        return Reduced(model, dict(feeds), (), False)


def _write(reduced: Reduced, story: Story, predicate: Predicate, request: Request) -> Written:
    hidden: Anonymized | None = None
    if request.anonymized:
        request.progress("anonymizing")
        hidden = anonymize(reduced.model, reduced.feeds, predicate, effort=request.effort)
    timeout = request.patience(300.0)
    repro = write_repro(request.folder, reduced, None, story, anonymized=hidden, timeout=timeout)
    notes = ["the time was up: a smaller model may show it, too"] if request.effort.late else []
    return Written(repro, "; ".join([*notes, *([hidden.note] if hidden is not None else [])]))

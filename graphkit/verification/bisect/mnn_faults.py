"""What MNN does with a small model on one sample, in one word, and predicates that ask for the same again.

A reduction must not slip from one fault to another: a predicate asks for the same kind of failure, the same signal or
operator, and an error of the same size.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from graphkit._scratch import scratch
from graphkit.compare import Comparison, Tolerance, compare
from graphkit.errors import GraphkitError, MnnError, OutputError, UsageError
from graphkit.graph import Graph
from graphkit.mnn import worker
from graphkit.mnn.convert import ConverterError, run_converter
from graphkit.mnn.handoff import ready, write
from graphkit.mnn.options import ConverterOptions
from graphkit.model import Model
from graphkit.proof import Feeds
from graphkit.runtime import Session, reference
from graphkit.tolerances import mnn_tolerance
from graphkit.verification.bisect._effort import Effort
from graphkit.verification.bisect.search import Answer, Exhausted

Kind = Literal["right", "wrong", "refused", "converter crashed", "converter hung", "failed", "crashed", "hung", "unfit"]
_SAME_SIZE = 0.1  # of the first error: smaller ones may come from somewhere else
_REASON = 160  # characters


@dataclass(frozen=True)
class Observation:
    """What happened: `kind`; `detail` names the signal, the refused operators, or the worst output and why.

    "unfit": the model itself does not run in onnxruntime, or is random, so that nothing can be said. error: largest
    absolute error over the reference's largest value, None when nothing was computed (infinite where NaN, infinities,
    integers or shapes differ); max_ref: that largest value. misshapen: of a wrong output, that its shape is.
    """

    kind: Kind
    detail: str = ""
    error: float | None = None
    max_ref: float | None = None
    log: str = ""
    misshapen: bool = False

    @property
    def faulty(self) -> bool:
        """True when MNN did something wrong."""
        return self.kind not in ("right", "unfit")

    def __str__(self) -> str:
        return f"{_WORDS[self.kind]}{': ' if self.detail else ''}{self.detail}"


_WORDS: Mapping[Kind, str] = {
    "right": "MNN is right",
    "wrong": "MNN computes it wrong",
    "refused": "MNN's converter refuses it",
    "converter crashed": "MNN's converter crashes",
    "converter hung": "MNN's converter does not end",
    "failed": "MNN cannot run it",
    "crashed": "MNN crashes running it",
    "hung": "MNN does not end running it",
    "unfit": "nothing can be said",
}


def observe(
    model: Model,
    feeds: Feeds,
    *,
    options: ConverterOptions | None = None,
    tolerance: Tolerance | None = None,
    timeout: float = 120.0,
) -> Observation:
    """Convert a model as it is, run it in MNN, and compare with onnxruntime; each step only when the one before went
    well.

    timeout: seconds for each of the two. Raises OutputError when there is no room for files.
    """
    try:
        with Session(model) as session:
            expected = reference(session, feeds)
    except OutputError:
        raise
    except GraphkitError as error:
        return Observation("unfit", _one_line(error.message))
    if not expected.deterministic:
        return Observation("unfit", f"random outputs {', '.join(expected.unstable)}")
    tolerance = tolerance or mnn_tolerance(Graph.of(model), halved=bool(options and options.get("fp16")))
    with scratch("observe") as name:
        source = Path(name) / "model.onnx"
        write(ready(model), source)
        made = source.with_suffix(".mnn")
        try:
            run = run_converter(source, made, options, timeout=timeout)
        except ConverterError as error:
            return _refusal(error)
        try:
            actual = worker.run(made, feeds, list(expected.outputs), timeout=timeout).outputs
        except worker.RunError as error:
            return _failure(error)
        except (MnnError, UsageError) as error:
            return Observation("failed", _one_line(error.message), log=run.log)
    return _judged(compare(expected.outputs, actual, tolerance, squeeze=True), run.log)


def _refusal(error: ConverterError) -> Observation:
    if error.signal is not None:
        return Observation("converter crashed", error.signal, log=error.log)
    if error.timed_out:
        return Observation("converter hung", log=error.log)
    return Observation("refused", ", ".join(sorted(error.unsupported_ops)) or _one_line(error.message), log=error.log)


def _failure(error: worker.RunError) -> Observation:
    if error.signal is not None:
        return Observation("crashed", error.signal, log=error.log)
    return Observation("hung" if error.timed_out else "failed", _one_line(error.message), log=error.log)


def _judged(comparison: Comparison, log: str) -> Observation:
    worst = comparison.worst
    if worst is None or (worst.ok and all(output.vacuous for output in comparison.outputs)):
        return Observation("unfit", "there is nothing to compare", log=log)
    error = worst.max_error if worst.dtype and worst.differing == 0 else math.inf
    if worst.nan_mismatch or worst.inf_mismatch or math.isnan(error):
        error = math.inf
    kind: Kind = "right" if worst.ok else "wrong"
    detail = f"output '{worst.name}': {worst.reason}" if worst.reason else ""
    return Observation(kind, detail, error, worst.max_ref, log, worst.reason.startswith("shape "))


def _one_line(text: str) -> str:
    return " ".join(text.split())[:_REASON]


def same_fault(
    first: Observation,
    *,
    options: ConverterOptions | None = None,
    tolerance: Tolerance | None = None,
    timeout: float = 120.0,
    effort: Effort | None = None,
) -> Callable[[Model, Feeds], Answer]:
    """A predicate for `reduce_model`: MNN does with a model what it did with the first one.

    None when nothing can be said of the model. effort: what ends it; it then raises Exhausted, also in the middle of
    a conversion or a run. Raises UsageError when there was no fault.
    """
    if not first.faulty:
        raise UsageError(f"there is no fault to look for: {first}", hint="give the inputs on which it shows: --inputs")

    def predicate(model: Model, feeds: Feeds) -> Answer:
        limit = timeout if effort is None else min(timeout, effort.left)
        if not limit:
            raise Exhausted
        found = observe(model, feeds, options=options, tolerance=tolerance, timeout=limit)
        if found.kind == "unfit":
            return None
        if found.kind in ("hung", "converter hung") and limit < timeout:  # by us, as the time was up
            raise Exhausted
        return _alike(first, found)

    return predicate


def _alike(first: Observation, found: Observation) -> bool:
    if first.kind != found.kind:
        return False
    if first.kind == "wrong":
        return first.misshapen == found.misshapen and _size(found) >= _SAME_SIZE * min(_size(first), 1.0)
    if first.kind == "refused":
        return bool(set(first.detail.split(", ")) & set(found.detail.split(", ")))
    return first.kind == "failed" or first.detail == found.detail


def _size(observation: Observation) -> float:
    return math.inf if observation.error is None else observation.error


def describe(observation: Observation) -> dict[str, Any]:
    """A JSON-able dictionary; an infinite error is null."""
    error = observation.error
    return {
        "kind": observation.kind,
        "detail": observation.detail,
        "error": error if error is not None and math.isfinite(error) else None,
        "max_ref": observation.max_ref,
    }

"""Evidence that a candidate computes what the reference does: samples, reference outputs, verdicts.

A reference that differs from itself in a second run (random operators, training mode) proves nothing; then
the proof is "none" and says why.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, Literal

import numpy as np
import numpy.typing as npt

from graphkit import _drift, _permissions
from graphkit._departures import departure
from graphkit.compare import Comparison, Ties, Tolerance, compare
from graphkit.errors import GraphkitError, OutputError, UsageError
from graphkit.graph import Graph
from graphkit.inputs import check_feeds, usable_inputs
from graphkit.model import Model
from graphkit.runtime import Engine, Session, reference

Array = npt.NDArray[Any]
Feeds = Mapping[str, Array]
Opener = Callable[..., AbstractContextManager[Engine]]  # model, outputs=names


@dataclass(frozen=True)
class Sample:
    """Inputs and what the reference computes from them; `ties` as in `compare`.

    A probe has unlikely values (see sampling.values); where they make the reference infinite or NaN, nothing is
    compared. drift: how far the reference moves on its own, relative to its largest value; see `_drift`.
    """

    feeds: Feeds
    expected: dict[str, Array]
    ties: Ties
    probe: bool = False
    drift: float = 0.0

    @property
    def shapes(self) -> dict[str, tuple[int, ...]]:
        """Shapes of the inputs by name."""
        return {name: array.shape for name, array in self.feeds.items()}


@dataclass(frozen=True)
class Check:
    """The verdict on one sample."""

    shapes: Mapping[str, tuple[int, ...]]
    comparison: Comparison


@dataclass(frozen=True)
class Proof:
    """What the checks say together.

    `kind` is "equal" (every output of every sample within the tolerance), "different", or "none" when nothing
    could be compared; `note` says what is left open (only one shape, unstable outputs). `fault` says why the
    candidate is different without numbers: it does not run, or an output has another element type.
    """

    checks: tuple[Check, ...] = ()
    note: str = ""
    fault: str = ""

    @property
    def kind(self) -> Literal["equal", "different", "none"]:
        """The verdict in one word."""
        if self.fault:
            return "different"
        if not self.checks:
            return "none"
        return "equal" if all(check.comparison.ok for check in self.checks) else "different"

    @property
    def ok(self) -> bool:
        """True unless an output differs."""
        return self.kind != "different"

    @property
    def max_error(self) -> float:
        """Largest absolute error over the reference's largest absolute value, worst output and sample."""
        errors = [check.comparison.worst.max_error for check in self.checks if check.comparison.worst]
        return max(errors, key=lambda e: (np.isnan(e), e), default=float("nan"))

    @property
    def reason(self) -> str:
        """Why it is not equal, one line; empty otherwise."""
        if self.fault:
            return self.fault
        failed = [
            (worst, check) for check in self.checks if (worst := check.comparison.worst) is not None and not worst.ok
        ]
        if not failed:
            return "" if self.checks else self.note
        worst, check = max(failed, key=lambda pair: (np.isnan(pair[0].max_error), pair[0].max_error))
        return f"output '{worst.name}': {worst.reason} at input shapes {shape_text(check.shapes)}"

    def to_dict(self) -> dict[str, Any]:
        """A JSON-able dictionary."""
        error = self.max_error
        return {
            "kind": self.kind,
            "max_error": error if np.isfinite(error) else None,
            "reason": self.reason,
            "note": self.note,
            "samples": [
                {"shapes": {k: list(v) for k, v in c.shapes.items()}, **c.comparison.to_dict()} for c in self.checks
            ],
        }


def shape_text(shapes: Mapping[str, tuple[int, ...]]) -> str:
    """Shapes of a sample on one line, each shape once: `[1,16]`, `[1,3,64,64] [2]`."""
    texts = (f"[{','.join(map(str, shape))}]" for shape in shapes.values())
    return " ".join(dict.fromkeys(texts)) or "[]"


class Evidence:
    """Reference outputs on some samples, made once, against which candidates are judged.

    Raises GraphkitError when the reference does not run, UsageError when given inputs do not fit it.
    """

    def __init__(
        self,
        samples: Sequence[Sample],
        note: str = "",
        unstable: Sequence[str] = (),
        engine: Opener = Session,
        seconds: float = 0.0,
        given: bool = False,
    ) -> None:
        self.given = given  # the samples are the user's own, not ours
        self.seconds = seconds  # what one run of the reference took, the longest
        self.samples = tuple(samples)
        self.note = note
        self.unstable = tuple(unstable)
        self.engine = engine

    @classmethod
    def gather(
        cls,
        model: Model,
        *,
        inputs: Sequence[Feeds] | None = None,
        seed: int = 0,
        graph: Graph | None = None,
        variants: int = 2,
    ) -> Evidence:
        """Run the reference on the given inputs, else on random ones that it accepts, twice each.

        Small models that onnxruntime cannot run, or runs against the standard (see `_departures`), are run by ONNX's
        own evaluator; the note says so.
        """
        from graphkit._evaluator import Evaluator

        graph = graph or Graph.of(model)
        doubt, failure, exactly = departure(graph), None, _permissions.note(model)
        if not doubt:
            try:
                evidence = cls._gather(Session, model, graph, inputs, seed, variants)
                evidence.note = "; ".join(part for part in (evidence.note, exactly) if part)
                return evidence
            except (UsageError, OutputError):
                raise  # nothing is wrong with the model
            except GraphkitError as error:
                doubt, failure = error.message, error
        try:
            evidence = cls._gather(Evaluator, model, graph, inputs, seed, variants)
            why = f"the reference is ONNX's own evaluator: {doubt}"
        except GraphkitError:
            if failure is not None:
                raise failure from None
            evidence = cls._gather(Session, model, graph, inputs, seed, variants)
            why = f"nothing better was found: {doubt}"
        evidence.note = f"{evidence.note}; {why}".lstrip("; ")
        return evidence

    @classmethod
    def _gather(
        cls,
        engine: Opener,
        model: Model,
        graph: Graph,
        inputs: Sequence[Feeds] | None,
        seed: int,
        variants: int,
    ) -> Evidence:
        note, probes, given = "", frozenset[int](), inputs is not None
        if inputs is None:
            with engine(model) as session:
                found = usable_inputs(model, graph, seed=seed, variants=variants, engine=session)
            inputs, note = [*found.samples, *found.probes], found.note
            probes = frozenset(range(len(found.samples), len(inputs)))
        tied = index_outputs(graph)
        scores = [name for name, _ in tied.values() if name not in graph.inputs]
        names = list(dict.fromkeys([*graph.outputs, *scores]))
        samples, unstable, seconds = [], [], 0.0
        with engine(model, outputs=names if tied else None) as session:
            for number, feeds in enumerate(inputs):
                fitting = check_feeds(session.input_specs, feeds)
                start = time.perf_counter()
                result = reference(session, fitting)
                seconds = max(seconds, time.perf_counter() - start)
                unstable += [name for name in result.unstable if name in graph.outputs]
                expected = {name: result.outputs[name] for name in graph.outputs}
                values = {**fitting, **result.outputs}
                ties = {name: (values[source], axis) for name, (source, axis) in tied.items()}
                samples.append(Sample(fitting, expected, ties, number in probes))
        if _drift.quantizes(graph):
            moved = _drift.moved(model, engine, [(sample.feeds, sample.expected) for sample in samples])
            samples = [replace(sample, drift=drift) for sample, drift in zip(samples, moved, strict=True)]
        return cls(samples, note, list(dict.fromkeys(unstable)), engine, seconds, given)

    @cached_property
    def worthless(self) -> str:
        """Why nothing can be proven with this evidence; empty when something can."""
        if self.unstable:
            names = ", ".join(f"'{name}'" for name in self.unstable)
            why = "random or in training mode"
            return f"the reference differs from itself in a second run (outputs {names}): {why}"
        return "" if self.samples else "there are no samples"

    def judge(
        self, run: Callable[[Feeds], Mapping[str, Array]], tolerance: Tolerance, *, squeeze: bool = False
    ) -> Proof:
        """Run a candidate on all samples and compare. Errors of `run` are the caller's."""
        return self.judge_outputs((run(sample.feeds) for sample in self.samples), tolerance, squeeze=squeeze)

    def judge_outputs(
        self, outputs: Iterable[Mapping[str, Array]], tolerance: Tolerance, *, squeeze: bool = False
    ) -> Proof:
        """Compare what a candidate computed from each sample, in their order.

        Worthless evidence can still show that a candidate is wrong: by the outputs that are not random, and the
        shapes of those that are. It never shows that one is right.
        """
        checks = []
        for sample, actual in zip(self.samples, outputs, strict=True):
            expected = {name: self._settled(name, array, actual) for name, array in sample.expected.items()}
            fair = _drift.allowing(tolerance, sample.drift)
            comparison = compare(expected, actual, fair, squeeze=squeeze, ties=sample.ties, finite_only=sample.probe)
            checks.append(Check(sample.shapes, comparison))
        moved = max((sample.drift for sample in self.samples), default=0.0)
        notes = (self.note, _drift.note(tolerance, moved), _weakness(checks))
        proof = Proof(tuple(checks), "; ".join(part for part in notes if part))
        if proof.ok and (self.worthless or all(o.vacuous for check in checks for o in check.comparison.outputs)):
            return Proof(note=self.worthless or "the outputs have no finite values, or none at all, on these samples")
        return proof

    def _settled(self, name: str, expected: Array, actual: Mapping[str, Array]) -> Array:
        """What to compare with: for an output that is random, the candidate's own values in the right shape."""
        if name not in self.unstable or name not in actual or actual[name].size != expected.size:
            return expected
        return actual[name].reshape(expected.shape)

    def judge_model(self, model: Model, tolerance: Tolerance) -> Proof:
        """Judge an ONNX model in onnxruntime; element types must be the same too, unlike in MNN.

        One that does not run at all is different, with the reason.
        """
        try:
            with self.engine(model) as session:
                proof = self.judge(session.run, tolerance)
        except OutputError:
            raise
        except GraphkitError as error:
            return Proof(note=self.note, fault=f"the result does not run: {error}")
        retyped = (
            f"output '{output.name}' is {output.dtype} instead of {output.expected_dtype}"
            for check in proof.checks
            for output in check.comparison.outputs
            if output.dtype is not None and output.dtype != output.expected_dtype
        )
        return replace(proof, fault=next(retyped, ""))


def _weakness(checks: Sequence[Check]) -> str:
    """What a verdict is worth less for: outputs that passed by the absolute tolerance alone."""
    small = dict.fromkeys(o.name for check in checks for o in check.comparison.outputs if o.ok and o.by_floor)
    if not small:
        return ""
    names = ", ".join(f"'{name}'" for name in small)
    return f"{names}: values so small that only the absolute tolerance was applied; other --inputs tell more"


def index_outputs(graph: Graph) -> dict[str, tuple[str, int]]:
    """Outputs that are indices chosen by ArgMax, ArgMin or TopK: the scores they index, and the axis."""
    found = {}
    for name in graph.outputs:
        node = graph.producer(name)
        while node is not None and node.op in ("Cast", "Identity"):
            node = graph.producer(node.inputs[0])
        if node is not None and (node.op in ("ArgMax", "ArgMin") or (node.op == "TopK" and len(node.outputs) > 1)):
            picks = node.op != "TopK" or name == node.outputs[1] or graph.producer(name) is not node
            scores = node.inputs[0]
            # ArgMax's choice among equal inputs is the standard's; TopK's too, but no detector relies on it.
            if picks and (graph.producer(scores) is not None or (node.op == "TopK" and scores in graph.inputs)):
                found[name] = (scores, int(node.attr("axis", -1 if node.op == "TopK" else 0)))
    return found

"""Evidence that a candidate computes what the reference does: samples, reference outputs, verdicts.

A reference that differs from itself in a second run (random operators, training mode) proves nothing; then
the proof is "none" and says why.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, Literal

import numpy as np
import numpy.typing as npt

from graphkit.compare import Comparison, Ties, Tolerance, compare
from graphkit.errors import GraphkitError
from graphkit.graph import Graph
from graphkit.inputs import check_feeds, usable_inputs
from graphkit.model import Model
from graphkit.runtime import Session, reference

Array = npt.NDArray[Any]
Feeds = Mapping[str, Array]


@dataclass(frozen=True)
class Sample:
    """Inputs and what the reference computes from them; `ties` as in `compare`."""

    feeds: Feeds
    expected: dict[str, Array]
    ties: Ties

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
        for check in self.checks:
            worst = check.comparison.worst
            if worst is not None and not worst.ok:
                return f"output '{worst.name}': {worst.reason} at input shapes {shape_text(check.shapes)}"
        return "" if self.checks else self.note

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

    def __init__(self, samples: Sequence[Sample], note: str = "", unstable: Sequence[str] = ()) -> None:
        self.samples = tuple(samples)
        self.note = note
        self.unstable = tuple(unstable)

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
        """Run the reference on the given inputs, else on random ones that it accepts, twice each."""
        graph = graph or Graph.of(model)
        note = ""
        if inputs is None:
            found = usable_inputs(model, graph, seed=seed, variants=variants)
            inputs, note = found.samples, found.note
        tied = index_outputs(graph)
        names = list(dict.fromkeys([*graph.outputs, *(scores for scores, _ in tied.values())]))
        samples, unstable = [], []
        with Session(model, outputs=names if tied else None) as session:
            for feeds in inputs:
                fitting = check_feeds(session.input_specs, feeds)
                result = reference(session, fitting)
                unstable += [name for name in result.unstable if name in graph.outputs]
                expected = {name: result.outputs[name] for name in graph.outputs}
                ties = {name: (result.outputs[scores], axis) for name, (scores, axis) in tied.items()}
                samples.append(Sample(fitting, expected, ties))
        return cls(samples, note, list(dict.fromkeys(unstable)))

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
        if self.worthless:
            return Proof(note=self.worthless)
        checks = []
        for sample in self.samples:
            actual = run(sample.feeds)
            comparison = compare(sample.expected, actual, tolerance, squeeze=squeeze, ties=sample.ties)
            checks.append(Check(sample.shapes, comparison))
        return Proof(tuple(checks), self.note)

    def judge_model(self, model: Model, tolerance: Tolerance) -> Proof:
        """Judge an ONNX model in onnxruntime; element types must be the same too, unlike in MNN.

        One that does not run at all is different, with the reason.
        """
        if self.worthless:
            return Proof(note=self.worthless)
        try:
            with Session(model) as session:
                proof = self.judge(session.run, tolerance)
        except GraphkitError as error:
            return Proof(note=self.note, fault=f"the result does not run: {error}")
        retyped = (
            f"output '{output.name}' is {output.dtype} instead of {output.expected_dtype}"
            for check in proof.checks
            for output in check.comparison.outputs
            if output.dtype is not None and output.dtype != output.expected_dtype
        )
        return replace(proof, fault=next(retyped, ""))


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
            if picks and graph.producer(scores) is not None:
                found[name] = (scores, int(node.attr("axis", -1 if node.op == "TopK" else 0)))
    return found


def default_tolerance(graph: Graph) -> Tolerance:
    """What equal means for a rewritten graph: 1e-4 of the largest value, 2e-2 when it has half floats."""
    halves = (10, 16)  # TensorProto.FLOAT16, BFLOAT16
    low = any(info.type.tensor_type.elem_type in halves for info in graph.output_infos.values())
    low = low or any(weight.data_type in halves for weight in graph.initializers.values())
    return Tolerance(rtol=2e-2 if low else 1e-4)

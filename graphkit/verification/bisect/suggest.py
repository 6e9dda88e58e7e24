"""What avoids a fault: passes of ours, sizes that are bound, flags of the converter, layers that stay float.

Nothing is suggested that was not tried: first on the small model that shows the fault, then, all suggestions
together, on the whole model as it is shipped.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Literal

import numpy as np

from graphkit._scratch import scratch
from graphkit.errors import GraphkitError
from graphkit.graph import Graph
from graphkit.mnn.options import OPTIONS, ConverterOptions, Value
from graphkit.model import Model
from graphkit.optimizer import bound_model, optimize
from graphkit.proof import Evidence, Proof
from graphkit.verification.bisect._case import Case
from graphkit.verification.bisect._lab import GARBAGE, ZEROS, Lab, Values
from graphkit.verification.bisect.conclusions import Conclusion, Witness
from graphkit.verification.bisect.search import Exhausted

Sort = Literal["passes", "bind", "flag", "exclusion"]

_BETTER = 4.0  # times less error than before, in a model that quantization leaves with some

# In the order in which a person would try them: what changes least first.
_PASSES = (
    "fold-constants", "fold-shapes", "canonicalize", "cleanup", "inline-functions", "dequantize-weights",
    "strip-activation-qdq", "spell-for-mnn", "lower-for-mnn", "split-attention", "fuse-layernorm{form=mnn}",
    "fuse-gelu{form=mnn}", "fuse-rmsnorm{form=decomposed}", "fuse-silu", "fuse-conv-bn", "fuse-pad", "fuse-transposes",
    "fuse-matmul-add", "cse", "inline-functions,fold-constants", "fold-constants,lower-for-mnn", "mnn",
)  # fmt: skip
_FLAGS: tuple[tuple[str, Value], ...] = (
    ("convertMatmulToConv", False), ("useOriginRNNImpl", True), ("groupConvNative", True), ("optimizePrefer", 1),
)  # fmt: skip


@dataclass(frozen=True)
class Suggestion:
    """Something that avoids a fault.

    text: what a user types, or does. passes, bind, options: the same for us; an option that is None is left out.
    excluded: MNN operators that stay float. alone: the error that is left where the fault was shown by itself, None
    when that was not tried. before, error: the outputs of the whole model without and with all suggestions, None when
    not tried (or when nothing came out); l2: their relative L2, without and with them.
    right: they are right then; works: so, or far better.
    """

    sort: Sort
    text: str
    passes: str = ""
    bind: Mapping[str, int] = field(default_factory=dict)
    options: Mapping[str, Value | None] = field(default_factory=dict)
    excluded: tuple[str, ...] = ()
    alone: float | None = None
    before: float | None = None
    error: float | None = None
    l2: tuple[float, float] | None = None
    works: bool = False
    right: bool = False

    def to_dict(self) -> dict[str, Any]:
        """A JSON-able dictionary; errors that are not finite are null."""
        numbers = {name: getattr(self, name) for name in ("alone", "before", "error")}
        return {
            "sort": self.sort, "text": self.text, "passes": self.passes, "bind": dict(self.bind),
            "options": dict(self.options), "excluded": list(self.excluded), "works": self.works,
            **{name: value if value is not None and np.isfinite(value) else None for name, value in numbers.items()},
        }  # fmt: skip


AGAIN = Suggestion("passes", "converting the model again")
EVERYTHING = Suggestion("passes", "--passes mnn (what convert does by default)", passes="mnn")


def alone(
    conclusion: Conclusion, lab: Lab, *, mnn_op: str = "", sizes: Mapping[str, int] | None = None
) -> Suggestion | None:
    """The first thing that avoids a fault where it shows by itself; None when nothing does, or nothing shows it.

    mnn_op: the quantized MNN operator at fault, if it is one. sizes: sizes of the model's named dims in the sample.
    Raises Exhausted when the lab's budget ends.
    """
    witness = conclusion.witness
    if witness is None:
        return None
    for suggestion in _candidates(witness, lab, mnn_op if conclusion.kind == "quantization" else "", sizes or {}):
        error = _tried(witness, suggestion, lab, luck=bool(conclusion.note))
        if error is not None:
            return replace(suggestion, alone=error)
    return None


def repeated(conclusion: Conclusion, found: Sequence[Suggestion | None], lab: Lab) -> Suggestion | None:
    """One of the suggestions for other faults that avoids this one too; None when none does. Raises as `alone`."""
    witness = conclusion.witness
    if witness is None:
        return None
    for suggestion in dict.fromkeys(one.text for one in found if one is not None and not one.excluded):
        known = next(one for one in found if one is not None and one.text == suggestion)
        error = _tried(witness, known, lab, luck=bool(conclusion.note))
        if error is not None:
            return replace(known, alone=error)
    return None


def _candidates(witness: Witness, lab: Lab, mnn_op: str, sizes: Mapping[str, int]) -> Iterator[Suggestion]:
    options = lab.options
    if mnn_op:
        yield Suggestion(
            "exclusion", f"leave '{mnn_op}' float (bits 0 in a --compressionParamsFile)", excluded=(mnn_op,)
        )
    for name, value in options.values:
        if OPTIONS[name].kind in ("flag", "switch") and value:
            yield Suggestion("flag", f"leave --{name} out", options={name: None})
    for passes in _PASSES:
        lab.check()
        if _changes(witness.model, passes):
            yield Suggestion("passes", f"--passes {passes}", passes=passes)
    graph = Graph.of(witness.model)
    dims = {dim for name in graph.inputs for dim in graph.shape(name) or () if isinstance(dim, str)}
    for dim in sorted(dims & sizes.keys()):
        yield Suggestion("bind", f"--bind {dim}={sizes[dim]}", bind={dim: sizes[dim]})
    for name, value in _FLAGS:
        if options.get(name) != value:
            spelled = f"--{name}" if OPTIONS[name].kind == "flag" else f"--{name}={int(value)}"
            yield Suggestion("flag", f"converter flag {spelled}", options={name: value})


def _changes(model: Model, passes: str) -> bool:
    """True when the passes change anything."""
    try:
        result = optimize(model, passes, verify="none")
    except GraphkitError:
        return False
    return any(record.rewrites for record in result.report.records)


def _tried(witness: Witness, suggestion: Suggestion, lab: Lab, *, luck: bool) -> float | None:
    """The error that is left; None when the fault is still there."""
    worst = 0.0
    for memory in (ZEROS, GARBAGE) if luck else (0,):
        with lab.filled(memory), scratch("suggest") as folder:
            try:
                model, options = applied([suggestion], witness.model, lab.options, Path(folder))
                trial = lab.attempt(model, witness.feeds, options=options)
            except GraphkitError:
                return None
        if trial.failure is not None:
            return None
        verdict = trial.verdict(witness.expected, witness.tolerance)
        if not verdict.ok or verdict.worst is None:
            return None
        worst = max(worst, verdict.worst.max_error)
    return worst


def applied(
    suggestions: Sequence[Suggestion], model: Model, options: ConverterOptions, folder: Path
) -> tuple[Model, ConverterOptions]:
    """A model and options with suggestions followed; a file of layers that stay float goes to `folder`.

    Raises what passes raise.
    """
    bind = {name: size for suggestion in suggestions for name, size in suggestion.bind.items()}
    model = bound_model(model, bind)
    passes = ",".join(dict.fromkeys(part for s in suggestions for part in _split(s.passes)))
    if passes:
        model = optimize(model, passes, verify="none").model
    values: dict[str, Value | None] = dict(options.values)
    for suggestion in suggestions:
        values |= suggestion.options
    excluded = [op for suggestion in suggestions for op in suggestion.excluded]
    if excluded:
        path = folder / "layers.json"
        path.write_text(json.dumps(layers_file(excluded, options)), encoding="utf-8")
        values["compressionParamsFile"] = str(path)
    return model, ConverterOptions.of(options.framework, values)


def _split(passes: str) -> list[str]:
    return passes.split(",") if passes else []


def layers_file(excluded: Sequence[str], options: ConverterOptions) -> dict[str, Any]:
    """MNN's file of layers in which some stay float: 0 bits (measured, MNN 3.6.1; 16 and 32 still quantize)."""
    weight = {"bits": 0, "name": "", "asymmetric": bool(options.get("weightQuantAsymmetric")), "block_size": 0}
    layers = [{"weight": [weight], "op_name": name, "subgraph_name": ""} for name in excluded]
    params = {"round_mode": "ROUNDING", "layer": layers}
    return {"version": "2.0", "for_guide": False, "algo": [{"type": "QUANTIZE", "quantParams": params}]}


def together(suggestions: Sequence[Suggestion], case: Case, before: tuple[float, float]) -> tuple[Suggestion, ...]:
    """Follow all suggestions on the whole model, convert it, and say in each what its outputs are then.

    before: the error of the outputs now, and their relative L2. Samples of other sizes than the ones that are bound
    are left out. They come back as they were when it does not work, or there is no time for it.
    """
    model, lab = case.model, case.lab
    fitting = [sample for sample in case.evidence.samples if fits(model, sample.feeds, suggestions)]
    if not suggestions or not fitting:
        return tuple(suggestions)
    with scratch("suggest") as folder:
        try:
            changed, options = applied(suggestions, model, lab.options, Path(folder))
        except GraphkitError:
            return tuple(suggestions)
        made = Path(folder) / "model.mnn"
        try:
            if case.convert(changed, made, options) is not None:
                return tuple(suggestions)
            trial = lab.run(made, [sample.feeds for sample in fitting])
        except Exhausted:
            return tuple(suggestions)
    if trial.failure is not None:
        return tuple(suggestions)
    proof = Evidence(fitting).judge_outputs(trial.runs, case.tolerance, squeeze=True)
    error, distance = judged(proof)
    right = proof.kind == "equal"
    works = right or error * _BETTER <= before[0] or distance * _BETTER <= before[1]
    return tuple(
        replace(one, before=before[0], error=error, l2=(before[1], distance), works=works, right=right)
        for one in suggestions
    )


def judged(proof: Proof | None) -> tuple[float, float]:
    """Largest error and largest relative L2 of the outputs; infinite when there are none."""
    if proof is None or not proof.checks:
        return float("inf"), float("inf")
    distances = [output.rel_l2 for check in proof.checks for output in check.comparison.outputs]
    return proof.max_error, max((d for d in distances if d == d), default=float("inf"))


def fits(model: Model, feeds: Values, suggestions: Sequence[Suggestion]) -> bool:
    """True when a sample has the sizes that suggestions bind."""
    bind = {name: size for suggestion in suggestions for name, size in suggestion.bind.items()}
    graph = Graph.of(model)
    for name, array in feeds.items():
        for dim, size in zip(graph.shape(name) or (), np.shape(array), strict=False):
            if isinstance(dim, str) and bind.get(dim, size) != size:
                return False
    return True

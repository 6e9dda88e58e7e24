"""Name every layer that a model computes wrong, tell what kind of fault it is, and what avoids it.

The model is converted once, its values are compared while each operator is fed the reference (`layers`), each suspect
is cut out and taken apart alone (`classify`), and each conclusion is held against the model as it is shipped. Where
MNN refuses the model or crashes on it, prefixes tell the node.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

from graphkit import shapes
from graphkit._scratch import scratch
from graphkit.compare import Tolerance
from graphkit.errors import GraphkitError, MnnError, UsageError
from graphkit.graph import Graph
from graphkit.mnn import proving
from graphkit.mnn.fileinfo import read_file_info
from graphkit.mnn.options import ConverterOptions
from graphkit.model import Model, PathLike
from graphkit.optimizer import Bindings, bound_model
from graphkit.proof import Evidence, Feeds, Proof
from graphkit.tolerances import mnn_tolerance
from graphkit.verification.bisect import _altered, _failing, _judge, _onnx_pair, _recheck, suggest
from graphkit.verification.bisect._case import Case
from graphkit.verification.bisect._distinct import distinct
from graphkit.verification.bisect._lab import ZEROS, Lab
from graphkit.verification.bisect.answer import BisectResult, Fault
from graphkit.verification.bisect.search import Exhausted
from graphkit.verification.bisect.types import LayersResult

Progress = Callable[[str], None]


def bisect_layers(
    reference: Model | PathLike,
    candidate: Model | PathLike | None = None,
    *,
    inputs: Sequence[Feeds] | None = None,
    seed: int = 0,
    bind: Bindings | None = None,
    options: ConverterOptions | None = None,
    tolerance: Tolerance | None = None,
    memory: int = 1 << 30,
    timeout: float = 600.0,
    conversions: int = 200,
    seconds: float = 1800.0,
    suggestions: bool = True,
    progress: Progress | None = None,
) -> BisectResult:
    """Which nodes of a model MNN (or another ONNX model) computes wrong, and why.

    reference: an ONNX model. candidate: a .mnn file, an ONNX model, or None to convert the reference as it is, with
    `options`; for a .mnn file options are read from the file unless given. inputs: samples by input name, random ones
    otherwise. tolerance: of the outputs, default as in `convert`. memory: bytes of reference tensors held at once.
    conversions, seconds: after so many, no experiment begins, and one that has begun is ended; the answer is what is
    known by then. Converting and comparing once are no experiments, but their seconds count. suggestions: look for
    what avoids each fault, and try it.

    Raises ModelError and UsageError for bad files and inputs, GraphkitError when onnxruntime cannot run the reference.
    """
    start = time.perf_counter()
    model = distinct(bound_model(reference if isinstance(reference, Model) else Model.load(reference), bind))
    graph = Graph.of(model)
    shapes.infer(graph)
    evidence = Evidence.gather(model, inputs=inputs, seed=seed)
    path = None if candidate is None or isinstance(candidate, Model) else Path(candidate)
    known = options or (_altered.options_of(path) if path is not None and _is_mnn(path) else ConverterOptions.of())
    lab = Lab(known, timeout, conversions, seconds)
    wanted = tolerance or mnn_tolerance(graph, halved=bool(known.get("fp16")))
    case = Case(model, graph, evidence, lab, wanted, memory, progress or _silent)
    if isinstance(candidate, Model) or (path is not None and not _is_mnn(path)):
        other = candidate if isinstance(candidate, Model) else Model.load(path or "")
        result = _onnx_pair.against_onnx(case, other)
    else:
        with scratch("bisect") as folder:
            result = _Bisection(case, path, Path(folder), suggestions).run()
    if lab.cut:
        told = "the budget for experiments is used up: conclusions may be rough"
        result = replace(result, note="; ".join(part for part in (result.note, told) if part))
    case.seconds["all"] = time.perf_counter() - start
    return replace(
        result, whole_conversions=case.whole, small_conversions=lab.made - case.whole, seconds=case.seconds,
        reference=model.path, candidate=candidate.path if isinstance(candidate, Model) else path,
    )  # fmt: skip


def _is_mnn(path: Path) -> bool:
    return path.suffix.lower() == ".mnn"


def _silent(step: str) -> None:
    return None


class _Bisection:
    """One reference, one .mnn file."""

    def __init__(self, case: Case, given: Path | None, folder: Path, suggestions: bool) -> None:
        self.case, self.given, self.folder, self.suggestions = case, given, folder, suggestions

    def run(self) -> BisectResult:
        """The answer."""
        case = self.case
        candidate = self.given or self.folder / "model.mnn"
        if self.given is None:
            case.progress("converting")
            # Zeros are what memory that nobody wrote mostly holds: a fault that reads it is there each time.
            with case.lab.filled(ZEROS):
                failure = case.convert(case.model, candidate, required=True)
            if failure is not None:
                return self._suggested(_failing.converter(case, failure))
        read_file_info(candidate)
        case.progress("comparing outputs")
        try:
            proof = proving.judge(case.evidence, candidate, case.tolerance, timeout=case.lab.timeout)
        except UsageError as error:
            raise UsageError(error.message, file=candidate, tensor=error.tensor, hint=error.hint) from error
        except MnnError as error:
            if self.given is not None:
                return self._suggested(_failing.given(case, error, candidate, self.folder))
            return self._suggested(_failing.runtime(case, error))
        case.progress("comparing layers")
        table = self._table(candidate, proof)
        result = _judge.against_mnn(case, candidate, table, proof, given=self.given is not None, folder=self.folder)
        return self._suggested(self._rechecked(result, candidate, proof), proof)

    def _table(self, candidate: Path, proof: Proof) -> LayersResult:
        """The table; an empty one, with the reason, when MNN cannot be watched."""
        try:
            return self.case.table(candidate, self.case.telling(proof), required=True)
        except UsageError:
            raise
        except GraphkitError as error:
            return LayersResult((), (), forced=False, note=f"layers cannot be compared: {error.message}")

    def _rechecked(self, result: BisectResult, candidate: Path, proof: Proof) -> BisectResult:
        """Held against the file as shipped: with the faulty values put right, its outputs must be."""
        seen = [fault for fault in result.faults if fault.row is not None and not fault.row.place]
        if not seen or not result.faults or (result.layers is not None and not result.layers.forced):
            return result
        case = self.case
        if case.lab.exhausted:
            case.lab.cut = True
            return result
        sample = _worst_sample(proof) if proof.kind == "different" else seen[0].row.sample if seen[0].row else 0
        tensors = list(dict.fromkeys(name for fault in seen for name in fault.tensors))
        told = _recheck.complete(
            case.graph, case.model, candidate, case.evidence.samples[sample].feeds, tensors, case.tolerance,
            timeout=case.lab.limit,
        )  # fmt: skip
        if told is None:
            return result
        complete, line = told
        if not complete and _is_quantized(result.layers):  # what its codes lose is left
            complete, line = True, f"{line}, as quantization leaves it"
        faults = tuple(replace(fault, rechecked=line) if fault in seen else fault for fault in result.faults)
        note = "" if complete else "something else is wrong that no layer shows by itself"
        return replace(result, faults=faults, note="; ".join(part for part in (result.note, note) if part))

    def _only_in_file(self, fault: Fault) -> bool:
        """True for what a new conversion mends."""
        return self.given is not None and (
            fault.kind == "file" or (fault.kind == "quantization" and fault.found.alone == "right")
        )

    def _suggested(self, result: BisectResult, proof: Proof | None = None) -> BisectResult:
        """With what avoids each fault, tried alone and then all together on the whole model."""
        if not self.suggestions or not result.faults:
            return result
        case = self.case
        case.progress("looking for what avoids it")
        with case.timed("suggestions"):
            found: list[suggest.Suggestion | None] = []
            for fault in result.faults:
                found.append(self._suggestion(fault, found))
            before = suggest.judged(proof)
            distinct = list({one.text: one for one in found if one is not None}.values())
            tried = suggest.together(distinct, case, before)
            if not tried or not all(one.works for one in tried):
                tried = (*tried, *suggest.together([suggest.EVERYTHING], case, before))
        by_text = {one.text: one for one in tried}
        faults = [
            replace(fault, suggestion=replace(by_text[one.text], alone=one.alone) if one else None)
            for fault, one in zip(result.faults, found, strict=True)
        ]
        faults = [_mended(fault) for fault in faults]
        rest = [one for one in tried if one.text == suggest.EVERYTHING.text and one.works]
        return replace(result, faults=tuple(faults), instead=rest[0] if rest else None)

    def _suggestion(self, fault: Fault, before: Sequence[suggest.Suggestion | None]) -> suggest.Suggestion | None:
        """What avoids one fault alone; None when nothing does, or there was no time to try."""
        if self._only_in_file(fault):
            return suggest.AGAIN
        sample = fault.row.sample if fault.row is not None else 0
        op = fault.row.mnn_op if fault.row is not None else ""
        lab = self.case.lab
        try:
            return suggest.repeated(fault.found, before, lab) or suggest.alone(
                fault.found, lab, mnn_op=op, sizes=self.case.sizes(sample)
            )
        except Exhausted:
            return None


def _mended(fault: Fault) -> Fault:
    """What the whole model said to the suggestion, where nothing else could hold the conclusion against it."""
    suggestion = fault.suggestion
    if fault.rechecked or suggestion is None or not suggestion.works or suggestion.error is None:
        return fault
    if not suggestion.right:
        return replace(fault, rechecked="with it avoided the whole model is far better, and not right")
    return replace(fault, rechecked=f"with it avoided the whole model is right ({suggestion.error:.1e})")


def _is_quantized(table: LayersResult | None) -> bool:
    return table is not None and any(row.bits for row in table.rows)


def _worst_sample(proof: Proof) -> int:
    bad = [number for number, check in enumerate(proof.checks) if not check.comparison.ok]
    return bad[0] if bad else 0


__all__: list[str] = ["BisectResult", "Case", "Fault", "bisect_layers"]

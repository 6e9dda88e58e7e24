"""The road: optimize → MNNConvert → load back → compare. What arrives is proven, or nodes at fault are named."""

from __future__ import annotations

import shutil
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from graphkit._scratch import scratch
from graphkit._write import atomic
from graphkit.compare import Tolerance
from graphkit.errors import GraphkitError, MnnError, OutputError, UsageError
from graphkit.graph import Graph
from graphkit.manager import PassRecord
from graphkit.mnn import locate, proving, worker
from graphkit.mnn._told import told
from graphkit.mnn.carry.carrier import Carrier, Trial
from graphkit.mnn.carry.results import Carriage
from graphkit.mnn.convert import ConverterError, run_converter
from graphkit.mnn.fileinfo import read_file_info
from graphkit.mnn.handoff import ready, write
from graphkit.mnn.inquiry import Inquiry, halves
from graphkit.mnn.options import ConverterOptions
from graphkit.mnn.sources import check_source
from graphkit.model import Model, PathLike
from graphkit.optimizer import Bindings, OptimizeResult, Verify, bound_model, gather, optimize
from graphkit.passes._dequantize import DEQUANTIZE
from graphkit.pipeline import Pipeline
from graphkit.proof import Evidence, Feeds, Proof
from graphkit.tolerances import mnn_tolerance

Progress = Callable[[str], None]


@dataclass(frozen=True)
class ConvertResult:
    """A .mnn file and the evidence for it.

    `ops` is the number of MNN operators, `size` the bytes of the file (and its weights file); `seconds` holds
    the time of each step; `optimized` is None when nothing was optimized; `carriage` says what became of weights that
    were quantized in the ONNX model.
    """

    output: Path
    proof: Proof
    ops: int
    size: int
    seconds: Mapping[str, float]
    warnings: tuple[str, ...] = ()
    optimized: OptimizeResult | None = None
    carriage: Carriage = field(default_factory=Carriage)

    def to_dict(self) -> dict[str, Any]:
        """A JSON-able dictionary."""
        return {
            "output": str(self.output),
            "ops": self.ops,
            "bytes": self.size,
            "seconds": {step: round(value, 3) for step, value in self.seconds.items()},
            "warnings": list(self.warnings),
            "proof": self.proof.to_dict(),
            "optimize": self.optimized.to_dict() if self.optimized else None,
            "quantized_weights": self.carriage.to_dict(),
        }


def convert(
    source: Model | PathLike,
    output: PathLike,
    *,
    passes: str | Pipeline | None = "mnn",
    bind: Bindings | None = None,
    options: ConverterOptions | None = None,
    verify: Verify = "end",
    inputs: Sequence[Feeds] | None = None,
    seed: int = 0,
    tolerance: Tolerance | None = None,
    on_mismatch: Literal["rollback", "stop"] = "rollback",
    stop_after: int | None = None,
    keep: bool = False,
    timeout: float = 600.0,
    plugins: Iterable[str] = (),
    watch: Callable[[PassRecord, Graph], None] | None = None,
    progress: Progress | None = None,
    crash_dir: Path | None = None,
) -> ConvertResult:
    """Convert a model to MNN and prove that MNN computes what onnxruntime does.

    source: an ONNX model, or a file of another framework named by `options` (those are converted and loaded
    back; there is no reference to compare them with). passes: pipeline text, None to hand the model over as
    it is. verify: "none" hands over without any proof; "each" also checks after each pass. tolerance: of MNN
    against the original, default 1e-3 of the largest value, 2e-2 with half floats. keep: leave the .mnn file even when
    it computes something else. Other arguments as in `optimize`.

    Raises MnnError when MNN refuses the model, crashes, takes longer than `timeout` seconds, or computes it
    wrong, and when nothing can be proven (random operators): `faults` names the nodes. Then there is no output,
    unless `keep`. Raises what `optimize` raises.
    """
    options = options or ConverterOptions.of()
    progress = progress or _silent
    if options.framework != "ONNX":
        trip = _Trip(Path(output), options, tolerance or Tolerance(), keep, timeout, progress)
        return trip.foreign(Path(str(source)))
    model = source if isinstance(source, Model) else Model.load(source)
    tolerance = tolerance or mnn_tolerance(Graph.of(model), halved=bool(options.get("fp16")))
    trip = _Trip(Path(output), options, tolerance, keep, timeout, progress)
    _refuse_overwrite(model, trip.output)
    faults = locate.no_tensors(Graph.of(model))
    if faults:
        raise MnnError("MNN cannot have this model's inputs and outputs", faults=faults, file=model.path)
    trip.carrier = Carrier.of(model, half_scales=bool(options.get("fp16")))
    trip.inquiry.halved = halves(Graph.of(model))
    if passes is None:
        evidence, excuse = gather(model, bind, inputs, seed) if verify != "none" else (None, _NOT_ASKED)
        return trip.run(bound_model(model, bind), evidence, excuse, None)
    trip.progress("optimizing")
    result = optimize(
        model, passes, bind=bind, verify=verify, inputs=inputs, seed=seed, on_mismatch=on_mismatch,
        stop_after=stop_after, plugins=plugins, watch=watch, crash_dir=crash_dir,
    )  # fmt: skip
    trip.seconds["optimize"] = sum(record.seconds for record in result.report.records)
    evidence, excuse = result.evidence, result.proof.note if verify != "none" else _NOT_ASKED
    if evidence is None and verify != "none":
        evidence = _second_best(result.model, inputs, seed, excuse)
    handed = result.model
    if _is_quantized(handed):  # by a pass: the codes are noted now, and MNNConvert gets floats
        trip.carrier = Carrier.of(handed, half_scales=bool(options.get("fp16")))
        handed = optimize(handed, _FLOATS, verify="none", plugins=plugins).model
    try:
        return trip.run(handed, evidence, excuse, result)
    except MnnError as error:
        raise told(error, result.report.records) from error.__cause__


_FLOATS = "dequantize-weights,fixpoint(fold-constants,cleanup)"


def _is_quantized(model: Model) -> bool:
    """True when weights are behind a DequantizeLinear, in the graph or in a body."""
    graphs = Graph.of(model).walk()
    return any(graph.is_constant(node.inputs[0]) for graph in graphs for op in DEQUANTIZE for node in graph.by_op(op))


def _second_best(model: Model, inputs: Sequence[Feeds] | None, seed: int, excuse: str) -> Evidence | None:
    """What the optimized model computes, for an original that nothing runs; None when it does not run either."""
    try:
        evidence = Evidence.gather(model, inputs=inputs, seed=seed)
    except OutputError:
        raise
    except GraphkitError:
        return None
    note = f"compared with the optimized model, the passes are not verified: {excuse}"
    evidence.note = f"{evidence.note}; {note}".lstrip("; ")
    return evidence


def _silent(step: str) -> None:
    return None


def _refuse_overwrite(model: Model, output: Path) -> None:
    for file in model.store.files():
        if output.exists() and file.exists() and output.samefile(file):
            raise OutputError("would overwrite the model it is made from", file=output)
    if output.is_dir():
        raise OutputError("is a directory; name a file", file=output)


class _Trip:
    """One conversion: the settings, the clock, and the steps."""

    def __init__(
        self,
        output: Path,
        options: ConverterOptions,
        tolerance: Tolerance,
        keep: bool,
        timeout: float,
        progress: Progress,
    ) -> None:
        self.output, self.options, self.keep, self.timeout = output, options, keep, timeout
        self.progress = progress
        self.tolerance = tolerance
        self.seconds: dict[str, float] = {}
        self.carrier = Carrier()
        self.inquiry = Inquiry(options, self.tolerance, timeout, progress, self.seconds)

    def run(
        self, model: Model, evidence: Evidence | None, excuse: str, optimized: OptimizeResult | None
    ) -> ConvertResult:
        """Hand an ONNX model over, prove the result, put it in place.

        Without evidence the excuse says why: _NOT_ASKED, or that nothing runs the original.
        """
        model = ready(model)
        hopeless = self.inquiry.constant(model) or self.inquiry.empty(model)
        if evidence is not None and not evidence.given:
            hopeless = hopeless or self.inquiry.doubles(model)
        if hopeless is not None:
            raise hopeless
        with scratch("road") as name:
            folder = Path(name)
            source, made = folder / "model.onnx", folder / "model.mnn"
            write(model, source)
            self.progress("converting")
            try:
                run = run_converter(source, made, self.options, timeout=self.timeout)
            except ConverterError as error:
                raise self.inquiry.refused(model, error) from error
            self.seconds["convert"] = run.seconds
            info = read_file_info(made)
            if lost := self.inquiry.lost(model, info.outputs):
                raise lost
            made = self.carrier.carry(made, self.seconds)
            proof, failure = self._prove(model, made, evidence, excuse)
            made = self.carrier.carried or made
            if failure is None and run.doubt and proof.kind != "equal":
                failure = self.inquiry.refused(model, ConverterError(run.doubt, log=run.log))
            if failure is None or self.keep:
                self._place(made)
            if failure is not None:
                raise failure
        size = _size(self.output)
        carriage = self.carrier.carriage
        return ConvertResult(self.output, proof, info.op_total, size, self.seconds, run.warnings, optimized, carriage)

    def foreign(self, source: Path) -> ConvertResult:
        """Convert a model of another framework: it must load; there is nothing to compare it with."""
        check_source(source, self.options.framework)
        self.progress("converting")
        with scratch("road") as name:
            made = Path(name) / "model.mnn"
            run = run_converter(source, made, self.options, timeout=self.timeout)
            if run.doubt:
                raise ConverterError(run.doubt, file=source, log=run.log)
            info = worker.info(made, timeout=self.timeout)
            self._place(made)
        note = f"there is no reference for {self.options.framework} models; MNN loads the result"
        return ConvertResult(
            self.output,
            Proof(note=note),
            info.ops,
            _size(self.output),
            {"convert": run.seconds},
            run.warnings,
        )

    def _prove(self, model: Model, made: Path, evidence: Evidence | None, excuse: str) -> tuple[Proof, MnnError | None]:
        """The proof, and the failure to raise when there is one."""
        if evidence is None and excuse == _NOT_ASKED:
            worker.info(made, timeout=self.timeout)
            return Proof(note=excuse), None
        if evidence is None:
            return Proof(note=excuse), self.inquiry.unproven(model, excuse)
        self.progress("verifying")
        start, trial = time.perf_counter(), Trial(evidence, self.tolerance, self.timeout)
        try:
            # MNN hangs on some models; one that onnxruntime runs in no time does not get ten minutes.
            limit = min(self.timeout, _PATIENCE + 200 * evidence.seconds * len(evidence.samples))
            proof = proving.judge(evidence, made, self.tolerance, timeout=limit)
        except UsageError as error:
            return Proof(note=str(error)), self.inquiry.unfit(model, error)
        except MnnError as error:
            if self.carrier.mended(trial, error.message):
                return self._mended(trial)
            spoilt = self.carrier.spoilt(error.message)
            return Proof(note=str(error)), spoilt or self.inquiry.failed(model, evidence, error)
        self.seconds["verify"] = time.perf_counter() - start
        if proof.kind == "none":
            return proof, self.inquiry.unproven(model, proof.note)
        if proof.ok:
            self.carrier.measure(trial)
            return proof, None
        if self.carrier.mended(trial, proof.reason):
            return self._mended(trial)
        kept = f"; kept as {self.output}" if self.keep else ""
        return proof, self.carrier.spoilt(proof.reason) or self.inquiry.wrong(model, evidence, proof, kept)

    def _mended(self, trial: Trial) -> tuple[Proof, None]:
        """The proof of the file in which a few layers are float again."""
        assert self.carrier.carried is not None
        self.carrier.measure(trial)
        proof = proving.judge(trial.evidence, self.carrier.carried, self.tolerance, timeout=self.timeout)
        return proof, None

    def _place(self, made: Path) -> None:
        """Move the file and its weights into place; an existing output survives a failure.

        Weights of an earlier file of this name go when the new one has none: MNN would load them by name.
        """
        weights = made.with_name(made.name + ".weight")
        target = self.output.with_name(self.output.name + ".weight")
        sources = [weights, made] if weights.exists() else [made]
        targets = [target, self.output] if weights.exists() else [self.output]
        with atomic(*targets) as files:
            for file, path in zip(files, sources, strict=True):
                with path.open("rb") as data:
                    shutil.copyfileobj(data, file, 1 << 24)
        if not weights.exists():
            target.unlink(missing_ok=True)


_PATIENCE = 30.0  # seconds that a run of the smallest model may take on a busy machine
_NOT_ASKED = "not asked for"


def _size(path: Path) -> int:
    weights = path.with_name(path.name + ".weight")
    return path.stat().st_size + (weights.stat().st_size if weights.exists() else 0)

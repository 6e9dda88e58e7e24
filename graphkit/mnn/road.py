"""The road: optimize → MNNConvert → load back → compare. What arrives is proven, or nodes at fault are named."""

from __future__ import annotations

import shutil
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from graphkit._scratch import scratch
from graphkit._write import atomic
from graphkit.compare import Tolerance
from graphkit.errors import GraphkitError, MnnError, OutputError, UsageError
from graphkit.graph import Graph
from graphkit.manager import PassRecord
from graphkit.mnn import locate, proving, worker
from graphkit.mnn.convert import ConverterError, run_converter
from graphkit.mnn.fileinfo import read_file_info
from graphkit.mnn.options import ConverterOptions
from graphkit.model import Model, PathLike
from graphkit.optimizer import Bindings, OptimizeResult, Verify, bound_model, gather, optimize
from graphkit.pipeline import Pipeline
from graphkit.proof import Evidence, Feeds, Proof
from graphkit.runtime import Session

Progress = Callable[[str], None]


@dataclass(frozen=True)
class ConvertResult:
    """A .mnn file and the evidence for it.

    `ops` is the number of MNN operators, `size` the bytes of the file (and its weights file); `seconds` holds
    the time of each step; `optimized` is None when nothing was optimized.
    """

    output: Path
    proof: Proof
    ops: int
    size: int
    seconds: Mapping[str, float]
    warnings: tuple[str, ...] = ()
    optimized: OptimizeResult | None = None

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
    against the original, default 1e-3 of the largest value, 2e-2 with fp16. keep: leave the .mnn file even when
    it computes something else. Other arguments as in `optimize`.

    Raises MnnError when MNN refuses the model, crashes, takes longer than `timeout` seconds, or computes it
    wrong: `faults` names the nodes. Then there is no output, unless `keep`. Raises what `optimize` raises.
    """
    options = options or ConverterOptions.of()
    trip = _Trip(Path(output), options, tolerance, keep, timeout, progress or _silent)
    if options.framework != "ONNX":
        return trip.foreign(Path(str(source)))
    model = source if isinstance(source, Model) else Model.load(source)
    _refuse_overwrite(model, trip.output)
    faults = locate.no_tensors(Graph.of(model))
    if faults:
        raise MnnError("MNN cannot have this model's inputs and outputs", faults=faults, file=model.path)
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
    # MNN takes no model without operators; one that the passes folded away altogether goes as it was.
    made = result.model if result.model.proto.graph.node else bound_model(model, bind)
    return trip.run(made, evidence, excuse, result)


def _second_best(model: Model, inputs: Sequence[Feeds] | None, seed: int, excuse: str) -> Evidence | None:
    """What the optimized model computes, for an original that nothing runs; None when it does not run either."""
    try:
        evidence = Evidence.gather(model, inputs=inputs, seed=seed)
    except GraphkitError:
        return None
    note = f"compared with the optimized model, the passes are not verified: {excuse}"
    return Evidence(
        evidence.samples, f"{evidence.note}; {note}".lstrip("; "), evidence.unstable, evidence.engine, evidence.seconds
    )


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
        tolerance: Tolerance | None,
        keep: bool,
        timeout: float,
        progress: Progress,
    ) -> None:
        self.output, self.options, self.keep, self.timeout = output, options, keep, timeout
        self.progress = progress
        self.tolerance = tolerance or Tolerance(rtol=2e-2 if options.get("fp16") else 1e-3)
        self.seconds: dict[str, float] = {}

    @property
    def search_timeout(self) -> float:
        """Seconds for each of the many small steps that look for a node: a hang must not hang us for hours."""
        return min(self.timeout, max(_SEARCH_SECONDS, 10 * sum(self.seconds.values())))

    def run(
        self, model: Model, evidence: Evidence | None, excuse: str, optimized: OptimizeResult | None
    ) -> ConvertResult:
        """Hand an ONNX model over, prove the result, put it in place.

        Without evidence the excuse says why: _NOT_ASKED, or that nothing runs the original.
        """
        if not model.proto.graph.node:
            raise self._constant(model)
        with scratch("road") as name:
            folder = Path(name)
            source, made = folder / "model.onnx", folder / "model.mnn"
            model.save(source)
            self.progress("converting")
            try:
                run = run_converter(source, made, self.options, timeout=self.timeout)
            except ConverterError as error:
                raise self._refused(model, error) from error
            self.seconds["convert"] = run.seconds
            info = read_file_info(made)
            self._check_names(model, info.outputs)
            proof, failure = self._prove(model, made, evidence, excuse)
            if failure is None and run.doubt and proof.kind != "equal":
                failure = self._refused(model, ConverterError(run.doubt, log=run.log))
            if failure is None or self.keep:
                self._place(made)
            if failure is not None:
                raise failure
        size = _size(self.output)
        return ConvertResult(self.output, proof, info.op_total, size, self.seconds, run.warnings, optimized)

    def foreign(self, source: Path) -> ConvertResult:
        """Convert a model of another framework: it must load; there is nothing to compare it with."""
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
            return Proof(note=excuse), self._unproven(model, excuse)
        self.progress("verifying")
        start = time.perf_counter()
        try:
            # MNN hangs on some models; one that onnxruntime runs in no time does not get ten minutes.
            limit = min(self.timeout, _PATIENCE + 200 * evidence.seconds * len(evidence.samples))
            proof = proving.judge(evidence, made, self.tolerance, timeout=limit)
        except UsageError as error:
            return Proof(note=str(error)), self._unfit(model, error)
        except MnnError as error:
            return Proof(note=str(error)), self._failed(model, evidence, error)
        self.seconds["verify"] = time.perf_counter() - start
        if not proof.ok:
            return proof, self._wrong(model, evidence, proof)
        return proof, self._empty(model, evidence)

    def _empty(self, model: Model, evidence: Evidence) -> MnnError | None:
        """Outputs that never have an element: MNN computes them, and its own API fails to read them."""
        graph = Graph.of(model)
        # What is declared counts too: shapes chosen by an input's values are other ones with other values.
        declared = {
            name
            for name, info in graph.output_infos.items()
            for dim in info.type.tensor_type.shape.dim
            if dim.HasField("dim_value") and dim.dim_value == 0
        }
        empty = [n for n in graph.outputs if n in declared or all(s.expected[n].size == 0 for s in evidence.samples)]
        if not empty:
            return None
        reason = "has no elements, and MNN cannot hand over such a result"
        faults = tuple(locate.fault_at(graph, name, f"output '{name}' {reason}") for name in empty)
        return MnnError(f"output '{empty[0]}' {reason}", faults=faults, file=model.path)

    def _unproven(self, model: Model, excuse: str) -> MnnError:
        """MNN takes the model, and nothing tells whether what it computes is right."""
        self.progress("looking for the node")
        graph = Graph.of(model)
        return MnnError(
            "nothing tells whether MNN computes this model right", faults=locate.failing_node(graph, _loads, excuse),
            file=model.path, hint="--verify none hands it over all the same",
        )  # fmt: skip

    def _unfit(self, model: Model, error: UsageError) -> MnnError:
        """MNN's file wants an input that the model does not have, or values that MNN cannot take."""
        graph = Graph.of(model)
        name = error.tensor or next(iter(graph.inputs), "")
        return MnnError(error.message, faults=(locate.fault_at(graph, name, error.message),), file=model.path)

    def _constant(self, model: Model) -> MnnError:
        graph = Graph.of(model)
        reason = "it is a constant or an input; MNN needs an operator that computes it"
        faults = tuple(locate.fault_at(graph, name, f"output '{name}': {reason}") for name in graph.outputs)
        return MnnError("the model computes nothing that MNN could run", faults=faults, file=model.path)

    def _check_names(self, model: Model, outputs: Sequence[str]) -> None:
        missing = [info.name for info in model.proto.graph.output if info.name not in outputs]
        if missing:
            graph = Graph.of(model)
            faults = tuple(locate.fault_at(graph, name, f"MNN's file has no output '{name}'") for name in missing)
            raise MnnError("MNN's converter lost outputs of the model", faults=faults, file=model.path)

    def _refused(self, model: Model, error: ConverterError) -> MnnError:
        """The converter's failure with the nodes it is about."""
        graph = Graph.of(model)
        message, hint = error.message, error.hint
        if error.unsupported_ops:
            faults = locate.nodes_of(graph, error.unsupported_ops)
            message = f"MNN refused {len(faults)} node{'s' if len(faults) != 1 else ''}"
            hint = hint or _REFUSED
        else:
            self.progress("looking for the node")
            faults = locate.failing_node(graph, self._converts, error.message)
        return MnnError(message, faults=faults, log=error.log, file=model.path, hint=hint)

    def _converts(self, model: Model) -> bool:
        """True when MNN's converter takes a model."""
        with scratch("road") as name:
            source = Path(name) / "model.onnx"
            model.save(source)
            try:
                run = run_converter(source, source.with_suffix(".mnn"), self.options, timeout=self.search_timeout)
            except ConverterError:
                return False
        return not run.doubt

    def _failed(self, model: Model, evidence: Evidence, error: MnnError) -> MnnError:
        """MNN converted the model and cannot run it."""
        self.progress("looking for the node")
        graph = Graph.of(model)
        feeds = evidence.samples[error.sample if isinstance(error, worker.RunError) else 0].feeds
        faults = locate.failing_node(graph, lambda part: self._runs(part, feeds), error.message)
        return MnnError(
            f"MNN converted the model but cannot run it: {error.message}", faults=faults, log=error.log,
            file=model.path, hint=_advice(graph),
        )  # fmt: skip

    def _runs(self, model: Model, feeds: Feeds) -> bool:
        """True when MNN converts a model and runs it."""
        try:
            self._outputs(model, feeds)
        except (MnnError, UsageError):
            return False
        return True

    def _outputs(self, model: Model, feeds: Feeds) -> Mapping[str, Any]:
        with scratch("road") as name:
            source = Path(name) / "model.onnx"
            model.save(source)
            made = source.with_suffix(".mnn")
            run_converter(source, made, self.options, timeout=self.search_timeout)
            return worker.run(made, feeds, timeout=self.search_timeout).outputs

    def _wrong(self, model: Model, evidence: Evidence, proof: Proof) -> MnnError:
        """MNN computes something else: name the first node whose value is wrong."""
        self.progress("looking for the node")
        graph = Graph.of(model)
        bad = next(i for i, check in enumerate(proof.checks) if not check.comparison.ok)
        wrong = [output.name for output in proof.checks[bad].comparison.outputs if not output.ok]
        faults = locate.first_wrong(graph, evidence, bad, wrong, self._outputs, self.tolerance)
        kept = f"; kept as {self.output}" if self.keep else ""
        return MnnError(
            f"MNN computes the model wrong: {proof.reason}{kept}", faults=faults, file=model.path, hint=_advice(graph)
        )

    def _place(self, made: Path) -> None:
        """Move the file and its weights into place; an existing output survives a failure."""
        weights = made.with_name(made.name + ".weight")
        target = self.output.with_name(self.output.name + ".weight")
        sources = [weights, made] if weights.exists() else [made]
        targets = [target, self.output] if weights.exists() else [self.output]
        with atomic(*targets) as files:
            for file, path in zip(files, sources, strict=True):
                with path.open("rb") as data:
                    shutil.copyfileobj(data, file, 1 << 24)


def _loads(model: Model) -> bool:
    """True when onnxruntime accepts a model."""
    try:
        Session(model).close()
    except GraphkitError:
        return False
    return True


_PATIENCE = 30.0  # seconds that a run of the smallest model may take on a busy machine
_SEARCH_SECONDS = 20.0
_NOT_ASKED = "not asked for"
_REFUSED = "replace these nodes by a pass of your own: docs/plugins.md shows how"


def _advice(graph: Graph) -> str:
    """What a user can try when MNN gets a graph wrong."""
    dims = {dim: None for name in graph.inputs for dim in graph.shape(name) or () if isinstance(dim, str)}
    without = "leave a pass out with --passes mnn,-NAME"
    return f"fix dynamic dims with {' '.join(f'--bind {dim}=N' for dim in dims)}, or {without}" if dims else without


def _size(path: Path) -> int:
    weights = path.with_name(path.name + ".weight")
    return path.stat().st_size + (weights.stat().st_size if weights.exists() else 0)

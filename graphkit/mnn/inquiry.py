"""What went wrong: a failure of MNN becomes an error that names nodes.

Most answers cost a few more conversions; see `locate` for how nodes are found.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from onnx import TensorProto

from graphkit import _drift
from graphkit._scratch import scratch
from graphkit.compare import Tolerance
from graphkit.errors import GraphkitError, MnnError, UsageError
from graphkit.graph import Graph
from graphkit.mnn import locate, worker
from graphkit.mnn.convert import ConverterError, run_converter
from graphkit.mnn.handoff import write
from graphkit.mnn.options import ConverterOptions
from graphkit.model import Model
from graphkit.passes._dequantize import QUANTIZE
from graphkit.proof import Evidence, Feeds, Proof
from graphkit.runtime import Session

_SEARCH_SECONDS = 20.0  # for each of the many small steps that look for a node, whatever the model took
REPLACE = "replace these nodes by a pass of your own: docs/plugins.md shows how"


class Inquiry:
    """Explains failures of one hand-off.

    timeout: seconds for the whole model; seconds: what its steps took so far (a dict that the hand-off fills). halved:
    the advice where half floats are asked for, see `halves`.
    """

    halved = ""

    def __init__(
        self,
        options: ConverterOptions,
        tolerance: Tolerance,
        timeout: float,
        progress: Callable[[str], None],
        seconds: Mapping[str, float],
    ) -> None:
        self.options, self.tolerance, self.timeout = options, tolerance, timeout
        self.progress, self.seconds = progress, seconds

    @property
    def search_timeout(self) -> float:
        """Seconds for each of the many small steps that look for a node: a hang must not hang us for hours."""
        return min(self.timeout, max(_SEARCH_SECONDS, 10 * sum(self.seconds.values())))

    # -- before anything runs -----------------------------------------------------------------------------

    def constant(self, model: Model) -> MnnError | None:
        """A model that computes nothing."""
        if model.proto.graph.node:
            return None
        graph = Graph.of(model)
        reason = "it is a constant or an input; MNN needs an operator that computes it"
        faults = tuple(locate.fault_at(graph, name, f"output '{name}': {reason}") for name in graph.outputs)
        return MnnError("the model computes nothing that MNN could run", faults=faults, file=model.path)

    def empty(self, model: Model) -> MnnError | None:
        """Outputs that by their shape never have an element: MNN's own API fails to read them."""
        faults = locate.empty_outputs(Graph.of(model))
        return MnnError(faults[0].reason, faults=faults, file=model.path) if faults else None

    def doubles(self, model: Model) -> MnnError | None:
        """Inputs of 64-bit floats: MNN reads them as float32, where large values are infinite."""
        graph = Graph.of(model)
        names = [name for name in graph.inputs if graph.dtype(name) == TensorProto.DOUBLE]
        if not names:
            return None
        reason = "is float64, which MNN takes for float32: beyond 3.4e38 its values become infinite"
        faults = tuple(locate.fault_at(graph, name, f"input '{name}' {reason}") for name in names)
        hint = "export it in float32, or give --inputs: when samples are given they decide"
        return MnnError(f"input '{names[0]}' {reason}", faults=faults, file=model.path, hint=hint)

    def lost(self, model: Model, outputs: Sequence[str]) -> MnnError | None:
        """Outputs that MNN's file does not have."""
        missing = [info.name for info in model.proto.graph.output if info.name not in outputs]
        if not missing:
            return None
        graph = Graph.of(model)
        faults = tuple(locate.fault_at(graph, name, f"MNN's file has no output '{name}'") for name in missing)
        return MnnError("MNN's converter lost outputs of the model", faults=faults, file=model.path)

    # -- after a failure ----------------------------------------------------------------------------------

    def unproven(self, model: Model, excuse: str) -> MnnError:
        """MNN takes the model, and nothing tells whether what it computes is right."""
        self.progress("looking for the node")
        graph = Graph.of(model)
        faults = locate.random_nodes(graph) or locate.named_node(graph, excuse)
        faults = faults or locate.failing_node(graph, _loads, excuse)
        return MnnError(
            f"nothing tells whether MNN computes this model right: {excuse}", faults=faults,
            file=model.path, hint="--verify none hands it over all the same",
        )  # fmt: skip

    def unfit(self, model: Model, error: UsageError) -> MnnError:
        """MNN's file wants an input that the model does not have, or values that MNN cannot take."""
        graph = Graph.of(model)
        name = error.tensor or next(iter(graph.inputs), "")
        return MnnError(error.message, faults=(locate.fault_at(graph, name, error.message),), file=model.path)

    def refused(self, model: Model, error: ConverterError) -> MnnError:
        """The converter's failure with the nodes it is about."""
        graph = Graph.of(model)
        message, hint = error.message, error.hint
        if error.unsupported_ops:
            faults = locate.nodes_of(graph, error.unsupported_ops)
            message = f"MNN refused {len(faults)} node{'s' if len(faults) != 1 else ''}"
            hint = hint or REPLACE
        else:
            self.progress("looking for the node")
            faults = locate.failing_node(graph, self._converts, error.message)
        return MnnError(message, faults=faults, log=error.log, file=model.path, hint=hint)

    def failed(self, model: Model, evidence: Evidence, error: MnnError) -> MnnError:
        """MNN converted the model and cannot run it."""
        self.progress("looking for the node")
        graph = Graph.of(model)
        feeds = evidence.samples[error.sample if isinstance(error, worker.RunError) else 0].feeds
        faults = locate.failing_node(graph, lambda part: self._runs(part, feeds), error.message)
        return MnnError(
            f"MNN converted the model but cannot run it: {error.message}", faults=faults, log=error.log,
            file=model.path, hint=_advice(graph),
        )  # fmt: skip

    def wrong(self, model: Model, evidence: Evidence, proof: Proof, kept: str) -> MnnError:
        """MNN computes something else: name the first node whose value is wrong."""
        self.progress("looking for the node")
        graph = Graph.of(model)
        bad = next(i for i, check in enumerate(proof.checks) if not check.comparison.ok)
        wrong = [output.name for output in proof.checks[bad].comparison.outputs if not output.ok]
        faults = locate.first_wrong(graph, evidence, bad, wrong, self._outputs, self.tolerance)
        hint = self.halved if self.halved and self.options.get("fp16") else _advice(graph)
        return MnnError(
            f"MNN computes the model wrong: {proof.reason}{kept}", faults=faults, file=model.path, hint=hint
        )

    # -- one try ------------------------------------------------------------------------------------------

    def _converts(self, model: Model) -> bool:
        """True when MNN's converter takes a model."""
        with scratch("road") as name:
            source = Path(name) / "model.onnx"
            write(model, source)
            try:
                run = run_converter(source, source.with_suffix(".mnn"), self.options, timeout=self.search_timeout)
            except ConverterError:
                return False
        return not run.doubt

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
            write(model, source)
            made = source.with_suffix(".mnn")
            run_converter(source, made, self.options, timeout=self.search_timeout)
            return worker.run(made, feeds, timeout=self.search_timeout).outputs


def halves(graph: Graph) -> str:
    """What half floats (--fp16) do to a model that quantizes what it computes; empty for others.

    Its scales are stored as halves, up to 2^−11 off: of 255 codes that is an eighth of a step, and codes next to an
    edge become others. Integers of the rounding itself are beyond 65504. MNN has no exact way around.
    """
    if not _drift.quantizes(graph):
        return ""
    pairs = any(inner.by_op(op) for inner in graph.walk() for op in QUANTIZE)
    without = ", or its rounding with --passes strip-activation-qdq,mnn" if pairs else ""
    return f"the model quantizes what it computes, and half floats move its scales and codes: leave --fp16 out{without}"


def _loads(model: Model) -> bool:
    """True when onnxruntime accepts a model."""
    try:
        Session(model).close()
    except GraphkitError:
        return False
    return True


def _advice(graph: Graph) -> str:
    """What a user can try when MNN gets a graph wrong."""
    dims = {dim: None for name in graph.inputs for dim in graph.shape(name) or () if isinstance(dim, str)}
    without = "leave a pass out with --passes mnn,-NAME"
    return f"fix dynamic dims with {' '.join(f'--bind {dim}=N' for dim in dims)}, or {without}" if dims else without

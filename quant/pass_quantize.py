"""The passes `quantize` and `quantize-embeddings`: weights become codes, scales and DequantizeLinear."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import ClassVar

from graphkit.graph import Graph
from graphkit.model import Model
from graphkit.quant.calibration import Calibration, load_calibration
from graphkit.quant.engine import carry_out, checked, summary
from graphkit.quant.layers import Excluded, find_layers
from graphkit.quant.options import Method, QuantizeOptions, ScaleType, parse_layers
from graphkit.quant.plan import Plan, make_plan, read_plan
from graphkit.quant.report import LayerRecord
from graphkit.rewrite import Change, PassResult, Refusal


@dataclass(frozen=True)
class Quantize:
    """Store the weights of Conv, ConvTranspose, Gemm and MatMul, and tables that Gather reads, as 2 to 8 bits.

    This changes values on purpose. Each weight becomes integer codes and scales behind a DequantizeLinear, which
    onnxruntime runs; tables become bytes and a scale a row (see quantize-embeddings). Weights of one output channel
    share a scale, or `block` input channels of it. Methods: `rtn` rounds as MNN's converter does, `mse` finds the
    scales of least squared error, `gptq` makes up for each error in the weights still to come and needs calibration
    data (`calib`). `layers` holds exceptions (`*.lm_head=8;*.down_proj=6b64:gptq;head=float`), `plan` is a file of
    settings. Run it after the fusions: a BatchNormalization folded later would change what was measured.

    Weights that stay float are named with the reason: those of LSTM and GRU, stacks of matrices, computed ones.
    """

    name: ClassVar[str] = "quantize"
    summary: ClassVar[str] = "weights become 2 to 8 bits, scales and DequantizeLinear; values change"
    changes_values: ClassVar[bool] = True

    bits: int = field(default=8, metadata={"help": "bits of a weight, 2 to 8"})
    block: int = field(default=0, metadata={"help": "input channels that share a scale; 0: one scale a channel"})
    method: Method = field(default="rtn", metadata={"help": "rtn, mse or gptq"})
    symmetric: bool = field(default=True, metadata={"help": "no zero points"})
    scales: ScaleType = field(default="float32", metadata={"help": "float16: scales rounded to halves"})
    layers: tuple[str, ...] = field(default=(), metadata={"help": "exceptions: PATTERN=BITS[bBLOCK][a|s][:METHOD]"})
    skip: tuple[str, ...] = field(default=(), metadata={"help": "patterns of layers that stay float"})
    embeddings: bool = field(default=True, metadata={"help": "also tables that Gather reads, with 8 bits"})
    calib: str = field(default="", metadata={"help": "calibration data: .npz, or a folder of arrays, pictures or text"})
    plan: str = field(default="", metadata={"help": "a plan file"})
    damping: float | None = field(default=None, metadata={"help": "of gptq; none: chosen on held-out data"})
    act_order: bool = field(default=False, metadata={"help": "gptq takes columns by importance"})

    def __post_init__(self) -> None:
        self._options()

    def run(self, graph: Graph) -> PassResult:
        """Quantize the graph and all graphs inside it."""
        layers, kept = find_layers(graph)
        if not layers:
            return PassResult(refusals=_refusals("quantize", kept))
        plan = make_plan(layers, kept, self._options(), read_plan(self.plan) if self.plan else None)
        model = graph.to_model()
        return _carried_out(graph, model, plan, load_calibration(self.calib, model) if self.calib else None, self.name)

    def _options(self) -> QuantizeOptions:
        return QuantizeOptions(
            self.bits, self.block, self.method, self.symmetric, self.scales, parse_layers(self.layers), self.skip,
            self.embeddings, self.damping, self.act_order,
        )  # fmt: skip


@dataclass(frozen=True)
class QuantizeEmbeddings:
    """Store tables that Gather reads as INT8 rows with one scale each: Gather, Cast, Mul by the gathered scales.

    This changes values on purpose, by up to half a step of each row. MNN keeps such a table at one byte a number; its
    own quantizer never touches embeddings. A table that a product multiplies with, too, keeps its floats for that.

    Leaves tables that are not matrices, and those that are not read by whole rows.
    """

    name: ClassVar[str] = "quantize-embeddings"
    summary: ClassVar[str] = "tables that Gather reads become INT8 rows with one scale each; values change"
    changes_values: ClassVar[bool] = True

    skip: tuple[str, ...] = field(default=(), metadata={"help": "patterns of tables that stay float"})

    def run(self, graph: Graph) -> PassResult:
        """Quantize the tables of the graph and all graphs inside it."""
        layers, kept = find_layers(graph)
        tables = [layer for layer in layers if layer.kind == "Embedding"]
        kept = [entry for entry in kept if entry.op == "Gather"]
        if not tables:
            return PassResult(refusals=_refusals(self.name, kept))
        plan = make_plan(tables, kept, QuantizeOptions(skip=self.skip))
        return _carried_out(graph, graph.to_model(), plan, None, self.name)


def _carried_out(graph: Graph, model: Model, plan: Plan, data: Calibration | None, name: str) -> PassResult:
    plan = checked(graph, plan, data)
    records = carry_out(graph, model, plan, data)
    changes = tuple(Change(record.name, _described(record)) for record in records)
    counters = dict(Counter(record.kind for record in records))
    return PassResult(changes, _refusals(name, plan.kept), counters, summary(records))


def _described(record: LayerRecord) -> str:
    shape = "×".join(map(str, record.shape))
    sizes = f"{record.float_bytes:,} → {record.nbytes:,} bytes"
    return f"{record.kind} {shape}: {record.setting} by {record.method}, {sizes}, error {record.weight_error:.2g}"


def _refusals(name: str, kept: Sequence[Excluded]) -> tuple[Refusal, ...]:
    return tuple(Refusal(name, entry.name, f"{entry.reason} ({entry.bytes:,} bytes)") for entry in kept)

"""Quantize a model: a plan, codes layer by layer, and the model with the codes in it.

One layer at a time is in memory: weights stay in their file until their turn, codes go to a temporary file.

BatchNormalization and the like are to be folded into the weights first (pass fuse-conv-bn; the presets do it): MNN
folds them too, and what it stores is then what was quantized and measured here.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy.typing as npt

from graphkit.errors import UsageError
from graphkit.graph import Graph
from graphkit.model import Model, PathLike
from graphkit.quant._layer_work import Work
from graphkit.quant._spill import Spill, let_go
from graphkit.quant.calibration import Calibration
from graphkit.quant.codes import Codes
from graphkit.quant.collect import collect, unseen
from graphkit.quant.damping import Data
from graphkit.quant.layers import Excluded, find_layers
from graphkit.quant.options import QuantizeOptions
from graphkit.quant.plan import LayerPlan, Plan, PlanFile, make_plan
from graphkit.quant.report import KindTotal, LayerRecord, kept_dict, totals
from graphkit.quant.write import Writer
from graphkit.weights import WeightStore

Sample = Mapping[str, npt.NDArray[Any]]
Progress = Callable[[int, int, str], None]

MEMORY = 1 << 30  # bytes for Hessians and inputs at a time
HELD_SHARE = 0.2  # of the calibration data: chooses the damping
_SLACK = 256  # bytes of alignment a layer needs in the temporary file


@dataclass(frozen=True)
class Chosen:
    """What a search chose.

    plan: with its settings. codes: those that were measured, by layers' names, to be written as they are; layers that
    have none here get codes made of all data. note: what was measured on what, for people.
    """

    plan: Plan
    codes: Mapping[str, Codes] = field(default_factory=dict)
    note: str = ""


Search = Callable[[Model, Plan, "Calibration | None"], Chosen]


@dataclass(frozen=True)
class QuantizeResult:
    """A quantized model and what was done.

    model: with DequantizeLinear in place of float weights; it runs in onnxruntime. plan: as it was carried out.
    records: one for each layer that was quantized. kept: weights that stayed float, and why. seconds: in all.
    note: what a search measured.
    """

    model: Model
    plan: Plan
    records: tuple[LayerRecord, ...]
    kept: tuple[Excluded, ...]
    seconds: float
    note: str = ""

    @property
    def totals(self) -> tuple[KindTotal, ...]:
        """Sums by kind of layer."""
        return totals(self.records)

    @property
    def nbytes(self) -> int:
        """Bytes of all quantized weights in a .mnn file."""
        return sum(record.nbytes for record in self.records)

    def to_dict(self) -> dict[str, Any]:
        """A JSON-able dictionary."""
        return {
            "layers": [record.to_dict() for record in self.records],
            "totals": [total.to_dict() for total in self.totals],
            "kept": kept_dict(self.kept),
            "bytes": self.nbytes,
            "float_bytes": sum(record.float_bytes for record in self.records),
            "seconds": round(self.seconds, 3),
            "search": self.note or None,
        }


def quantize(
    model: Model | PathLike,
    settings: Plan | QuantizeOptions | None = None,
    *,
    calibration: Calibration | Sequence[Sample] | None = None,
    search: Search | None = None,
    progress: Progress | None = None,
    memory: int = MEMORY,
) -> QuantizeResult:
    """Quantize the weights of a model.

    settings: a plan, or options to make one of; default 8 bits, one scale a channel. calibration: samples, needed for
    gptq; with them the error of each layer's output is measured too. search: changes the plan before it is carried
    out (mixed precision). progress: called with layers done, all layers, and a layer's name. memory: bytes for
    Hessians at a time. The given model is not changed.

    Raises UsageError for options that do not fit the model, ModelError for weights that are NaN or infinite,
    OutputError when the temporary folder is full.
    """
    start = time.perf_counter()
    model = model if isinstance(model, Model) else Model.load(model)
    graph = Graph.of(Model(model.proto, _same_buffers(model.store), model.path))
    for weight in model.weights():
        let_go(weight)  # finding where each weight lies has read around it
    plan = settings if isinstance(settings, Plan) else plan_of(graph, settings)
    data = _calibration(calibration)
    chosen = Chosen(plan) if search is None else search(model, plan, data)
    plan = checked(graph, chosen.plan, data)
    records = carry_out(graph, model, plan, data, progress, memory, chosen.codes)
    kept = [*plan.kept, *(_kept(entry) for entry in plan.layers if entry.setting.is_float)]
    return QuantizeResult(graph.to_model(), plan, tuple(records), tuple(kept), time.perf_counter() - start, chosen.note)


def _same_buffers(store: WeightStore) -> WeightStore:
    """A store over the same weights, whose new ones are gone with the result, not with the model that was given."""
    made = WeightStore()
    made.buffers.extend(store.buffers)
    made._files.update(store._files)
    return made


def plan_of(graph: Graph, options: QuantizeOptions | None = None, file: PlanFile | None = None) -> Plan:
    """The plan for a graph; see `graphkit.quant.plan.make_plan`. Raises UsageError when nothing can be quantized."""
    layers, kept = find_layers(graph)
    if not layers:
        reason = f"; '{kept[0].name}' {kept[0].reason}" if kept else ""
        raise UsageError(f"the model has no weights that can be quantized{reason}", file=graph.model.path)
    return make_plan(layers, kept, options or QuantizeOptions(), file)


def carry_out(
    graph: Graph,
    model: Model,
    plan: Plan,
    data: Calibration | None,
    progress: Progress | None = None,
    memory: int = MEMORY,
    known: Mapping[str, Codes] | None = None,
) -> list[LayerRecord]:
    """Write the codes of all layers of a plan into a graph, each asked for at the graph's gate; records in plan order.

    model: what the graph was made from, for calibration. known: codes that are there already, by layers' names.
    """
    todo = [entry for entry in plan.layers if not entry.setting.is_float]
    records: dict[str, LayerRecord] = {}
    with Spill(graph.store, sum(_room(entry) for entry in todo)) as spill:
        writer = Writer(graph, spill)
        work = Work(graph, writer, plan, known)
        for entry, fed in with_data(model, todo, data, memory):
            if progress is not None:
                progress(len(records), len(todo), entry.layer.name)
            record = work.layer(entry, fed)
            if record is None:
                break
            records[entry.layer.name] = record
    if progress is not None and todo:
        progress(len(todo), len(todo), "")
    return [records[entry.layer.name] for entry in todo if entry.layer.name in records]


def _room(entry: LayerPlan) -> int:
    layer = entry.layer
    blocks = layer.channels // entry.setting.block if entry.setting.block else 1
    return layer.rows * layer.columns + layer.rows * blocks * 8 + _SLACK


def _calibration(data: Calibration | Sequence[Sample] | None) -> Calibration | None:
    if data is None or isinstance(data, Calibration):
        return data
    return Calibration([dict(sample) for sample in data])


def _check_data(plan: Plan, data: Calibration | None) -> None:
    needy = [e for e in plan.layers if e.method == "gptq" and not e.setting.is_float and e.layer.kind != "Embedding"]
    if needy and not data:
        raise UsageError(
            "gptq needs calibration data",
            node=needy[0].layer.name,
            hint="give some with --calib, or use the method mse, which needs none",
        )


def checked(graph: Graph, plan: Plan, data: Calibration | None) -> Plan:
    """The plan as it can be carried out: with `mse` in place of gptq where inputs cannot be seen (in subgraphs).

    Raises UsageError when a layer is to have gptq and there are no data.
    """
    _check_data(plan, data)
    needy = [entry.layer for entry in plan.layers if entry.method == "gptq" and entry.layer.kind != "Embedding"]
    reasons = unseen(graph, needy)
    changed = [
        replace(entry, method="mse", why=f"{entry.why}; mse, not gptq: {reasons[entry.layer.name]}")
        if entry.layer.name in reasons
        else entry
        for entry in plan.layers
    ]
    return replace(plan, layers=tuple(changed))


def with_data(
    model: Model, entries: Sequence[LayerPlan], data: Calibration | None, memory: int
) -> Iterator[tuple[LayerPlan, Data | None]]:
    """Each layer with what it is fed; those that no data reach first. Hessians are made as they are taken."""
    if not data:
        yield from ((entry, None) for entry in entries)
        return
    by_name = {entry.layer.name: entry for entry in entries}
    layers = [entry.layer for entry in entries]
    blind = unseen(model, layers)
    yield from ((by_name[name], None) for name in blind)
    layers = [layer for layer in layers if layer.name not in blind]
    seen, held = data.split(HELD_SHARE)
    if not held.samples:
        for layer, hessian in collect(model, layers, seen.samples, memory=memory):
            yield by_name[layer.name], Data(hessian)
        return
    pairs = zip(
        collect(model, layers, seen.samples, memory=memory // 2),
        collect(model, layers, held.samples, memory=memory // 2),
        strict=True,
    )
    for (layer, first), (_, second) in pairs:
        yield by_name[layer.name], Data(first, second)


def summary(records: Sequence[LayerRecord]) -> tuple[str, ...]:
    """A line for each kind of layer: how many, bytes before and after, mean error of the weights."""
    return tuple(
        f"{total.kind}: {total.layers} layers, {total.float_bytes:,} → {total.nbytes:,} bytes, "
        f"mean error of weights {total.mean_error:.2g}"
        for total in totals(records)
    )


def _kept(entry: LayerPlan) -> Excluded:
    layer = entry.layer
    return Excluded(layer.name, layer.kind, entry.why, entry.float_nbytes, layer.weight)

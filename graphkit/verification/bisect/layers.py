"""The table behind `graphkit verify --layers`: each value of an MNN file beside the reference's.

One run of MNN on each sample, with the reference written over every value that was compared: a row's local error is
that of one MNN operator (and the layout changes in front of it) on right inputs. A second run follows only where a
value may have been held against the wrong tensor.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from graphkit._scratch import scratch
from graphkit.errors import UsageError
from graphkit.graph import Graph
from graphkit.mnn.convert import run_converter
from graphkit.mnn.document.files import Document, read
from graphkit.mnn.handoff import ready, write
from graphkit.mnn.options import ConverterOptions
from graphkit.model import Model, PathLike
from graphkit.optimizer import Bindings, bound_model, optimize
from graphkit.pipeline import Pipeline
from graphkit.proof import Evidence, Feeds
from graphkit.tolerances import computes_in_half
from graphkit.verification.bisect._distinct import distinct
from graphkit.verification.bisect._graphs import Survey
from graphkit.verification.bisect._onnx_candidate import onnx_rows
from graphkit.verification.bisect._runs import Settings
from graphkit.verification.bisect.quantized import schemes
from graphkit.verification.bisect.references import MEMORY
from graphkit.verification.bisect.types import LayerRow, LayersResult


def layers(
    reference: Model | PathLike,
    candidate: Model | PathLike | None = None,
    *,
    inputs: Sequence[Feeds] | None = None,
    seed: int = 0,
    bind: Bindings | None = None,
    passes: str | Pipeline | None = "mnn",
    options: ConverterOptions | None = None,
    memory: int = MEMORY,
    mnn_memory: int = 0,
    timeout: float = 300.0,
) -> LayersResult:
    """Compare an ONNX model with a .mnn file or another ONNX model, value by value, each on right inputs.

    candidate: the .mnn or .onnx file, or an ONNX model (of these, values of equal names are compared); without one the
    reference is converted as `convert` does it, with `passes` and `options`, and the rows are about the optimized
    model. inputs: samples, else random ones that the model accepts (probes left out). memory: bytes that reference
    tensors may take at a time; they lie in a temporary folder otherwise. mnn_memory: MNN's memory mode. timeout:
    seconds for each run of MNN. Raises ModelError and UsageError for bad files, names and inputs, MnnError when MNN
    refuses the model or cannot run it at all.
    """
    start = time.perf_counter()
    model = distinct(bound_model(reference if isinstance(reference, Model) else Model.load(reference), bind))
    samples = [sample.feeds for sample in Evidence.gather(model, inputs=inputs, seed=seed).samples if not sample.probe]
    if isinstance(candidate, Model) or (candidate is not None and Path(candidate).suffix.lower() != ".mnn"):
        other = candidate if isinstance(candidate, Model) else Model.load(candidate)
        return compare_onnx(model, other, samples, memory=memory)
    if candidate is not None:
        made = compare_layers(model, Path(candidate), samples, memory=memory, mnn_memory=mnn_memory, timeout=timeout)
        return replace(made, reference=model.path, candidate=Path(candidate))
    if passes is not None:
        model = optimize(model, passes, verify="none", inputs=inputs, seed=seed).model
    model = ready(model)
    with scratch("layers") as name:
        source, path = Path(name) / "model.onnx", Path(name) / "model.mnn"
        write(model, source)
        run_converter(source, path, options, timeout=max(timeout, 600.0))
        converted = time.perf_counter() - start
        made = compare_layers(model, path, samples, memory=memory, mnn_memory=mnn_memory, timeout=timeout)
    return replace(made, reference=model.path, candidate=None, seconds={"convert": converted, **made.seconds})


def compare_layers(
    model: Model,
    path: Path,
    samples: Sequence[Feeds],
    *,
    memory: int = MEMORY,
    mnn_memory: int = 0,
    timeout: float = 300.0,
) -> LayersResult:
    """The same for a model that was handed to MNN as it is, and the file that came out. Raises as `layers`."""
    start = time.perf_counter()
    if not samples:
        raise UsageError("there are no samples to compare on", file=path, hint="give --inputs")
    document = read(path)
    halved = computes_in_half(Graph.of(model)) or _stores_half(document)
    survey = Survey(document, path, Settings(memory, mnn_memory, timeout), halved, schemes(document, mnn_memory))
    for number, feeds in enumerate(samples):
        survey.main(model, feeds, number)
    shapes = tuple({name: array.shape for name, array in feeds.items()} for feeds in samples)
    return LayersResult(
        tuple(survey.rows), shapes, survey.forced, "; ".join(survey.notes), tuple(survey.unaligned),
        seconds={"layers": time.perf_counter() - start}, candidate=path,
    )  # fmt: skip


def compare_onnx(model: Model, candidate: Model, samples: Sequence[Feeds], *, memory: int = MEMORY) -> LayersResult:
    """The same for two ONNX models, by values of equal names. Raises what onnxruntime raises."""
    start = time.perf_counter()
    halved = computes_in_half(Graph.of(model)) or computes_in_half(Graph.of(candidate))
    rows: list[LayerRow] = []
    for number, feeds in enumerate(samples):
        rows += onnx_rows(model, candidate, feeds, number, memory=memory, halved=halved)
    shapes = tuple({name: array.shape for name, array in feeds.items()} for feeds in samples)
    note = "" if rows else "no value has the same name in both models"
    seconds = {"layers": time.perf_counter() - start}
    return LayersResult(tuple(rows), shapes, note=note, reference=model.path, candidate=candidate.path, seconds=seconds)


def _stores_half(document: Document) -> bool:
    """True when the file stores weights as half floats."""
    return any(table.type.name == "IDSTQuan" and int(table["type"]) == 3 for _, table in document.net.walk())

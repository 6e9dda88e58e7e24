"""The table of layers for a candidate that is an ONNX model: each value that has the same name in both.

Everything that reads such a value reads the reference's instead, as an input: one model then computes every value from
right inputs, in as many runs as the memory bound asks for.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import onnx

from graphkit import shapes
from graphkit._measure import Stats, measure
from graphkit.graph import Graph
from graphkit.mnn.fileinfo import FileOp
from graphkit.mnn.locate import with_outputs
from graphkit.mnn.tracing import OpTrace
from graphkit.model import Model
from graphkit.node import TensorType, make_info
from graphkit.proof import Feeds
from graphkit.verification.bisect import noise
from graphkit.verification.bisect._rows import Rows
from graphkit.verification.bisect.alignment import Alignment, by_tensor
from graphkit.verification.bisect.references import References, chunks, compute, gather, readable
from graphkit.verification.bisect.types import LayerRow

Array = npt.NDArray[Any]


def onnx_rows(
    reference: Model, candidate: Model, feeds: Feeds, sample: int, *, memory: int, halved: bool
) -> list[LayerRow]:
    """Rows of one sample, in the candidate's order. Raises what onnxruntime's runs raise."""
    graph, other = Graph.of(reference), Graph.of(candidate)
    shapes.infer(graph)
    there = set(readable(graph))
    common = [name for name in readable(other) if name in there]
    alignments = [_aligned(other, name) for name in common]
    with gather(reference, feeds, common, memory=memory, graph=graph) as references:
        drifts = noise.drifts(reference, references, common, memory=memory)
        rows = Rows(graph, by_tensor(alignments), references, drifts, sample, halved=halved)
        with gather(candidate, _taken(other, feeds), common, memory=memory) as plain:
            before = {name: _error(references.array(name), plain.array(name)) for name in common}
        traces = [
            _trace(alignments[order], order, references.array(name), array, before[name])
            for order, (name, array) in enumerate(_forced(candidate, references, common, memory))
        ]
        return rows.make(traces, [*feeds], forced=True)


def _aligned(graph: Graph, name: str) -> Alignment:
    node = graph.producer(name)
    assert node is not None
    return Alignment(FileOp(node.op, name, tuple(node.inputs), (name,)), 0, name, (name,), True)


def _taken(graph: Graph, feeds: Feeds) -> dict[str, Array]:
    return {name: array for name, array in feeds.items() if name in graph.inputs}


def _forced(candidate: Model, references: References, names: Sequence[str], memory: int) -> Iterator[tuple[str, Array]]:
    """Each value as the candidate computes it from the reference's values, in order; none is kept."""
    graph = Graph.of(candidate)
    given: dict[str, str] = {name: name for name in graph.inputs}
    for name in names:
        array = references.array(name)
        fed = graph.new_name(f"{name}/reference")
        graph.replace_all_uses(name, fed)
        code = onnx.helper.np_dtype_to_tensor_dtype(array.dtype)
        graph.input_infos[fed] = make_info(fed, TensorType(code, (None,) * array.ndim))
        given[fed] = name
    forced = graph.to_model()
    for chunk in chunks(candidate, _taken(Graph.of(candidate), references.feeds), names, memory):
        part = with_outputs(Graph.of(forced), chunk)
        used = Graph.of(part)
        used.input_infos = {name: info for name, info in used.input_infos.items() if used.is_used(name)}
        feeds = {name: np.asarray(references.array(given[name])) for name in used.input_infos}
        made = compute(used.to_model(), feeds, chunk)
        for name in chunk:
            yield name, made.pop(name)


def _error(expected: Array, actual: Array) -> float:
    if expected.size != actual.size:
        return float("nan")
    stats = measure(expected, actual)
    return float("nan") if stats.nan_mismatch + stats.inf_mismatch else stats.max_error(1e-30)


def _trace(item: Alignment, order: int, expected: Array, actual: Array, before: float) -> OpTrace:
    stats, note = _stats(expected, actual)
    return OpTrace(
        item.op.name, item.op.type, 0, order, tuple(actual.shape), item.start, stats, True, before, item.start, note
    )


def _stats(expected: Array, actual: Array) -> tuple[Stats, str]:
    if expected.shape != actual.shape:
        note = f"its shape is {list(actual.shape)} instead of {list(expected.shape)}"
        return Stats(max_abs=float("inf"), differing=max(expected.size, actual.size)), note
    stats = measure(expected, actual)
    stats.differing = int(np.count_nonzero(expected != actual))
    return stats, ""

"""One layer: its codes by its method, its errors, and its place in the graph."""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import numpy as np

from graphkit.graph import Graph
from graphkit.quant import _columns
from graphkit.quant._extremes import LEAST_SQUARES
from graphkit.quant._planned import Made, Way, stored_scales
from graphkit.quant._rounding import by_pieces
from graphkit.quant._spill import let_go
from graphkit.quant.codes import Array, Codes
from graphkit.quant.collect import output_error
from graphkit.quant.damping import Chooser, Data
from graphkit.quant.embeddings import write_table
from graphkit.quant.plan import LayerPlan, Plan
from graphkit.quant.report import LayerRecord
from graphkit.quant.write import Writer


class Work:
    """Quantizes and writes one layer after another. known: codes that are there already, by layers' names."""

    def __init__(self, graph: Graph, writer: Writer, plan: Plan, known: Mapping[str, Codes] | None = None) -> None:
        self.graph, self.writer, self.plan, self.known = graph, writer, plan, known or {}
        self.chooser = Chooser(plan.act_order)

    def layer(self, entry: LayerPlan, data: Data | None) -> LayerRecord | None:
        """One layer's codes into the graph; None when the gate is closed."""
        start = time.perf_counter()
        layer = entry.layer
        home = self.writer.home(layer)
        users = self.writer.users(layer)
        if not self.graph.allows(users[0], f"'{layer.weight}' in {entry.setting} by {entry.method}"):
            return None
        array = home.constant(layer.weight)
        assert array is not None, "find_layers names constants"
        matrix = layer.matrix(array)
        made = self._made(entry, matrix, data)
        codes, scales = stored_scales(made.codes, entry.scales)
        record = LayerRecord(
            layer.name, layer.kind, layer.shape, entry.setting, made.method, scales, entry.why, entry.float_nbytes,
            replace(entry, scales=scales).nbytes,
            weight_error(matrix, codes),
            output_error(data.all, matrix, codes.values()) if data is not None and data.all.count else None,
            entry.sensitivity, made.damping, len(users),
        )  # fmt: skip
        weight = home.weight(layer.weight)
        write = write_table if layer.kind == "Embedding" else Writer.write
        write(self.writer, layer, codes)
        if weight is not None:
            let_go(weight)
        return replace(record, seconds=time.perf_counter() - start)

    def _made(self, entry: LayerPlan, matrix: Array, data: Data | None) -> Made:
        way = Way(entry.method, self.plan.damping, self.plan.act_order)
        known = self.known.get(entry.layer.name)
        if known is not None:
            return Made(known, way.method_for(data))
        return way.made(entry.layer, matrix, entry.setting, data, self.chooser.damping)


def weight_error(matrix: Array, codes: Codes) -> float:
    """Norm of the difference that codes make to a matrix over its norm; 0 for an all-zero matrix."""
    if codes.zeros is None and _columns.lies_by_columns(matrix) and codes.codes.flags.f_contiguous:
        error, norm = _columns.squares(matrix, codes)
    else:
        with np.errstate(over="ignore"):
            error, norm = _squares(matrix, codes, np.float32)
    if not (LEAST_SQUARES < norm < np.inf and error < np.inf):  # squares that are no float32 numbers
        error, norm = _squares(matrix, codes, np.float64)
    return float((error / norm) ** 0.5) if norm else 0.0


def _squares(matrix: Array, codes: Codes, dtype: type[np.floating[Any]]) -> tuple[float, float]:
    """Sums of squares of the difference and of the matrix."""
    sums: list[tuple[float, float]] = []

    def work(start: int, stop: int) -> None:
        zeros = None if codes.zeros is None else codes.zeros[start:stop]
        difference = Codes(codes.codes[start:stop], codes.scales[start:stop], zeros, codes.bits).values()
        piece = matrix[start:stop].astype(dtype, copy=False)
        difference = difference - piece if difference.dtype != dtype else np.subtract(difference, piece, out=difference)
        sums.append((float(np.vdot(difference, difference)), float(np.vdot(piece, piece))))

    by_pieces(matrix, work)
    error, norm = (sum(column) for column in zip(*sums, strict=True)) if sums else (0.0, 0.0)
    return error, norm

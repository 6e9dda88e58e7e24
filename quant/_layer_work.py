"""One layer: its codes by its method, its errors, and its place in the graph."""

from __future__ import annotations

import time
from dataclasses import replace

import numpy as np

from graphkit.graph import Graph
from graphkit.quant import _columns
from graphkit.quant._quantizer import Quantizer
from graphkit.quant._rounding import by_pieces
from graphkit.quant._spill import let_go
from graphkit.quant.codes import Array, Codes
from graphkit.quant.collect import output_error
from graphkit.quant.damping import Chooser, Data
from graphkit.quant.embeddings import write_table
from graphkit.quant.plan import LayerPlan, Plan
from graphkit.quant.report import LayerRecord
from graphkit.quant.write import Writer

_HALF_ERROR = 2.0**-10  # relative; scales that lose more as halves stay float32


class Work:
    """Quantizes and writes one layer after another."""

    def __init__(self, graph: Graph, writer: Writer, plan: Plan) -> None:
        self.graph, self.writer, self.plan = graph, writer, plan
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
        codes, method, damping = self._codes(entry, matrix, data)
        codes, scales = _scales(entry, codes)
        record = LayerRecord(
            layer.name, layer.kind, layer.shape, entry.setting, method, scales, entry.why, entry.float_nbytes,
            replace(entry, scales="float16" if scales == "float16" else "float32").nbytes,
            weight_error(matrix, codes),
            output_error(data.all, matrix, codes.values()) if data is not None and data.all.count else None,
            entry.sensitivity, damping, len(users),
        )  # fmt: skip
        weight = home.weight(layer.weight)
        write = write_table if layer.kind == "Embedding" else Writer.write
        write(self.writer, layer, codes)
        if weight is not None:
            let_go(weight)
        return replace(record, seconds=time.perf_counter() - start)

    def _codes(self, entry: LayerPlan, matrix: Array, data: Data | None) -> tuple[Codes, str, float | None]:
        """Codes, the method that made them, and GPTQ's damping."""
        layer, setting, method = entry.layer, entry.setting, entry.method
        if method == "gptq" and (data is None or not data.all.count):
            method = "mse"  # a layer that no sample reached
        if method != "gptq" or data is None:
            return Quantizer(method)(layer, matrix, setting, None), method, None
        damping = self.plan.damping or self.chooser.damping(layer, matrix, setting, data)
        quantizer = Quantizer("gptq", {"damping": damping, "act_order": self.plan.act_order})
        return quantizer(layer, matrix, setting, data.all.matrix), method, damping


def _scales(entry: LayerPlan, codes: Codes) -> tuple[Codes, str]:
    """The codes with scales rounded to halves where the plan wants that and they lose little."""
    if entry.scales == "float32":
        return codes, "float32"
    with np.errstate(over="ignore"):
        halves = codes.scales.astype(np.float16).astype(np.float32)
    if not (np.abs(halves - codes.scales) <= _HALF_ERROR * np.abs(codes.scales)).all():
        return codes, "float32"
    return replace(codes, scales=halves), "float16"


def weight_error(matrix: Array, codes: Codes) -> float:
    """Norm of the difference that codes make to a matrix over its norm; 0 for an all-zero matrix."""
    if codes.zeros is None and _columns.lies_by_columns(matrix) and codes.codes.flags.f_contiguous:
        error, norm = _columns.squares(matrix, codes)
        return float((error / norm) ** 0.5) if norm else 0.0
    sums: list[tuple[float, float]] = []

    def work(start: int, stop: int) -> None:
        zeros = None if codes.zeros is None else codes.zeros[start:stop]
        difference = Codes(codes.codes[start:stop], codes.scales[start:stop], zeros, codes.bits).values()
        piece = matrix[start:stop]
        difference -= piece
        sums.append((float(np.vdot(difference, difference)), float(np.vdot(piece, piece))))

    by_pieces(matrix, work)
    error, norm = (sum(column) for column in zip(*sums, strict=True)) if sums else (0.0, 0.0)
    return (error / norm) ** 0.5 if norm else 0.0

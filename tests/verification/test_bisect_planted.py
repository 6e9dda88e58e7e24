"""Planted faults that take more than a row of their own: values that MNN does not show, codes without a name in ONNX.

All the others, on all models: benchmarks/planted.py.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from planted import Plant, changed, constant_scaled, converted, planted, rows_emptied

from fixtures.naturals import natural
from graphkit import shapes
from graphkit.compare import Tolerance
from graphkit.graph import Graph
from graphkit.mnn.document import Document
from graphkit.model import Model
from graphkit.optimizer import optimize
from graphkit.testing import parse
from graphkit.verification.bisect import regions
from graphkit.verification.bisect._lab import Lab
from graphkit.verification.bisect._values import Truth
from graphkit.verification.bisect.answer import BisectResult
from graphkit.verification.bisect.classify import Examiner
from graphkit.verification.bisect.locate_faults import bisect_layers

Paths = Callable[[str], Path]
Feeds = Sequence[Mapping[str, np.ndarray]]
HEAD = "jax2tf_get_logits_/pjit_get_logits_/MagikaV2"


def bisected(source: Path, folder: Path, feeds: Feeds, *plants: Plant, **options: Any) -> BisectResult:
    """A model by way of our passes, with faults in the file that comes out."""
    model, made = converted(optimize(Model.load(source), "mnn", verify="none").model, folder, **options)
    return bisect_layers(model, planted(made, folder / "bad.mnn", *plants), inputs=feeds, suggestions=False)


def test_a_changed_operator_that_mnn_does_not_show_is_one_fault(model_path: Paths, tmp_path: Path) -> None:
    result = bisected(model_path("magika"), tmp_path, natural("magika")[:1], changed(f"{HEAD}/Max:0", "type", 1))
    assert [(fault.node, fault.op, fault.kind) for fault in result.faults] == [(f"{HEAD}/Max", "GlobalMaxPool", "file")]
    assert f"MNN operator '{HEAD}/Max:0' (Pooling3D): main.type is" in result.faults[0].found.reason
    assert len(result.faults[0].tensors) > 1


def test_a_changed_constant_is_blamed_on_what_reads_it(export_path: Paths, tmp_path: Path) -> None:
    feeds = natural("minilm")
    length = feeds[0]["input_ids"].shape[1]
    plant = rows_emptied("bert.embeddings.position_embeddings.weight", length)
    result = bisected(export_path("minilm_eager_ts"), tmp_path, feeds, plant)
    assert [(fault.node, fault.kind) for fault in result.faults] == [
        ("/bert/embeddings/position_embeddings/Gather", "file")
    ]
    assert {row.sample for row in (result.faults[0].row,) if row is not None} == {1}


def test_a_wrong_mask_has_no_size(export_path: Paths, tmp_path: Path) -> None:
    feeds = natural("minilm")[1:]
    result = bisected(export_path("minilm_eager_ts"), tmp_path, feeds, constant_scaled("/bert/Constant_29_output_0", 0))
    assert [fault.node for fault in result.faults] == ["/bert/Where_1"]
    assert "(Where): NaN or infinite in one and not in the other; " in result.answer


def lstm_scale(factor: float) -> Plant:
    """The scales of the weights of every LSTM in the branch for 16 kHz."""

    def plant(document: Document) -> None:
        (op,) = (
            op
            for view in document.graphs()
            if view.name == "If_0_then_branch"
            for op in view.ops
            if op.label("type") == "Convolution" and op["name"].startswith("Convolution")
        )
        quantized = op["main"]["quanParameter"]
        quantized.fields["alpha"] = (quantized["alpha"] * np.float32(factor)).astype("<f4")

    return plant


@pytest.mark.parametrize(("factor", "named"), [(1.0, []), (1.5, ["If_0_then_branch__Inline_0__/decoder/rnn/LSTM"])])
def test_the_codes_of_an_lstm(model_path: Paths, tmp_path: Path, factor: float, named: list[str]) -> None:
    feeds = natural("silero_vad")[:1]
    result = bisected(model_path("silero_vad"), tmp_path, feeds, lstm_scale(factor), weightQuantBits=8)
    assert [fault.node for fault in result.faults] == named
    assert {fault.kind for fault in result.faults} <= {"quantization"}
    assert result.quantized or named


def test_no_piece_is_converted_twice() -> None:
    model = parse("""
        g (float[3,4,2] x, float[2,2] u) => (float[3,4,2] y) <int64[2,2] i = {0, 1, 2, 3}> { y = ScatterND(x, i, u) }
    """)
    graph, lab = Graph.of(model), Lab()
    shapes.infer(graph)
    feeds = {"x": np.ones((3, 4, 2), np.float32), "u": np.full((2, 2), 2, np.float32)}
    found = Examiner(lab, graph, Truth(model, feeds), Tolerance(1e-3)).conclude(regions.between(graph, ["y"], ()))
    assert found is not None
    assert (found.op, found.kind) == ("ScatterND", "operator")
    assert lab.made == 1

"""Sentence encoders down the whole road: torch's sdpa by both exporters, and what onnxruntime's optimizer makes."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from fixtures import exports
from graphkit.graph import Graph
from graphkit.mnn import worker
from graphkit.mnn.road import convert
from graphkit.model import Model
from graphkit.optimizer import optimize
from graphkit.testing import run

Find = Callable[[str], Path]
FUSED = {"Attention": 6, "SkipLayerNormalization": 12, "BiasGelu": 6, "EmbedLayerNormalization": 1}
IDS = np.array([[101, 7592, 2088, 102, 0], [101, 2129, 2024, 2017, 102]], np.int64)
FEEDS = {
    "input_ids": IDS,
    "attention_mask": (IDS > 0).astype(np.int64),
    "token_type_ids": np.zeros_like(IDS),
}


def assert_converts(path: Path, folder: Path) -> None:
    """Convert, and compare the embeddings of two sentences, one of them padded, with onnxruntime."""
    result = convert(path, folder / "m.mnn")
    assert result.proof.kind == "equal"
    assert result.proof.max_error <= 1e-4
    model = Model.load(path)
    feeds = {name: FEEDS[name] for name in Graph.of(model).inputs}
    if any(Graph.of(model).dtype(name) == 6 for name in feeds):
        feeds = {name: array.astype(np.int32) for name, array in feeds.items()}
    for name, want in run(model, feeds).items():
        got = worker.run(folder / "m.mnn", feeds, [name]).outputs[name]
        np.testing.assert_allclose(got.reshape(want.shape), want, atol=1e-4 * float(np.abs(want).max()))


@pytest.mark.model
@pytest.mark.parametrize("kind", ["minilm_sdpa_ts", "minilm_sdpa"])
def test_sdpa_of_both_exporters(kind: str, export_path: Find, tmp_path: Path) -> None:
    assert_converts(export_path(kind), tmp_path)


@pytest.mark.model
def test_what_onnxruntime_fuses(export_path: Find, tmp_path: Path) -> None:
    export_path("minilm_eager_ts")
    path = exports.fused("minilm_eager_ts", heads=12, hidden=384)
    ops = Counter(node.op_type for node in Graph.of(Model.load(path)).nodes if node.domain == "com.microsoft")
    assert ops == FUSED
    left = {node.op for node in Graph.of(optimize(path, "mnn", verify="none").model).nodes if node.domain}
    assert left == set()
    assert_converts(path, tmp_path)


@pytest.mark.parametrize("kind", ["bert2_sdpa_ts", "bert2_sdpa", "qwen2_sdpa_ts", "qwen2_sdpa"])
def test_no_guard_is_left(kind: str, export_path: Find) -> None:
    ops = {node.op for node in Graph.of(optimize(export_path(kind), "mnn", verify="none").model).nodes}
    assert "IsNaN" not in ops


@pytest.mark.parametrize("kind", ["bert2_sdpa_ts", "qwen2_sdpa_ts"])
def test_a_sentence_of_padding_only(kind: str, export_path: Find, tmp_path: Path) -> None:
    """A row of nothing but padding is masked everywhere: torch gives zeros for its attention, and so must MNN."""
    path = export_path(kind)
    model = Model.load(path)
    feeds = {name: FEEDS[name] % 100 for name in Graph.of(model).inputs}
    feeds["attention_mask"] = np.array([[0] * 5, [1, 1, 1, 0, 0]], np.int64)
    convert(path, tmp_path / "m.mnn")
    for name, want in run(model, feeds).items():
        assert np.isfinite(want).all()
        got = worker.run(tmp_path / "m.mnn", feeds, [name]).outputs[name]
        np.testing.assert_allclose(got.reshape(want.shape), want, atol=1e-4 * float(np.abs(want).max()))

"""Losses in plain arithmetic, against ONNX's reference evaluator."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from onnx.reference import ReferenceEvaluator

from graphkit.passes.lower_for_mnn import LowerForMnn
from graphkit.testing import assert_unchanged, graph_of, parse
from tests.in_mnn import assert_right_in_mnn

REDUCTIONS = ["none", "mean", "sum"]


def _model(kind: str, reduction: str, ignored: int | None, weighted: bool, outputs: str = "z") -> str:
    attrs = f'reduction = "{reduction}"' + (f", ignore_index = {ignored}" if ignored is not None else "")
    inputs = "float[3, 5, 2] x, int64[3, 2] t" + (", float[5] w" if weighted else "")
    shape = "3, 2" if reduction == "none" else ""
    typed = f"float[{shape}] z" if shape else "float z"
    typed += ", float[3, 5, 2] p" if "p" in outputs else ""
    return f"g ({inputs}) => ({typed}) {{ {outputs} = {kind}<{attrs}>(x, t{', w' if weighted else ''}) }}"


def _feeds(weighted: bool, ignored: int | None) -> dict[str, np.ndarray]:
    rng = np.random.default_rng(3)
    labels = rng.integers(0, 5, (3, 2))
    labels[0, 1] = 2 if ignored is None else ignored
    feeds: dict[str, np.ndarray] = {"x": rng.standard_normal((3, 5, 2)).astype(np.float32), "t": labels}
    if weighted:
        feeds["w"] = rng.uniform(0.2, 1, 5).astype(np.float32)
    return feeds


@pytest.mark.parametrize("kind", ["NegativeLogLikelihoodLoss", "SoftmaxCrossEntropyLoss"])
@pytest.mark.parametrize("reduction", REDUCTIONS)
@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize("ignored", [None, 2, -3])
def test_losses_equal_the_reference(kind: str, reduction: str, weighted: bool, ignored: int | None) -> None:
    text, feeds = _model(kind, reduction, ignored, weighted), _feeds(weighted, ignored)
    graph = graph_of(text)
    LowerForMnn().run(graph)
    assert not any(node.op == kind for node in graph.nodes)
    want, got = (
        np.asarray(next(iter(ReferenceEvaluator(model.materialized()).run(None, feeds))))
        for model in (parse(text), graph.to_model())
    )
    assert got.dtype == want.dtype
    assert got.shape == np.shape(want)
    np.testing.assert_allclose(got, want, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("opset", [12, 13])
def test_log_probabilities_in_mnn(opset: int, tmp_path: Path) -> None:
    text = _model("SoftmaxCrossEntropyLoss", "mean", 2, True, "z, p")
    assert_right_in_mnn(text, tmp_path, feeds=_feeds(True, 2), opset=opset)


def test_nll_in_mnn(tmp_path: Path) -> None:
    text = _model("NegativeLogLikelihoodLoss", "mean", -3, False)
    feeds = _feeds(False, -3)
    (want,) = ReferenceEvaluator(parse(text).materialized()).run(None, feeds)
    assert_right_in_mnn(text, tmp_path, feeds=feeds, expected={"z": np.asarray(want)})


@pytest.mark.parametrize("kind", ["NegativeLogLikelihoodLoss", "SoftmaxCrossEntropyLoss"])
def test_unknown_number_of_classes(kind: str) -> None:
    text = f"g (float[3, C] x, int64[3] t) => (float z) {{ z = {kind}(x, t) }}"
    assert_unchanged(LowerForMnn(), text, refuses="number of classes")

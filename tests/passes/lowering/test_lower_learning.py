"""Operators of ai.onnx.ml: equal to onnxruntime, and in MNN."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from graphkit.graph import Graph
from graphkit.model import Model
from graphkit.optimizer import optimize
from graphkit.passes.lower_for_mnn import LowerForMnn
from graphkit.testing import assert_equal_outputs, assert_unchanged, parse
from tests.in_mnn import assert_right_in_mnn

ML = {"ai.onnx.ml": 4}
TEXTS = [
    "g (float[n,3] x) => (float[n,3] y) { y = ai.onnx.ml.Binarizer<threshold=0.5>(x) }",
    "g (float[n,4] x) => (float[n,2] y) <int64[2] i = {3, 1}> { y = ai.onnx.ml.ArrayFeatureExtractor(x, i) }",
    "g (float[4] x) => (float[1,2] y) <int64[2] i = {3, 1}> { y = ai.onnx.ml.ArrayFeatureExtractor(x, i) }",
    "g (float[n,2] x) => (float[n,2] y) { y = ai.onnx.ml.Scaler<offset=[1.0,2.0], scale=[0.5,3.0]>(x) }",
    "g (int64[n,2] x) => (float[n,2] y) { y = ai.onnx.ml.Scaler<offset=[1.0], scale=[0.5]>(x) }",
    "g (int64[n,2] x) => (int64[n,2] y) "
    "{ y = ai.onnx.ml.LabelEncoder<keys_int64s=[0,2], values_int64s=[7,-9], default_int64=5>(x) }",
    "g (int64[n] x) => (float[n] y) { y = ai.onnx.ml.LabelEncoder<keys_int64s=[1,2], values_floats=[0.5,-9.0]>(x) }",
]


@pytest.mark.parametrize("text", TEXTS)
def test_equal_to_onnxruntime_and_in_mnn(text: str, tmp_path: Path) -> None:
    before = parse(text, imports=ML)
    made = optimize(before, "lower-for-mnn", verify="none").model
    assert not any(node.domain for node in Graph.of(made).nodes)
    assert_equal_outputs(before, made)
    assert_right_in_mnn(before, tmp_path)


ENCODER = "g (int64[n] x) => (int64[n] y) {{ y = ai.onnx.ml.LabelEncoder<{}>(x) }}"


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        (ENCODER.format('keys_strings=["a"], values_int64s=[1]').replace("int64[n] x", "string[n] x"), "are strings"),
        (ENCODER.format("keys_int64s=[1,1], values_int64s=[1,2]"), "the same one twice"),
        ("g (x) => (float[n,3] y) { y = ai.onnx.ml.Binarizer(x) }", "is unknown"),
        ("g (x) => (float[n,3] y) <int64[1] i = {0}> { y = ai.onnx.ml.ArrayFeatureExtractor(x, i) }", "is unknown"),
    ],
)
def test_refusals(text: str, reason: str) -> None:
    assert_unchanged(LowerForMnn(), text, refuses=reason, imports=ML)


def forest(**more: object) -> Model:
    """Two trees over two features: one of two tests in all modes but MEMBER, one that tests membership."""
    attrs = {
        "n_targets": 2,
        "aggregate_function": 1,
        "post_transform": 0,
        "tree_roots": [0, 6],
        "nodes_featureids": [0, 1, 0, 1, 0, 1, 0],
        "nodes_modes": numpy_helper.from_array(np.array([0, 1, 2, 3, 4, 5, 6], np.uint8)),
        "nodes_splits": numpy_helper.from_array(np.array([0.5, 1, 1, 0, 2, 1, 0], np.float32)),
        "nodes_truenodeids": [1, 3, 5, 0, 2, 4, 6],
        "nodes_trueleafs": [0, 0, 0, 1, 1, 1, 1],
        "nodes_falsenodeids": [2, 4, 1, 3, 5, 0, 7],
        "nodes_falseleafs": [0, 0, 1, 1, 1, 1, 1],
        "leaf_targetids": [0, 1, 0, 1, 0, 1, 0, 1],
        "leaf_weights": numpy_helper.from_array(np.array([1, 2, 3, 4, 5, 6, 70, 80], np.float32)),
        "membership_values": numpy_helper.from_array(np.array([1, 2.5, np.nan], np.float32)),
    }
    node = helper.make_node("TreeEnsemble", ["x"], ["y"], domain="ai.onnx.ml", **{**attrs, **more})
    x = helper.make_tensor_value_info("x", TensorProto.FLOAT, ["n", 2])
    y = helper.make_tensor_value_info("y", TensorProto.FLOAT, ["n", 2])
    imports = [helper.make_opsetid("", 18), helper.make_opsetid("ai.onnx.ml", 5)]
    graph = helper.make_graph([node], "g", [x], [y])
    return Model.from_proto(helper.make_model(graph, opset_imports=imports, ir_version=9))


X = np.array([[a, b] for a in (0, 0.5, 1, 2, 2.5, -1) for b in (-1, 0, 1, 2)], np.float32)


@pytest.mark.parametrize("aggregate", [0, 1])
def test_trees(aggregate: int, tmp_path: Path) -> None:
    model = forest(aggregate_function=aggregate)
    made = optimize(model, "lower-for-mnn", verify="none").model
    assert "ai.onnx.ml::TreeEnsemble" not in {node.op for node in Graph.of(made).nodes}
    assert_equal_outputs(model, made, inputs={"x": X})
    assert_right_in_mnn(model, tmp_path, feeds={"x": X})


@pytest.mark.parametrize(
    ("more", "reason"),
    [
        ({"aggregate_function": 2}, "minimum or maximum"),
        ({"post_transform": 1}, "transforms its scores"),
        ({"nodes_missing_value_tracks_true": [1, 0, 0, 0, 0, 0, 0]}, "missing value"),
    ],
)
def test_tree_refusals(more: dict[str, object], reason: str) -> None:
    text = onnx.printer.to_text(forest().materialized())
    graph = Graph.of(forest(**more))
    result = LowerForMnn().run(graph)
    assert not result.modified
    assert any(reason in refusal.reason for refusal in result.refusals), text

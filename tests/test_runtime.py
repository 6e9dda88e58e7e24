"""Reference runs: sessions on files and models, inner outputs, errors on one line, repeatability."""

from __future__ import annotations

from pathlib import Path

import ml_dtypes
import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper

from graphkit.errors import GraphkitError, ModelError, UsageError
from graphkit.model import Model
from graphkit.runtime import Session, explain, reference


def make(nodes: list[str], *, opset: int = 18) -> onnx.ModelProto:
    """A model from lines of ONNX text, with x: float[N, 4] and y as its output."""
    body = "\n".join(nodes)
    return onnx.parser.parse_model(
        f'<ir_version: 9, opset_import: ["" : {opset}]> g (float[N, 4] x) => (float[N, M] y) {{ {body} }}'
    )


def write(model: onnx.ModelProto, folder: Path) -> Path:
    """Save a model in a test folder."""
    path = folder / "m.onnx"
    onnx.save(model, path)
    return path


X = np.arange(8, dtype=np.float32).reshape(2, 4) - 3


def test_runs_a_file_and_tells_its_inputs(tmp_path: Path) -> None:
    path = write(make(["y = Relu(x)"]), tmp_path)
    with Session(path) as session:
        spec = session.input_specs[0]
        assert (spec.name, spec.dtype, spec.shape) == ("x", np.dtype(np.float32), ("N", 4))
        assert str(spec) == "x: float32[N,4]"
        assert session.output_names == ("y",)
        np.testing.assert_array_equal(session.run({"x": X})["y"], np.maximum(X, 0))


def test_runs_a_model_in_memory_and_leaves_nothing_behind(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    with Session(Model.from_proto(make(["y = Neg(x)"]))) as session:
        np.testing.assert_array_equal(session.run({"x": X})["y"], -X)
    assert list(tmp_path.iterdir()) == []


def test_inner_tensors_can_be_read(tmp_path: Path) -> None:
    path = write(make(["a = Relu(x)", "b = Neg(a)", "y = Exp(b)"]), tmp_path)
    with Session(path, outputs=["b", "y"]) as session:
        got = session.run({"x": X})
    np.testing.assert_array_equal(got["b"], -np.maximum(X, 0))
    assert list(got) == ["b", "y"]


def test_unknown_inner_tensor_is_a_usage_error_with_a_suggestion(tmp_path: Path) -> None:
    path = write(make(["hidden = Relu(x)", "y = Neg(hidden)"]), tmp_path)
    with pytest.raises(UsageError, match="no tensor 'hiden'") as caught:
        Session(path, outputs=["hiden"])
    assert caught.value.hint == "did you mean 'hidden'?"


def test_inner_tensors_of_a_model_with_external_data(tmp_path: Path) -> None:
    model = make(["a = MatMul(x, w)", "y = Relu(a)"])
    w = np.random.default_rng(0).standard_normal((4, 2000)).astype(np.float32)
    model.graph.initializer.append(onnx.numpy_helper.from_array(w, "w"))
    path = tmp_path / "m.onnx"
    onnx.save(model, path, save_as_external_data=True, location="m.bin")
    with Session(path, outputs=["a"]) as session:
        np.testing.assert_allclose(session.run({"x": X})["a"], X @ w, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize(
    ("content", "reason"),
    [(None, "is not there"), (b"\x07junk", "onnxruntime does not accept the model: Protobuf parsing failed")],
)
def test_bad_files_are_model_errors(tmp_path: Path, content: bytes | None, reason: str) -> None:
    path = tmp_path / "m.onnx"
    if content is not None:
        path.write_bytes(content)
    with pytest.raises(ModelError, match=reason):
        Session(path)


def test_invalid_model_names_the_node(tmp_path: Path) -> None:
    model = make(["y = NoSuchOp(x)"])
    model.graph.node[0].name = "odd"
    with pytest.raises(ModelError, match="NoSuchOp") as caught:
        Session(write(model, tmp_path))
    assert caught.value.node == "odd"


def test_run_error_names_the_node_on_one_line(tmp_path: Path) -> None:
    graph = helper.make_graph(
        [helper.make_node("Gather", ["x", "i"], ["y"], name="look")],
        "g",
        [
            helper.make_tensor_value_info("x", TensorProto.FLOAT, [4, 3]),
            helper.make_tensor_value_info("i", TensorProto.INT64, ["n"]),
        ],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, None)],
    )
    path = write(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=9), tmp_path)
    with Session(path) as session, pytest.raises(GraphkitError, match="out of data bounds") as caught:
        session.run({"x": np.ones((4, 3), np.float32), "i": np.array([9])})
    assert caught.value.node == "look"
    assert "\n" not in str(caught.value)


def test_wrong_feeds_are_graphkit_errors(tmp_path: Path) -> None:
    with Session(write(make(["y = Relu(x)"]), tmp_path)) as session:
        for feeds in ({}, {"q": X}, {"x": X.astype(np.int64)}, {"x": X[:, :3]}):
            with pytest.raises(GraphkitError, match="onnxruntime cannot run"):
                session.run(feeds)


def test_bfloat16_inputs_are_fed(tmp_path: Path) -> None:
    model = make(["y = Cast<to = 1>(x)"])
    model.graph.input[0].type.tensor_type.elem_type = TensorProto.BFLOAT16
    with Session(write(model, tmp_path)) as session:
        assert session.input_specs[0].dtype == ml_dtypes.bfloat16
        np.testing.assert_array_equal(session.run({"x": X.astype(ml_dtypes.bfloat16)})["y"], X)


def test_bfloat16_outputs_are_refused_clearly(tmp_path: Path) -> None:
    model = make(["y = Cast<to = 16>(x)"])
    model.graph.output[0].type.tensor_type.elem_type = TensorProto.BFLOAT16
    with Session(write(model, tmp_path)) as session, pytest.raises(ModelError, match="'y' is bfloat16"):
        session.run({"x": X})


def test_outputs_that_are_no_tensors_are_refused_clearly(tmp_path: Path) -> None:
    model = make(["y = SequenceConstruct(x)"])
    del model.graph.output[:]
    model.graph.output.append(helper.make_tensor_sequence_value_info("y", TensorProto.FLOAT, None))
    with Session(write(model, tmp_path)) as session, pytest.raises(ModelError, match="only tensors"):
        session.run({"x": X})


def test_reference_of_a_plain_model_is_deterministic(tmp_path: Path) -> None:
    result = reference(write(make(["a = Log(x)", "y = Sqrt(a)"]), tmp_path), {"x": X})
    assert result.deterministic
    assert np.isnan(result.outputs["y"]).any()


def test_reference_names_random_outputs(tmp_path: Path) -> None:
    result = reference(write(make(["r = RandomNormalLike(x)", "y = Add(x, r)"]), tmp_path), {"x": X})
    assert not result.deterministic
    assert result.unstable == ("y",)


def test_optimization_can_be_turned_on(tmp_path: Path) -> None:
    path = write(make(["a = Identity(x)", "y = Relu(a)"]), tmp_path)
    with Session(path, optimize=True) as session:
        np.testing.assert_array_equal(session.run({"x": X})["y"], np.maximum(X, 0))


@pytest.mark.parametrize(
    ("message", "node", "reason"),
    [
        (
            "[ONNXRuntimeError] : 2 : INVALID_ARGUMENT : Non-zero status code returned while running Gather "
            "node. Name:'g1' Status Message: idx=9 is bad. Some more words that are left out of the message.",
            "g1",
            "idx=9 is bad. Some more words that are left out of the message",
        ),
        (
            "[ONNXRuntimeError] : 1 : FAIL : Node (fb) Op (MatMul) [ShapeInferenceError] Incompatible",
            "fb",
            "Node (fb) Op (MatMul) [ShapeInferenceError] Incompatible",
        ),
        ("", None, "no reason given"),
    ],
)
def test_explain(message: str, node: str | None, reason: str) -> None:
    assert explain(message) == (node, reason)

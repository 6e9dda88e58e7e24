"""The whole road on small models: what arrives is right, what does not names its node."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import pytest

from graphkit.errors import MnnError, ModelError, OutputError
from graphkit.mnn import worker
from graphkit.mnn.options import ConverterOptions
from graphkit.mnn.road import convert
from graphkit.model import Model
from graphkit.optimizer import optimize
from graphkit.testing import parse

MLP = """
g (float[N, 8] x) => (float[N, 4] y)
{
    h = MatMul(x, w)
    a = Add(h, b)
    y = Relu(a)
}
"""


@pytest.fixture
def mlp(tmp_path: Path) -> Path:
    rng = np.random.default_rng(0)
    proto = parse(MLP).proto
    for name, shape in (("w", (8, 4)), ("b", (4,))):
        values = rng.standard_normal(shape).astype(np.float32)
        proto.graph.initializer.append(onnx.numpy_helper.from_array(values, name))
    path = tmp_path / "mlp.onnx"
    Model.from_proto(proto).save(path)
    return path


def save(text: str, path: Path, **header: object) -> Path:
    parse(text, **header).save(path)  # type: ignore[arg-type]
    return path


def test_a_model_arrives_proven_at_two_shapes(mlp: Path, tmp_path: Path) -> None:
    result = convert(mlp, tmp_path / "mlp.mnn")
    assert result.proof.kind == "equal"
    assert len({str(check.shapes) for check in result.proof.checks}) == 2
    assert result.proof.max_error < 1e-5
    assert worker.info(tmp_path / "mlp.mnn").outputs == ("y",)


def test_a_refused_operator_names_every_node(tmp_path: Path) -> None:
    text = "g (float[2, 4] x) => (float[2, 4] y) { a = Relu(x) b = my.domain.Odd(a) y = my.domain.Odd(b) }"
    path = save(text, tmp_path / "odd.onnx", imports={"my.domain": 1})
    with pytest.raises(MnnError) as caught:
        convert(path, tmp_path / "odd.mnn")
    assert [(fault.node, fault.op) for fault in caught.value.faults] == [
        ("b", "my.domain::Odd"),
        ("y", "my.domain::Odd"),
    ]
    assert caught.value.exit_code == 3
    assert not (tmp_path / "odd.mnn").exists()


def test_a_crash_at_run_time_names_the_node(tmp_path: Path) -> None:
    text = "g (float[1, 2, 8, 8] x) => (float[1, 2, 7, 7] y) { a = Relu(x) y = MaxPool<kernel_shape=[2,2]>(a) }"
    path = save(text, tmp_path / "pool.onnx")
    with pytest.raises(MnnError) as caught:
        convert(path, tmp_path / "pool.mnn", passes=None)
    assert [fault.node for fault in caught.value.faults] == ["y"]
    assert not (tmp_path / "pool.mnn").exists()
    assert convert(path, tmp_path / "pool.mnn").proof.kind == "equal"


WRONG = """
g (float[2, 3, 4] x) => (float[2, 3, 1] y)
{
    axes = Constant<value_ints=[2]>()
    a = Relu(x)
    b = ReduceSumSquare(a, axes)
    y = Sqrt(b)
}
"""


def test_a_wrong_value_names_the_first_wrong_node(tmp_path: Path) -> None:
    path = save(WRONG, tmp_path / "wrong.onnx")
    with pytest.raises(MnnError) as caught:
        convert(path, tmp_path / "wrong.mnn", passes=None)
    assert [(fault.node, fault.op) for fault in caught.value.faults] == [("b", "ReduceSumSquare")]
    assert not (tmp_path / "wrong.mnn").exists()


def test_keep_leaves_a_wrong_file_and_still_fails(tmp_path: Path) -> None:
    path = save(WRONG, tmp_path / "wrong.onnx")
    with pytest.raises(MnnError):
        convert(path, tmp_path / "wrong.mnn", passes=None, keep=True)
    assert (tmp_path / "wrong.mnn").exists()


def test_a_random_reference_proves_nothing_and_says_so(tmp_path: Path) -> None:
    text = "g (float[2, 4] x) => (float[2, 4] y) { r = RandomNormalLike(x) y = Add(x, r) }"
    path = save(text, tmp_path / "random.onnx")
    for proof in (convert(path, tmp_path / "random.mnn").proof, optimize(path, "minimal").proof):
        assert proof.kind == "none"
        assert "differs from itself" in proof.note


def test_fp16_storage_is_proven_with_a_wider_tolerance(mlp: Path, tmp_path: Path) -> None:
    options = ConverterOptions.of(fp16=True)
    result = convert(mlp, tmp_path / "half.mnn", options=options)
    assert result.proof.kind == "equal"
    assert 0 < result.proof.max_error < 2e-2


def test_an_existing_output_survives_a_failure(tmp_path: Path) -> None:
    output = tmp_path / "wrong.mnn"
    output.write_bytes(b"precious")
    with pytest.raises(MnnError):
        convert(save(WRONG, tmp_path / "wrong.onnx"), output, passes=None)
    assert output.read_bytes() == b"precious"
    assert sorted(p.name for p in tmp_path.iterdir()) == ["wrong.mnn", "wrong.onnx"]


def test_the_source_is_never_overwritten(mlp: Path) -> None:
    data = mlp.read_bytes()
    with pytest.raises(OutputError, match="would overwrite"):
        convert(mlp, mlp)
    assert mlp.read_bytes() == data


def test_a_missing_model_is_an_input_error(tmp_path: Path) -> None:
    with pytest.raises(ModelError):
        convert(tmp_path / "no.onnx", tmp_path / "no.mnn")

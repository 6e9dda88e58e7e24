"""The whole road on small models: what arrives is right, what does not names its node."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import onnx
import pytest

from graphkit.errors import GraphkitError, MnnError, ModelError, OutputError
from graphkit.mnn import worker
from graphkit.mnn.convert import run_converter
from graphkit.mnn.options import ConverterOptions
from graphkit.mnn.road import convert
from graphkit.model import Model
from graphkit.optimizer import optimize
from graphkit.proof import Evidence
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


def test_a_random_model_is_handed_over_only_when_asked(tmp_path: Path) -> None:
    text = "g (float[2, 4] x) => (float[2, 4] y) { r = RandomNormalLike(x) y = Add(x, r) }"
    path = save(text, tmp_path / "random.onnx")
    proof = optimize(path, "minimal").proof
    assert proof.kind == "none"
    assert "differs from itself" in proof.note
    with pytest.raises(MnnError, match="differs from itself") as caught:
        convert(path, tmp_path / "random.mnn")
    assert [fault.op for fault in caught.value.faults] == ["RandomNormalLike"]
    assert convert(path, tmp_path / "random.mnn", verify="none").proof.kind == "none"


def test_float64_inputs_need_samples(tmp_path: Path) -> None:
    path = save("g (double[2, 4] x) => (double[2, 4] y) { y = Add(x, x) }", tmp_path / "double.onnx")
    with pytest.raises(MnnError, match="'x' is float64") as caught:
        convert(path, tmp_path / "double.mnn")
    assert caught.value.faults[0].node == "y"
    assert not (tmp_path / "double.mnn").exists()
    assert convert(path, tmp_path / "double.mnn", inputs=[{"x": np.ones((2, 4))}]).proof.kind == "equal"


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


@pytest.mark.parametrize(
    ("text", "op"),
    [
        ("g (float[4, 4] x) => (float[4, 4] y) { y = Round(x) }", "Round"),
        ("g (float[64] x, float[64] z) => (bool[64] y) { y = Less(x, z) }", "Less"),
        ("g (float[2, 2] x) => (float y) { y = Det(x) }", "Det"),
        ("g (float[2, 2] x) => (int64[2, 1] y) { y = ArgMin<axis = 1, select_last_index = 1>(x) }", "ArgMin"),
        ("g (float[3, 3] x, int64[2, 3] i) => (float[2, 3] y) { y = GatherElements(x, i) }", "GatherElements"),
    ],
)
def test_faults_for_special_values_are_found(tmp_path: Path, text: str, op: str) -> None:
    with pytest.raises(MnnError) as caught:
        convert(save(text, tmp_path / "m.onnx"), tmp_path / "m.mnn", passes=None)
    assert [(fault.node, fault.op) for fault in caught.value.faults] == [("y", op)]


def test_sequences_and_text_are_refused_by_name(tmp_path: Path) -> None:
    text = "g (float[2] x) => (seq(float[2]) y) { y = SequenceConstruct(x, x) }"
    with pytest.raises(MnnError) as caught:
        convert(save(text, tmp_path / "m.onnx"), tmp_path / "m.mnn")
    (fault,) = caught.value.faults
    assert (fault.node, fault.op) == ("y", "SequenceConstruct")
    assert "is a sequence" in fault.reason


def test_a_model_that_folds_away_is_handed_over_as_it_was(tmp_path: Path) -> None:
    text = "g (float[2, 3] x) => (int64[2] y) { y = Shape(x) }"
    result = convert(save(text, tmp_path / "m.onnx"), tmp_path / "m.mnn")
    assert result.proof.kind == "equal"


def test_a_model_without_operators_names_its_outputs(tmp_path: Path) -> None:
    text = "g (float[2] x) => (float[2] x) { }"
    with pytest.raises(MnnError, match="computes nothing") as caught:
        convert(save(text, tmp_path / "m.onnx"), tmp_path / "m.mnn")
    assert [fault.node for fault in caught.value.faults] == ["x"]


@pytest.mark.parametrize(
    "text",
    [
        "g (float[2] x) => (float[2] y) <float[2] y = {1, 2}> { }",
        "g (float[2] x) => (float[2] y, float[2] z) <float[2] y = {1, 2}> { z = Add(x, y) }",
        "g (float[3, 4] x) => (int64[2] y) { y = Shape(x) }",
    ],
)
def test_an_output_that_is_a_constant_is_handed_over(tmp_path: Path, text: str) -> None:
    assert convert(save(text, tmp_path / "m.onnx"), tmp_path / "m.mnn").proof.kind == "equal"


@pytest.mark.parametrize(
    "text",
    [
        "g (float[2, 0] x) => (float[2, 0] y) { y = Relu(x) }",
        "g (int64[1] x) => (float[0] y) { y = ConstantOfShape(x) }",
    ],
)
def test_a_result_without_elements_is_refused(tmp_path: Path, text: str) -> None:
    with pytest.raises(MnnError, match="no elements") as caught:
        convert(save(text, tmp_path / "m.onnx"), tmp_path / "m.mnn")
    assert [fault.node for fault in caught.value.faults] == ["y"]


def test_shapes_that_the_converter_complains_of_are_judged_by_the_numbers(tmp_path: Path) -> None:
    text = """g (float[3, 5, 2] x, int64[3, 2] t, float[5] w) => (float l)
        { l = NegativeLogLikelihoodLoss<reduction = "mean">(x, t, w) }"""
    path = save(text, tmp_path / "m.onnx")
    assert run_converter(path, tmp_path / "plain.mnn").doubt
    assert convert(path, tmp_path / "m.mnn", passes=None).proof.kind == "equal"
    with pytest.raises(MnnError, match="do not broadcast"):
        convert(path, tmp_path / "m.mnn", passes=None, verify="none")


def test_what_nothing_runs_is_not_handed_over_unproven(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*args: object, **settings: object) -> None:
        raise GraphkitError("no kernel")

    path = save("g (float[2] x) => (float[2] y) { y = Relu(x) }", tmp_path / "m.onnx")
    monkeypatch.setattr(Evidence, "gather", fail)
    with pytest.raises(MnnError, match="nothing tells whether") as caught:
        convert(path, tmp_path / "m.mnn")
    assert [fault.node for fault in caught.value.faults] == ["y"]
    assert not (tmp_path / "m.mnn").exists()
    assert convert(path, tmp_path / "m.mnn", verify="none").proof.kind == "none"


def test_a_killed_child_is_an_error_that_names_a_node(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    child = tmp_path / "killed.py"
    child.write_text("import os, signal; os.kill(os.getpid(), signal.SIGKILL)")
    monkeypatch.setattr("graphkit.mnn.process.CHILD", child)
    with pytest.raises(MnnError, match="SIGKILL") as caught:
        convert(save("g (float[2] x) => (float[2] y) { y = Exp(x) }", tmp_path / "m.onnx"), tmp_path / "m.mnn")
    assert [fault.node for fault in caught.value.faults] == ["y"]


def test_a_hanging_child_is_an_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    child = tmp_path / "hangs.py"
    child.write_text("import time; time.sleep(60)")
    monkeypatch.setattr("graphkit.mnn.process.CHILD", child)
    with pytest.raises(MnnError, match=r"did not finish within 0\.2 s"):
        convert(
            save("g (float[2] x) => (float[2] y) { y = Exp(x) }", tmp_path / "m.onnx"),
            tmp_path / "m.mnn",
            timeout=0.2,
        )


def test_conversions_at_once_do_not_disturb_each_other(mlp: Path, tmp_path: Path) -> None:
    outputs = [tmp_path / f"{number}.mnn" for number in (0, 0, 1)]
    with ThreadPoolExecutor(3) as pool:
        results = list(pool.map(lambda output: convert(mlp, output), outputs))
    assert {result.proof.kind for result in results} == {"equal"}
    assert worker.info(outputs[0]).outputs == ("y",)


def test_float16_weights_in_a_file_of_their_own(tmp_path: Path) -> None:
    proto = parse("g (float16[n,8] x) => (float16[n,4] y) { y = MatMul(x, w) }").proto
    weights = np.random.default_rng(0).standard_normal((8, 4)).astype(np.float16)
    proto.graph.initializer.append(onnx.numpy_helper.from_array(weights, "w"))
    path = tmp_path / "half.onnx"
    Model.from_proto(proto).save(path, external=True)
    assert convert(path, tmp_path / "half.mnn").proof.kind == "equal"

"""Running .mnn files: types, odd shapes, and every way in which MNN fails."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import pytest

from graphkit.errors import ModelError, OutputError, UsageError
from graphkit.mnn.convert import run_converter
from graphkit.mnn.worker import RunError, info, latency, run, run_all, to_mnn
from graphkit.testing import parse


def build(folder: Path, text: str, **weights: np.ndarray) -> Path:
    """Convert a model given as ONNX text (graph only, opset 17) to m.mnn."""
    model = onnx.parser.parse_model(f'<ir_version: 9, opset_import: ["" : 17]> {text}')
    for name, array in weights.items():
        model.graph.initializer.append(onnx.numpy_helper.from_array(array, name))
    source = folder / "m.onnx"
    onnx.save(model, source)
    return run_converter(source, folder / "m.mnn").output


def conv(folder: Path) -> tuple[Path, np.ndarray]:
    w = np.random.default_rng(0).standard_normal((8, 3, 1, 1)).astype(np.float32)
    return build(folder, "g (float[N,3,H,W] x) => (float[N,8,H,W] y) { y = Conv(x, w) }", w=w), w


def test_packed_layouts_are_converted_both_ways(tmp_path: Path) -> None:
    path, w = conv(tmp_path)
    x = np.random.default_rng(1).standard_normal((2, 3, 5, 7)).astype(np.float32)
    result = run(path, {"x": x})
    expected = np.einsum("oc,nchw->nohw", w[:, :, 0, 0], x)
    np.testing.assert_allclose(result.outputs["y"], expected, rtol=1e-4, atol=1e-5)
    assert result.seconds > 0


def test_types_go_in_and_come_out_as_mnn_needs(tmp_path: Path) -> None:
    path = build(
        tmp_path,
        "g (uint8[2] u, bool[2] b, float16[2] h, int8[2] i, int64[2] l)"
        " => (float[2] uy, float[2] by, float[2] hy, float[2] iy, int64[2] ly)"
        " { uy = Cast<to=1>(u) by = Cast<to=1>(b) hy = Cast<to=1>(h) iy = Cast<to=1>(i) ly = Add(l, l) }",
    )
    feeds = {
        "u": np.array([1, 250], np.uint8),
        "b": np.array([True, False]),
        "h": np.array([0.5, -2], np.float16),
        "i": np.array([-128, 127], np.int8),
        "l": np.array([3, -4], np.int64),
        "dropped by the converter": np.zeros(1),
    }
    got = run(path, feeds).outputs
    for name, want in (
        ("uy", [1, 250]),
        ("by", [1, 0]),
        ("hy", [0.5, -2]),
        ("iy", [-128, 127]),
        ("ly", [6, -8]),
    ):
        np.testing.assert_array_equal(got[name], want)
    assert got["ly"].dtype == np.int32


def test_values_that_do_not_fit_are_refused() -> None:
    with pytest.raises(UsageError, match="input 'i': MNN takes int32 here"):
        to_mnn(np.array([2**40]), "int32", "i")
    with pytest.raises(UsageError, match="do not fit"):
        to_mnn(np.array([0.5]), "int32", "i")
    assert to_mnn(np.array(3, np.int64), "int32", "i").shape == ()
    assert to_mnn(np.array([1, 2]), "float32", "i").dtype == np.float32


def test_empty_arrays_go_in_and_come_out(tmp_path: Path) -> None:
    path = build(tmp_path, "g (float[N,0,4] x, float s) => (float[N,0,4] y, float t) { y = Neg(x) t = Neg(s) }")
    got = run(path, {"x": np.zeros((2, 0, 4), np.float32), "s": np.float32(3)}).outputs
    assert got["y"].shape == (2, 0, 4)
    assert got["t"] == -3


def test_the_first_step_of_a_decoder_takes_an_empty_past(tmp_path: Path) -> None:
    path = build(
        tmp_path,
        "g (float[1,2,s,4] x, float[1,2,p,4] past) => (float[1,2,s,4] y, float[1,2,t,4] present)"
        " { present = Concat<axis = 2>(past, x) xt = Transpose<perm = [0, 1, 3, 2]>(present)"
        " scores = MatMul(x, xt) weights = Softmax<axis = -1>(scores) y = MatMul(weights, present) }",
    )
    x = np.random.default_rng(0).standard_normal((1, 2, 5, 4)).astype(np.float32)
    first = run(path, {"x": x[:, :, :4], "past": x[:, :, :0]}).outputs
    np.testing.assert_array_equal(first["present"], x[:, :, :4])
    scores = x[:, :, :4] @ x[:, :, :4].transpose(0, 1, 3, 2)
    weights = np.exp(scores) / np.exp(scores).sum(axis=-1, keepdims=True)
    np.testing.assert_allclose(first["y"], weights @ x[:, :, :4], rtol=1e-4, atol=1e-5)
    second = run(path, {"x": x[:, :, 4:], "past": first["present"]}).outputs
    np.testing.assert_array_equal(second["present"], x)


def test_a_result_without_elements_is_an_array(tmp_path: Path) -> None:
    path = build(tmp_path, "g (float[2,3] x) => (int64[2,K] y) { y = NonZero(x) }")
    got = run(path, {"x": np.zeros((2, 3), np.float32)}).outputs["y"]
    assert (got.shape, got.dtype) == ((2, 0), np.dtype(np.int32))


def test_inner_tensors_and_their_absence(tmp_path: Path) -> None:
    path = build(tmp_path, "g (float[2,3] x) => (float[2,3] y, float[2,3] z) { y = Exp(x) z = Sin(y) }")
    x = np.ones((2, 3), np.float32)
    assert list(run(path, {"x": x}, ["z"]).outputs) == ["z"]
    with pytest.raises(RunError, match="Can't find output nope"):
        run(path, {"x": x}, ["nope"])


def test_a_shape_error_is_a_failure_that_names_the_operator(tmp_path: Path) -> None:
    path, _ = conv(tmp_path)
    with pytest.raises(RunError, match="empty list") as caught:
        run(path, {"x": np.zeros((1, 4, 2, 2), np.float32)})
    assert caught.value.mnn_op == "y"
    assert "Compute Shape Error" in caught.value.log


def test_a_crash_is_a_failure_that_names_the_signal(tmp_path: Path) -> None:
    # Without strides MNN divides by zero.
    path = build(tmp_path, "g (float[1,3,8,8] x) => (float[1,3,7,7] y) { y = MaxPool<kernel_shape=[2,2]>(x) }")
    with pytest.raises(RunError, match=r"crashed .*SIGFPE") as caught:
        run(path, {"x": np.zeros((1, 3, 8, 8), np.float32)})
    assert caught.value.signal == "SIGFPE"


def test_a_hang_is_killed(tmp_path: Path) -> None:
    path, _ = conv(tmp_path)
    with pytest.raises(RunError, match=r"did not finish within 0\.01 s") as caught:
        run(path, {"x": np.zeros((1, 3, 2, 2), np.float32)}, timeout=0.01)
    assert caught.value.timed_out


def test_missing_input_and_wrong_file(tmp_path: Path) -> None:
    path, _ = conv(tmp_path)
    with pytest.raises(UsageError, match="no value for input 'x'"):
        run(path, {"q": np.zeros(1)})
    with pytest.raises(ModelError, match="not an MNN model"):
        run(tmp_path / "m.onnx", {})
    with pytest.raises(ModelError, match="cannot be read"):
        run(tmp_path / "none.mnn", {})


def test_nothing_is_left_behind(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path, _ = conv(tmp_path)
    private = tmp_path / "t"
    private.mkdir()
    monkeypatch.setattr("tempfile.tempdir", str(private))
    run(path, {"x": np.zeros((1, 3, 2, 2), np.float32)})
    info(path)
    assert list(private.iterdir()) == []


def test_info_describes_a_model_that_loads(tmp_path: Path) -> None:
    path, _ = conv(tmp_path)
    described = info(path)
    assert [(i.name, i.dtype, i.shape[1]) for i in described.inputs] == [("x", "float32", 3)]
    assert described.outputs == ("y",)
    assert described.op_counts["Convolution"] == 1
    assert described.ops == sum(described.op_counts.values())
    assert described.version


def test_memory_and_precision_reach_mnn(tmp_path: Path) -> None:
    path, _ = conv(tmp_path)
    x = np.random.default_rng(1).standard_normal((1, 3, 4, 4)).astype(np.float32)
    high = run(path, {"x": x}, memory=2, precision="low", threads=1).outputs["y"]
    assert high.shape == (1, 8, 4, 4)


def test_samples_of_different_shapes_run_in_one_child(tmp_path: Path) -> None:
    path, _ = conv(tmp_path)
    samples = [{"x": np.full((n, 3, 2, 2), n, np.float32)} for n in (1, 2)]
    together = run_all(path, samples)
    for sample, result in zip(samples, together, strict=True):
        np.testing.assert_array_equal(result.outputs["y"], run(path, sample).outputs["y"])


def test_a_failure_tells_at_which_sample(tmp_path: Path) -> None:
    path, _ = conv(tmp_path)
    with pytest.raises(RunError) as caught:
        run_all(path, [{"x": np.zeros((1, channels, 2, 2), np.float32)} for channels in (3, 3, 4)])
    assert caught.value.sample == 2


def test_no_place_for_temporary_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path, _ = conv(tmp_path)
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path / "gone"))
    with pytest.raises(OutputError, match="no temporary folder") as caught:
        run(path, {"x": np.zeros((1, 3, 2, 2), np.float32)})
    assert "TMPDIR" in (caught.value.hint or "")


def test_latency_gives_the_seconds_of_each_run(tmp_path: Path) -> None:
    parse("g (float[2, 4] x) => (float[2, 4] y) { y = Relu(x) }").save(tmp_path / "m.onnx")
    run_converter(tmp_path / "m.onnx", tmp_path / "m.mnn")
    seconds = latency(tmp_path / "m.mnn", {"x": np.ones((2, 4), np.float32)}, repeat=4, warmup=1)
    assert len(seconds) == 4
    assert all(value > 0 for value in seconds)

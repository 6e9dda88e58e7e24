"""The hand-off to MNNConvert: what counts as success, and how failures are told apart."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import pytest

from graphkit.errors import ModelError, OutputError
from graphkit.mnn.convert import ConverterError, run_converter, unsupported_ops, warning_lines
from graphkit.mnn.options import ConverterOptions
from graphkit.mnn.worker import run


def write(folder: Path, text: str, **weights: np.ndarray) -> Path:
    """Save a model given as ONNX text (graph only, opset 17) as m.onnx."""
    model = onnx.parser.parse_model(f'<ir_version: 9, opset_import: ["" : 17]> {text}')
    for name, array in weights.items():
        model.graph.initializer.append(onnx.numpy_helper.from_array(array, name))
    onnx.save(model, folder / "m.onnx")
    return folder / "m.onnx"


def relu(folder: Path) -> Path:
    return write(folder, "g (float[2,3] x) => (float[2,3] y) { y = Relu(x) }")


def files(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


def test_success_leaves_the_model_and_nothing_else(tmp_path: Path) -> None:
    result = run_converter(relu(tmp_path), tmp_path / "m.mnn")
    assert files(tmp_path) == ["m.mnn", "m.onnx"]
    assert "Converted Success!" in result.log
    assert (result.warnings, result.unsupported, result.weights_file) == ((), (), None)
    assert result.seconds > 0


def test_paths_may_be_relative(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    relu(tmp_path)
    monkeypatch.chdir(tmp_path)
    run_converter(Path("m.onnx"), Path("m.mnn"))
    assert (tmp_path / "m.mnn").is_file()


def test_unsupported_operators_are_listed_and_the_old_output_stays(tmp_path: Path) -> None:
    source = write(
        tmp_path,
        "g (float[2,3] x) => (bool[2,3] y) { a = IsNaN(x) b = IsInf(x) y = Or(a, b) }",
    )
    output = tmp_path / "m.mnn"
    output.write_bytes(b"old")
    with pytest.raises(ConverterError, match="does not support: IsInf, IsNaN") as caught:
        run_converter(source, output)
    assert caught.value.unsupported_ops == ("IsInf", "IsNaN")
    assert [fault.op for fault in caught.value.faults] == ["IsInf", "IsNaN"]
    assert "Op Not Support" in caught.value.log
    assert output.read_bytes() == b"old"
    assert files(tmp_path) == ["m.mnn", "m.onnx"]


def test_custom_operators_are_reported_not_refused_when_allowed(tmp_path: Path) -> None:
    source = write(tmp_path, "g (float[2,3] x) => (bool[2,3] y) { y = IsNaN(x) }")
    result = run_converter(source, tmp_path / "m.mnn", ConverterOptions.of(allowCustomOp=True))
    assert result.unsupported == ("y",)


def test_a_crash_is_named_by_its_signal(tmp_path: Path) -> None:
    source = relu(tmp_path)
    model = onnx.load(source)
    model.graph.node[0].op_type = "Add"
    model.graph.node[0].input.append("nowhere")
    onnx.save(model, source)
    with pytest.raises(ConverterError, match=r"crashed \(SIGSEGV\)") as caught:
        run_converter(source, tmp_path / "m.mnn")
    assert caught.value.signal == "SIGSEGV"
    assert caught.value.exit_code == 3
    assert files(tmp_path) == ["m.onnx"]


def test_a_file_that_is_not_onnx(tmp_path: Path) -> None:
    source = tmp_path / "m.onnx"
    source.write_bytes(b"\x01\x02nonsense" * 9)
    with pytest.raises(ConverterError, match=r"cannot parse|does not understand"):
        run_converter(source, tmp_path / "m.mnn")


def test_the_time_limit_kills(tmp_path: Path) -> None:
    with pytest.raises(ConverterError, match=r"within 0\.01 s") as caught:
        run_converter(relu(tmp_path), tmp_path / "m.mnn", timeout=0.01)
    assert caught.value.timed_out
    assert files(tmp_path) == ["m.onnx"]


def test_missing_source_and_impossible_outputs(tmp_path: Path) -> None:
    with pytest.raises(ModelError, match="is not there"):
        run_converter(tmp_path / "none.onnx", tmp_path / "m.mnn")
    source = relu(tmp_path)
    with pytest.raises(OutputError, match="cannot be written"):
        run_converter(source, tmp_path / "no" / "m.mnn")
    with pytest.raises(OutputError, match="would overwrite"):
        run_converter(source, source)


def test_external_data_are_found_from_the_source_folder(tmp_path: Path) -> None:
    w = np.random.default_rng(0).standard_normal((64, 64)).astype(np.float32)
    source = write(tmp_path, "g (float[N,64] x) => (float[N,64] y) { y = MatMul(x, w) }", w=w)
    onnx.save(onnx.load(source), source, save_as_external_data=True, location="m.bin", size_threshold=0)
    run_converter(source, tmp_path / "m.mnn")
    x = np.random.default_rng(1).standard_normal((3, 64)).astype(np.float32)
    np.testing.assert_allclose(run(tmp_path / "m.mnn", {"x": x}).outputs["y"], x @ w, rtol=1e-3, atol=1e-4)


def test_the_weights_file_follows_the_model_and_goes_with_it(tmp_path: Path) -> None:
    w = np.random.default_rng(0).standard_normal((8, 3, 3, 3)).astype(np.float32)
    source = write(tmp_path, "g (float[1,3,6,6] x) => (float[1,8,4,4] y) { y = Conv(x, w) }", w=w)
    output = tmp_path / "out.mnn"
    result = run_converter(source, output, ConverterOptions.of(saveExternalData=True))
    assert result.weights_file == tmp_path / "out.mnn.weight"
    x = np.random.default_rng(1).standard_normal((1, 3, 6, 6)).astype(np.float32)
    apart = run(output, {"x": x}).outputs["y"]
    assert np.abs(apart).max() > 0.1
    assert run_converter(source, output).weights_file is None
    assert not (tmp_path / "out.mnn.weight").exists()
    np.testing.assert_array_equal(run(output, {"x": x}).outputs["y"], apart)


def test_quantization_options_take_effect(tmp_path: Path) -> None:
    w = np.random.default_rng(0).standard_normal((64, 64, 3, 3)).astype(np.float32)
    source = write(tmp_path, "g (float[1,64,6,6] x) => (float[1,64,4,4] y) { y = Conv(x, w) }", w=w)
    run_converter(source, tmp_path / "float.mnn")
    run_converter(source, tmp_path / "w4.mnn", ConverterOptions.of(weightQuantBits=4))
    assert (tmp_path / "w4.mnn").stat().st_size < (tmp_path / "float.mnn").stat().st_size / 6


def test_unsupported_ops_of_logs() -> None:
    assert unsupported_ops("x\n[1] :220: These Op Not Support: ONNX::IsInf | ONNX::Swish \nbye") == (
        "IsInf",
        "Swish",
    )
    assert unsupported_ops("all well") == ()


def test_warning_lines_lose_their_time_stamps() -> None:
    log = "[19:36:24] :46: Warning: odd\nfine\n[19:36:25] :46: Warning: odd\ndon't use block-quant here"
    assert warning_lines(log) == ("Warning: odd", "don't use block-quant here")

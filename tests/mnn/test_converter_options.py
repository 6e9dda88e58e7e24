"""MNNConvert's options: only known names, types and ranges get through, spelled as it understands them."""

from __future__ import annotations

from pathlib import Path

import pytest

from graphkit.errors import UsageError
from graphkit.mnn.options import OPTIONS, ConverterOptions


def line(**values: object) -> list[str]:
    return ConverterOptions.of("ONNX", values).argv(Path("/m.onnx"), Path("/m.mnn"))


def test_defaults_are_always_passed() -> None:
    assert line() == [
        "MNNConvert",
        "-f",
        "ONNX",
        "--modelFile",
        "/m.onnx",
        "--MNNModel",
        "/m.mnn",
        "--bizCode=graphkit",
        "--useGeluApproximation=0",
        "--weightQuantAsymmetric=0",
    ]


def test_flags_are_bare_and_switches_have_numbers() -> None:
    argv = line(fp16=True, transformerFuse=False, keepInputFormat=False, weightQuantBits="4", batch=None)
    assert "--fp16" in argv
    assert "--keepInputFormat=0" in argv
    assert "--weightQuantBits=4" in argv
    assert not any("transformerFuse" in word or "batch" in word for word in argv)


def test_hqq_turns_asymmetric_on() -> None:
    assert "--weightQuantAsymmetric=1" in line(hqq=True, weightQuantBits=4)
    with pytest.raises(UsageError, match="hqq is always asymmetric"):
        line(hqq=True, weightQuantBits=4, weightQuantAsymmetric=False)


@pytest.mark.parametrize(
    ("name", "suggestion"),
    [("weightQuantBit", "weightQuantBits"), ("weight_quant_bits", "weightQuantBits"), ("FP16", "fp16")],
)
def test_unknown_names_get_a_suggestion(name: str, suggestion: str) -> None:
    with pytest.raises(UsageError, match=f"no option '{name}'") as caught:
        line(**{name: 4})
    assert caught.value.hint == f"did you mean '{suggestion}'?"


def test_options_that_are_kept_back_say_why() -> None:
    with pytest.raises(UsageError, match="drops the weights"):
        line(benchmarkModel=True)


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"weightQuantBits": 9}, "--weightQuantBits 9 is out of range"),
        ({"weightQuantBits": 1}, "out of range"),
        ({"weightQuantBits": 4.5}, "whole number"),
        ({"weightQuantBits": "four"}, "whole number"),
        ({"weightQuantBits": True}, "whole number"),
        ({"fp16": "maybe"}, "0 or 1"),
        ({"bizCode": ""}, "takes text"),
        ({"thredhold": "nan"}, "takes a number"),
        ({"weightQuantBits": 4, "weightQuantBlock": 20}, "multiple of 16"),
        ({"weightQuantBlock": 32}, "without --weightQuantBits"),
        ({"weightQuantBits": 4, "weightQuantScaleBit": 17}, "16 or 32"),
        ({"compressionParamsFile": "/no/such/file"}, "does not exist"),
        ({"saveStaticModel": True}, "needs --inputConfigFile"),
        ({"optimizeLevel": 0}, "MNN models only"),
    ],
)
def test_wrong_values_are_refused(values: dict[str, object], message: str) -> None:
    with pytest.raises(UsageError, match=message):
        ConverterOptions.of("ONNX", values)


def test_frameworks() -> None:
    assert ConverterOptions.of("tflite").framework == "TFLITE"
    with pytest.raises(UsageError, match="unknown framework") as caught:
        ConverterOptions.of("TORCH")
    assert "export the model to ONNX" in str(caught.value.hint)
    with pytest.raises(UsageError, match="prototxt"):
        ConverterOptions.of("CAFFE")


def test_paths_become_absolute(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "c.txt").write_text("input_size = 1")
    monkeypatch.chdir(tmp_path)
    options = ConverterOptions.of(saveStaticModel=True, inputConfigFile="c.txt")
    assert options.get("inputConfigFile") == str(tmp_path / "c.txt")


def test_every_option_has_a_text_and_a_range() -> None:
    for option in OPTIONS.values():
        assert option.help
        assert option.range

"""What the tools that people quantize with write: all of it reaches MNN with its codes, right, at quantized size."""

from __future__ import annotations

import logging
import warnings
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from carrying import Array, held, model

from graphkit.mnn.carry.lift import lift
from graphkit.mnn.carry.parts import Parts
from graphkit.mnn.road import ConvertResult, convert
from graphkit.model import Model
from graphkit.optimizer import optimize

SMALL = """g (float[N, 64] x) => (float[N, 64] y) {
    a = MatMul(x, w1) b = Add(a, b1) c = Tanh(b) d = MatMul(c, w2) e = Add(d, b2) f = Relu(e) y = MatMul(f, w3)
}"""
X = np.random.default_rng(4).standard_normal((5, 64)).astype(np.float32)
Quantizer = Callable[[Path, Mapping[str, Array], Path], onnx.ModelProto]


def nbits(bits: int, *, qdq: bool = False, symmetric: bool = False, hqq: bool = False) -> Quantizer:
    """onnxruntime's MatMulNBitsQuantizer."""

    def quantize(source: Path, feeds: Mapping[str, Array], folder: Path) -> onnx.ModelProto:
        if hqq:
            pytest.importorskip("torch")
        from onnxruntime.quantization import QuantFormat
        from onnxruntime.quantization import matmul_nbits_quantizer as peer

        form = QuantFormat.QDQ if qdq else QuantFormat.QOperator
        config = peer.HQQWeightOnlyQuantConfig(block_size=32, bits=bits) if hqq else None
        made = peer.MatMulNBitsQuantizer(
            onnx.load(source), bits=bits, block_size=32, is_symmetric=symmetric, quant_format=form, algo_config=config
        )
        made.process()
        proto: onnx.ModelProto = made.model.model
        return proto

    return quantize


def static(*, qdq: bool, per_channel: bool) -> Quantizer:
    """onnxruntime's quantize_static; QDQ or operators on codes."""

    def quantize(source: Path, feeds: Mapping[str, Array], folder: Path) -> onnx.ModelProto:
        from onnxruntime.quantization import CalibrationDataReader, QuantFormat, QuantType, quantize_static

        class Reader(CalibrationDataReader):  # type: ignore[misc]
            def __init__(self) -> None:
                self.left = [dict(feeds)] * 2

            def get_next(self) -> dict[str, Array] | None:
                return self.left.pop() if self.left else None

        form = QuantFormat.QDQ if qdq else QuantFormat.QOperator
        quantize_static(
            str(source), str(folder / "static.onnx"), Reader(),
            quant_format=form, per_channel=per_channel, weight_type=QuantType.QInt8,
        )  # fmt: skip
        return onnx.load(folder / "static.onnx")

    return quantize


def dynamic(source: Path, feeds: Mapping[str, Array], folder: Path) -> onnx.ModelProto:
    """onnxruntime's quantize_dynamic."""
    from onnxruntime.quantization import quantize_dynamic

    quantize_dynamic(str(source), str(folder / "dynamic.onnx"))
    return onnx.load(folder / "dynamic.onnx")


def onnxsim(name: str) -> Quantizer:
    """One of onnxsim's quantizers that need nothing but the model."""

    def quantize(source: Path, feeds: Mapping[str, Array], folder: Path) -> onnx.ModelProto:
        proto: onnx.ModelProto = getattr(pytest.importorskip("onnxsim"), name)(str(source))
        return proto

    return quantize


def refined(name: str) -> Quantizer:
    """One of onnxsim's methods that begin with its INT4 and look at data."""

    def quantize(source: Path, feeds: Mapping[str, Array], folder: Path) -> onnx.ModelProto:
        peer = pytest.importorskip("onnxsim")
        proto: onnx.ModelProto = getattr(peer, name)(
            str(source), peer.quantize_weight_only_int4(str(source)), [dict(feeds)]
        )
        return proto

    return quantize


# tool: bits, block, symmetric
TOOLS: dict[str, tuple[Quantizer, int, int, bool]] = {
    "onnxruntime MatMulNBits 4": (nbits(4), 4, 32, False),
    "onnxruntime MatMulNBits 4 symmetric": (nbits(4, symmetric=True), 4, 32, True),
    "onnxruntime MatMulNBits 8": (nbits(8), 8, 32, False),
    "onnxruntime MatMulNBits 4 as QDQ": (nbits(4, qdq=True), 4, 32, False),
    "onnxruntime MatMulNBits 4 as QDQ symmetric": (nbits(4, qdq=True, symmetric=True), 4, 32, True),
    "onnxruntime HQQ": (nbits(4, hqq=True), 4, 32, False),
    "onnxruntime static QDQ": (static(qdq=True, per_channel=False), 8, 0, True),
    "onnxruntime static QDQ per channel": (static(qdq=True, per_channel=True), 8, 0, True),
    "onnxruntime static operators": (static(qdq=False, per_channel=False), 8, 0, True),
    "onnxruntime dynamic": (dynamic, 8, 0, True),
    "onnxsim INT8": (onnxsim("quantize_weight_only"), 8, 0, True),
    "onnxsim INT8 in blocks": (onnxsim("quantize_weight_only_int8_block"), 8, 32, True),
    "onnxsim INT4": (onnxsim("quantize_weight_only_int4"), 4, 32, True),
    "onnxsim INT4 HQQ": (onnxsim("quantize_weight_only_int4_hqq"), 4, 32, False),
    "onnxsim MatMulNBits": (onnxsim("quantize_weight_only_matmul_nbits"), 4, 32, True),
    "onnxsim dynamic": (onnxsim("quantize_dynamic"), 8, 0, True),
    "onnxsim static": (onnxsim("quantize_static"), 8, 0, True),
    "onnxsim GPTQ": (refined("apply_gptq"), 4, 32, True),
    "onnxsim AWQ": (refined("apply_awq"), 4, 32, True),
}


@pytest.fixture(autouse=True)
def _quiet_peers() -> Any:
    """The peers warn and log of their own accord."""
    level = logging.root.manager.disable
    logging.disable(logging.ERROR)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        yield
    logging.disable(level)


def codes_of(source: Model) -> set[bytes]:
    """The codes of a model's quantized weights as matrices, also transposed, by their bytes."""
    found = set()
    for weight in lift(source):
        parts = weight.parts(weight.forms[0])
        assert isinstance(parts, Parts)
        found |= {np.ascontiguousarray(codes).tobytes() for codes in (parts.codes, parts.codes.T)}
    return found


def carried(proto: onnx.ModelProto, path: Path, **arguments: Any) -> ConvertResult:
    source = Model.from_proto(proto)
    result = convert(source, path, **arguments)
    assert result.proof.kind == "equal"
    assert result.carriage.left == ()
    return result


@pytest.mark.parametrize("tool", TOOLS)
def test_codes_of_every_tool_reach_mnn(tool: str, tmp_path: Path) -> None:
    quantize, bits, block, symmetric = TOOLS[tool]
    rng = np.random.default_rng(0)
    shapes = {"w1": (64, 128), "b1": (128,), "w2": (128, 64), "b2": (64,), "w3": (64, 64)}
    source = tmp_path / "small.onnx"
    weights = {name: rng.standard_normal(shape).astype(np.float32) / 8 for name, shape in shapes.items()}
    onnx.save(onnx.shape_inference.infer_shapes(model(SMALL, weights).materialized()), source)
    proto = quantize(source, {"x": X}, tmp_path)
    result = carried(proto, tmp_path / "m.mnn", inputs=[{"x": X}])
    layers = result.carriage.layers
    assert [(layer.bits, layer.block, layer.symmetric) for layer in layers] == [(bits, block, symmetric)] * 3
    assert result.carriage.after < result.carriage.before * (0.25 if bits == 4 else 0.35)
    assert result.proof.max_error < 1e-4
    codes = {layer.codes.tobytes() for layer in held(tmp_path / "m.mnn").values()}
    assert len(codes) == 3
    assert codes <= codes_of(Model.from_proto(proto))


IN_AN_ENCODER = [f"onnxruntime {name}" for name in ("MatMulNBits 4", "HQQ", "static QDQ", "dynamic")]


@pytest.mark.parametrize("tool", [*IN_AN_ENCODER, "onnxsim GPTQ"])
def test_a_quantized_encoder_arrives_at_its_size(tool: str, tmp_path: Path, export_path: Callable[[str], Path]) -> None:
    quantize, bits, *_ = TOOLS[tool]
    proto = onnx.version_converter.convert_version(
        optimize(export_path("bert2_ts"), "default", verify="none").model.materialized(), 21
    )
    proto.ir_version = 10
    onnx.save(proto, tmp_path / "bert.onnx")
    rng = np.random.default_rng(0)
    feeds = {info.name: rng.integers(0, 2, (2, 7)) for info in proto.graph.input}
    result = carried(quantize(tmp_path / "bert.onnx", feeds, tmp_path), tmp_path / "m.mnn", inputs=[feeds])
    assert len(result.carriage.layers) >= 12
    assert {layer.bits for layer in result.carriage.layers} == {bits}
    assert result.proof.max_error < 1e-4
    assert result.size < 480_000  # floats take 741,612 bytes

"""Quantized ONNX models down the whole road: codes are in the .mnn file, and MNN computes what onnxruntime does."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from carrying import codes, held, model, scales

from graphkit.errors import MnnError
from graphkit.mnn.carry.encode import idst_table
from graphkit.mnn.carry.sites import Site
from graphkit.mnn.document.tree import Table
from graphkit.mnn.options import ConverterOptions
from graphkit.mnn.road import ConvertResult, convert
from graphkit.quant.codes import Codes
from graphkit.report.console import Report
from graphkit.report.conversion import show_conversion

I4, U4 = ml_dtypes.int4, ml_dtypes.uint4
NORM = {name: np.random.default_rng(7).random(16).astype(np.float32) + 0.5 for name in "gbmv"}
# name: model, constants, and of each layer that gets codes: name, bits, block, symmetric
Case = tuple[str, dict[str, Any], list[tuple[str, int, int, bool]]]
CARRIED: dict[str, Case] = {
    "MatMul per tensor": (
        "g (float[N, 64] x) => (float[N, 48] y) { w = DequantizeLinear(q, s) y = MatMul(x, w) }",
        {"q": codes(64, 48), "s": np.float32(0.01)},
        [("y__matmul_converted", 8, 0, True)],
    ),
    "MatMul per channel": (
        "g (float[N, 64] x) => (float[N, 48] y) { w = DequantizeLinear<axis=1>(q, s) y = MatMul(x, w) }",
        {"q": codes(64, 48), "s": scales(48)},
        [("y__matmul_converted", 8, 0, True)],
    ),
    "blocks of INT4 with zero points": (
        """g (float[N, 64] x) => (float[N, 48] y) {
            w = DequantizeLinear<axis=0, block_size=32>(q, s, z) y = MatMul(x, w) }""",
        {"q": codes(64, 48, dtype=I4), "s": scales(2, 48), "z": codes(2, 48, dtype=I4, seed=5)},
        [("y__matmul_converted", 4, 32, False)],
    ),
    "UINT4 around the middle": (
        """g (float[N, 64] x) => (float[N, 48] y) {
            w = DequantizeLinear<axis=0, block_size=16>(q, s, z) y = MatMul(x, w) }""",
        {"q": codes(64, 48, dtype=U4), "s": scales(4, 48), "z": np.full((4, 48), 8, U4)},
        [("y__matmul_converted", 4, 16, True)],
    ),
    "rows of blocks, Reshape, Transpose": (
        """g (float[N, 64] x) => (float[N, 48] y) {
            d = DequantizeLinear<axis=0>(q, s) r = Reshape(d, shape) w = Transpose<perm=[1, 0]>(r)
            y = MatMul(x, w) }""",
        {"q": codes(96, 32), "s": scales(96), "shape": np.array([48, 64])},
        [("y__matmul_converted", 8, 32, True)],
    ),
    "codes behind a Transpose": (
        """g (float[N, 64] x) => (float[N, 48] y) {
            t = Transpose<perm=[1, 0]>(q) w = DequantizeLinear<axis=1>(t, s) y = MatMul(x, w) }""",
        {"q": codes(48, 64), "s": scales(48)},
        [("y__matmul_converted", 8, 0, True)],
    ),
    "floats that are quantized in the graph": (
        """g (float[N, 64] x) => (float[N, 48] y) {
            c = QuantizeLinear<axis=1>(w, s, z) d = DequantizeLinear<axis=1>(c, s, z) y = MatMul(x, d) }""",
        {
            "w": np.random.default_rng(2).standard_normal((64, 48)).astype(np.float32) / 3,
            "s": scales(48) * 2,
            "z": np.zeros(48, np.int8),
        },
        [("y__matmul_converted", 8, 0, True)],
    ),
    "Gemm with a factor, a bias and a Mul behind it": (
        """g (float[N, 64] x) => (float[N, 16] y) {
            w = DequantizeLinear<axis=0>(q, s) c = Gemm<transB=1, alpha=0.5>(x, w, b) y = Mul(c, g) }""",
        {"q": codes(16, 64), "s": scales(16), **NORM},
        [("y__matmul_converted", 8, 0, True)],
    ),
    "Conv with a BatchNormalization": (
        """g (float[1, 8, 9, 9] x) => (float[1, 16, A, B] y) {
            w = DequantizeLinear<axis=0>(q, s, z) c = Conv(x, w) y = BatchNormalization(c, g, b, m, v) }""",
        {"q": codes(16, 8, 3, 3, dtype=np.uint8), "s": scales(16), "z": codes(16, dtype=np.uint8, seed=8), **NORM},
        [("y", 8, 0, False)],
    ),
    "grouped Conv": (
        """g (float[1, 16, 9, 9] x) => (float[1, 8, A, B] y) {
            w = DequantizeLinear<axis=0>(q, s) y = Conv<group=2>(x, w) }""",
        {"q": codes(8, 8, 3, 3), "s": scales(8)},
        [("y__group__0", 8, 0, True), ("y__group__1", 8, 0, True)],
    ),
    "depthwise Conv": (
        """g (float[1, 16, 9, 9] x) => (float[1, 16, A, B] y) {
            w = DequantizeLinear<axis=0>(q, s) y = Conv<group=16>(x, w) }""",
        {"q": codes(16, 1, 3, 3), "s": scales(16)},
        [("y", 8, 0, True)],
    ),
    "Conv1D": (
        "g (float[1, 16, 9] x) => (float[1, 8, A] y) { w = DequantizeLinear<axis=0>(q, s) y = Conv(x, w) }",
        {"q": codes(8, 16, 3, dtype=I4), "s": scales(8)},
        [("y", 4, 0, True)],
    ),
    "ConvTranspose with a BatchNormalization": (
        """g (float[1, 8, 9, 9] x) => (float[1, 16, A, B] y) {
            w = DequantizeLinear<axis=1>(q, s) c = ConvTranspose(x, w) y = BatchNormalization(c, g, b, m, v) }""",
        {"q": codes(8, 16, 3, 3), "s": scales(16), **NORM},
        [("y", 8, 0, True)],
    ),
    "grouped ConvTranspose": (
        """g (float[1, 8, 9, 9] x) => (float[1, 16, A, B] y) {
            w = DequantizeLinear(q, s) y = ConvTranspose<group=2>(x, w) }""",
        {"q": codes(8, 8, 3, 3), "s": np.float32(0.01)},
        [("y__group__0", 8, 0, True), ("y__group__1", 8, 0, True)],
    ),
    "one weight, three layers": (
        """g (float[N, 64] x) => (float[N, 64] y) {
            d = DequantizeLinear(q, s) a = MatMul(x, d) b = Relu(a) c = MatMul(b, d) e = Tanh(c) y = MatMul(e, d) }""",
        {"q": codes(64, 64), "s": np.float32(0.003)},
        [(f"{name}__matmul_converted", 8, 0, True) for name in "acy"],
    ),
    "MatMulInteger": (
        """g (uint8[3, 64] x) => (float[3, 48] y) {
            p = MatMulInteger(x, q, xz, z) f = Cast<to=1>(p) y = Mul(f, s) }""",
        {"q": codes(64, 48), "z": np.zeros(48, np.int8), "xz": np.uint8(128), "s": scales(48)},
        [("y__matmul_converted", 8, 0, True)],
    ),
    "QLinearConv": (
        """g (uint8[1, 16, 9, 9] x) => (uint8[1, 8, A, B] y) { y = QLinearConv(x, xs, xz, q, s, z, ys, yz) }""",
        {
            "q": codes(8, 16, 3, 3), "s": scales(8), "z": np.zeros(8, np.int8), "xs": np.float32(0.02),
            "xz": np.uint8(128), "ys": np.float32(0.5), "yz": np.uint8(128),
        },
        [("y/Mul_out", 8, 0, True)],
    ),
    "GRU": (
        """g (float[5, 1, 16] x) => (float[5, 1, 1, 8] y) {
            w = DequantizeLinear<axis=1>(q, s) r = DequantizeLinear<axis=1>(p, s)
            y, h = GRU<hidden_size=8, linear_before_reset=1>(x, w, r) }""",
        {"q": codes(1, 24, 16), "p": codes(1, 24, 8, seed=3), "s": scales(24)},
        [("Convolution10", 8, 0, True), ("Convolution24", 8, 0, True)],
    ),
    "LSTM": (
        """g (float[5, 1, 16] x) => (float[5, 1, 1, 8] y) {
            w = DequantizeLinear<axis=1>(q, s) r = DequantizeLinear<axis=1>(p, s)
            y, h, c = LSTM<hidden_size=8>(x, w, r) }""",
        {"q": codes(1, 32, 16), "p": codes(1, 32, 8, seed=3), "s": scales(32)},
        [("Convolution10", 8, 0, True), ("Convolution23", 8, 0, True)],
    ),
    "branches of an If": (
        """g (bool c, float[3, 64] x) => (float[3, 48] y) { y = If(c) <
            then_branch = a () => (float[3, 48] t) { w = DequantizeLinear<axis=1>(q, s) t = MatMul(x, w) },
            else_branch = b () => (float[3, 48] u) { v = DequantizeLinear<axis=1>(p, s) u = MatMul(x, v) }> }""",
        {"q": codes(64, 48), "p": codes(64, 48, seed=4), "s": scales(48)},
        [("t__matmul_converted", 8, 0, True), ("u__matmul_converted", 8, 0, True)],
    ),
    "a table that Gather reads": (
        "g (int64[3] i) => (float[3, 48] y) { d = DequantizeLinear<axis=0>(q, s) y = Gather(d, i) }",
        {"q": codes(64, 48), "s": scales(64)},
        [("q", 8, 0, True)],
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", CARRIED)
def test_codes_reach_the_file(name: str, tmp_path: Path) -> None:
    text, constants, expected = CARRIED[name]
    result = convert(model(text, constants), tmp_path / "m.mnn")
    layers = result.carriage.layers
    assert [(layer.name, layer.bits, layer.block, layer.symmetric) for layer in layers] == expected
    assert result.carriage.left == ()
    assert result.proof.kind == "equal"
    assert result.proof.max_error < 1e-5
    assert all(layer.after < layer.before for layer in layers)


def test_codes_and_scales_are_those_of_the_onnx_model(tmp_path: Path) -> None:
    text, constants, _ = CARRIED["MatMul per channel"]
    convert(model(text, constants), tmp_path / "m.mnn")
    layer = held(tmp_path / "m.mnn")["y__matmul_converted"]
    np.testing.assert_array_equal(layer.codes, constants["q"].T.reshape(-1))
    np.testing.assert_array_equal(layer.scale, constants["s"])


def test_codes_in_blocks_are_those_of_the_onnx_model(tmp_path: Path) -> None:
    text, constants, _ = CARRIED["blocks of INT4 with zero points"]
    result = convert(model(text, constants), tmp_path / "m.mnn")
    layer = held(tmp_path / "m.mnn")["y__matmul_converted"]
    np.testing.assert_array_equal(layer.codes, constants["q"].astype(np.int8).T.reshape(-1))
    np.testing.assert_array_equal(layer.scale.reshape(48, 2), constants["s"].T)
    assert result.carriage.after < 48 * 64 // 2 + 8 * 96 + 64
    assert result.carriage.low_memory_error is not None
    assert 1e-4 < result.carriage.low_memory_error < 0.05  # activations are rounded to 8 bits then


MATMUL = "g (float[N, 64] x) => (float[N, 48] y) {{ w = DequantizeLinear<{}>(q, s) y = MatMul(x, w) }}"
FLOAT: dict[str, tuple[str, dict[str, Any], str]] = {
    "a matrix for each batch": (
        "g (float[2, 3, 64] x) => (float[2, 3, 48] y) { d = DequantizeLinear<axis=2>(q, s) y = MatMul(x, d) }",
        {"q": codes(2, 64, 48), "s": scales(48)},
        "'y' (MatMul) has a matrix for each batch",
    ),
    "left-hand side": (
        "g (float[64, 3] x) => (float[48, 3] y) { d = DequantizeLinear<axis=0>(q, s) y = MatMul(d, x) }",
        {"q": codes(48, 64), "s": scales(48)},
        "left-hand side of 'y' (MatMul)",
    ),
    "scales along the wrong axis": (
        MATMUL.format("axis=0"),
        {"q": codes(64, 48), "s": scales(64)},
        "change every input channel; MNN's blocks are multiples of 16",
    ),
    "blocks of 8": (
        MATMUL.format("axis=0, block_size=8"),
        {"q": codes(64, 48), "s": scales(8, 48)},
        "change every 8 input channels; MNN's blocks are multiples of 16",
    ),
    "blocks that cut kernels": (
        """g (float[1, 64, 9, 9] x) => (float[1, 8, A, B] y) {
            d = DequantizeLinear<axis=1, block_size=32>(q, s) w = Reshape(d, shape) y = Conv(x, w) }""",
        {"q": codes(8, 576), "s": scales(8, 18), "shape": np.array([8, 64, 3, 3])},
        "change within one input channel",
    ),
    "16 bits": (
        MATMUL.format("axis=1"),
        {"q": codes(64, 48, dtype=np.int16), "s": scales(48)},
        "codes of 16 bits; MNN has 2 to 8",
    ),
    "three dimensions": (
        "g (float[1, 8, 5, 5, 5] x) => (float[1, 8, A, B, C] y) { w = DequantizeLinear<axis=0>(q, s) y = Conv(x, w) }",
        {"q": codes(8, 8, 3, 3, 3), "s": scales(8)},
        "'y' (Conv) has three dimensions",
    ),
    "INT4 table": (
        "g (int64[3] i) => (float[3, 48] y) { d = DequantizeLinear<axis=0>(q, s) y = Gather(d, i) }",
        {"q": codes(64, 48, dtype=I4), "s": scales(64)},
        "a table that Gather reads",
    ),
    "no layer": (
        "g (float[64, 48] x) => (float[64, 48] y) { d = DequantizeLinear<axis=1>(q, s) y = Add(x, d) }",
        {"q": codes(64, 48), "s": scales(48)},
        "no layer of MNN's file holds these weights (used by Add)",
    ),
}


@pytest.mark.parametrize("name", FLOAT)
def test_what_cannot_be_carried_says_why_and_what_it_costs(name: str, tmp_path: Path) -> None:
    text, constants, reason = FLOAT[name]
    result = convert(model(text, constants), tmp_path / "m.mnn")
    (entry,) = result.carriage.left
    assert reason in entry.reason
    assert (entry.name, entry.bytes) == ("q", 4 * constants["q"].size)
    assert entry.stored < entry.bytes
    assert result.carriage.layers == ()
    assert result.carriage.low_memory_error is None
    assert result.proof.kind == "equal"


def test_a_table_that_a_layer_reads_too_is_carried_and_named(tmp_path: Path) -> None:
    text = """g (int64[3] i) => (float[3, 64] y) {
        d = DequantizeLinear<axis=0>(q, s) e = Gather(d, i) t = Transpose<perm=[1, 0]>(d) y = MatMul(e, t) }"""
    carriage = convert(model(text, {"q": codes(64, 48), "s": scales(64)}), tmp_path / "m.mnn").carriage
    assert [layer.op for layer in carriage.layers] == ["Convolution"]
    assert "Gather reads it too" in carriage.left[0].reason


MIXED = """g (float[N, 64] x, int64[3] i) => (float[N, 48] y, float[3, 9] e) {
    w = DequantizeLinear<axis=1>(q, s) a = MatMul(x, w) k = MatMul(a, f) y = Add(k, b) e = Gather(t, i)
}"""
MIXED_CONSTANTS = {
    "q": codes(64, 48), "s": scales(48), "b": scales(48), "f": scales(48, 48, seed=3), "t": scales(20, 9)
}  # fmt: skip


def mixed(folder: Path, **options: Any) -> ConvertResult:
    return convert(
        model(MIXED, MIXED_CONSTANTS), folder / "m.mnn", options=ConverterOptions.of("ONNX", options)
    )  # fmt: skip


def test_weights_outside_the_model_stay_outside(tmp_path: Path) -> None:
    plain, outside = mixed(tmp_path), mixed(tmp_path, saveExternalData=True)
    assert outside.proof.max_error == plain.proof.max_error
    assert outside.carriage.layers == plain.carriage.layers
    weights = tmp_path / "m.mnn.weight"
    floats = 4 * (48 * 48 + 48 + 48)  # the layer that is not quantized, with its bias, and the bias of the other
    assert floats <= weights.stat().st_size < floats + outside.carriage.after + 20 * 9 * 4 + 64


@pytest.mark.parametrize("outside", [False, True])
def test_fp16_stores_scales_as_halves(outside: bool, tmp_path: Path) -> None:
    result = mixed(tmp_path, fp16=True, saveExternalData=outside)
    (layer,) = result.carriage.layers
    assert layer.scales == "float16"
    assert result.size < mixed(tmp_path).size


def test_mnns_own_quantization_is_left_to_it(tmp_path: Path) -> None:
    result = convert(
        model(MIXED, MIXED_CONSTANTS), tmp_path / "m.mnn", verify="none",
        options=ConverterOptions.of("ONNX", {"weightQuantBits": 8}),
    )  # fmt: skip
    assert result.carriage.layers == ()
    assert "--weightQuantBits" in result.carriage.left[0].reason


def test_a_model_without_codes_is_converted_as_ever(tmp_path: Path) -> None:
    text = "g (float[N, 64] x) => (float[N, 48] y) { y = MatMul(x, w) }"
    weights = np.random.default_rng(0).standard_normal((64, 48)).astype(np.float32)
    result = convert(model(text, {"w": weights}), tmp_path / "m.mnn")
    assert result.carriage.to_dict() == {
        "layers": [], "left_float": [], "bytes": {"before": 0, "after": 0}, "low_memory_error": None,
    }  # fmt: skip
    assert "carry" not in result.seconds


THREE = """g (float[N, 64] x) => (float[N, 64] y) {
    d = DequantizeLinear(q, s) e = DequantizeLinear(p, s) f = DequantizeLinear(r, s)
    a = MatMul(x, d) b = Relu(a) c = MatMul(b, e) h = Tanh(c) y = MatMul(h, f) }"""


FOUR = THREE.replace("y = MatMul(h, f)", "i = MatMul(h, f) j = Relu(i) y = MatMul(j, f)")


def spoiling(culprits: str) -> Any:
    """Site.table with scales that are wrong in some layers."""

    def spoil(site: Site, made: Codes, *, half_scales: bool) -> Table:
        scale = made.scales * (3 if site.name[0] in culprits else 1)
        return idst_table(Codes(made.codes, scale, made.zeros, made.bits), site.op.schema)

    return spoil


def layers(text: str) -> Any:
    weights = {name: codes(64, 64, seed=k) for k, name in enumerate("qpr")}
    return model(text, {**weights, "s": np.float32(0.003)})


@pytest.mark.parametrize("culprits", ["a", "c", "y", "ay"])
def test_layers_that_spoil_the_result_are_left_float_and_named(
    culprits: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Site, "table", spoiling(culprits))
    result = convert(layers(THREE), tmp_path / "m.mnn")
    assert result.proof.kind == "equal"
    assert {layer.name[0] for layer in result.carriage.layers} == set("acy") - set(culprits)
    weights = {"a": "q", "c": "p", "y": "r"}
    assert {entry.name for entry in result.carriage.left} == {weights[name] for name in culprits}
    for entry in result.carriage.left:
        assert "with its codes MNN's layer" in entry.reason
        assert (entry.bytes, entry.stored) == (4 * 64 * 64, 64 * 64 + 4)
    assert len(held(tmp_path / "m.mnn")) == 3 - len(culprits)


def test_a_file_that_too_many_layers_spoil_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Site, "table", spoiling("aciy"))
    with pytest.raises(MnnError, match="right with the same numbers as floats") as caught:
        convert(layers(FOUR), tmp_path / "m.mnn")
    assert [fault.node[0] for fault in caught.value.faults] == ["a", "c", "i"]
    assert not (tmp_path / "m.mnn").exists()


def test_the_report_has_a_line_for_codes_and_one_for_each_float(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    text = """g (float[N, 64] x) => (float[N, 48] y) {
        w = DequantizeLinear<axis=1>(q, s) v = DequantizeLinear<axis=0>(p, t) a = MatMul(x, w) y = MatMul(a, v) }"""
    constants = {"q": codes(64, 48), "s": scales(48), "p": codes(48, 48, seed=3), "t": scales(48)}
    source = model(text, constants)
    show_conversion(Report(), source, convert(source, tmp_path / "m.mnn"))
    said = " ".join(capsys.readouterr().out.split())
    assert "carried 1 quantized layer: 8-bit per channel, 12.3 kB → 3.53 kB; with memory=low the error is" in said
    assert "float: p, 9.22 kB instead of 2.5 kB: its scales change every input channel" in said


@pytest.mark.parametrize("rows", [1, 2, 3, 5, 9])
@pytest.mark.parametrize("bits", [4, 8])
def test_tables_in_blocks_of_few_rows_stay_bytes_and_are_named(rows: int, bits: int, tmp_path: Path) -> None:
    attributes = f"block_size=32, bits={bits}, gather_axis=0, quantize_axis=1"
    text = (
        f"g (int64[2, 3] i) => (float[2, 3, 64] y) {{ y = com.microsoft.GatherBlockQuantized<{attributes}>(q, i, s) }}"
    )
    stored = codes(rows, 64 * bits // 8, dtype=np.uint8)
    result = convert(model(text, {"q": stored, "s": scales(rows, 2)}), tmp_path / "m.mnn")
    assert result.proof.kind == "equal"
    (layer,) = result.carriage.layers
    assert (layer.weights, layer.op, layer.bits, layer.block) == (("q",), "Gather", 8, 32)
    assert layer.before == 4 * rows * 64
    assert not result.carriage.left

"""Rounding to nearest is MNN's, bit for bit."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import onnx
import pytest
from onnx import helper

from graphkit.errors import ModelError, UsageError
from graphkit.mnn.convert import run_converter
from graphkit.mnn.document import read
from graphkit.mnn.document.arrays import arrays_of
from graphkit.mnn.document.quantized import Codes as MnnCodes
from graphkit.mnn.document.summary import outside_of
from graphkit.mnn.options import ConverterOptions
from graphkit.quant.codes import code_range, stored_bytes
from graphkit.quant.rtn import quantize_matrix

Array = npt.NDArray[Any]
LAYERS = ("MatMul", "Gemm", "Conv", "depthwise")
BITS = (8, 4, 3, 2)
BLOCKS = (0, 32, 64, 128)


def weights(rows: int, *columns: int) -> Array:
    """Weights among which are an all-zero row, a tiny one, constant ones, and ties."""
    made = np.random.default_rng(5).standard_normal((rows, *columns)).astype(np.float32)
    made[0], made[1] = 0, made[1] * np.float32(1e-6)
    made[2] = np.round(made[2] * 4) / 4
    made[3], made[4] = 2.5, -1.25
    return made


def stacked(layer: str, folder: Path, bits: int, asymmetric: bool, channels: int = 256) -> list[tuple[Array, MnnCodes]]:
    """For each block: the layer's matrix, and what MNN's converter makes of it."""
    made = []
    for block in (0,) if layer == "depthwise" else BLOCKS:
        options: dict[str, Any] = {"weightQuantBits": bits, "weightQuantAsymmetric": asymmetric}
        options |= {"weightQuantBlock": block} if block else {}
        made.append(one(layer, folder, ConverterOptions.of(**options), channels))
    return made


def one(layer: str, folder: Path, options: ConverterOptions, channels: int) -> tuple[Array, MnnCodes]:
    shape, attributes = [1, channels, 8, 8], {}
    weight = matrix = weights(24, channels)
    if layer == "MatMul":
        weight, shape = np.ascontiguousarray(matrix.T), [4, channels]
    elif layer == "Gemm":
        shape, attributes = [4, channels], {"transB": 1}
    elif layer == "Conv":
        weight = weights(8, channels, 3, 3)
        matrix = weight.reshape(8, -1)
    else:
        weight, attributes = weights(channels, 1, 3, 3), {"group": channels}
        matrix = weight.reshape(channels, -1)
    op = "Conv" if layer == "depthwise" else layer
    graph = helper.make_graph(
        [helper.make_node(op, ["x", "w"], ["y"], **attributes)],
        "g",
        [helper.make_tensor_value_info("x", 1, shape)],
        [helper.make_tensor_value_info("y", 1, None)],
        [onnx.numpy_helper.from_array(weight, "w")],
    )
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8), folder / "m.onnx")
    doc = read(run_converter(folder / "m.onnx", folder / "m.mnn", options).output)
    found = [array for op in doc.net.tables("oplists") for array in arrays_of(op, outside_of(doc))[0]]
    (stored,) = [array.values() for array in found if array.field == "main.weight"]
    assert isinstance(stored, MnnCodes)
    return matrix, stored


@pytest.mark.parametrize("layer", LAYERS)
@pytest.mark.parametrize("bits", BITS)
def test_symmetric_codes_and_scales_are_those_of_mnn(tmp_path: Path, layer: str, bits: int) -> None:
    for matrix, theirs in stacked(layer, tmp_path, bits, asymmetric=False):
        block = theirs.area if theirs.scale.size > matrix.shape[0] else 0
        ours = quantize_matrix(matrix, bits, block)
        np.testing.assert_array_equal(theirs.codes(0, theirs.count).reshape(matrix.shape), ours.codes)
        np.testing.assert_array_equal(theirs.scale.reshape(ours.scales.shape), ours.scales)
        assert theirs.scheme.bits == ours.bits
        assert not theirs.scheme.asymmetric
        assert ours.zeros is None


@pytest.mark.parametrize("layer", LAYERS)
@pytest.mark.parametrize("bits", BITS)
def test_asymmetric_codes_and_weights_are_those_of_mnn(tmp_path: Path, layer: str, bits: int) -> None:
    for matrix, theirs in stacked(layer, tmp_path, bits, asymmetric=True):
        block = theirs.area if theirs.scale.size > matrix.shape[0] else 0
        ours = quantize_matrix(matrix, bits, block, asymmetric=True)
        np.testing.assert_array_equal(theirs.codes(0, theirs.count).reshape(matrix.shape), ours.codes)
        scales = theirs.scale.reshape(ours.scales.shape)
        np.testing.assert_array_equal(scales, np.where(scales > 0, ours.scales, 0))  # ours says flat blocks otherwise
        rows = theirs.values(0, theirs.count).reshape(matrix.shape)
        np.testing.assert_allclose(ours.values(), rows, rtol=1e-5, atol=1e-5 * float(np.abs(matrix).max()))


@pytest.mark.parametrize("asymmetric", [False, True])
@pytest.mark.parametrize("block", [0, 32])
def test_bytes_are_those_in_the_file(tmp_path: Path, asymmetric: bool, block: int) -> None:
    options = {"weightQuantBits": 3, "weightQuantAsymmetric": asymmetric}
    matrix, theirs = one("Conv", tmp_path, ConverterOptions.of(**options, weightQuantBlock=block or -1), 128)
    (op,) = [op for op in read(tmp_path / "m.mnn").net.tables("oplists") if op.label("type") == "Convolution"]
    table = op["main"]["quanParameter"]
    ours = quantize_matrix(matrix, 3, block * 9, asymmetric=asymmetric)
    size = stored_bytes(ours.rows, ours.columns, ours.blocks, 3, symmetric=not asymmetric)
    assert size == len(table["buffer"]) + 4 * len(table["alpha"])
    assert theirs.scale.size == ours.scales.size


def test_a_channel_of_zeros_has_scale_0_and_stays_0() -> None:
    matrix = weights(6, 64)
    for options in ({}, {"asymmetric": True}, {"integer_zeros": True}):
        made = quantize_matrix(matrix, 4, 32, **options)
        assert (made.scales[0] == 0).all()
        assert (made.values()[0] == 0).all()
        assert np.isfinite(made.values()).all()
    assert (quantize_matrix(matrix, 4).codes[:2] == 0).all()  # the tiny one too: its scale is not above 1e-6


def test_flat_blocks_are_exact_when_asymmetric() -> None:
    made = quantize_matrix(weights(6, 64), 4, 32, asymmetric=True)
    np.testing.assert_array_equal(made.values()[3:5], weights(6, 64)[3:5])


@pytest.mark.parametrize("bits", BITS)
def test_integer_zeros_are_codes_and_keep_0_exact(bits: int) -> None:
    low, high = code_range(bits)
    matrix = weights(16, 64)
    matrix[5:10] = np.abs(matrix[5:10])
    matrix[10:, ::7] = 0
    made = quantize_matrix(matrix, bits, 32, integer_zeros=True)
    assert made.zeros is not None
    assert (made.zeros == np.rint(made.zeros)).all()
    assert low <= made.zeros.min()
    assert made.zeros.max() <= high
    assert (made.values()[10:, ::7] == 0).all()
    step = np.where(made.scales > 1e-6, made.scales, np.inf).repeat(32, axis=1)
    assert (np.abs(made.values() - matrix) <= step * 1.001).all()  # half a step, and half for the zero point


def test_many_rows_on_threads_are_as_few_without() -> None:
    matrix = np.random.default_rng(1).standard_normal((2048, 2048)).astype(np.float32)
    for options in ({}, {"asymmetric": True}):
        whole = quantize_matrix(matrix, 4, 64, **options)
        parts = [quantize_matrix(matrix[at : at + 256], 4, 64, **options) for at in range(0, 2048, 256)]
        np.testing.assert_array_equal(whole.codes, np.concatenate([part.codes for part in parts]))
        np.testing.assert_array_equal(whole.scales, np.concatenate([part.scales for part in parts]))


@pytest.mark.parametrize("block", [0, 1, 3, 32, 48, 96, 2])
def test_blocks_of_any_width_have_their_own_scale(block: int) -> None:
    matrix = np.random.default_rng(2).standard_normal((5, 96)).astype(np.float32)
    made = quantize_matrix(matrix, 8, block)
    expected = np.abs(matrix.reshape(5, -1, block or 96)).max(axis=2) / np.float32(127)
    np.testing.assert_array_equal(made.scales, expected)


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
@pytest.mark.parametrize("options", [{}, {"asymmetric": True}, {"integer_zeros": True}])
def test_weights_that_are_no_numbers_name_the_layer(bad: float, options: dict[str, bool]) -> None:
    matrix = weights(8, 64)
    matrix[5, 40] = bad
    with pytest.raises(ModelError, match="NaN or infinite") as caught:
        quantize_matrix(matrix, 4, 32, name="/encoder/query", **options)
    assert caught.value.node == "/encoder/query"
    assert "--skip" in str(caught.value.hint)


def test_bad_requests() -> None:
    with pytest.raises(UsageError, match="9 bits"):
        quantize_matrix(weights(8, 64), 9)
    with pytest.raises(UsageError, match="does not divide"):
        quantize_matrix(weights(8, 64), 4, 48)
    with pytest.raises(ModelError, match="no matrix"):
        quantize_matrix(weights(8, 4, 4), 4)

"""Quantized weights decoded by us are those that MNN computes with."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from documents import small, table

from graphkit.mnn import worker
from graphkit.mnn.convert import run_converter
from graphkit.mnn.document import Document, read, write
from graphkit.mnn.document.arrays import arrays_of
from graphkit.mnn.document.quantized import decode, scheme_of
from graphkit.mnn.document.stored import Pieces, StoredArray
from graphkit.mnn.document.summary import outside_of
from graphkit.mnn.options import ConverterOptions

ROWS, COLUMNS = 64, 24
TEXT = f"""<ir_version: 8, opset_import: ["": 17]>
g (float[{ROWS},{ROWS}] x) => (float[{ROWS},{COLUMNS}] y) <float[{ROWS},{COLUMNS}] w> {{ y = MatMul(x, w) }}"""


def converted(folder: Path, *, density: float = 1.0, **options: Any) -> Path:
    """A product with a constant matrix, quantized by MNN's converter. density: of numbers that are not zero."""
    proto = onnx.parser.parse_model(TEXT.replace(f" <float[{ROWS},{COLUMNS}] w>", ""))
    draw = np.random.default_rng(0)
    weight = draw.standard_normal((ROWS, COLUMNS)).astype(np.float32)
    weight[draw.random(weight.shape) >= density] = 0
    proto.graph.initializer.append(onnx.numpy_helper.from_array(weight, "w"))
    onnx.save(proto, folder / "m.onnx")
    return run_converter(folder / "m.onnx", folder / "m.mnn", ConverterOptions.of(**options)).output


def weight_of(doc: Document) -> StoredArray:
    arrays = [array for op in doc.net.tables("oplists") for array in arrays_of(op, outside_of(doc))[0]]
    (found,) = [array for array in arrays if array.field == "main.weight"]
    return found


def decoded(array: StoredArray) -> np.ndarray:
    """All values, read in pieces of 40."""
    pieces = array.values()
    assert pieces is not None
    if isinstance(pieces, np.ndarray):
        return pieces.astype(np.float32)
    return np.concatenate([pieces.values(at, min(at + 40, pieces.count)) for at in range(0, pieces.count, 40)])


def in_mnn(path: Path) -> np.ndarray:
    """The matrix as MNN has it: what it makes of the identity, transposed."""
    run = worker.run(path, {"x": np.eye(ROWS, dtype=np.float32)})
    result: np.ndarray = run.outputs["y"].reshape(ROWS, COLUMNS).T
    return result


@pytest.mark.parametrize("external", [False, True])
@pytest.mark.parametrize(
    "options",
    [
        {},
        {"fp16": True},
        *({"weightQuantBits": bits, "weightQuantAsymmetric": False} for bits in (2, 3, 4, 5, 8)),
        *({"weightQuantBits": bits, "weightQuantAsymmetric": True} for bits in (2, 3, 4, 7, 8)),
        {"weightQuantBits": 4, "weightQuantBlock": 32, "weightQuantAsymmetric": False},
        {"weightQuantBits": 4, "weightQuantBlock": 16, "weightQuantAsymmetric": True},
        {"weightQuantBits": 8, "weightQuantBlock": 32, "weightQuantAsymmetric": True},
    ],
)
def test_weights_are_those_of_mnn(tmp_path: Path, options: dict[str, Any], external: bool) -> None:
    path = converted(tmp_path, **options, **({"saveExternalData": True} if external else {}))
    array = weight_of(read(path))
    assert array.external == external
    np.testing.assert_allclose(decoded(array).reshape(COLUMNS, ROWS), in_mnn(path), rtol=1e-4, atol=1e-5)
    if "weightQuantBits" in options:
        assert array.scheme is not None
        assert array.scheme.bits == options["weightQuantBits"]
        assert array.scheme.block == options.get("weightQuantBlock")
        assert array.scheme.asymmetric == options["weightQuantAsymmetric"]
    else:
        assert array.scheme is None


@pytest.mark.parametrize("density", [0.0, 0.01, 0.2])
@pytest.mark.parametrize(
    "options",
    [
        {},
        {"weightQuantBits": 8, "weightQuantAsymmetric": False},
        {"weightQuantBits": 8, "weightQuantAsymmetric": True},
        {"weightQuantBits": 4, "weightQuantAsymmetric": False},
        {"weightQuantBits": 3, "weightQuantAsymmetric": True},
    ],
)
def test_sparse_weights_are_those_of_mnn(tmp_path: Path, options: dict[str, Any], density: float) -> None:
    outside = {"saveExternalData": True} if density == 0.2 else {}
    path = converted(tmp_path, density=density, detectSparseSpeedUp=True, **options, **outside)
    np.testing.assert_allclose(
        decoded(weight_of(read(path))).reshape(COLUMNS, ROWS), in_mnn(path), rtol=1e-4, atol=1e-5
    )


def test_float16_scales(tmp_path: Path) -> None:
    path = converted(tmp_path, weightQuantBits=8, weightQuantAsymmetric=False)
    doc = read(path)
    quan = next(found for _, found in doc.net.walk() if found.type.name == "IDSTQuan")
    quan.fields["alphaFp16"] = quan.fields.pop("alpha").astype("<f2").view("<u2")
    quan.fields["scaleStorage"] = 1
    write(doc, tmp_path / "half.mnn")
    array = weight_of(read(tmp_path / "half.mnn"))
    assert str(array.scheme) == "8-bit, per channel, symmetric, float16 scales"
    np.testing.assert_allclose(
        decoded(array).reshape(COLUMNS, ROWS), in_mnn(tmp_path / "half.mnn"), rtol=1e-4, atol=1e-5
    )


def coded(bits: int, count: int, **fields: Any) -> Any:
    """A table with `count` codes of `bits` bits, all zero bytes."""
    head = [2, *np.array([1, count], "<u2").view(np.uint8), (1 << bits) & 255]
    samples = np.arange(-(1 << (bits - 1)), 1 << (bits - 1), dtype=np.int64).astype(np.int8).view(np.uint8)
    body = np.zeros(-(-count * bits // 8), np.uint8)
    buffer = np.concatenate([np.array(head, np.uint8), samples, body]).view(np.int8)
    return table("IDSTQuan", buffer=buffer, type=1, quantScale=np.float32(1), aMaxOrBits=bits, **fields)


def pieces_of(quan: Any, alpha: np.ndarray) -> Pieces | None:
    scheme = scheme_of(quan, alpha.size, 1, 64)
    assert scheme is not None
    return decode(quan, scheme, quan["buffer"].view(np.uint8), alpha)


def test_hand_made_codes() -> None:
    quan = coded(3, 10)
    pieces = pieces_of(quan, np.array([0.5], np.float32))
    assert pieces is not None
    assert pieces.values(0, 10).tolist() == [-2.0] * 10


@pytest.mark.parametrize("length", [0, 1, 3, 5, 6, 10, 13, 14])
def test_short_buffers_are_not_decoded(length: int) -> None:
    quan = coded(3, 10)
    quan.fields["buffer"] = quan["buffer"][:length]
    assert pieces_of(quan, np.ones(1, np.float32)) is None


def test_damaged_sparse_codes_are_read_or_refused(tmp_path: Path) -> None:
    doc = read(converted(tmp_path, density=0.1, detectSparseSpeedUp=True, weightQuantBits=8))
    quan = next(found for _, found in doc.net.walk() if found.type.name == "IDSTQuan")
    assert quan["type"] == 2
    whole, draw = quan["buffer"].view(np.uint8), np.random.default_rng(0)
    refused = 0
    for number in range(300):
        data = whole.copy()
        data[draw.integers(0, 60 if number % 2 else data.size, 3)] = draw.integers(0, 256, 3)
        quan.fields["buffer"] = data[: draw.integers(0, data.size) if number % 3 == 0 else data.size].view(np.int8)
        values = weight_of(doc).values()
        refused += values is None
        if values is not None:
            decoded(weight_of(doc))
    assert 50 < refused < 300


@pytest.mark.parametrize("alphas", [0, 3, 11])
def test_scales_that_do_not_fit(alphas: int) -> None:
    assert pieces_of(coded(4, 10), np.ones(alphas, np.float32)) is None


def test_dims_without_end_are_not_decoded() -> None:
    quan = coded(4, 10)
    quan.fields["buffer"] = np.full(200, -1, np.int8)
    assert pieces_of(quan, np.ones(1, np.float32)) is None


@pytest.mark.parametrize(
    ("alphas", "outputs", "fields", "expected"),
    [
        (8, 8, {}, "4-bit, per channel, symmetric, float32 scales"),
        (1, 8, {}, "4-bit, per tensor, symmetric, float32 scales"),
        (16, 8, {}, "4-bit, block 32, symmetric, float32 scales"),
        (32, 8, {"readType": 16}, "4-bit, block 32, asymmetric, float32 scales"),
        (16, 8, {"scaleStorage": 1}, "4-bit, block 32, symmetric, float16 scales"),
        (8, 0, {}, "4-bit, per channel, symmetric, float32 scales"),
    ],
)
def test_schemes(alphas: int, outputs: int, fields: dict[str, Any], expected: str) -> None:
    assert str(scheme_of(coded(4, 10, **fields), alphas, outputs, 64)) == expected


def sparse(index: list[int], numbers: list[float], count: int) -> StoredArray:
    quan = table(
        "IDSTQuan",
        index=np.array(index, "<u4"),
        alpha=np.array(numbers, "<f4"),
        weightSize=count,
        quantScale=np.float32(1),
    )
    common = table("Convolution2DCommon", outputCount=2, inputCount=25)
    conv = table("Convolution2D", common=common, quanParameter=quan, bias=np.zeros(2, "<f4"))
    doc = small()
    doc.net.tables("oplists")[1].fields["main"] = conv
    return weight_of(doc)


def test_sparse_weights() -> None:
    array = sparse([41, 0, 7], [3.0, 1.0, 2.0], 50)
    expected = np.zeros(50, np.float32)
    expected[[41, 0, 7]] = [3.0, 1.0, 2.0]
    assert (array.dtype, array.scheme, array.nbytes) == ("float32", None, 24)
    assert decoded(array).tolist() == expected.tolist()


@pytest.mark.parametrize(
    ("index", "numbers", "count"), [([50], [1.0], 50), ([1, 2], [1.0], 50), ([1], [1.0], 2**32 - 1)]
)
def test_sparse_weights_that_do_not_fit(index: list[int], numbers: list[float], count: int) -> None:
    assert sparse(index, numbers, count).values() is None


def test_scales_may_be_any_numbers() -> None:
    quan = coded(4, 10, readType=1)
    quan.fields["quantScale"] = np.float32("inf")
    scheme = scheme_of(quan, 2, 1, 64)
    assert scheme is not None
    assert decode(quan, scheme, quan["buffer"].view(np.uint8), np.array([0, np.nan], np.float32)) is not None

"""The table IDSTQuan: byte for byte what MNN's converter writes, and read again by the reader of documents."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from carrying import held, model
from hypothesis import given, settings
from hypothesis import strategies as st

from graphkit.mnn.carry.encode import idst_table, packed
from graphkit.mnn.convert import run_converter
from graphkit.mnn.document import read
from graphkit.mnn.document.quantized import decode, scheme_of
from graphkit.mnn.document.schema import known_versions, schema_for
from graphkit.mnn.document.tree import Table, first_difference
from graphkit.mnn.options import ConverterOptions
from graphkit.quant.codes import Codes, code_range, stored_bytes

SCHEMA = schema_for(known_versions()[-1])
LINEAR = "g (float[N, 256] x) => (float[N, 24] y) { y = MatMul(x, w) }"
CONV = "g (float[1, 32, 6, 6] x) => (float[1, 8, 4, 4] y) { y = Conv(x, w) }"
DEPTHWISE = "g (float[1, 32, 6, 6] x) => (float[1, 32, 4, 4] y) { y = Conv<group = 32>(x, w) }"
SHAPES = {LINEAR: (256, 24), CONV: (8, 32, 3, 3), DEPTHWISE: (32, 1, 3, 3)}


def table_of(path: Path) -> Table:
    """The only IDSTQuan of a file."""
    mains = [op["main"] for op in read(path).net["oplists"] if isinstance(op["main"], Table)]
    found: Table
    (found,) = [main["quanParameter"] for main in mains if main.type.name == "Convolution2D"]
    return found


def converted(text: str, folder: Path, **options: Any) -> Path:
    """What MNN's own quantizer makes of random weights."""
    weights = np.random.default_rng(3).standard_normal(SHAPES[text]).astype(np.float32)
    source = folder / "model.onnx"
    model(text, {"w": weights}, opset=18).save(source)
    run_converter(source, folder / "model.mnn", ConverterOptions.of("ONNX", options))
    return folder / "model.mnn"


def decoded(path: Path) -> Codes:
    """Its codes, scales and zero points, by the reader of documents."""
    ((_, layer),) = held(path).items()
    quan = layer.table
    runs = layer.scale.size
    rows = layer.codes.reshape(runs, -1)
    zeros = None
    if quan["readType"]:
        low = quan["alpha"][0::2]
        zeros = (quan["aMin"] - low / layer.scale).astype(np.float32)[:, None]
    return Codes(rows, np.asarray(layer.scale, np.float32)[:, None], zeros, layer.bits)


@pytest.mark.parametrize("bits", [8, 4, 3, 2])
@pytest.mark.parametrize(
    ("text", "block"), [(LINEAR, -1), (LINEAR, 32), (LINEAR, 128), (CONV, -1), (CONV, 16), (DEPTHWISE, -1)]
)
def test_symmetric_tables_are_mnns_byte_for_byte(text: str, block: int, bits: int, tmp_path: Path) -> None:
    path = converted(text, tmp_path, weightQuantBits=bits, weightQuantBlock=block, weightQuantAsymmetric=0)
    theirs, ours = table_of(path), idst_table(decoded(path), SCHEMA)
    for name in ("buffer", "type", "aMaxOrBits", "aMin", "readType", "shapeInt32", "quantScale"):
        assert first_difference(theirs[name], ours[name]) is None, name
    scales = theirs["alpha"] if "alpha" in theirs else theirs["alphaFp16"].view("<f2").astype(np.float32)
    kept = ours["alpha"] if "alpha" in ours else ours["alphaFp16"].view("<f2").astype(np.float32)
    np.testing.assert_array_equal(scales, kept)


@pytest.mark.parametrize("bits", [8, 4, 2])
@pytest.mark.parametrize("block", [-1, 32])
def test_asymmetric_tables_are_mnns(block: int, bits: int, tmp_path: Path) -> None:
    path = converted(LINEAR, tmp_path, weightQuantBits=bits, weightQuantBlock=block, weightQuantAsymmetric=1)
    theirs, ours = table_of(path), idst_table(decoded(path), SCHEMA)
    for name in ("buffer", "type", "aMaxOrBits", "aMin", "readType", "shapeInt32", "quantScale"):
        assert first_difference(theirs[name], ours[name]) is None, name
    np.testing.assert_allclose(ours["alpha"], theirs["alpha"], rtol=1e-5, atol=1e-7)


@st.composite
def some_codes(draw: st.DrawFn) -> Codes:
    bits = draw(st.integers(2, 8))
    rows, blocks, width = draw(st.integers(1, 5)), draw(st.integers(1, 3)), draw(st.integers(1, 9))
    rng = np.random.default_rng(draw(st.integers(0, 1 << 30)))
    low, high = code_range(bits)
    numbers = rng.integers(low, high + 1, (rows, blocks * width)).astype(np.int8)
    scales = rng.standard_normal((rows, blocks)).astype(np.float32)
    zeros = rng.integers(low, high + 1, (rows, blocks)).astype(np.float32) if draw(st.booleans()) else None
    return Codes(numbers, scales, zeros, bits)


@given(some_codes())
@settings(max_examples=60, deadline=None)
def test_what_is_written_is_read_again(codes: Codes) -> None:
    table = idst_table(codes, SCHEMA)
    alpha = table["alphaFp16"].view("<f2") if "alphaFp16" in table else table["alpha"]
    scheme = scheme_of(table, alpha.size, codes.rows, codes.columns)
    assert scheme is not None
    found = decode(table, scheme, table["buffer"], alpha)
    assert found is not None
    np.testing.assert_array_equal(found.codes(0, found.count), codes.codes.reshape(-1))
    largest = float(np.abs(codes.values()).max()) + float(np.abs(codes.scales).max()) * 256
    np.testing.assert_allclose(found.values(0, found.count), codes.values().reshape(-1), rtol=0, atol=3e-7 * largest)
    assert (scheme.bits, scheme.asymmetric) == (codes.bits, not codes.symmetric)


def test_the_bytes_are_those_that_codes_announce() -> None:
    codes = Codes(np.zeros((6, 32), np.int8), np.full((6, 2), 0.1, np.float32), None, 3)
    table = idst_table(codes, SCHEMA)
    assert table["buffer"].nbytes + table["alpha"].nbytes == stored_bytes(
        codes.rows, codes.columns, codes.blocks, codes.bits, symmetric=codes.symmetric
    )


def test_sizes_over_65535_take_four_bytes() -> None:
    codes = Codes(np.ones((1, 70000), np.int8), np.ones((1, 1), np.float32) / 3, None, 2)
    table = idst_table(codes, SCHEMA)
    assert table["shapeInt32"]
    assert table["buffer"][1:9].view("<u4").tolist() == [1, 70000]
    assert packed(np.ones((1, 65535), np.int8), 2)[1:5].view("<u2").tolist() == [1, 65535]


def with_scales(*values: float) -> Codes:
    return Codes(np.ones((len(values), 4), np.int8), np.array(values, np.float32)[:, None], None, 4)


def test_scales_that_float16_holds_are_stored_so() -> None:
    assert "alphaFp16" in idst_table(with_scales(0.5, 0.25), SCHEMA)
    assert "alphaFp16" not in idst_table(with_scales(0.5, 0.1), SCHEMA)


def test_half_scales_on_request_where_they_are_in_range() -> None:
    table = idst_table(with_scales(0.1, 0.3), SCHEMA, half_scales=True)
    np.testing.assert_allclose(table["alphaFp16"].view("<f2").astype(np.float32), [0.1, 0.3], rtol=2.0**-11)
    assert table["scaleStorage"] == SCHEMA.enums["ScaleStorageType"].numbers["FP16"]
    for out_of_range in (1e-7, 1e5, float("nan")):
        assert "alphaFp16" not in idst_table(with_scales(0.1, out_of_range), SCHEMA, half_scales=True)

"""What is noted of quantized weights: codes and scales that give the very numbers onnxruntime computes."""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np
import onnx
import pytest
from carrying import Array, codes, model, scales
from onnx import TensorProto

from graphkit.mnn.carry.layouts import layouts
from graphkit.mnn.carry.lift import Lifted, lift
from graphkit.mnn.carry.parts import Matrix, Parts
from graphkit.model import Model
from graphkit.testing import parse, run

I4, U4 = ml_dtypes.int4, ml_dtypes.uint4
FORMS: dict[str, tuple[str, dict[str, Any]]] = {
    "per tensor": ("DequantizeLinear(q, s)", {"q": codes(6, 8), "s": np.float32(0.02)}),
    "per row": ("DequantizeLinear<axis=0>(q, s)", {"q": codes(6, 8), "s": scales(6)}),
    "per column, negative axis": ("DequantizeLinear<axis=-1>(q, s)", {"q": codes(6, 8), "s": scales(8)}),
    "zero points": (
        "DequantizeLinear<axis=0>(q, s, z)",
        {"q": codes(6, 8), "s": scales(6), "z": codes(6, seed=2)},
    ),
    "uint8 without zero points": (
        "DequantizeLinear<axis=0>(q, s)",
        {"q": codes(6, 8, dtype=np.uint8), "s": scales(6)},
    ),
    "uint8 around 128": (
        "DequantizeLinear<axis=0>(q, s, z)",
        {"q": codes(6, 8, dtype=np.uint8), "s": scales(6), "z": np.full(6, 128, np.uint8)},
    ),
    "int4": ("DequantizeLinear<axis=1>(q, s)", {"q": codes(6, 8, dtype=I4), "s": scales(8)}),
    "uint4 in blocks": (
        "DequantizeLinear<axis=0, block_size=4>(q, s, z)",
        {"q": codes(8, 6, dtype=U4), "s": scales(2, 6), "z": codes(2, 6, dtype=U4, seed=3)},
    ),
    "block that does not divide": (
        "DequantizeLinear<axis=1, block_size=3>(q, s)",
        {"q": codes(6, 8, dtype=I4), "s": scales(6, 3)},
    ),
    "half scales": (
        "DequantizeLinear<axis=0>(q, s)",
        {"q": codes(6, 8), "s": scales(6).astype(np.float16)},
    ),
    "codes behind a Transpose": (
        "DequantizeLinear<axis=0>(t, s)",
        {"q": codes(8, 6), "s": scales(6)},
    ),
    "small codes of 32 bits": (
        "DequantizeLinear(q, s)",
        {"q": codes(6, 8).astype(np.int32), "s": np.float32(0.5)},
    ),
}


def dequantized(name: str) -> Model:
    """A model whose output is a dequantized weight."""
    expression, constants = FORMS[name]
    before = "t = Transpose<perm=[1, 0]>(q)" if "(t," in expression else ""
    kind = "float16" if constants["s"].dtype == np.float16 else "float"
    return model(f"g ({kind} x) => ({kind}[a, b] y) {{ {before} w = {expression} y = Mul(w, x) }}", constants)


def values(parts: Parts | str) -> Array:
    assert isinstance(parts, Parts)
    flat = parts.mapped(lambda array: array.reshape(array.shape[0], -1))
    assert flat is not None
    return Matrix(flat).values(slice(None)).reshape(parts.codes.shape)


def only(source: Model) -> Lifted:
    (found,) = lift(source)
    return found


@pytest.mark.parametrize("name", FORMS)
def test_the_weights_are_what_onnxruntime_computes_bit_by_bit(name: str) -> None:
    source = dequantized(name)
    weight = only(source)
    one = np.ones((), np.float16 if "half" in name else np.float32)
    np.testing.assert_array_equal(values(weight.parts(weight.forms[0])), run(source, {"x": one})["y"])
    assert weight.name == "q"
    assert weight.float_bytes == 4 * 48


@pytest.mark.parametrize("name", ["per row", "uint8 around 128", "int4"])
def test_symmetric_weights_have_no_zero_points(name: str) -> None:
    parts = only(dequantized(name))
    found = parts.parts(parts.forms[0])
    assert isinstance(found, Parts)
    assert found.zero is None


def test_codes_of_less_than_a_byte_count_as_they_are_stored() -> None:
    assert only(dequantized("int4")).stored == 48 // 2 + 8 * 4


MOVES = """g (float[N, 8] x) => (float[N, 6] y) {
    d = DequantizeLinear<axis=0>(q, s)
    r = Reshape(d, shape)
    w = Transpose<perm=[1, 0]>(r)
    y = MatMul(x, w)
}"""


def test_scales_follow_what_moves_the_numbers() -> None:
    source = model(MOVES, {"q": codes(12, 4), "s": scales(12), "shape": np.array([6, 8])}, opset=17)
    weight = only(source)
    last = next(form for form in weight.forms if len(form.nodes) == 2)
    eye = np.eye(8, dtype=np.float32)
    np.testing.assert_array_equal(values(weight.parts(last)), run(source, {"x": eye})["y"])
    assert [use.op for use in weight.uses] == ["MatMul"]


def packed(array: Array, bits: int) -> Array:
    """Codes in rows as MatMulNBits has them, the first in the lowest bits."""
    each = 8 // bits
    rows = array.reshape(array.shape[0], -1)
    split = np.pad(rows, ((0, 0), (0, -rows.shape[1] % each))).reshape(rows.shape[0], -1, each)
    return np.asarray((split << (np.arange(each) * bits)).sum(-1), np.uint8)


def nbits(bits: int, k: int, block: int, zeros: str | None, n: int = 6) -> Model:
    rng = np.random.default_rng(bits + k)
    blocks = -(-k // block)
    raw = rng.integers(0, 1 << bits, (n * blocks, block))
    constants: dict[str, Any] = {"q": packed(raw, bits).reshape(n, blocks, -1), "s": scales(n, blocks).reshape(-1)}
    if zeros == "packed":
        constants["z"] = packed(rng.integers(0, 1 << bits, (n, blocks)), bits).reshape(-1)
    if zeros == "float":
        constants["z"] = rng.random((n, blocks), np.float32) * (1 << bits)
    inputs = "x, q, s, z" if zeros else "x, q, s"
    attributes = f"K={k}, N={n}, bits={bits}, block_size={block}"
    return model(
        f"g (float[N, {k}] x) => (float[N, {n}] y) {{ y = com.microsoft.MatMulNBits<{attributes}>({inputs}) }}",
        constants,
    )


PACKED = [(4, 32, 16), (8, 48, 16), (2, 64, 32), (4, 40, 16), (8, 40, 32)]
KINDS = [(*sizes, zeros) for sizes in PACKED for zeros in (None, "packed")]


# onnxruntime has float zero points for 4 bits only
@pytest.mark.parametrize(("bits", "k", "block", "zeros"), [*KINDS, (4, 32, 16, "float")])
def test_packed_weights_are_what_onnxruntime_multiplies_with(bits: int, k: int, block: int, zeros: str | None) -> None:
    source = nbits(bits, k, block, zeros)
    weight = only(source)
    product = run(source, {"x": np.eye(k, dtype=np.float32)})["y"]
    np.testing.assert_allclose(values(weight.parts(weight.forms[0])), product.T, rtol=1e-6, atol=1e-7)
    assert weight.shape == (6, k)


INTEGER: dict[str, tuple[str, dict[str, Any]]] = {
    "MatMulInteger": (
        "g (uint8[3, 8] x) => (int32[3, 6] y) { y = MatMulInteger(x, q, xz, z) }",
        {"q": codes(8, 6), "z": codes(6, seed=4), "xz": np.uint8(0)},
    ),
    "ConvInteger": (
        "g (uint8[1, 2, 4, 4] x) => (int32[1, 3, 3, 3] y) { y = ConvInteger(x, q, xz, z) }",
        {"q": codes(3, 2, 2, 2), "z": np.int8(3), "xz": np.uint8(0)},
    ),
}


@pytest.mark.parametrize("name", INTEGER)
def test_products_of_codes_have_codes_less_their_zero_points(name: str) -> None:
    text, constants = INTEGER[name]
    weight = only(model(text, constants))
    place = constants["z"].reshape(-1, *[1] * (constants["q"].ndim - 1)) if name == "ConvInteger" else constants["z"]
    expected = constants["q"].astype(np.float32) - place.astype(np.float32)
    np.testing.assert_array_equal(values(weight.parts(weight.forms[0])), expected)


def refused(source: Model) -> str:
    weight = only(source)
    reason = weight.parts(weight.forms[0])
    assert isinstance(reason, str)
    return reason


def test_what_cannot_be_read_has_a_reason() -> None:
    text = "g (float[N, 8] x) => (float[N, 6] y) { w = DequantizeLinear<axis=1>(q, s) y = MatMul(x, w) }"
    assert "16 bits" in refused(model(text, {"q": codes(8, 6, dtype=np.int16), "s": scales(6)}))
    assert "float8" in refused(model(text, {"q": np.ones((8, 6), ml_dtypes.float8_e4m3fn), "s": scales(6)}))
    assert "do not fit" in refused(model(text, {"q": codes(8, 6), "s": scales(5)}))


def test_groups_of_inputs_are_refused() -> None:
    proto = nbits(4, 32, 16, None).proto
    proto.graph.initializer.append(onnx.numpy_helper.from_array(np.arange(32, dtype=np.int32) // 16, "g"))
    proto.graph.node[0].input.extend(["", "g"])
    assert "g_idx" in refused(Model.from_proto(proto))


def test_damaged_nodes_have_no_weights_to_carry() -> None:
    proto = nbits(4, 32, 16, None).proto
    del proto.graph.node[0].attribute[:]
    assert lift(Model.from_proto(proto)) == []  # the passes refuse it, and name it


def test_computed_scales_and_biases_are_no_weights() -> None:
    computed = "g (float[8, 6] x, float[6] s) => (float[8, 6] y) { w = DequantizeLinear<axis=1>(q, s) y = Add(x, w) }"
    assert lift(model(computed, {"q": codes(8, 6)})) == []
    bias = "g (float[8, 6] x) => (float[8, 6] y) { b = DequantizeLinear<axis=0>(q, s) y = Add(x, b) }"
    assert lift(model(bias, {"q": np.arange(6, dtype=np.int32), "s": scales(6)})) == []


def test_one_weight_at_two_nodes_is_lifted_once() -> None:
    text = """g (float[N, 6] x) => (float[N, 6] y) {
        a = DequantizeLinear(q, s) b = DequantizeLinear(q, s) h = MatMul(x, a) y = MatMul(h, b) }"""
    weight = only(model(text, {"q": codes(6, 6), "s": np.float32(0.1)}))
    assert [use.op for use in weight.uses] == ["MatMul", "MatMul"]


def test_an_input_with_a_default_value_is_a_constant() -> None:
    text = "g (float[N, 6] x, int8[6, 6] q) => (float[N, 6] y) { a = DequantizeLinear(q, s) y = MatMul(x, a) }"
    assert only(model(text, {"q": codes(6, 6), "s": np.float32(0.1)})).name == "q"


def test_local_functions_and_subgraphs_are_looked_into() -> None:
    text = """<ir_version: 10, opset_import: ["" : 21, "own" : 1]>
    g (float[N, 6] x) => (float[N, 6] y) { y = own.linear(x, q, s) }
    <opset_import: ["" : 21], domain: "own">
    linear (x, q, s) => (y) { w = DequantizeLinear(q, s) y = MatMul(x, w) }"""
    proto = parse(text).proto
    for name, array in (("q", codes(6, 6)), ("s", np.float32(0.1))):
        proto.graph.initializer.append(onnx.numpy_helper.from_array(np.asarray(array), name))
    assert only(Model.from_proto(proto)).shape == (6, 6)
    branch = """g (bool c, float[N, 6] x) => (float[N, 6] y) {
        y = If(c) <then_branch = a () => (float[N, 6] t) { w = DequantizeLinear(q, s) t = MatMul(x, w) },
                   else_branch = b () => (float[N, 6] e) { e = Neg(x) }> }"""
    assert only(model(branch, {"q": codes(6, 6), "s": np.float32(0.1)})).node == "w"


def test_layouts_of_a_weight() -> None:
    assert {(each.name, each.rows, each.columns) for each in layouts((6, 8))} == {("rows", 6, 8), ("columns", 8, 6)}
    assert ("groups", 8, 12) in {(each.name, each.rows, each.columns) for each in layouts((6, 4, 2, 2), (2,))}
    assert layouts((5,)) == []
    assert layouts((0, 4)) == []


def grid(quantized: Array, step: Array, zero: Array | float = 0.0) -> Array:
    return np.asarray(((quantized - zero) * step).astype(np.float32))


def floats(weight: Array) -> Model:
    text = f"g (float[N, {weight.shape[0]}] x) => (float[N, M] y) {{ y = MatMul(x, w) }}"
    return model(text, {"w": weight})


@pytest.mark.parametrize("block", [0, 32])
@pytest.mark.parametrize("zero", [0.0, 7.37])
def test_floats_on_a_grid_have_codes(block: int, zero: float) -> None:
    raw = np.random.default_rng(5).integers(-8, 8, (128, 64))
    rows = 128 // block if block else 1
    step = np.repeat(scales(rows, 64), 128 // rows, axis=0)
    weight = only(floats(grid(raw, step, zero)))
    parts = weight.parts(weight.forms[0])
    np.testing.assert_allclose(values(parts), grid(raw, step, zero), rtol=0, atol=1e-6 * 0.3)
    assert isinstance(parts, Parts)
    assert (parts.zero is None) == (zero == 0)
    assert int(parts.codes.max()) - int(parts.codes.min()) == 15
    assert not weight.quantized


def test_floats_that_miss_the_grid_once_are_refused() -> None:
    raw = grid(np.random.default_rng(5).integers(-8, 8, (128, 64)), scales(1, 64))
    raw[100, 50] *= 1.001
    weight = only(floats(raw))
    assert "not on the grid" in str(weight.parts(weight.forms[0]))


@pytest.mark.parametrize(
    "weight",
    [
        np.random.default_rng(0).standard_normal((128, 64)).astype(np.float32),
        np.sign(np.random.default_rng(0).standard_normal((128, 64))).astype(np.float32),
        np.zeros((128, 64), np.float32),
        np.full((128, 64), np.nan, np.float32),
    ],
    ids=["random", "signs", "zeros", "nan"],
)
def test_other_floats_are_left_alone(weight: Array) -> None:
    assert lift(floats(weight)) == []


def test_float_types_on_the_way_are_kept() -> None:
    text = f"""g (float[N, 8] x) => (float[N, 6] y) {{
        d = DequantizeLinear<axis=1>(q, s) w = Cast<to={TensorProto.FLOAT}>(d) y = MatMul(x, w) }}"""
    source = model(text, {"q": codes(8, 6), "s": scales(6).astype(np.float16)})
    weight = only(source)
    last = next(form for form in weight.forms if form.nodes)
    eye = np.eye(8, dtype=np.float32)
    np.testing.assert_array_equal(values(weight.parts(last)), run(source, {"x": eye})["y"])

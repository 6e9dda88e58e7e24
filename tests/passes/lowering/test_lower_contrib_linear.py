"""onnxruntime's fused products, rotary embeddings and movers: equal to its own kernels in ONNX, right in MNN."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from graphkit.model import Model
from graphkit.passes.lower_for_mnn import LowerForMnn
from graphkit.testing import assert_rewrites, assert_unchanged, run
from tests.in_mnn import assert_right_in_mnn
from tests.one_node import assert_right_everywhere, assert_same, lowered, one_node, refusals

MS = "com.microsoft::"
Inputs = dict[str, npt.NDArray[Any]]


def floats(*shape: int, seed: int = 0) -> npt.NDArray[np.float32]:
    return np.random.default_rng(seed).standard_normal(shape).astype(np.float32)


def ints(high: int, *shape: int, dtype: str = "int64") -> npt.NDArray[Any]:
    return np.random.default_rng(1).integers(0, high, shape).astype(dtype)


# -- products ------------------------------------------------------------------------------------------------------


@settings(max_examples=60, deadline=None)
@given(st.tuples(*[st.booleans()] * 5), st.sampled_from([1.0, 0.5, -2.0]))
def test_fused_matmul(flags: tuple[bool, ...], alpha: float) -> None:
    flip_a, flip_b, batch_a, batch_b, constant = flags
    a, b = np.arange(120.0, dtype="f4").reshape(3, 2, 4, 5) / 60 - 1, floats(3, 2, 5, 6)
    a, b = (x.swapaxes(2, 3) if flip else x for x, flip in ((a, flip_a), (b, flip_b)))
    a, b = (np.moveaxis(x, 2, 0) if batch else x for x, batch in ((a, batch_a), (b, batch_b)))
    attrs = {"transA": flip_a, "transB": flip_b, "transBatchA": batch_a, "transBatchB": batch_b}
    model, feeds = one_node(
        MS + "FusedMatMul",
        {"a": a, "b": b},
        constants=["b"] if constant else [],
        alpha=alpha,
        **{name: int(value) for name, value in attrs.items()},
    )
    assert_same(model, feeds)


@pytest.mark.parametrize(("a", "b", "attrs"), [((5,), (5, 3), {"transA": 1}), ((2, 5), (3, 5), {"transB": 1})])
@pytest.mark.parametrize("op", ["FusedMatMul", "TransposeMatMul"])
def test_products_right_in_mnn(op: str, a: tuple[int, ...], b: tuple[int, ...], attrs: Any, tmp_path: Path) -> None:
    model, feeds = one_node(MS + op, {"a": floats(*a), "b": floats(*b, seed=1)}, alpha=0.5, **attrs)
    assert_right_everywhere(model, feeds, tmp_path)


def test_fused_matmul_is_a_matmul() -> None:
    head = '<ir_version: 8, opset_import: ["": 17, "com.microsoft": 1]>\n'
    graph = "g (float[B,2,3] a, float[B,4,3] b) => (float[B,2,4] y)"
    before = head + graph + " { y = com.microsoft.FusedMatMul<transB = 1, alpha = 0.5>(a, b) }"
    after = head + graph + " <float h = {0.5}> { t = Transpose<perm = [0, 2, 1]>(b) m = MatMul(a, t) y = Mul(m, h) }"
    inputs = {"a": floats(2, 2, 3), "b": floats(2, 4, 3)}
    assert_rewrites(LowerForMnn(), before, after, inputs=inputs)


def test_an_unknown_rank_is_refused() -> None:
    text = """<ir_version: 8, opset_import: ["": 17, "com.microsoft": 1, "other": 1]>
    g (float[2,3] a) => (float[2,2] y) {
        b = other.Unknown(a)
        y = com.microsoft.FusedMatMul<transB = 1>(a, b)
    }"""
    assert_unchanged(LowerForMnn(), text, refuses="rank")


ACTS: list[tuple[str, list[float]]] = [
    *(("Relu", []), ("Sigmoid", []), ("Tanh", []), ("LeakyRelu", [0.3]), ("HardSigmoid", [0.3, 0.4])),
]


@pytest.mark.parametrize(("activation", "values"), ACTS)
def test_fused_gemm(activation: str, values: list[float], tmp_path: Path) -> None:
    attrs = {f"activation_{name}": value for name, value in zip(("alpha", "beta"), values, strict=False)}
    inputs = {"a": floats(3, 4), "b": floats(5, 4, seed=1), "c": floats(5, seed=2)}
    model, feeds = one_node(
        MS + "FusedGemm", inputs, constants=["b", "c"], transB=1, alpha=0.7, activation=activation, **attrs
    )
    assert_right_everywhere(model, feeds, tmp_path)


@pytest.mark.parametrize(("activation", "values"), [*ACTS, ("Clip", [-0.5, 0.5]), ("HardSwish", [])])
@pytest.mark.parametrize("more", [False, True])
@pytest.mark.parametrize("opset", [11, 17])
def test_fused_conv(activation: str, values: list[float], more: bool, opset: int) -> None:
    inputs = {"x": floats(1, 3, 6, 6), "w": floats(4, 3, 3, 3, seed=1), "b": floats(4, seed=2)}
    inputs |= {"z": floats(1, 4, 6, 6, seed=3)} if more else {}
    attrs: dict[str, Any] = {"activation_params": values} if values else {}
    model, feeds = one_node(
        MS + "FusedConv",
        inputs,
        constants=["w", "b"],
        opset=opset,
        activation=activation,
        kernel_shape=[3, 3],
        pads=[1, 1, 1, 1],
        **attrs,
    )
    assert_same(model, feeds)


def test_fused_conv_right_in_mnn(tmp_path: Path) -> None:
    inputs = {"x": floats(1, 3, 6, 6), "w": floats(4, 3, 3, 3), "b": floats(4), "z": floats(1, 4, 4, 4)}
    model, feeds = one_node(MS + "FusedConv", inputs, constants=["w", "b"], activation="Relu", kernel_shape=[3, 3])
    assert_right_in_mnn(model, tmp_path, feeds=feeds)


def test_nhwc_convolution() -> None:
    x, weights = floats(1, 6, 5, 3), floats(4, 3, 3, 3, seed=1)
    plain, feeds = one_node("Conv", {"x": x.transpose(0, 3, 1, 2), "w": weights}, constants=["w"], kernel_shape=[3, 3])
    expected = {"y": np.maximum(run(plain, feeds)["y"], 0).transpose(0, 2, 3, 1)}
    model, feeds = one_node(
        MS + "NhwcFusedConv", {"x": x, "w": weights}, constants=["w"], activation="Relu", kernel_shape=[3, 3]
    )
    assert_same(model, feeds, expected=expected)


def test_unknown_activations_are_refused() -> None:
    for op, inputs in (("FusedGemm", {"a": floats(2, 2), "b": floats(2, 2)}), ("FusedConv", {"x": floats(1, 1, 3, 3)})):
        inputs = inputs if op == "FusedGemm" else {**inputs, "w": floats(1, 1, 1, 1)}
        assert "unknown" in refusals(one_node(MS + op, inputs, activation="Odd")[0])[0]


def test_gemm_fast_gelu() -> None:
    x, w, b = floats(2, 3, 4), floats(4, 5, seed=1), floats(5, seed=2)
    total = (x @ w + b).astype(np.float64)
    expected = 0.5 * total * (1 + np.tanh((2 / np.pi) ** 0.5 * (total + 0.044715 * total**3)))
    model, feeds = one_node(MS + "GemmFastGelu", {"x": x, "w": w, "b": b})
    assert_same(model, feeds, expected={"y": expected.astype(np.float32)})


# -- weights of a few bits -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("bits", [2, 4, 8])
@pytest.mark.parametrize(("inputs", "block"), [(32, 16), (40, 16), (64, 32)])
@pytest.mark.parametrize("zeros", ["", "packed", "flat"])
@pytest.mark.parametrize("bias", [False, True])
def test_matmul_n_bits(bits: int, inputs: int, block: int, zeros: str, bias: bool) -> None:
    blocks, rows = -(-inputs // block), 6
    made: Inputs = {"a": floats(2, 3, inputs), "B": ints(256, rows, blocks, block * bits // 8, dtype="uint8")}
    made["s"] = np.abs(floats(rows, blocks, seed=2))
    points = ints(256, rows, -(-blocks * bits // 8), dtype="uint8")
    made |= {"z": points.reshape(-1) if zeros == "flat" else points} if zeros else {"_z": points}
    made |= {"_g": points, "c": floats(rows, seed=3)} if bias else {}
    constants = [name for name in made if name != "a" and name[0] != "_"]
    model, feeds = one_node(
        MS + "MatMulNBits", made, constants=constants, bits=bits, block_size=block, K=inputs, N=rows
    )
    assert_same(model, feeds)


@pytest.mark.parametrize("zeros", [False, True])
def test_matmul_n_bits_right_in_mnn(zeros: bool, tmp_path: Path) -> None:
    made: Inputs = {"a": floats(3, 32), "B": ints(256, 6, 2, 8, dtype="uint8"), "s": np.abs(floats(6, 2))}
    made |= {"z": floats(6, 2, seed=4)} if zeros else {}  # points that are numbers
    constants = [name for name in made if name != "a"]
    model, feeds = one_node(MS + "MatMulNBits", made, constants=constants, bits=4, block_size=16, K=32, N=6)
    assert_right_in_mnn(model, tmp_path, feeds=feeds)


def grouped(length: int, bits: int = 4, zeros: str = "") -> tuple[Model, Inputs]:
    """Inputs of a product in groups by `g_idx`, which names a block of 16 for each."""
    made: Inputs = {"a": floats(3, 40), "B": ints(256, 6, 3, 2 * bits, dtype="uint8"), "s": np.abs(floats(6, 3))}
    packed = ints(256, 6, -(-3 * bits // 8), dtype="uint8")
    made |= {"z": packed if zeros == "packed" else np.abs(floats(6, 3, seed=4))} if zeros else {"_z": packed}
    made["g"] = ints(3, length, dtype="int32")
    constants = [name for name in made if name not in ("a", "_z")]
    return one_node(MS + "MatMulNBits", made, constants=constants, bits=bits, block_size=16, K=40, N=6)


@pytest.mark.parametrize("length", [40, 48])
@pytest.mark.parametrize("zeros", ["", "numbers"])
def test_groups_may_fill_the_last_block_up(length: int, zeros: str) -> None:
    assert_same(*grouped(length, zeros=zeros))


@pytest.mark.parametrize(("bits", "zeros"), [(4, "packed"), (2, ""), (2, "packed")])
def test_groups_that_onnxruntime_gets_wrong_are_refused(bits: int, zeros: str) -> None:
    model, _ = grouped(40, bits, zeros)
    assert "onnxruntime itself computes g_idx" in refusals(model)[0]


def test_groups_of_another_length_are_refused() -> None:
    assert "do not belong together" in refusals(grouped(41)[0])[0]


def test_computed_weights_are_refused() -> None:
    made: Inputs = {"a": floats(3, 32), "B": ints(256, 6, 2, 8, dtype="uint8"), "s": floats(6, 2)}
    model, _ = one_node(MS + "MatMulNBits", made, bits=4, block_size=16, K=32, N=6)
    assert "not constant" in refusals(model)[0]
    odd, _ = one_node(MS + "MatMulNBits", made, constants=["B", "s"], bits=3, block_size=16, K=32, N=6)
    assert "3 bits" in refusals(odd)[0]


@pytest.mark.parametrize("kind", [0, 1])
def test_matmul_bnb4(kind: int) -> None:
    made: Inputs = {"a": floats(2, 32), "B": ints(256, 32 * 6 // 2, dtype="uint8"), "s": np.abs(floats(12))}
    model, feeds = one_node(MS + "MatMulBnb4", made, constants=["B", "s"], quant_type=kind, block_size=16, K=32, N=6)
    assert_same(model, feeds)


# -- the others ----------------------------------------------------------------------------------------------------

OTHERS: list[tuple[str, Inputs, list[str], dict[str, Any]]] = [
    ("CDist", {"a": floats(4, 3), "b": floats(5, 3, seed=1)}, [], {"metric": "sqeuclidean"}),
    ("CDist", {"a": floats(4, 3), "b": floats(5, 3, seed=1)}, [], {"metric": "euclidean"}),
    ("ExpandDims", {"a": floats(4, 3), "x": np.array(1, np.int32)}, ["x"], {}),
    ("ExpandDims", {"a": floats(4, 3), "x": np.array(-1, np.int32)}, ["x"], {}),
    ("UnfoldTensor", {"a": floats(2, 9, 3)}, [], {"dim": 1, "size": 3, "step": 2}),
    ("UnfoldTensor", {"a": floats(2, 9)}, [], {"size": 4}),
    ("GatedAdd", {"a": floats(2, 5, 4), "b": floats(2, 5, 4, seed=1), "g": floats(2, 5, 1, seed=2)}, [], {}),
    ("Range", {"a": np.array(1, "f4"), "b": np.array(5, "f4")}, ["a"], {}),
    (
        "ConvTransposeWithDynamicPads",
        {"a": floats(1, 2, 4, 4), "w": floats(2, 3, 3, 3), "p": np.array([1, 1, 1, 1])},
        ["w", "p"],
        {"kernel_shape": [3, 3], "strides": [2, 2]},
    ),
]


@pytest.mark.parametrize(("op", "inputs", "constants", "attrs"), OTHERS)
def test_others(op: str, inputs: Inputs, constants: list[str], attrs: dict[str, Any], tmp_path: Path) -> None:
    model, feeds = one_node(MS + op, inputs, constants=constants, **attrs)
    assert_same(model, feeds)
    if op in ("CDist", "UnfoldTensor", "GatedAdd"):
        assert_right_in_mnn(model, tmp_path, feeds=feeds)


TWINS: list[tuple[str, Inputs, list[str], dict[str, Any]]] = [
    ("Trilu", {"a": floats(4, 4)}, [], {"upper": 0}),
    ("Pad", {"a": floats(4, 4), "p": np.array([1, 0, 0, 2])}, ["p"], {}),
    ("GatherND", {"a": floats(4, 4), "i": np.array([[1, 2], [3, 0]])}, ["i"], {}),
    ("GridSample", {"a": floats(1, 2, 4, 4), "g": floats(1, 3, 3, 2) / 2}, [], {}),
]


@pytest.mark.parametrize(("op", "inputs", "constants", "attrs"), TWINS)
def test_what_onnx_has_by_now(op: str, inputs: Inputs, constants: list[str], attrs: dict[str, Any]) -> None:
    model, feeds = one_node(MS + op, inputs, constants=constants, **attrs)
    graph = lowered(model)
    assert not [node.op for node in graph.nodes if node.domain]
    np.testing.assert_allclose(run(graph.to_model(), feeds)["y"], run(model, feeds)["y"], atol=1e-6)


def test_torch_embedding() -> None:
    table, ids = floats(5, 3), np.array([[1, 4], [0, 0]])
    model, feeds = one_node(MS + "TorchEmbedding", {"w": table, "i": ids}, constants=["w"])
    assert_same(model, feeds, expected={"y": table[ids]})


def test_what_cannot_be_known_is_refused() -> None:
    inputs: Inputs = {"a": floats(4, 3), "x": np.array(1, np.int32)}
    assert "not constant" in refusals(one_node(MS + "ExpandDims", inputs)[0])[0]
    assert "size" in refusals(one_node(MS + "UnfoldTensor", {"a": floats(2, 9)}, size=4, dynamic=True)[0])[0]
    assert "metric" in refusals(one_node(MS + "CDist", {"a": floats(2, 2), "b": floats(2, 2)}, metric="cosine")[0])[0]


def test_parts_of_nothing_go() -> None:
    before = """g (float[2,4] x) => (float[2,4] y) <int64[2] sizes = {4, 0}> {
        a, b = Split<axis = 1>(x, sizes)
        r = Relu(a)
        y = Concat<axis = 1>(r, b)
    }"""
    after = "g (float[2,4] x) => (float[2,4] y) { y = Relu(x) }"
    assert_rewrites(LowerForMnn(), before, after)


def test_a_part_of_nothing_that_is_used_is_refused() -> None:
    text = """g (float[2,4] x) => (float[2,4] a, float[2,0] b) <int64[2] sizes = {4, 0}> {
        a, b = Split<axis = 1>(x, sizes)
    }"""
    assert_unchanged(LowerForMnn(), text, refuses="is used")

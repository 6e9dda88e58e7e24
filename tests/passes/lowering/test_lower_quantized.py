"""QuantizeLinear and DequantizeLinear in float: the form, and equality with onnxruntime in ONNX and in MNN."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from onnx import TensorProto, helper

from graphkit.graph import Graph
from graphkit.model import Model
from graphkit.passes._dequantize import RANGES
from graphkit.passes.lower_for_mnn import LowerForMnn
from graphkit.passes.lowering import _integral
from graphkit.testing import assert_rewrites, assert_unchanged, graph_of, run
from tests.in_mnn import assert_right_in_mnn
from tests.quantized_models import MS, lowered, ops

PAIR = """g (float[2,3] x) => (float[2,3] y) <float s = {0.5}, uint8 z = {128}> {
    q = QuantizeLinear(x, s, z)
    y = DequantizeLinear(q, s, z)
}"""
EDGES = np.array([[np.inf, -np.inf, 0.25], [-0.75, 1e30, 63.9]], np.float32)


def test_a_pair_needs_no_codes() -> None:
    after = """g (float[2,3] x) => (float[2,3] y)
        <float s = {0.5}, float lo = {-128}, float hi = {127}, float magic = {12582912}> {
        a = Div(x, s)
        b = Clip(a, lo, hi)
        c = Add(b, magic)
        d = Sub(c, magic)
        y = Mul(d, s)
    }"""
    assert_rewrites(LowerForMnn(), PAIR, after, inputs={"x": EDGES}, rtol=0)


def test_below_opset_11_the_range_is_kept_by_min_and_max() -> None:
    after = """g (float[2,3] x) => (float[2,3] y)
        <float s = {0.5}, float lo = {-128}, float hi = {127}, float magic = {12582912}> {
        a = Div(x, s)
        m = Max(a, lo)
        b = Min(m, hi)
        c = Add(b, magic)
        d = Sub(c, magic)
        y = Mul(d, s)
    }"""
    assert_rewrites(LowerForMnn(), PAIR, after, opset=10, inputs={"x": EDGES}, rtol=0)


def test_halves_go_to_even(tmp_path: Path) -> None:
    text = PAIR.replace("2,3", "9").replace("0.5", "1")
    feeds = {"x": np.arange(-4.5, 4.5, dtype=np.float32)}
    assert run(Model.from_proto(parsed(text)), feeds)["y"].tolist() == [-4, -4, -2, -2, 0, 0, 2, 2, 4]
    assert_right_in_mnn(text, tmp_path, feeds=feeds, rtol=0)


def parsed(text: str, opset: int = 18) -> onnx.ModelProto:
    return graph_of(text, opset=opset).to_model().proto


def qdq(
    dtype: int,
    shape: tuple[int, ...],
    scale: np.ndarray,
    zero: np.ndarray | None,
    opset: int,
    domain: str = "",
    **attrs: Any,
) -> Model:
    kind = helper.np_dtype_to_tensor_dtype(scale.dtype)
    tensors = [onnx.numpy_helper.from_array(scale, "s")]
    if zero is not None:
        tensors.append(helper.make_tensor("z", dtype, zero.shape, zero.reshape(-1).tolist()))
    params = ["s", "z"] if zero is not None else ["s"]
    nodes = [
        helper.make_node("QuantizeLinear", ["x", *params], ["q"], domain=domain, **attrs),
        helper.make_node("DequantizeLinear", ["q", *params], ["y"], domain=domain, **attrs),
    ]
    ins, outs = helper.make_tensor_value_info("x", kind, shape), helper.make_tensor_value_info("y", kind, shape)
    graph = helper.make_graph(nodes, "g", [ins], [outs], tensors)
    imports = [helper.make_opsetid("", opset), helper.make_opsetid(MS, 1)]
    return Model.from_proto(helper.make_model(graph, opset_imports=imports, ir_version=8 if opset < 21 else 10))


LAYOUTS = {
    "tensor": ((), {}),
    "axis": ((4,), {"axis": 1}),
    "negative": ((4,), {"axis": -2}),
    "block": ((2, 2, 3), {"axis": 1, "block_size": 2}),
}


@st.composite
def pairs(draw: st.DrawFn) -> tuple[Model, np.ndarray]:
    opset = draw(st.sampled_from((10, 13, 18, 19, 21, 23, 24)))
    names = ["tensor", *(("axis", "negative") if opset >= 13 else ()), *(("block",) if opset >= 21 else ())]
    size, attrs = LAYOUTS[draw(st.sampled_from(names))]
    wide = (TensorProto.INT16, TensorProto.UINT16, TensorProto.INT4, TensorProto.UINT4) if opset >= 21 else ()
    dtype = draw(st.sampled_from((TensorProto.INT8, TensorProto.UINT8, *wide)))
    low, high = RANGES[dtype]
    rng = np.random.default_rng(draw(st.integers(0, 2**32)))
    scale = rng.uniform(0.01, 0.3, size).astype(np.float32)
    zero = rng.integers(low, high + 1, size) if draw(st.booleans()) or dtype != TensorProto.UINT8 else None
    x = (rng.standard_normal((2, 4, 3)) * draw(st.sampled_from((1, 20, 1e4)))).astype(np.float32)
    return qdq(dtype, (2, 4, 3), scale, np.asarray(zero) if zero is not None else None, opset, **attrs), x


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(pairs())
def test_pairs_compute_what_onnxruntime_computes(pair: tuple[Model, np.ndarray]) -> None:
    model, x = pair
    after = lowered(model, "lower-for-mnn")
    np.testing.assert_array_equal(run(after, {"x": x})["y"], run(model, {"x": x})["y"])
    assert "Cast" not in ops(after)


@pytest.mark.parametrize("dtype", [TensorProto.INT8, TensorProto.UINT16, TensorProto.INT4])
def test_onnxruntimes_own_pair(dtype: int, tmp_path: Path) -> None:
    scale = np.array([0.1, 0.2, 0.3, 0.01], np.float32)
    model = qdq(dtype, (2, 4, 3), scale, np.array([1, 2, 3, 4]), 18, domain=MS, axis=1)
    feeds = {"x": np.random.default_rng(0).standard_normal((2, 4, 3)).astype(np.float32)}
    np.testing.assert_array_equal(run(lowered(model), feeds)["y"], run(model, feeds)["y"])
    assert_right_in_mnn(model, tmp_path, feeds=feeds)


def test_half_floats_are_divided_in_float32() -> None:
    model = qdq(TensorProto.UINT8, (2, 4, 3), np.array(0.05, np.float16), np.array(7), 19)
    x = np.random.default_rng(0).standard_normal((2, 4, 3)).astype(np.float16)
    after = lowered(model, "lower-for-mnn")
    np.testing.assert_array_equal(run(after, {"x": x})["y"], run(model, {"x": x})["y"])


ALONE = """g (float[1,2,3,3] x, float s, {kind} z) => ({kind}[1,2,3,3] q, float[1,2,3,3] y) {{
    q = QuantizeLinear(x, s, z)
    t = Transpose<perm=[0,2,3,1]>(q)
    d = DequantizeLinear(t, s, z)
    y = Transpose<perm=[0,3,1,2]>(d)
}}"""


@pytest.mark.parametrize("kind", ["int8", "uint8"])
def test_codes_and_parameters_at_the_borders(kind: str, tmp_path: Path) -> None:
    x = np.random.default_rng(0).standard_normal((1, 2, 3, 3)).astype(np.float32) * 9
    feeds = {"x": x, "s": np.array(0.07, np.float32), "z": np.array(5, kind)}
    assert_right_in_mnn(ALONE.format(kind=kind), tmp_path, feeds=feeds, rtol=0)


@pytest.mark.parametrize("kind", ["int8", "uint8"])
def test_codes_as_input_and_output(kind: str, tmp_path: Path) -> None:
    text = f"""g ({kind}[2,8] x) => ({kind}[8,2] y) <float s = {{0.1}}, {kind} z = {{3}}, float t = {{0.3}}> {{
        d = DequantizeLinear(x, s, z)
        e = Transpose(d)
        y = QuantizeLinear(e, t, z)
    }}"""
    feeds = {"x": np.arange(-8, 8).reshape(2, 8).astype(kind)}
    assert_right_in_mnn(text, tmp_path, feeds=feeds, rtol=0)


MOVED = """g (float[1,2,4,4] x) => (float{shape} y) <float s = {{0.1}}, int8 z = {{3}}, int64[3] r = {{1, 2, 16}}> {{
    q = QuantizeLinear(x, s, z)
    m = {move}
    y = DequantizeLinear(m, s, z)
}}"""


@pytest.mark.parametrize(
    ("move", "shape", "op"),
    [
        ("MaxPool<kernel_shape=[2,2],strides=[2,2]>(q)", "[1,2,2,2]", "MaxPool"),
        ("Reshape(q, r)", "[1,2,16]", "Reshape"),
        ("Relu(q)", "[1,2,4,4]", "Relu"),
        ("Concat<axis=1>(q, q)", "[1,4,4,4]", "Concat"),
    ],
)
def test_floats_move_instead_of_codes(move: str, shape: str, op: str, tmp_path: Path) -> None:
    text = MOVED.format(move=move, shape=shape)
    made = ops(lowered(Model.from_proto(parsed(text)), "lower-for-mnn"))
    assert "Cast" not in made
    assert op in made
    x = np.random.default_rng(1).standard_normal((1, 2, 4, 4)).astype(np.float32) * 5
    assert_right_in_mnn(text, tmp_path, feeds={"x": x}, rtol=1e-6)


def test_split_codes_move_as_floats() -> None:
    text = """g (float[2,4] x) => (float[2,2] a, float[2,2] b) <float s = {0.1}, int8 z = {3}, int64[2] n = {2, 2}> {
        q = QuantizeLinear(x, s, z)
        c, d = Split<axis=1>(q, n)
        a = DequantizeLinear(c, s, z)
        b = DequantizeLinear(d, s, z)
    }"""
    model = Model.from_proto(parsed(text))
    after = lowered(model, "lower-for-mnn")
    assert "Cast" not in ops(after)
    feeds = {"x": np.random.default_rng(1).standard_normal((2, 4)).astype(np.float32)}
    for name, want in run(model, feeds).items():
        np.testing.assert_array_equal(run(after, feeds)[name], want)


def test_a_second_run_changes_nothing() -> None:
    once = lowered(Model.from_proto(parsed(PAIR)))
    graph = Graph.of(once)
    assert not LowerForMnn().run(graph).modified


@pytest.mark.parametrize("bits", ["int4", "uint4"])
def test_codes_of_4_bits_alone_are_refused(bits: str) -> None:
    text = f"g (float[4] x, float s, {bits} z) => ({bits}[4] y) {{ y = QuantizeLinear(x, s, z) }}"
    assert_unchanged(LowerForMnn(), text, opset=21, ir_version=10, refuses=f"MNN has no tensors of {bits}")


def test_float8_on_activations_is_refused() -> None:
    text = """g (float[4] x, float s, float8e4m3fn z) => (float[4] y) {
        q = QuantizeLinear(x, s, z)
        y = DequantizeLinear(q, s, z)
    }"""
    assert_unchanged(LowerForMnn(), text, opset=19, ir_version=9, refuses="cannot be computed in float")


def test_unknown_rank_is_refused() -> None:
    text = """g (float[4] x, float[3] s, uint8[3] z, int64[n] r) => (uint8[] y) {
        a = Reshape(x, r)
        y = QuantizeLinear(a, s, z)
    }"""
    assert_unchanged(LowerForMnn(), text, refuses="rank of what it quantizes is unknown")


def test_bounds_of_whole_numbers() -> None:
    graph = graph_of(
        """g (float[4] x, int8[4] c) => (float[4] y, float[4] f, float[4] n)
        <float lo = {-3.2}, float hi = {7.1}, float m = {12582912}, float b = {12582910}> {
            a = Clip(x, lo, hi)
            s = Add(a, m)
            y = Sub(s, b)
            f = Cast<to=1>(c)
            n = Sub(s, x)
        }"""
    )
    assert _integral.bounds(graph, "y") == (-1, 9)
    assert _integral.bounds(graph, "f") == (-128, 127)
    assert _integral.bounds(graph, "n") is None

"""Codes written into ONNX are, in onnxruntime, exactly the numbers that `Codes.values` gives."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from graphkit.errors import GraphkitError
from graphkit.graph import Graph
from graphkit.model import Model
from graphkit.quant._forms import form_of, pack_int4
from graphkit.quant._spill import Spill, let_go
from graphkit.quant.codes import Codes, code_range
from graphkit.quant.layers import Layer, find_layers
from graphkit.quant.write import Writer
from graphkit.testing import parse, run

# operator, shape of the weight, attributes, shape of x
CASES: dict[str, tuple[str, tuple[int, ...], dict[str, Any], tuple[int, ...]]] = {
    "matmul": ("MatMul", (64, 12), {}, (3, 64)),
    "gemm": ("Gemm", (64, 12), {}, (3, 64)),
    "gemm-transposed": ("Gemm", (12, 64), {"transB": 1}, (3, 64)),
    "conv-1x1": ("Conv", (12, 64, 1, 1), {}, (1, 64, 5, 5)),
    "conv-3x3": ("Conv", (6, 32, 3, 3), {}, (1, 32, 5, 5)),
    "conv-1d": ("Conv", (6, 32, 3), {}, (1, 32, 9)),
    "grouped": ("Conv", (6, 32, 3, 3), {"group": 2}, (1, 64, 5, 5)),
    "depthwise": ("Conv", (6, 1, 3, 3), {"group": 6}, (1, 6, 5, 5)),
    "deconv": ("ConvTranspose", (32, 5, 2, 2), {"strides": [2, 2]}, (1, 32, 4, 4)),
    "deconv-grouped": ("ConvTranspose", (64, 5, 2, 2), {"group": 2, "strides": [2, 2]}, (1, 64, 4, 4)),
    "deconv-depthwise": ("ConvTranspose", (6, 1, 3, 3), {"group": 6}, (1, 6, 4, 4)),
}


def layer_model(case: str, opset: int, dtype: int = TensorProto.FLOAT, ir_version: int = 8) -> Model:
    """One layer with random weights, whose weight is a second output too, so that its numbers can be read."""
    op, shape, attrs, x = CASES[case]
    weight = np.random.default_rng(0).standard_normal(shape).astype(helper.tensor_dtype_to_np_dtype(dtype))
    graph = helper.make_graph(
        [helper.make_node(op, ["x", "w", "b"] if op == "Gemm" else ["x", "w"], ["y"], name="layer", **attrs)],
        "g",
        [helper.make_tensor_value_info("x", dtype, x)],
        [helper.make_tensor_value_info("y", dtype, [None] * len(x))],
        [numpy_helper.from_array(weight, "w"), numpy_helper.from_array(np.zeros(12, weight.dtype), "b")],
    )
    ir_version = 10 if opset >= 21 else ir_version
    return Model.from_proto(
        helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset)], ir_version=ir_version)
    )


def random_codes(layer: Layer, bits: int, block: int, zeros: str) -> Codes:
    """Any codes, scales and zero points that fit a layer."""
    rng = np.random.default_rng(bits)
    low, high = code_range(bits)
    blocks = layer.channels // block if block else 1
    codes = rng.integers(low, high + 1, (layer.rows, layer.columns)).astype(np.int8)
    scales = (rng.random((layer.rows, blocks)) + 0.01).astype(np.float32)
    shift = {
        "none": None,
        "whole": rng.integers(low, high + 1, scales.shape).astype(np.float32),
    }
    return Codes(codes, scales, shift[zeros], bits)


def float_weight(graph: Graph, value: str, dtype: int = TensorProto.FLOAT) -> np.ndarray:
    """What onnxruntime computes for an inner value that depends on no input."""
    model = graph.to_model().materialized()
    onnx.checker.check_model(model)
    used = {value}
    nodes: list[onnx.NodeProto] = []
    for node in reversed(model.graph.node):
        if used.intersection(node.output):
            nodes.insert(0, node)
            used.update(node.input)
    del model.graph.node[:], model.graph.input[:], model.graph.output[:], model.graph.value_info[:]
    model.graph.node.extend(nodes)
    model.graph.output.append(helper.make_tensor_value_info(value, dtype, None))
    return run(Model.from_proto(model), {})[value]


FITTING = [(c, b) for c in CASES for b in (0, 16, 32) if not b or "depthwise" not in c]


@pytest.mark.parametrize("zeros", ["none", "whole"])
@pytest.mark.parametrize("opset", [9, 12, 13, 17, 21, 25])
@pytest.mark.parametrize(("case", "block"), FITTING)
def test_onnxruntime_has_the_very_numbers(case: str, opset: int, block: int, zeros: str) -> None:
    graph = Graph.of(layer_model(case, opset))
    (layer,), _ = find_layers(graph)
    for bits in (2, 3, 4, 5, 8):
        graph = Graph.of(layer_model(case, opset))
        codes = random_codes(layer, bits, block, zeros)
        value = Writer(graph).write(layer, codes)
        assert "w" not in graph.initializers
        assert graph.opset() == opset
        np.testing.assert_array_equal(float_weight(graph, value), layer.restore(codes.values()))


@pytest.mark.parametrize(
    ("opset", "bits", "kind"), [(17, 4, "INT8"), (21, 4, "INT4"), (21, 3, "INT4"), (21, 5, "INT8")]
)
def test_narrow_codes_are_stored_in_the_next_type(opset: int, bits: int, kind: str) -> None:
    graph = Graph.of(layer_model("matmul", opset))
    (layer,), _ = find_layers(graph)
    Writer(graph).write(layer, random_codes(layer, bits, 32, "none"))
    stored = graph.initializers[next(name for name in graph.initializers if name.startswith("w_quantized"))]
    assert stored.data_type == TensorProto.DataType.Value(kind)
    assert stored.nbytes == (64 * 12 // 2 if kind == "INT4" else 64 * 12)


def test_int4_needs_an_ir_version_that_knows_it() -> None:
    model = layer_model("matmul", 21)
    model.proto.ir_version = 9
    graph = Graph.of(model)
    (layer,), _ = find_layers(graph)
    value = Writer(graph).write(layer, codes := random_codes(layer, 4, 32, "whole"))
    assert all(weight.data_type != TensorProto.INT4 for weight in graph.initializers.values())
    np.testing.assert_array_equal(float_weight(graph, value), layer.restore(codes.values()))


def test_forms_use_standard_operators_where_they_exist() -> None:
    for opset, domain, block_size in ((12, "com.microsoft", 0), (13, "", 0), (21, "", 32)):
        graph = Graph.of(layer_model("conv-1x1", opset))
        (layer,), _ = find_layers(graph)
        Writer(graph).write(layer, random_codes(layer, 4, 32, "whole"))
        (node,) = [node for node in graph.nodes if node.op_type == "DequantizeLinear"]
        assert (node.domain, node.attr("block_size", 0)) == (domain, block_size)
        assert graph.opset("com.microsoft") == (1 if domain else 0)


@pytest.mark.parametrize("dtype", [TensorProto.FLOAT16, TensorProto.DOUBLE])
def test_other_floats_are_cast_at_the_end(dtype: int) -> None:
    graph = Graph.of(layer_model("matmul", 17, dtype))
    (layer,), _ = find_layers(graph)
    codes = random_codes(layer, 8, 0, "none")
    value = Writer(graph).write(layer, codes)
    numpy_type = helper.tensor_dtype_to_np_dtype(dtype)
    expected = layer.restore(codes.values()).astype(numpy_type)
    np.testing.assert_array_equal(float_weight(graph, value, dtype), expected)


def test_a_weight_behind_a_transpose_keeps_its_transpose() -> None:
    text = """g (float[2,8] x) => (float[2,4] y, float[8,4] z) <float[4,8] w> {
        t = Transpose <perm = [1, 0]> (w)
        y = MatMul(x, t)
        z = Neg(t)
    }"""
    model = parse(text)
    weight = np.random.default_rng(0).standard_normal((4, 8)).astype(np.float32)
    del model.proto.graph.initializer[:]
    model.proto.graph.initializer.append(numpy_helper.from_array(weight, "w"))
    graph = Graph.of(model)
    (layer,), _ = find_layers(graph)
    codes = random_codes(layer, 8, 0, "none")
    Writer(graph).write(layer, codes)
    x = np.random.default_rng(1).standard_normal((2, 8)).astype(np.float32)
    outputs = run(graph.to_model(), {"x": x})
    np.testing.assert_allclose(outputs["y"], x @ codes.values().T, rtol=1e-5)
    np.testing.assert_array_equal(outputs["z"], -weight.T)  # another user: not in the layer, keeps the float weight


def test_one_weight_of_two_nodes_is_written_once() -> None:
    text = """g (float[2,8] x) => (float[2,4] y, float[2,4] z) <float[8,4] w = {WEIGHTS}> {
        y = MatMul(x, w)
        n = Neg(x)
        z = MatMul(n, w)
    }""".replace("WEIGHTS", ",".join(str(i / 7) for i in range(32)))
    graph = Graph.of(parse(text))
    (layer,), _ = find_layers(graph)
    assert layer.nodes == ("y", "z")
    Writer(graph).write(layer, random_codes(layer, 4, 0, "none"))
    assert len(graph.by_op("DequantizeLinear")) == 1
    assert "w" not in graph.initializers
    graph.check()


def test_a_weight_of_a_constant_node_in_a_subgraph() -> None:
    text = """g (bool c, float[2,2] x) => (float[2,3] y) {
        y = If (c) <then_branch = a () => (float[2,3] u) {
            w = Constant <value = float[2,3] {1, 2, 3, 4, 5, 6}> ()
            u = MatMul(x, w)
        }, else_branch = b () => (float[2,3] v) {
            k = Constant <value = float[2,3] {0, 2, 0, 4, 0, 6}> ()
            v = MatMul(x, k)
        }>
    }"""
    graph = Graph.of(parse(text))
    layers, _ = find_layers(graph)
    assert [layer.weight for layer in layers] == ["w", "k"]
    writer = Writer(graph)
    codes = [random_codes(layer, 8, 0, "none") for layer in layers]
    for layer, made in zip(layers, codes, strict=True):
        writer.write(layer, made)
    graph.check()
    x = np.eye(2, dtype=np.float32)
    for branch, made in zip((True, False), codes, strict=True):
        outputs = run(graph.to_model(), {"c": np.array(branch), "x": x})
        np.testing.assert_array_equal(outputs["y"], made.values().T)


def test_codes_that_do_not_fit_the_layer_are_refused() -> None:
    graph = Graph.of(layer_model("matmul", 17))
    (layer,), _ = find_layers(graph)
    wrong = Codes(np.zeros((12, 32), np.int8), np.ones((12, 1), np.float32), None, 8)
    with pytest.raises(GraphkitError, match="12 × 64"):
        Writer(graph).write(layer, wrong)
    between = replace(random_codes(layer, 8, 0, "whole"), zeros=np.full((12, 1), 0.5, np.float32))
    with pytest.raises(GraphkitError, match="zero points that are no codes"):
        Writer(graph).write(layer, between)


def test_form_of_a_deconvolution_has_scales_along_its_outputs() -> None:
    graph = Graph.of(layer_model("deconv", 17))
    (layer,), _ = find_layers(graph)
    form = form_of(layer, random_codes(layer, 8, 0, "none"), 17)
    assert (form.axis, form.scales.shape, form.codes.shape) == (1, (5,), (32, 5, 2, 2))


@pytest.mark.parametrize("size", [1, 7, 64])
def test_int4_is_packed_as_onnx_does(size: int) -> None:
    codes = np.random.default_rng(size).integers(-8, 8, size).astype(np.int8)
    expected = helper.make_tensor("t", TensorProto.INT4, [size], codes.tolist())
    stored = TensorProto(name="t", data_type=TensorProto.INT4, dims=[size], raw_data=pack_int4(codes).tobytes())
    np.testing.assert_array_equal(numpy_helper.to_array(stored), numpy_helper.to_array(expected))


def test_spilled_codes_are_the_same_and_outlive_the_spill() -> None:
    store = layer_model("conv-3x3", 17).store
    rng = np.random.default_rng(3)
    arrays = [rng.integers(-128, 128, size).astype(np.int8) for size in (10, 5000, 70000)]
    with Spill(store, 1 << 20) as spill:
        weights = [spill.weight(f"a{i}", array, TensorProto.INT8, array.shape) for i, array in enumerate(arrays)]
        too_much = spill.weight("b", np.ones(1 << 20, np.int8), TensorProto.INT8, (1 << 20,))
    for weight, array in zip(weights, arrays, strict=True):
        np.testing.assert_array_equal(weight.array(), array)
    assert too_much.array().sum() == 1 << 20


def test_letting_go_of_pages_loses_nothing(tmp_path: Path) -> None:
    values = np.random.default_rng(0).standard_normal(1 << 18).astype(np.float32)
    model = layer_model("matmul", 17)
    model.proto.graph.initializer.append(numpy_helper.from_array(values, "big"))
    model.save(tmp_path / "m.onnx")
    weight = next(w for w in Model.load(tmp_path / "m.onnx").weights() if w.name == "big")
    np.testing.assert_array_equal(weight.array(), values)
    let_go(weight)
    np.testing.assert_array_equal(weight.array(), values)

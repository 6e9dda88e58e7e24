"""Which weights are layers, as which matrices, and why others are not."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper
from quantized_layers import weight_matrix

import graphkit as gk
from graphkit.errors import ModelError, UsageError
from graphkit.graph import Graph
from graphkit.mnn.road import convert
from graphkit.model import Model
from graphkit.quant.codes import Array
from graphkit.quant.engine import quantize
from graphkit.quant.layers import Layer, find_layers
from graphkit.quant.options import QuantizeOptions
from graphkit.testing import random_feeds, run


def noise(*shape: int) -> Array:
    made: Array = np.random.default_rng(sum(shape)).standard_normal(shape).astype(np.float32)
    return made


def model(nodes: list[onnx.NodeProto], shape: list[int], constants: dict[str, Array], **header: Any) -> Model:
    """A model with one input x and one output y."""
    graph = helper.make_graph(
        nodes,
        "g",
        [helper.make_tensor_value_info("x", header.get("kind", TensorProto.FLOAT), shape)],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, None)],
        [onnx.numpy_helper.from_array(array, name) for name, array in constants.items()],
    )
    opset = [helper.make_opsetid("", header.get("opset", 18))]
    return Model.from_proto(helper.make_model(graph, opset_imports=opset, ir_version=8))


def found(nodes: list[onnx.NodeProto], shape: list[int], constants: dict[str, Array], **header: Any) -> Any:
    return find_layers(Graph.of(model(nodes, shape, constants, **header)))


def reason_of(nodes: list[onnx.NodeProto], shape: list[int], constants: dict[str, Array], **header: Any) -> str:
    """The reason why the only large constant is no layer."""
    layers, excluded = found(nodes, shape, constants, **header)
    assert layers == []
    (entry,) = excluded
    assert entry.bytes == max(array.nbytes for array in constants.values())
    return str(entry.reason)


CASES: dict[
    str, tuple[str, dict[str, Any], list[int], list[int], int]
] = {  # node, attributes, x, w, output channel axis
    "matmul": ("MatMul", {}, [2, 3, 32], [32, 24], -1),
    "gemm": ("Gemm", {}, [3, 32], [32, 24], -1),
    "gemm transposed": ("Gemm", {"transB": 1, "alpha": 0.5}, [3, 32], [24, 32], -1),
    "conv": ("Conv", {"pads": [1, 1, 1, 1]}, [1, 16, 6, 5], [24, 16, 3, 3], 1),
    "conv, 1-D": ("Conv", {}, [1, 16, 9], [24, 16, 3], 1),
    "conv, grouped": ("Conv", {"group": 4}, [1, 16, 6, 6], [24, 4, 3, 2], 1),
    "conv, depthwise": ("Conv", {"group": 16}, [1, 16, 9, 9], [32, 1, 5, 5], 1),
    "deconv": ("ConvTranspose", {"strides": [2, 2]}, [1, 16, 5, 5], [16, 12, 2, 3], 1),
    "deconv, 1-D": ("ConvTranspose", {}, [1, 16, 5], [16, 24, 4], 1),
    "deconv, grouped": ("ConvTranspose", {"group": 4}, [1, 16, 5, 5], [16, 6, 2, 3], 1),
    "deconv, depthwise": ("ConvTranspose", {"group": 16}, [1, 16, 5, 5], [16, 1, 5, 5], 1),
}


@pytest.mark.parametrize("case", CASES)
def test_each_row_is_an_output_channel(case: str) -> None:
    op, attributes, shape, dims, axis = CASES[case]
    weight, nodes = noise(*dims), [helper.make_node(op, ["x", "w"], ["y"], **attributes)]
    made = model(nodes, shape, {"w": weight})
    graph = Graph.of(made)
    (layer,), excluded = find_layers(graph)
    assert excluded == []
    assert (layer.kind, layer.weight, layer.shape, layer.groups) == (op, "w", tuple(dims), attributes.get("group", 1))
    matrix = weight_matrix(graph, layer)
    assert matrix.shape == (layer.rows, layer.columns)
    assert matrix.dtype == np.float32
    np.testing.assert_array_equal(layer.restore(matrix), weight)
    factors = np.arange(1, layer.rows + 1, dtype=np.float32)
    scaled = layer.restore(matrix * factors[:, None])
    assert scaled.flags["C_CONTIGUOUS"]
    feeds = random_feeds(made)
    before, after = run(made, feeds)["y"], run(model(nodes, shape, {"w": scaled}), feeds)["y"]
    np.testing.assert_allclose(
        after, before * np.moveaxis(factors.reshape([-1] + [1] * (before.ndim - 1)), 0, axis), rtol=1e-4, atol=1e-4
    )
    if layer.axis is not None:  # rows lie along that axis
        assert weight.shape[layer.axis] == layer.rows
        row = np.take(weight, 5, layer.axis)
        np.testing.assert_array_equal(np.sort(row.reshape(-1)), np.sort(matrix[5]))
    else:
        assert case == "deconv, grouped"


@pytest.mark.parametrize("case", ["conv", "conv, grouped", "conv, 1-D", "deconv", "deconv, grouped"])
def test_columns_are_input_channels_times_kernel(case: str) -> None:
    op, attributes, shape, dims, _ = CASES[case]
    nodes = [helper.make_node(op, ["x", "w"], ["y"], **attributes)]
    made = model(nodes, shape, {"w": noise(*dims)})
    graph = Graph.of(made)
    (layer,), _ = find_layers(graph)
    assert layer.channels * layer.kernel == layer.columns
    matrix = weight_matrix(graph, layer).reshape(layer.groups, -1, layer.channels, layer.kernel).copy()
    matrix[:, :, 1] = 0  # the second channel of each group no longer counts
    feeds = random_feeds(made)
    mute = feeds["x"].copy()
    mute[:, 1 :: layer.channels] = 0
    changed = model(nodes, shape, {"w": layer.restore(matrix.reshape(layer.rows, layer.columns))})
    np.testing.assert_allclose(run(changed, feeds)["y"], run(made, {"x": mute})["y"], rtol=1e-4, atol=1e-5)


def test_tables() -> None:
    (layer,), _ = found(
        [helper.make_node("Gather", ["w", "x"], ["y"])], [3], {"w": noise(50, 16)}, kind=TensorProto.INT64
    )
    assert (layer.kind, layer.rows, layer.columns, layer.axis) == ("Embedding", 50, 16, 0)
    assert layer.mnn_bytes(4, 0) == 50 * 16 + 50 * 4  # a byte each: MNN has no narrower table


def test_a_table_that_is_multiplied_with_too_is_two_layers() -> None:
    nodes = [
        helper.make_node("Gather", ["w", "x"], ["rows"], name="embed"),
        helper.make_node("Transpose", ["w"], ["turned"], perm=[1, 0]),
        helper.make_node("MatMul", ["rows", "turned"], ["y"], name="head"),
    ]
    graph = Graph.of(model(nodes, [3], {"w": noise(50, 16)}, kind=TensorProto.INT64))
    table, head = find_layers(graph)[0]
    assert (table.name, table.kind, table.weight) == ("embed", "Embedding", "w")
    assert (head.name, head.kind, head.weight, head.layout) == ("head", "MatMul", "w", "rows")
    np.testing.assert_array_equal(weight_matrix(graph, table), weight_matrix(graph, head))


def test_a_weight_of_several_nodes_is_one_layer_with_all_their_names() -> None:
    nodes = [
        helper.make_node("MatMul", ["x", "w"], ["a"], name="first"),
        helper.make_node("Relu", ["a"], ["b"]),
        helper.make_node("MatMul", ["b", "w"], ["c"]),
        helper.make_node("Gemm", ["c", "w"], ["y"], name="turned", transB=1),
    ]
    shared, turned = found(nodes, [3, 24], {"w": noise(24, 24)})[0]
    assert (shared.name, shared.nodes, shared.outputs) == ("first", ("first", "c"), ("a", "c"))
    assert (turned.nodes, turned.layout, shared.layout) == (("turned",), "rows", "columns")


def test_nodes_of_one_name_are_told_apart() -> None:
    nodes = [
        helper.make_node("MatMul", ["x", "w"], ["a"], name="same"),
        helper.make_node("MatMul", ["a", "v"], ["y"], name="same"),
    ]
    layers, _ = found(nodes, [3, 24], {"w": noise(24, 24), "v": noise(24, 24)})
    assert [layer.name for layer in layers] == ["a", "y"]


def test_constants_of_nodes_and_of_subgraphs() -> None:
    text = """<ir_version: 8, opset_import: ["": 18]>
    g (float[2,16] x, bool c) => (float[2,16] y) <float[16,16] outer> {
      y = If (c) <
        then_branch = t () => (float[2,16] a) { a = MatMul(x, outer) },
        else_branch = e () => (float[2,16] b) { b = MatMul(x, inner) }
      >
    }"""
    proto = onnx.parser.parse_model(text.replace("<float[16,16] outer>", ""))
    proto.graph.initializer.append(onnx.numpy_helper.from_array(noise(16, 16), "outer"))
    inner = helper.make_node("Constant", [], ["inner"], value=onnx.numpy_helper.from_array(noise(16, 16) * 2))
    (branch,) = [attribute.g for attribute in proto.graph.node[0].attribute if attribute.name == "else_branch"]
    branch.node.insert(0, inner)
    graph = Graph.of(Model.from_proto(proto))
    layers, excluded = find_layers(graph)
    matrices = {layer.weight: weight_matrix(graph, layer) for layer in layers}
    np.testing.assert_array_equal(matrices["outer"], noise(16, 16).T)
    np.testing.assert_array_equal(matrices["inner"], noise(16, 16).T * 2)
    assert excluded == []


@pytest.mark.parametrize("dtype", [np.float16, np.float64])
def test_weights_of_other_float_types_are_read_as_float32(dtype: Any) -> None:
    node, weight = helper.make_node("MatMul", ["x", "w"], ["y"]), noise(16, 32).astype(dtype)
    kind = helper.np_dtype_to_tensor_dtype(np.dtype(dtype))
    graph = Graph.of(model([node], [2, 16], {"w": weight}, kind=kind))
    (layer,), _ = find_layers(graph)
    assert layer.dtype == kind
    np.testing.assert_array_equal(weight_matrix(graph, layer), weight.T.astype(np.float32))


def matmul(weight: str = "w") -> onnx.NodeProto:
    return helper.make_node("MatMul", ["x", weight], ["y"])


def test_why_weights_stay_float() -> None:
    square, stack = noise(32, 32), noise(2, 32, 32)
    left = helper.make_node("MatMul", ["w", "x"], ["y"])
    assert "left factor" in reason_of([left], [32, 4], {"w": square})
    assert "stack of matrices" in reason_of([matmul()], [2, 4, 32], {"w": stack})
    assert "vector" in reason_of([matmul()], [4, 512], {"w": noise(512)})
    einsum = helper.make_node("Einsum", ["x", "w"], ["y"], equation="bi,oi->bo")
    assert "factor of Einsum" in reason_of([einsum], [4, 32], {"w": square})
    volume = helper.make_node("Conv", ["x", "w"], ["y"])
    assert "3-D convolutions" in reason_of([volume], [1, 8, 4, 4, 4], {"w": noise(8, 8, 2, 2, 2)})
    add = helper.make_node("Add", ["x", "w"], ["y"])
    assert reason_of([add], [32, 32], {"w": square}) == "is read by Add, which has no quantized form"
    columns = helper.make_node("Gather", ["w", "x"], ["y"], axis=1)
    assert "whole rows" in reason_of([columns], [3], {"w": square}, kind=TensorProto.INT64)
    sliced = [
        helper.make_node("Slice", ["w", "from", "to"], ["cut"]),
        helper.make_node("MatMul", ["x", "cut"], ["y"]),
    ]
    bounds = {"from": np.array([0]), "to": np.array([16])}
    layers, (entry,) = found(sliced, [4, 16], {"w": square, **bounds})
    assert layers == []
    assert "fold-constants" in entry.reason or "Slice" in entry.reason


@pytest.mark.parametrize("op", ["LSTM", "GRU", "RNN"])
def test_recurrent_weights_stay_float(op: str) -> None:
    gates = {"LSTM": 4, "GRU": 3, "RNN": 1}[op]
    node = helper.make_node(op, ["x", "w", "r"], ["", "y"], hidden_size=32, name="cell")
    weights = {"w": noise(1, 32 * gates, 16), "r": noise(1, 32 * gates, 32)}
    layers, excluded = found([node], [5, 1, 16], weights)
    assert layers == []
    assert {entry.weight: entry.bytes for entry in excluded} == {name: array.nbytes for name, array in weights.items()}
    assert all(entry.name == "cell" and f"weight of {op}" in entry.reason for entry in excluded)


def test_biases_are_called_so_and_small_ones_not_at_all() -> None:
    node = helper.make_node("Conv", ["x", "w", "b"], ["y"])
    layers, (entry,) = found([node], [1, 4, 5, 5], {"w": noise(300, 4, 1, 1), "b": noise(300)})
    assert len(layers) == 1
    assert (entry.reason, entry.bytes, entry.op) == ("is a bias of Conv", 1200, "Conv")
    assert found([node], [1, 4, 5, 5], {"w": noise(30, 4, 1, 1), "b": noise(30)})[1] == []


def test_a_weight_that_an_input_can_override_says_what_helps() -> None:
    made = model([matmul()], [2, 32], {"w": noise(32, 32)})
    made.proto.graph.input.append(helper.make_tensor_value_info("w", TensorProto.FLOAT, [32, 32]))
    layers, (entry,) = find_layers(Graph.of(made))
    assert layers == []
    assert "override" in entry.reason
    assert "cleanup" in entry.reason
    assert entry.bytes == 32 * 32 * 4


def test_a_weight_that_is_quantized_already_is_no_layer() -> None:
    nodes = [helper.make_node("DequantizeLinear", ["q", "s"], ["w"]), matmul()]
    constants = {"q": np.ones((64, 32), np.int8), "s": np.float32(0.1)}
    layers, (entry,) = found(nodes, [2, 64], constants)
    assert layers == []
    assert (entry.reason, entry.bytes, entry.weight) == ("is quantized already", 64 * 32, "q")


def test_weights_that_are_no_numbers_name_the_layer() -> None:
    weight = noise(32, 32)
    weight[3, 4] = np.nan
    graph = Graph.of(model([helper.make_node("MatMul", ["x", "w"], ["y"], name="query")], [2, 32], {"w": weight}))
    (layer,), _ = find_layers(graph)
    with pytest.raises(ModelError, match="NaN or infinite") as caught:
        weight_matrix(graph, layer)
    assert caught.value.node == "query"


def test_blocks_are_counted_in_input_channels() -> None:
    layer = Layer("conv", "Conv", "w", (8, 96, 3, 3), 8, 96 * 9, kernel=9)
    assert layer.block_columns(0) == 0
    assert layer.block_columns(32) == 32 * 9
    for block in (64, -32):
        with pytest.raises(UsageError, match=f"block of {block} input channels does not divide the 96") as caught:
            layer.block_columns(block)
        assert "16, 32, 48" in str(caught.value.hint)
    with pytest.raises(UsageError) as caught:
        Layer("dw", "Conv", "w", (8, 1, 3, 3), 8, 9, kernel=9, groups=8).block_columns(32)
    assert "none" in str(caught.value.hint)


@pytest.mark.parametrize(
    ("op", "dims", "group", "parts"),
    [
        ("ConvTranspose", [32, 24, 2, 2], 1, 1),
        ("ConvTranspose", [32, 24, 2, 2], 2, 2),
        ("ConvTranspose", [64, 1, 3, 3], 64, 1),
        ("ConvTranspose", [32, 24, 3], 1, 1),
        ("Conv", [64, 32, 3, 3], 2, 2),
        ("Conv", [64, 1, 3, 3], 64, 1),
        ("Conv", [64, 1, 3, 3], 32, 2),
        ("Conv", [64, 1, 3, 3], 1, 1),
    ],
)
def test_bytes_are_those_that_mnn_stores(op: str, dims: list[int], group: int, parts: int, tmp_path: Path) -> None:
    channels = dims[0] if op == "ConvTranspose" else dims[1] * group
    nodes = [helper.make_node(op, ["x", "w"], ["y"], group=group)]
    made = model(nodes, [1, channels, *[8] * (len(dims) - 2)], {"w": noise(*dims)})
    for options in (
        QuantizeOptions(4),
        QuantizeOptions(8, symmetric=False),
        QuantizeOptions(4, 0 if group > 1 else 32, scales="float16"),
    ):
        if options.block and channels % options.block:
            continue
        done = quantize(made, options)
        carried = convert(done.model, tmp_path / "m.mnn").carriage.layers
        assert len(carried) == parts
        assert sum(layer.after for layer in carried) == done.nbytes == done.plan.nbytes


def test_layers_of_real_models(model_path: Callable[[str], Path]) -> None:
    layers, excluded = find_layers(Graph.of(gk.load(model_path("ppocr4_det"))))
    kinds = [layer.kind for layer in layers]
    assert (kinds.count("Conv"), kinds.count("ConvTranspose")) == (62, 2)
    assert {entry.reason for entry in excluded} == {"is a bias of Conv"}
    layers, excluded = find_layers(Graph.of(gk.load(model_path("silero_seq"))))
    assert [layer.kind for layer in layers] == ["Conv"] * 6
    assert any("weight of LSTM" in entry.reason for entry in excluded)

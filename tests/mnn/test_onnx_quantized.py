"""Quantized weights of .onnx models stand for what onnxruntime computes with."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
import onnxruntime
import pytest
from onnx import TensorProto, helper, numpy_helper

from graphkit.mnn._onnx_quantized import QuantizedWeight, quantized_weights
from graphkit.model import Model
from graphkit.weights import Weight


def found_in(model: onnx.ModelProto) -> list[QuantizedWeight]:
    loaded = Model.from_proto(model)
    weights = {tensor.name: Weight(tensor, loaded.store) for tensor in loaded.proto.graph.initializer}
    return list(quantized_weights(loaded.proto.graph.node, weights))


def values(found: QuantizedWeight) -> np.ndarray:
    """All weights, read in pieces of 16."""
    pieces = found.pieces()
    assert pieces is not None
    return np.concatenate([pieces.values(at, min(at + 16, pieces.count)) for at in range(0, pieces.count, 16)])


def model(nodes: list[Any], arrays: dict[str, np.ndarray], inputs: list[Any], opset: int = 21) -> onnx.ModelProto:
    weights = [numpy_helper.from_array(array, name) for name, array in arrays.items()]
    outputs = [helper.make_tensor_value_info("y", TensorProto.FLOAT, None)]
    graph = helper.make_graph(nodes, "g", inputs, outputs, weights)
    opsets = [helper.make_opsetid("", opset), helper.make_opsetid("com.microsoft", 1)]
    return helper.make_model(graph, opset_imports=opsets, ir_version=10)


def computed(proto: onnx.ModelProto, **feeds: np.ndarray) -> np.ndarray:
    session = onnxruntime.InferenceSession(proto.SerializeToString(), providers=["CPUExecutionProvider"])
    result: np.ndarray = session.run(None, feeds)[0]
    return result


@pytest.mark.parametrize(
    ("scale_shape", "given", "sharing"),
    [
        ((), {}, "per tensor"),
        ((6,), {"axis": 1}, "per channel"),
        ((8,), {"axis": 0}, "per channel"),
        ((6,), {"axis": -1}, "per channel"),
        ((2, 6), {"axis": 0, "block_size": 4}, "block 4"),
        ((8, 2), {"axis": 1, "block_size": 3}, "block 3"),
    ],
)
@pytest.mark.parametrize("zeros", [False, True])
def test_dequantize_linear(scale_shape: tuple[int, ...], given: dict[str, int], sharing: str, zeros: bool) -> None:
    draw = np.random.default_rng(0)
    arrays = {
        "q": draw.integers(0, 255, (8, 6)).astype(np.uint8),
        "s": draw.random(scale_shape).astype(np.float32) + np.float32(0.1),
    }
    if zeros:
        arrays["z"] = np.asarray(draw.integers(1, 255, scale_shape), np.uint8)
    proto = model([helper.make_node("DequantizeLinear", list(arrays), ["y"], **given)], arrays, [])
    (found,) = found_in(proto)
    assert (found.scheme.bits, found.scheme.sharing, found.scheme.asymmetric) == (8, sharing, zeros)
    np.testing.assert_allclose(values(found).reshape(8, 6), computed(proto), rtol=1e-6)


@pytest.mark.parametrize("zeros", [False, True])
@pytest.mark.parametrize("bits", [4, 8])
def test_matmul_nbits(bits: int, zeros: bool) -> None:
    draw = np.random.default_rng(0)
    inputs, outputs, block = 64, 5, 32
    blocks = inputs // block
    arrays = {
        "b": draw.integers(0, 256, (outputs, blocks, block * bits // 8)).astype(np.uint8),
        "s": draw.random(outputs * blocks).astype(np.float32) + np.float32(0.1),
    }
    if zeros:
        arrays["z"] = draw.integers(0, 256, outputs * (blocks * bits // 8)).astype(np.uint8)
    node = helper.make_node(
        "MatMulNBits", ["x", *arrays], ["y"], domain="com.microsoft", K=inputs, N=outputs, bits=bits, block_size=block
    )
    proto = model([node], arrays, [helper.make_tensor_value_info("x", TensorProto.FLOAT, [inputs, inputs])])
    (found,) = found_in(proto)
    assert (found.scheme.bits, found.scheme.sharing, found.scheme.asymmetric) == (bits, "block 32", zeros)
    expected = computed(proto, x=np.eye(inputs, dtype=np.float32))
    np.testing.assert_allclose(values(found).reshape(outputs, inputs).T, expected, rtol=1e-4, atol=1e-4)


def test_int4_weights() -> None:
    packed = helper.make_tensor("q", TensorProto.INT4, [4], [-8, -1, 0, 7])
    proto = model([helper.make_node("DequantizeLinear", ["q", "s"], ["y"])], {"s": np.float32(0.5)}, [])
    proto.graph.initializer.append(packed)
    (found,) = found_in(proto)
    assert found.scheme.bits == 4
    assert values(found).tolist() == [-4.0, -0.5, 0.0, 3.5]


def test_what_is_no_quantized_weight() -> None:
    activation = helper.make_node("DequantizeLinear", ["x", "s"], ["y"])
    proto = model([activation], {"s": np.float32(0.5)}, [helper.make_tensor_value_info("x", TensorProto.INT8, [2])])
    assert found_in(proto) == []
    bias = model([helper.make_node("DequantizeLinear", ["q", "s"], ["y"])],
                 {"q": np.ones(2, np.int32), "s": np.float32(0.5)}, [])  # fmt: skip
    assert found_in(bias) == []


@pytest.mark.parametrize("scales", [3, 7])
def test_scales_that_do_not_fit(scales: int) -> None:
    arrays = {"q": np.ones((8, 6), np.int8), "s": np.ones(scales, np.float32)}
    (found,) = found_in(model([helper.make_node("DequantizeLinear", ["q", "s"], ["y"])], arrays, []))
    assert found.pieces() is None

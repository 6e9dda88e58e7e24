"""Weights: views of bytes that are elsewhere, of every type, also when they move to another model."""

from __future__ import annotations

import ml_dtypes
import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from graphkit.errors import ModelError
from graphkit.graph import Graph
from graphkit.model import Model
from graphkit.testing import parse, run
from graphkit.weights import Weight, WeightStore, make_weight, moved_weight, renamed_weight, tensor_nbytes

ARRAYS: list[np.ndarray] = [
    np.arange(6, dtype=np.float32).reshape(2, 3),
    np.arange(6000, dtype=np.float64).reshape(2, 3000),
    np.float32(2).reshape(()),
    np.zeros((0, 3), np.int64),
    np.arange(5000, dtype=np.float32)[::2],
    np.arange(6000, dtype=np.int64).reshape(2, 3000).T,
    np.arange(3000).astype(ml_dtypes.bfloat16),
    np.arange(9001).astype(ml_dtypes.int4),
    np.arange(9001).astype(ml_dtypes.uint4).reshape(9001, 1),
    np.arange(7).astype(ml_dtypes.uint4),
    np.array(["a", "bc"] * 1000, dtype=object),
    np.arange(5000) % 3 == 0,
]


@pytest.mark.parametrize("array", ARRAYS, ids=lambda a: f"{a.dtype}{list(a.shape)}")
def test_a_weight_gives_back_the_array(array: np.ndarray) -> None:
    weight = make_weight("w", array, WeightStore())
    got = weight.array()
    assert (weight.name, weight.dims) == ("w", array.shape)
    assert got.dtype == array.dtype
    assert got.shape == array.shape
    assert (got == array).all()
    assert not got.flags.writeable
    assert (numpy_helper.to_array(weight.materialized()) == array).all()
    assert (weight.ref is None) == (array.nbytes < 4096 or array.dtype == object)
    assert (renamed_weight(weight, "v").array() == array).all()


@pytest.mark.parametrize(
    ("kind", "dims", "size"),
    [
        (TensorProto.FLOAT, (2, 3), 24),
        (TensorProto.FLOAT, (), 4),
        (TensorProto.INT4, (3,), 2),
        (TensorProto.UINT4, (4,), 2),
        (TensorProto.BOOL, (0, 9), 0),
        (TensorProto.STRING, (9,), 0),
        (TensorProto.FLOAT, (2**40, 2**40), 2**82),
    ],
)
def test_sizes_in_bytes(kind: int, dims: tuple[int, ...], size: int) -> None:
    assert tensor_nbytes(kind, dims) == size


def test_damaged_tensors_are_model_errors_when_they_are_read() -> None:
    short = TensorProto(name="short", data_type=TensorProto.FLOAT, dims=[3], raw_data=b"1234")
    unknown = TensorProto(name="unknown", data_type=99, dims=[1], raw_data=b"1234")
    nothing = TensorProto(name="nothing", dims=[1])
    outside = TensorProto(name="outside", data_type=1, dims=[1], data_location=TensorProto.EXTERNAL)
    for tensor in (short, unknown, nothing, outside):
        with pytest.raises(ModelError, match="damaged") as caught:
            Weight(tensor, WeightStore()).array()
        assert tensor.name in str(caught.value)


def test_a_weight_moves_to_another_model_with_its_bytes() -> None:
    array = np.arange(5000, dtype=np.float32)
    source = make_weight("w", array, WeightStore())
    store = WeightStore()
    store.add_memory(memoryview(b"something else"))
    moved = moved_weight(source, store)
    assert moved.store is store
    assert moved_weight(moved, store) is moved
    assert np.shares_memory(moved.array(), source.array())
    assert moved_weight(source, store).ref == moved.ref  # the buffer is known by now


def test_a_graph_takes_over_weights_of_another_model() -> None:
    big = np.arange(5000, dtype=np.float32)
    source = Graph.of(parse("g (float[5000] x) => (float[5000] y) { y = Relu(x) }"))
    source.set_initializer("w", big)
    graph = Graph.of(parse("g (float[5000] x) => (float[5000] y) { y = Relu(x) }"))
    graph.set_initializer("other", big[::-1])
    graph.put_initializer("taken", source.initializers["w"])
    weights = {w.name: w.array() for w in graph.to_model().weights()}
    assert sorted(weights) == ["other", "taken"]
    np.testing.assert_array_equal(weights["taken"], big)
    onnx.checker.check_model(graph.to_model().materialized())


def test_sparse_initializers_become_ordinary_ones() -> None:
    proto = onnx.parser.parse_model(
        '<ir_version: 8, opset_import: ["": 18]> g (float[2,3] x) => (float[2,3] y) { y = Add(x, s) }'
    )
    values = helper.make_tensor("s", TensorProto.FLOAT, [2], [5.0, 7.0])
    flat = helper.make_sparse_tensor(values, helper.make_tensor("i", TensorProto.INT64, [2], [1, 5]), [2, 3])
    pairs = helper.make_tensor("i", TensorProto.INT64, [2, 2], [0, 1, 1, 2])
    for sparse in (flat, helper.make_sparse_tensor(values, pairs, [2, 3])):
        del proto.graph.sparse_initializer[:]
        proto.graph.sparse_initializer.append(sparse)
        graph = Graph.of(Model.from_proto(proto))
        assert graph.weight("s") is not None
        x = np.ones((2, 3), np.float32)
        got = run(graph.to_model(), {"x": x})["y"]
        assert got.tolist() == [[1, 6, 1], [1, 1, 8]]


@pytest.mark.parametrize(
    ("dims", "index", "problem"),
    [([2, 3], 6, "damaged sparse"), ([2**40, 3], 1, "too large"), ([-2, -3], 1, "damaged")],
)
def test_damaged_sparse_initializers_are_model_errors(dims: list[int], index: int, problem: str) -> None:
    proto = onnx.parser.parse_model(
        '<ir_version: 8, opset_import: ["": 18]> g (float[2,3] x) => (float[2,3] y) { y = Add(x, s) }'
    )
    values = helper.make_tensor("s", TensorProto.FLOAT, [1], [5.0])
    where = helper.make_tensor("i", TensorProto.INT64, [1], [index])
    proto.graph.sparse_initializer.append(helper.make_sparse_tensor(values, where, dims))
    with pytest.raises(ModelError, match=problem):
        Graph.of(Model.from_proto(proto))

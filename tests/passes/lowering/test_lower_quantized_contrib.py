"""onnxruntime's operators on quantized weights: equal to onnxruntime in ONNX and in MNN."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper

from graphkit.graph import Graph
from graphkit.model import Model
from graphkit.passes.lower_for_mnn import LowerForMnn
from graphkit.shapes import infer
from graphkit.testing import run
from tests.in_mnn import assert_right_in_mnn
from tests.quantized_models import MS, Arrays, codes, lowered, model

HIDDEN = 32


def packed(name: str, kind: int, array: np.ndarray) -> onnx.TensorProto:
    return helper.make_tensor(name, kind, array.shape, array.reshape(-1).tolist())


def table(kind: str, *, zeros: bool) -> tuple[Model, Arrays]:
    """A table of 20 rows of 64 in two blocks each."""
    rng = np.random.default_rng(1)
    attrs: dict[str, Any] = {"gather_axis": 0, "quantize_axis": 1, "block_size": 32}
    if kind in ("int4", "uint4"):
        low = -8 if kind == "int4" else 0
        dtype = TensorProto.INT4 if kind == "int4" else TensorProto.UINT4
        stored = packed("w", dtype, rng.integers(low, low + 16, (20, 64)))
        points = packed("z", dtype, rng.integers(low, low + 16, (20, 2)))
    else:
        attrs["bits"] = bits = 4 if kind == "halves" else 8
        stored = onnx.numpy_helper.from_array(rng.integers(0, 256, (20, 8 * bits)).astype(np.uint8), "w")
        points = onnx.numpy_helper.from_array(rng.integers(0, 256, (20, 1 if bits == 4 else 2)).astype(np.uint8), "z")
    ins = ["w", "i", "s", *(["z"] if zeros else [])]
    node = helper.make_node("GatherBlockQuantized", ins, ["y"], domain=MS, **attrs)
    constants = {"s": rng.uniform(0.1, 1, (20, 2)).astype(np.float32)}
    source = model([node], {"i": (TensorProto.INT64, ["n", 3])}, {"y": 1}, constants, opset=21)
    source.proto.graph.initializer.extend([stored, *([points] if zeros else [])])
    return Model.from_proto(source.proto), {"i": rng.integers(0, 20, (2, 3))}


@pytest.mark.parametrize("zeros", [False, True])
@pytest.mark.parametrize("kind", ["int4", "uint4", "halves", "bytes"])
def test_gathered_blocks(kind: str, zeros: bool) -> None:
    source, feeds = table(kind, zeros=zeros)
    after = lowered(source, "lower-for-mnn")
    np.testing.assert_array_equal(run(after, feeds)["y"], run(source, feeds)["y"])
    read = {value for node in Graph.of(after).nodes for value in node.inputs}
    sizes = [w.nbytes for name, w in Graph.of(after).initializers.items() if name in read]
    assert max(sizes) == 20 * 64, "the table is bytes"


def test_gathered_blocks_in_mnn(tmp_path: Path) -> None:
    source, feeds = table("halves", zeros=True)
    assert_right_in_mnn(source, tmp_path, feeds=feeds, rtol=1e-6)


def attention() -> tuple[Model, Arrays]:
    rng = np.random.default_rng(2)
    node = helper.make_node("QAttention", ["x", "w", "b", "s", "ws", "m", "z", "wz"], ["y"], domain=MS, num_heads=4)
    constants = {
        "w": codes(rng, "int8", HIDDEN, 3 * HIDDEN, margin=68), "b": rng.standard_normal(3 * HIDDEN).astype(np.float32),
        "s": np.float32(0.02), "ws": np.float32(0.01), "z": np.uint8(120), "wz": np.int8(0),
    }  # fmt: skip
    source = model([node], {"x": (TensorProto.UINT8, ["n", 6, HIDDEN]), "m": (6, ["n"])}, {"y": 1}, constants)
    return source, {"x": codes(rng, "uint8", 2, 6, HIDDEN), "m": np.array([6, 4], np.int32)}


def embeddings() -> tuple[Model, Arrays]:
    rng = np.random.default_rng(3)
    sizes = {"we": (50, HIDDEN), "pe": (10, HIDDEN), "se": (2, HIDDEN), "g": (HIDDEN,), "b": (HIDDEN,)}
    constants: Arrays = {name: codes(rng, "uint8", *shape) for name, shape in sizes.items()}
    constants |= {f"{name}_s": np.float32(0.01) for name in sizes} | {f"{name}_z": np.uint8(128) for name in sizes}
    ins = ["i", "t", *sizes, "m", *(f"{name}_s" for name in sizes), *(f"{name}_z" for name in sizes)]
    node = helper.make_node("QEmbedLayerNormalization", ins, ["y", "n"], domain=MS, epsilon=1e-12)
    given = {name: (TensorProto.INT32, ["b", 6]) for name in ("i", "t", "m")}
    source = model([node], given, {"y": 1, "n": TensorProto.INT32}, constants)
    mask = np.array([[1] * 6, [1] * 4 + [0] * 2], np.int32)
    feeds = {
        "i": rng.integers(0, 50, (2, 6)).astype(np.int32),
        "t": rng.integers(0, 2, (2, 6)).astype(np.int32),
        "m": mask,
    }
    return source, feeds


@pytest.mark.parametrize("built", [attention(), embeddings()], ids=["attention", "embeddings"])
def test_float_operators_take_over(built: tuple[Model, Arrays]) -> None:
    source, feeds = built
    graph = Graph.of(source)
    infer(graph)
    assert LowerForMnn().run(graph).modified
    assert not any(node.op_type.startswith("Q") for node in graph.nodes)
    want, got = run(source, feeds), run(graph.to_model(), feeds)
    for name, array in want.items():
        np.testing.assert_allclose(got[name], array, rtol=0, atol=1e-4)


def refusals(source: Model) -> list[str]:
    graph = Graph.of(source)
    infer(graph)
    return [refusal.reason for refusal in LowerForMnn().run(graph).refusals]


def test_blocks_along_another_axis_are_refused() -> None:
    node = helper.make_node(
        "GatherBlockQuantized", ["w", "i", "s"], ["y"], domain=MS, gather_axis=1, quantize_axis=0, bits=8
    )
    constants = {"w": np.zeros((128, 4), np.uint8), "s": np.ones((1, 4), np.float32)}
    source = model([node], {"i": (TensorProto.INT64, [3])}, {"y": 1}, constants)
    assert "rows are not along axis 0" in refusals(source)[0]


def test_steps_quantized_one_by_one_are_refused() -> None:
    constants = {
        "w": np.zeros((1, 3, 8), np.int8), "r": np.zeros((1, 2, 8), np.int8), "s": np.ones(1, np.float32),
        "z": np.zeros(1, np.int8),
    }  # fmt: skip
    ins = ["x", "w", "r", "", "", "", "", "", "s", "z", "s", "z"]
    node = helper.make_node("DynamicQuantizeLSTM", ins, ["y"], domain=MS, hidden_size=2)
    assert "strip-activation-qdq" in refusals(model([node], {"x": (1, [4, 1, 3])}, {"y": 1}, constants))[0]

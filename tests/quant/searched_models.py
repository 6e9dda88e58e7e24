"""Small models for tests of sensitivity and search: convolutions, products, tables, shared and hidden weights."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
import onnx

from graphkit.model import Model

Sample = dict[str, npt.NDArray[Any]]


def _model(text: str, weights: dict[str, tuple[int, ...]], dtype: type = np.float32, seed: int = 0) -> Model:
    """A model from ONNX text and random weights of these shapes."""
    rng = np.random.default_rng(seed)
    proto = onnx.parser.parse_model(f'<ir_version: 10, opset_import: ["" : 21]> {text}')
    for name, shape in weights.items():
        array = rng.normal(size=shape) / np.sqrt(np.prod(shape[1:]))
        proto.graph.initializer.append(onnx.numpy_helper.from_array(array.astype(dtype), name))
    return Model.from_proto(proto)


def mixed() -> tuple[Model, list[Sample]]:
    """Conv, Gemm with transposed weight, MatMul; images in, two outputs."""
    model = _model(
        """g (float[N,16,6,6] image) => (float[N,M] y, float[N,K] z) {
            [conv] c = Conv<kernel_shape=[3,3], pads=[1,1,1,1]>(image, wc)
            r = Relu(c)
            p = GlobalAveragePool(r)
            f = Flatten(p)
            [gemm] y = Gemm<transB=1>(f, wg, bg)
            [product] z = MatMul(y, wm)
        }""",
        {"wc": (32, 16, 3, 3), "wg": (64, 32), "wm": (64, 48), "bg": (64,)},
    )
    rng = np.random.default_rng(1)
    return model, [{"image": rng.normal(size=(n, 16, 6, 6)).astype(np.float32)} for n in (1, 2, 1)]


def tied() -> tuple[Model, list[Sample]]:
    """A table that a Gather reads and, transposed, a MatMul multiplies with."""
    model = _model(
        """g (int64[N] ids) => (float[N,V] logits) {
            [look] e = Gather(table, ids)
            [inner] h = MatMul(e, w)
            t = Transpose<perm=[1,0]>(table)
            [head] logits = MatMul(h, t)
        }""",
        {"table": (80, 32), "w": (32, 32)},
    )
    rng = np.random.default_rng(2)
    return model, [{"ids": rng.integers(0, 80, 7)} for _ in range(2)]


def hidden() -> tuple[Model, list[Sample]]:
    """A weight inside a branch, one from outside that a branch reads, and one that two nodes share."""
    model = _model(
        """g (float[N,32] x, bool go) => (float[N,32] y) {
            [first] a = MatMul(x, shared)
            [second] b = MatMul(a, shared)
            y = If (go) <
                then_branch = t () => (float[N,32] ty) { [captured] ty = MatMul(b, outer) },
                else_branch = e () => (float[N,32] ey) { ey = Identity(b) }
            >
        }""",
        {"shared": (32, 32), "outer": (32, 32)},
    )
    rng = np.random.default_rng(3)
    sample = {"x": rng.normal(size=(3, 32)).astype(np.float32), "go": np.array(True)}
    return model, [sample]


def halves() -> tuple[Model, list[Sample]]:
    """Float16 throughout."""
    model = _model(
        "g (float16[N,32] x) => (float16[N,48] y) { [one] a = MatMul(x, w) [two] y = MatMul(a, v) }",
        {"w": (32, 64), "v": (64, 48)},
        np.float16,
    )
    return model, [{"x": np.random.default_rng(4).normal(size=(5, 32)).astype(np.float16)}]


def constants() -> tuple[Model, list[Sample]]:
    """Weights that Constant nodes make, one of them in a branch."""
    model, samples = hidden()
    for graph in (model.proto.graph, model.proto.graph.node[2].attribute[0].g):
        array = np.random.default_rng(6).normal(size=(32, 32)).astype(np.float32)
        tensor = onnx.numpy_helper.from_array(array)
        graph.node.insert(0, onnx.helper.make_node("Constant", [], [f"{graph.name}_w"], value=tensor))
        for node in graph.node:
            if node.name in ("first", "captured"):
                node.input[1] = f"{graph.name}_w"
    return Model.from_proto(model.materialized()), samples

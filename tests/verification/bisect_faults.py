"""Models with a fault in them, and fast predicates that need no MNN, for the tests of reduction and repro folders."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import numpy.typing as npt
from onnx import ModelProto

from graphkit.errors import GraphkitError
from graphkit.graph import Graph
from graphkit.model import Model
from graphkit.runtime import Session
from graphkit.testing import parse

Feeds = Mapping[str, npt.NDArray[Any]]
Predicate = Callable[[Model, Feeds], bool | None]

# ScatterND with an index depth between 1 and full: MNN 3.6.1 writes only the first element of each update.
SCATTER = """
    g (float[N,8] x, float[2,8] u) => (float[N,8] y, float[N,8] z)
    <float[8] scale = {1.0, 2.0, 3.0, 4.0, 5.0, 6.0, 7.0, 8.0}, int64[2,1] rows = {0, 2},
     int64[2,3] deep = {0, 0, 1, 2, 0, 1}, int64[3] block = {-1, 2, 8}, int64[2] flat = {-1, 8},
     int64[2,2] pairs = {0, 0, 1, 1}>
    {
        [first] a = Mul(x, scale)
        [second] b = Relu(a)
        [blocks] c = Reshape(b, block)
        [scatter] d = ScatterND(c, pairs, u)
        [back] e = Reshape(d, flat)
        [third] f = Add(e, b)
        [other] z = Tanh(a)
        [last] y = Relu(f)
    }
"""
REFUSED = """
    g (float[N,4] x) => (bool[N,4] y) {
        [first] a = Relu(x)
        [second] b = Sqrt(a)
        [nan] c = IsNaN(b)
        [last] y = Not(c)
    }
"""


def scatter() -> tuple[Model, dict[str, npt.NDArray[Any]]]:
    """SCATTER and its feeds."""
    rng = np.random.default_rng(0)
    feeds = {"x": rng.standard_normal((4, 8)), "u": 3 + rng.standard_normal((2, 8))}
    return parse(SCATTER), {name: array.astype(np.float32) for name, array in feeds.items()}


def swapped(model: Model, old: str, new: str) -> Model:
    """The model with one operator in place of another, subgraphs included: a runtime that confuses the two."""
    graph = Graph.of(model)
    for inner in list(graph.walk()):
        for node in inner.by_op(old):
            made = type(node.proto).FromString(node.proto.SerializeToString())
            made.op_type = new
            inner.replace_node(node, made)
    return graph.to_model()


def confuses(old: str, new: str) -> Predicate:
    """A predicate: the outputs differ when one operator is taken for another."""
    return differs(lambda model: swapped(model, old, new))


def differs(change: Callable[[Model], Model]) -> Predicate:
    """A predicate: the outputs differ by more than noise after a change."""

    def predicate(model: Model, feeds: Feeds) -> bool | None:
        try:
            with Session(model) as one, Session(change(model)) as two:
                expected, actual = one.run(feeds), two.run(feeds)
        except GraphkitError:
            return None
        return any(not _close(expected[name], actual[name]) for name in expected)

    return predicate


def _close(one: npt.NDArray[Any], other: npt.NDArray[Any]) -> bool:
    return np.allclose(one.astype(np.float64), other.astype(np.float64), rtol=1e-3, atol=1e-4, equal_nan=True)


def op_types(model: Model | ModelProto) -> list[str]:
    """Operators of the main graph, without constants."""
    proto = model.proto if isinstance(model, Model) else model
    return [node.op_type for node in proto.graph.node if node.op_type != "Constant"]

"""Lowerings compared in ONNX: quick enough for many forms of one operator."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import numpy.typing as npt
import onnx
from onnx.reference import ReferenceEvaluator

from graphkit.graph import Graph
from graphkit.model import Model
from graphkit.passes.lower_for_mnn import LowerForMnn
from graphkit.testing import canonical, graph_of, random_feeds, run

Feeds = Mapping[str, npt.NDArray[Any]]


def lowered(text: str, *, opset: int = 18, feeds: Feeds | None = None, standard: bool = False) -> list[str]:
    """Lower a model, assert that it computes the same and that a second run changes nothing; returns its operators.

    `standard` takes what is expected from ONNX's reference evaluator, for operators that onnxruntime lacks.
    """
    graph = graph_of(text, opset=opset)
    before = graph.to_model()
    LowerForMnn().run(graph)
    graph.check()
    after = graph.to_model()
    onnx.checker.check_model(after.materialized())
    first = canonical(graph)
    again = Graph.of(after)
    LowerForMnn().run(again)
    assert canonical(again) == first, "a second run changes the graph again"
    feeds = random_feeds(before) if feeds is None else feeds
    _assert_equal(_standard(before, feeds) if standard else run(before, feeds), run(after, feeds))
    return [node.op for node in graph.nodes]


def _standard(model: Model, feeds: Feeds) -> dict[str, npt.NDArray[Any]]:
    values = ReferenceEvaluator(model.materialized()).run(None, dict(feeds))
    return dict(zip([output.name for output in model.proto.graph.output], map(np.asarray, values), strict=True))


def _assert_equal(expected: Feeds, actual: Feeds) -> None:
    for name, want in expected.items():
        got = actual[name]
        assert (got.dtype, got.shape) == (want.dtype, want.shape), f"{name}: {got.dtype} {got.shape}"
        np.testing.assert_allclose(got.astype(np.float64), want.astype(np.float64), rtol=1e-4, atol=1e-5, err_msg=name)

"""`cleanup`: equal and unused initializers, inputs with defaults, unused inputs."""

from __future__ import annotations

import numpy as np
import onnx

from graphkit.graph import Graph
from graphkit.model import Model
from graphkit.passes.cleanup import Cleanup
from graphkit.testing import assert_rewrites, assert_unchanged, graph_of, parse

CLEANUP = Cleanup()


def test_equal_initializers_are_merged_by_type_shape_and_bytes() -> None:
    before = """agraph (float[2] x) => (float[1,2] y)
        <float[2] a = {1.0, 2.0}, float[2] b = {1.0, 2.0}, float[1,2] c = {1.0, 2.0}, float[2] d = {1.0, 3.0},
         float[2] unused = {1.0, 2.0}>
        { p = Add(x, a) q = Sub(p, b) r = Sub(q, c) y = Sub(r, d) }"""
    after = """agraph (float[2] x) => (float[1,2] y)
        <float[2] a = {1.0, 2.0}, float[1,2] c = {1.0, 2.0}, float[2] d = {1.0, 3.0}>
        { p = Add(x, a) q = Sub(p, a) r = Sub(q, c) y = Sub(r, d) }"""
    assert_rewrites(CLEANUP, before, after)
    graph = graph_of(before)
    CLEANUP.run(graph)
    assert list(graph.initializers) == ["a", "c", "d"]


def test_large_equal_weights_share_one_and_different_ones_do_not() -> None:
    rng = np.random.default_rng(0)
    weight = rng.standard_normal((64, 64)).astype(np.float32)
    other = weight.copy()
    other[32, 32] += 1  # equal at both ends
    proto = parse("agraph (float[64] x) => (y) { p = Add(x, a) q = Sub(p, b) y = Sub(q, c) }").proto
    for name, array in (("a", weight), ("b", weight), ("c", other)):
        proto.graph.initializer.append(onnx.numpy_helper.from_array(array, name))
    graph = Graph.of(Model.from_proto(proto))
    result = CLEANUP.run(graph)
    assert result.counters == {"duplicate initializer": 1}
    assert list(graph.initializers) == ["a", "c"]


def test_minus_zero_and_zero_are_different_weights() -> None:
    text = "agraph (float[1] x) => (y) <float[1] a = {0.5}, float[1] b = {0.5}> { p = Add(x, a) y = Div(p, b) }"
    graph = graph_of(text)
    graph.set_initializer("a", np.array([0.0], np.float32))
    graph.set_initializer("b", np.array([-0.0], np.float32))
    CLEANUP.run(graph)
    assert "b" in graph.initializers


def test_initializers_of_ir_version_3_become_constants() -> None:
    text = """<ir_version: 3, opset_import: ["" : 11]>
        agraph (float[2] x, float[2] w) => (float[2] y) <float[2] w = {1.0, 2.0}> { y = Add(x, w) }"""
    graph = graph_of(text)
    state = graph.snapshot()
    result = CLEANUP.run(graph)
    assert graph.inputs == ["x"]
    assert result.counters == {"default value": 1}
    assert graph.to_model().proto.ir_version == 4
    onnx.checker.check_model(graph.to_model().proto)
    graph.restore(state)
    assert graph.to_model().proto.ir_version == 3


def test_default_values_of_inputs_stay_unless_asked() -> None:
    text = "agraph (float[2] x, float[2] w) => (y) <float[2] w = {1.0, 2.0}> { y = Add(x, w) }"
    assert_unchanged(CLEANUP, text, refuses="freeze_defaults=true")
    graph = graph_of(text)
    Cleanup(freeze_defaults=True).run(graph)
    assert graph.inputs == ["x"]
    assert graph.is_constant("w")


def test_unused_inputs_stay_unless_asked() -> None:
    text = "agraph (float[n] x, float[n] z) => (float[n] y) { y = Relu(x) }"
    assert_unchanged(CLEANUP, text)
    graph = graph_of(text)
    Cleanup(remove_unused_inputs=True).run(graph)
    assert graph.inputs == ["x"]

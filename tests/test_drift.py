"""Models that quantize are compared as finely as they can be, and no finer."""

from __future__ import annotations

import numpy as np
import pytest

from graphkit import _drift
from graphkit.compare import Tolerance
from graphkit.graph import Graph
from graphkit.proof import Evidence
from graphkit.testing import graph_of, parse

QDQ = """g (float[4, 64] x) => (float[4, 64] y)
    <float s = {0.5}, uint8 z = {128}, float r = {1.5707964}> {
    h = Mul(x, r) k = Div(h, r) q = QuantizeLinear(k, s, z) y = DequantizeLinear(q, s, z)
}"""
PLAIN = "g (float[4, 64] x) => (float[4, 64] y) { y = Relu(x) }"


def halves() -> list[dict[str, np.ndarray]]:
    """Inputs that lie between two codes: the last digit decides."""
    return [{"x": (np.arange(256, dtype=np.float32).reshape(4, 64) - 128) / 4}]


def test_a_plain_model_does_not_drift() -> None:
    assert not _drift.quantizes(graph_of(PLAIN))
    assert [sample.drift for sample in Evidence.gather(parse(PLAIN)).samples] == [0.0] * 8


def test_a_step_is_allowed_where_the_reference_takes_it_by_chance() -> None:
    evidence = Evidence.gather(parse(QDQ), inputs=halves())
    (sample,) = evidence.samples
    assert sample.drift == pytest.approx(0.5 / 32, rel=0.05)
    off = {"y": sample.expected["y"].copy()}
    off["y"][0, 1] += 0.5
    proof = evidence.judge_outputs([off], Tolerance(rtol=1e-4))
    assert proof.kind == "equal"
    assert "it quantizes" in proof.note


def test_more_than_a_few_steps_are_a_fault() -> None:
    evidence = Evidence.gather(parse(QDQ), inputs=halves())
    off = {"y": evidence.samples[0].expected["y"].copy()}
    off["y"][0, 1] += 2.5
    assert evidence.judge_outputs([off], Tolerance(rtol=1e-4)).kind == "different"


def test_a_model_that_moves_wildly_is_compared_with_its_own_moves() -> None:
    tight = Tolerance(rtol=1e-3)
    assert [_drift.allowing(tight, drift).rtol for drift in (0, 0.01, 0.02, 0.2, 0.9)] == pytest.approx(
        [1e-3, 0.04, 0.05, 0.3, 0.5]
    )
    assert "weak proof" in _drift.note(tight, 0.2)
    assert "weak proof" not in _drift.note(tight, 0.01)


def test_the_nudge_reaches_half_floats_too() -> None:
    graph = graph_of("g (float16[4] x, float16 s, uint8 z) => (uint8[4] y) { y = QuantizeLinear(x, s, z) }")
    nudged = Graph.of(_drift.nudged(graph, seed=0))
    (factor,) = (nudged.constant(node.inputs[1]) for node in nudged.by_op("Mul"))
    assert factor is not None
    assert factor.dtype == np.float16
    assert (factor != 1).all()


def test_dynamic_steps_do_not_move_with_the_nudge() -> None:
    text = """g (float[4, 64] x) => (float[4, 64] y) {
        q, s, z = DynamicQuantizeLinear(x) y = DequantizeLinear(q, s, z) }"""
    x = np.linspace(-1, 1, 256, dtype=np.float32).reshape(4, 64)
    (sample,) = Evidence.gather(parse(text), inputs=[{"x": x}]).samples
    assert sample.drift > 2e-3


@pytest.mark.parametrize("x", [[[3.0], [-3.0], [-0.5]], [[3.0, -3.0, -0.5], [3.0, -3.0, 3.0]]])
def test_a_zero_point_between_two_codes_drifts_with_the_reach_of_the_range(x: list[list[float]]) -> None:
    text = """g (float[N, K] x) => (float[N, K] y) {
        q, s, z = DynamicQuantizeLinear(x) y = DequantizeLinear(q, s, z) }"""
    (sample,) = Evidence.gather(parse(text), inputs=[{"x": np.array(x, np.float32)}]).samples
    assert sample.drift == pytest.approx(2 / 255, rel=0.01)  # −min / scale is 127.5


def test_the_nudge_differs_along_the_last_axis_of_more_than_one() -> None:
    graph = graph_of("g (float[2, 8, 1] x, float s, uint8 z) => (uint8[2, 8, 1] y) { y = QuantizeLinear(x, s, z) }")
    nudged = Graph.of(_drift.nudged(graph, seed=0))
    (factor,) = (nudged.constant(node.inputs[1]) for node in nudged.by_op("Mul"))
    assert factor is not None
    assert factor.shape == (8, 1)
    assert len(np.unique(factor)) == 2


def test_each_sample_is_allowed_its_own_drift_and_the_note_says_so() -> None:
    still = {"x": np.full((4, 64), 0.3, np.float32)}
    evidence = Evidence.gather(parse(QDQ), inputs=[*halves(), still])
    assert evidence.samples[1].drift < evidence.samples[0].drift
    outputs = [sample.expected for sample in evidence.samples]
    assert "up to" in evidence.judge_outputs(outputs, Tolerance(rtol=1e-4)).note
    assert "on each sample" in evidence.judge_outputs(outputs, Tolerance(rtol=1e-4)).note

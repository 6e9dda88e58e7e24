"""Evidence and proofs: equal, different, none, and why."""

from __future__ import annotations

import json

import numpy as np
import pytest

from graphkit.compare import Tolerance
from graphkit.errors import GraphkitError, UsageError
from graphkit.proof import Evidence, Proof, index_outputs, shape_text
from graphkit.testing import graph_of, parse
from graphkit.tolerances import default_tolerance, mnn_tolerance

TIGHT = Tolerance(rtol=1e-5)
ONE = "g (float[N,4] x) => (float[N,4] y) { y = Relu(x) }"


def test_equal_at_two_shapes() -> None:
    proof = Evidence.gather(parse(ONE)).judge_model(parse(ONE), TIGHT)
    assert (proof.kind, proof.ok, proof.max_error, proof.reason) == ("equal", True, 0.0, "")
    assert len({check.shapes["x"] for check in proof.checks}) == 2


def test_different_says_where() -> None:
    other = parse("g (float[N,4] x) => (float[N,4] y) { y = Neg(x) }")
    proof = Evidence.gather(parse(ONE)).judge_model(other, TIGHT)
    assert (proof.kind, proof.ok) == ("different", False)
    assert proof.max_error > 0.5
    assert proof.reason.startswith("output 'y': ")
    assert " at input shapes [" in proof.reason


def test_another_element_type_is_different() -> None:
    other = parse("g (float[N,4] x) => (float16[N,4] y) { a = Relu(x) y = Cast<to = 10>(a) }")
    proof = Evidence.gather(parse(ONE)).judge_model(other, Tolerance(rtol=1))
    assert proof.kind == "different"
    assert proof.reason == "output 'y' is float16 instead of float32"


def test_a_result_that_does_not_run_is_different() -> None:
    other = parse("g (float[N,4] x) => (float[N,4] y) { y = Unheard(x) }")
    proof = Evidence.gather(parse(ONE)).judge_model(other, TIGHT)
    assert (proof.kind, proof.ok, proof.checks) == ("different", False, ())
    assert proof.reason.startswith("the result does not run: ")
    assert "Unheard" in proof.reason
    assert np.isnan(proof.max_error)


def test_an_output_that_is_missing_is_different() -> None:
    other = parse("g (float[N,4] x) => (float[N,4] z) { z = Relu(x) }")
    proof = Evidence.gather(parse(ONE)).judge_model(other, TIGHT)
    assert proof.kind == "different"
    assert "output 'y'" in proof.reason


@pytest.mark.parametrize("op", ["RandomNormalLike(x)", "RandomUniformLike(x)"])
def test_a_random_reference_proves_nothing(op: str) -> None:
    text = f"g (float[N,4] x) => (float[N,4] y, float[N,4] z) {{ a = {op} y = Add(a, x) z = Relu(x) }}"
    evidence = Evidence.gather(parse(text))
    assert evidence.unstable == ("y",)
    assert evidence.worthless == (
        "the reference differs from itself in a second run (outputs 'y'): random or in training mode"
    )
    proof = evidence.judge_model(parse(text), TIGHT)
    assert (proof.kind, proof.ok, proof.reason) == ("none", True, evidence.worthless)


def test_no_samples_prove_nothing() -> None:
    evidence = Evidence.gather(parse(ONE), inputs=[])
    assert evidence.worthless == "there are no samples"
    assert evidence.judge(lambda feeds: {}, TIGHT).kind == "none"


def test_given_inputs_are_used_and_checked() -> None:
    feeds = {"x": np.array([[1, -2, 3, -4]], np.float32)}
    (sample,) = Evidence.gather(parse(ONE), inputs=[feeds]).samples
    assert sample.expected["y"].tolist() == [[1, 0, 3, 0]]
    assert sample.shapes == {"x": (1, 4)}
    with pytest.raises(UsageError):
        Evidence.gather(parse(ONE), inputs=[{"z": feeds["x"]}])


def test_a_reference_that_does_not_run_raises() -> None:
    with pytest.raises(GraphkitError):
        Evidence.gather(parse("g (float[N,4] x) => (float[N,4] y) { y = Unheard(x) }"))


def test_errors_of_a_candidate_are_the_callers() -> None:
    def fail(feeds: object) -> dict[str, np.ndarray]:
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        Evidence.gather(parse(ONE)).judge(fail, TIGHT)


def test_a_tie_of_scores_is_no_difference() -> None:
    text = "g (float[1,3] x) => (int64[1] y) { s = Mul(x, x) y = ArgMax<axis = 1, keepdims = 0>(s) }"
    evidence = Evidence.gather(parse(text), inputs=[{"x": np.array([[1, -1, 0.5]], np.float32)}])
    assert evidence.judge(lambda feeds: {"y": np.array([1])}, TIGHT).kind == "equal"
    assert evidence.judge(lambda feeds: {"y": np.array([2])}, TIGHT).kind == "different"


def test_topk_may_choose_among_equal_inputs() -> None:
    text = "g (float[1,3] x) => (float[1,1] v, int64[1,1] i) <int64[1] k = {1}> { v, i = TopK(x, k) }"
    evidence = Evidence.gather(parse(text), inputs=[{"x": np.array([[1, 1, 0.5]], np.float32)}])
    for index, kind in ((1, "equal"), (2, "different")):
        chosen = {"v": np.ones((1, 1), np.float32), "i": np.array([[index]])}
        assert evidence.judge(lambda feeds, chosen=chosen: chosen, TIGHT).kind == kind


def test_index_outputs() -> None:
    graph = graph_of("""
        g (float[2,8] x) => (int64[2] best, float[2,3] top, int64[2,3] where, int32[2] cast, int64[2] direct)
        <int64[1] k = {3}> {
            s = Relu(x)
            best = ArgMax<axis = 1, keepdims = 0>(s)
            top, where = TopK<axis = 1>(s, k)
            a = ArgMin<axis = 1, keepdims = 0>(s)
            cast = Cast<to = 6>(a)
            direct = ArgMax<axis = 1, keepdims = 0>(x)
        }
    """)
    assert index_outputs(graph) == {"best": ("s", 1), "where": ("s", 1), "cast": ("s", 1)}


def test_default_tolerance_knows_half_floats() -> None:
    assert default_tolerance(graph_of(ONE)).rtol == 1e-4
    half = "g (float16[4] x) => (float16[4] y) { y = Relu(x) }"
    assert default_tolerance(graph_of(half)).rtol == 2e-2
    weight = "g (float[4] x) => (float[4] y) <float16 w = {1}> { a = Cast<to = 1>(w) y = Add(x, a) }"
    assert default_tolerance(graph_of(weight)).rtol == 2e-2
    assert mnn_tolerance(graph_of(weight)).rtol == 2e-2
    assert mnn_tolerance(graph_of(ONE)).rtol == 1e-3
    assert mnn_tolerance(graph_of(ONE), halved=True).rtol == 2e-2


def test_as_json() -> None:
    evidence = Evidence.gather(parse(ONE))
    data = evidence.judge_model(parse(ONE), TIGHT).to_dict()
    assert json.loads(json.dumps(data)) == data
    assert (data["kind"], data["max_error"], len(data["samples"])) == ("equal", 0.0, len(evidence.samples))
    data = Proof(note="because").to_dict()
    assert (data["kind"], data["max_error"], data["reason"]) == ("none", None, "because")


def test_shape_text_names_each_shape_once() -> None:
    assert shape_text({"a": (1, 16), "b": (1, 16), "c": (2,)}) == "[1,16] [2]"
    assert shape_text({}) == "[]"


def test_worthless_evidence_still_shows_what_is_wrong() -> None:
    text = "g (float[N,4] x) => (float[N,4] y, float[N,4] z) { y = RandomNormalLike(x) z = Relu(x) }"
    evidence = Evidence.gather(parse(text))
    proof = evidence.judge_model(parse(text.replace("Relu", "Neg")), TIGHT)
    assert (proof.kind, proof.ok) == ("different", False)
    short = evidence.judge(lambda feeds: {"y": np.zeros(3), "z": np.maximum(feeds["x"], 0)}, TIGHT)
    assert "output 'y'" in short.reason


def test_onnx_own_evaluator_stands_in_for_onnxruntime() -> None:
    text = "g (bool[2,0,4] x) => (bool[2,1,4] y) <int64[1] axes = {1}> { y = ReduceMax(x, axes) }"
    evidence = Evidence.gather(parse(text, opset=20))
    assert "ONNX's own evaluator" in evidence.note
    assert evidence.samples[0].expected["y"].tolist() == [[[False] * 4]] * 2
    assert evidence.judge_model(parse(text, opset=20), TIGHT).kind == "equal"


def test_probes_are_judged_where_the_reference_is_finite() -> None:
    text = "g (float[8] x) => (float[8] y) { y = Log(x) }"
    evidence = Evidence.gather(parse(text))
    assert any(sample.probe for sample in evidence.samples)

    def candidate(feeds: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
        with np.errstate(all="ignore"):
            y = np.log(feeds["x"])
        return {"y": np.where(np.isinf(y), -87, y)}

    assert evidence.judge(candidate, TIGHT).kind == "equal"


def test_nothing_finite_proves_nothing() -> None:
    model = parse("g (float[N] x) => (float[N] y) { z = Sub(x, x) y = Div(z, z) }")
    proof = Evidence.gather(model).judge_model(model, Tolerance())
    assert proof.kind == "none"
    assert "no finite values" in proof.note


def test_outputs_that_pass_by_the_floor_alone_are_named() -> None:
    tiny = "g (float[N] x) => (float[N] y) {{ k = Constant<value_float=1e-8>() r = {op}(x) y = Mul(r, k) }}"
    proof = Evidence.gather(parse(tiny.format(op="Relu"))).judge_model(parse(tiny.format(op="Neg")), Tolerance())
    assert "'y': values so small" in proof.note


def test_the_reason_is_that_of_the_worst_sample() -> None:
    reference = parse("g (float[N] x) => (float[N] y) { y = Relu(x) }")
    feeds = [{"x": np.array([1, 1], np.float32)}, {"x": np.array([-1, 1], np.float32)}]
    evidence = Evidence.gather(reference, inputs=feeds)
    wrong = parse("g (float[N] x) => (float[N] y) { k = Constant<value_float=0.01>() z = Add(x, k) y = Abs(z) }")
    assert "error 0.99" in evidence.judge_model(wrong, Tolerance()).reason

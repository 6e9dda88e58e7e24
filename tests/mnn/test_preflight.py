"""Preflight: one small graph for each trap, and what the passes leave of it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest

import graphkit
from graphkit.errors import ModelError, UsageError
from graphkit.knowledge import Condition, Knowledge, Operator, table
from graphkit.mnn import structural
from graphkit.mnn.findings import Finding
from graphkit.mnn.preflight import CheckResult, check, inferred
from graphkit.model import Model
from graphkit.testing import parse


def check_text(text: str, **header: Any) -> CheckResult:
    """Check a graph in ONNX text."""
    return check(parse(f"g {text}", **header))


def faults(text: str, **header: Any) -> list[Finding]:
    """Faults of structure of a graph as it stands."""
    return list(structural.faults(inferred(parse(f"g {text}", **header))))


def advice(text: str, **header: Any) -> list[str]:
    """Advice about a graph as it stands."""
    return [finding.why for finding in structural.advice(inferred(parse(f"g {text}", **header)))]


def test_a_model_that_mnn_takes_as_it_is() -> None:
    result = check_text("(float[2, 3] x) => (float[2, 3] y) { a = Relu(x) y = Add(a, x) }")
    assert result.ok
    assert (result.found, result.left, result.advice, result.unjudged) == ((), (), (), ())
    assert result.nodes == (2, 2)
    assert result.mnn == table().mnn


def test_what_a_pass_fixes_is_found_and_not_left() -> None:
    result = check_text("(float[1, 2, 4, 4] x) => (float[1, 2, 3, 3] y) { y = MaxPool<kernel_shape = [2, 2]>(x) }")
    assert result.ok
    assert [(f.node, f.op, f.effect, f.fixed_by) for f in result.found] == [("y", "MaxPool", "crashes", "canonicalize")]


def test_an_operator_nobody_knows_is_left_with_its_node() -> None:
    result = check_text(
        "(float[2] x) => (float[2] y) { a = flash.Attn(x) y = Relu(a) }", imports={"flash": 1}
    )  # fmt: skip
    assert not result.ok
    expected = [Finding("a", "flash::Attn", "refused", f"no such operator in MNN {table().mnn}")]
    assert list(result.found) == expected
    assert list(result.left) == expected


def test_nodes_that_a_rewrite_made_are_traced_to_the_one_it_replaced() -> None:
    rows = {"Mul": Operator("wrong", (Condition({}, "wrong", "never right"),)), "Pow": Operator("right")}
    rows["Mish"] = Operator("refused", (Condition({}, "refused", "no such operator"),))
    small = Knowledge("0", frozenset(["Mul", "Pow"]), rows)
    model = parse("g (float[2] x) => (float[2] y) { [m] y = Mul(x, x) }")
    result = check(model, "cleanup", knowledge=small)
    assert [(f.node, f.fixed_by) for f in result.found] == [("m", None)]
    assert [f.node for f in result.left] == ["m"]


def test_nodes_inside_branches_are_judged() -> None:
    text = """(bool c, float[2] x) => (float[2] y) { y = If(c) <
        then_branch = t () => (float[2] a) { a = mine.Odd(x) },
        else_branch = e () => (float[2] b) { b = Relu(x) }> }"""
    assert [f.node for f in check_text(text, imports={"mine": 1}).left] == ["a"]


def test_functions_are_inlined_and_then_judged() -> None:
    model = parse("""<ir_version: 8, opset_import: ["": 18, "mine": 1]>
    g (float[2] x) => (float[2] y) { y = mine.Twice(x) }
    <opset_import: ["": 18], domain: "mine"> Twice (a) => (b) { b = Add(a, a) }""")
    result = check(model)
    assert result.ok
    assert [(f.op, f.fixed_by) for f in result.found] == [("mine::Twice", "inline-functions")]


def test_bindings_apply_to_both_graphs() -> None:
    text = "g (float[N, 2] x) => (float[N, 2] y) { y = Relu(x) }"
    assert check(parse(text), bind={"N": 3}).pipeline.startswith("static-shapes")
    with pytest.raises(UsageError):
        check(parse(text), bind={"M": 3})


def test_a_model_that_is_folded_away_is_judged_as_it_was() -> None:
    result = check_text("(float[2] x) => (float[2] y) { y = Identity(x) }")
    assert result.ok


def test_what_inference_does_not_know_is_told() -> None:
    rows = {
        "Relu": Operator("conditional", (Condition({"rank.in0": ">3"}, "wrong", "rank"),)),
        "Odd": Operator("right"),
    }
    small = Knowledge("0", frozenset(["Relu", "Odd"]), {**rows, "mine::Odd": Operator("right")})
    model = parse("g (float[2] x) => (float[K] y) { a = mine.Odd(x) y = Relu(a) }", imports={"mine": 1})
    result = check(model, knowledge=small)
    assert result.ok
    assert result.unjudged == ("y",)


def test_a_missing_file_and_missing_external_data_are_errors(tmp_path: Path) -> None:
    with pytest.raises(ModelError, match="cannot be opened"):
        check(tmp_path / "none.onnx")
    weight = onnx.numpy_helper.from_array(np.ones(2000, np.float32), "w")
    proto = parse("g (float[2000] x) => (float[2000] y) { y = Add(x, w) }").proto
    proto.graph.initializer.append(weight)
    onnx.save(proto, tmp_path / "m.onnx", save_as_external_data=True, location="m.data", size_threshold=0)
    (tmp_path / "m.data").unlink()
    with pytest.raises(ModelError, match=r"'m.data' is missing"):
        graphkit.check(tmp_path / "m.onnx")


# -- faults of structure ----------------------------------------------------------------------------------------


def test_text_and_sequences_are_refused() -> None:
    assert [f.effect for f in faults("(string[2] x) => (string[2] y) { y = Identity(x) }")][:1] == ["refused"]
    found = faults("(seq(float[2]) s) => (float[2] y) <int64 i = {0}> { y = SequenceAt(s, i) }")
    assert "a sequence" in found[0].why


def test_random_nodes_cannot_be_proven() -> None:
    found = faults("(float[2] x) => (float[2] y) { r = RandomNormalLike(x) y = Add(x, r) }")
    assert [(f.node, f.effect) for f in found] == [("r", "refused")]


def test_float64_inputs() -> None:
    found = faults("(double[2] x) => (double[2] y) { y = Relu(x) }")
    assert [(f.effect, "float64" in f.why) for f in found] == [("wrong", True)]


def test_outputs_that_nothing_computes() -> None:
    found = faults("(float[2] x) => (float[2] y, float[2] x) { y = Relu(x) }")
    assert [f.why for f in found] == ["output 'x' is an input or a constant; MNN needs an operator that computes it"]


def test_outputs_without_elements() -> None:
    found = faults("(float[0, 3] x) => (float[0, 3] y) { y = Relu(x) }")
    assert [(f.node, f.effect) for f in found] == [("y", "fails")]


def test_numbers_beyond_what_mnn_holds() -> None:
    text = "(int64[2] x) => (int64[2] y) <int64 c = {4000000000}> { y = Add(x, c) }"
    assert [(f.node, f.effect) for f in faults(text)] == [("y", "wrong")]
    assert not faults(text.replace("4000000000", "1000000000"))


@pytest.mark.parametrize(
    "text",
    [
        "(float[9] x) => (float[K] y) <int64[1] s = {1}, int64[1] e = {9223372036854775807}> { y = Slice(x, s, e) }",
        "(int64[9] x) => (bool[9] y) <int64 c = {-2147483648}> { y = Equal(x, c) }",
        "(int64[9] x) => (int64[9] y) <int64 l = {0}, int64 h = {9223372036854775807}> { y = Clip(x, l, h) }",
    ],
)
def test_sentinels_are_no_fault(text: str) -> None:
    assert not faults(text)


def test_types_that_mnn_does_not_have() -> None:
    found = faults("(float[2] x) => (bfloat16[2] y) { y = Cast<to = 16>(x) }")
    assert [f.why for f in found] == ["'y' has elements of a type that MNN does not have: bfloat16"]
    model = parse("g (float[2, 2] x) => (float[2, 2] y) <float s = {1}> { y = DequantizeLinear(w, s) }", opset=21)
    model.proto.graph.initializer.append(onnx.helper.make_tensor("w", onnx.TensorProto.INT4, [2, 2], [1, 2, 3, 4]))
    found = list(structural.faults(inferred(Model.from_proto(model.proto))))
    assert [f.why for f in found] == ["'w' has elements of a type that MNN does not have: int4"]


# -- advice -----------------------------------------------------------------------------------------------------


def test_shapes_that_only_run_time_knows() -> None:
    assert "the number of elements that are not 0" in advice("(float[3] x) => (int64[1, K] y) { y = NonZero(x) }")[-1]


def test_weights_used_twice() -> None:
    text = "(float[64, 64] x) => (float[64, 64] y) { a = MatMul(x, w) y = MatMul(a, w) }"
    model = parse(f"g {text}")
    model.proto.graph.initializer.append(onnx.numpy_helper.from_array(np.ones((64, 64), np.float32), "w"))
    found = [finding.why for finding in structural.advice(inferred(Model.from_proto(model.proto)))]
    assert found == ["weight 'w' is used by 2 nodes; MNN stores it for each: 16,384 bytes more"]


def test_types_that_mnn_narrows() -> None:
    assert advice("(int64[2] x) => (float[2] y) { y = Cast<to = 1>(x) }") == ["'x' is int64 here and int32 in MNN"]


LOOP = """(float[1] x) => (float[K] y) <int64 n = {{4}}, bool t = {{1}}> {{ y = Loop(n, t, x) <body = b
(int64 i, bool c, float[L] v) => (bool d, float[M] w) {{ d = Identity(c) w = {step} }}> }}"""


def test_loops_that_grow() -> None:
    assert not advice(LOOP.format(step="Add(v, x)"))
    (found,) = advice(LOOP.format(step="Concat<axis = 0>(v, x)"))
    assert found.startswith("'v' changes its shape")

"""The table of operators: how conditions read, what features there are, and that the table itself is sound."""

from __future__ import annotations

import json
from importlib import resources
from pathlib import Path
from typing import Any

import onnx
import pytest

from graphkit import knowledge
from graphkit.errors import ModelError
from graphkit.graph import Graph
from graphkit.knowledge import Condition, Knowledge, Operator, features, holds
from graphkit.testing import graph_of


def of(text: str, op: str, **header: Any) -> dict[str, Any]:
    """Features of the first node of an operator."""
    graph = graph_of(f"g {text}", **header)
    return features(graph, next(node for node in graph.nodes if node.op_type == op))


@pytest.mark.parametrize(
    ("test", "value", "expected"),
    [
        ("cubic", "cubic", True),
        ("cubic", "linear", False),
        ("cubic", None, False),
        (3, 3, True),
        (3, 4, False),
        (2, 2.0, True),
        (1, True, False),
        (True, 1, False),
        (True, True, True),
        (False, None, False),
        ([1, 2], 2, True),
        ([1, 2], 3, False),
        ([None, 2], None, True),
        (">4", 5, True),
        (">4", 4, False),
        (">4", None, False),
        (">4", "5", False),
        (">0", True, False),
        ("<0.5", 0.25, True),
        ("!linear", "cubic", True),
        ("!linear", "linear", False),
        ("!linear", None, False),
        (None, None, True),
        (None, 0, False),
    ],
)
def test_the_grammar_of_tests(test: Any, value: Any, expected: bool) -> None:
    assert holds(test, value) is expected


def test_an_unknown_feature_satisfies_nothing_and_is_told() -> None:
    condition = Condition({"rank.in0": ">3", "attr.mode": "cubic"}, "wrong", "")
    assert condition.holds({"rank.in0": 4, "attr.mode": "cubic"})
    assert not condition.holds({"attr.mode": "cubic"})
    assert condition.open({"attr.mode": "cubic"})
    assert not condition.open({"attr.mode": "linear"})
    assert not condition.open({"rank.in0": 2, "attr.mode": "cubic"})


def test_features_of_values_and_attributes() -> None:
    text = "(float[N, 3, 4] x) => (float[N, 3, 2] y) <int64[2] s = {2, -2}> { y, z = Split<axis = -1>(x, s) }"
    found = of(text, "Split", opset=13)
    expected = {
        "since": 13, "inputs": 2, "subgraph": False, "dtype.in0": "float", "kind.in0": "float", "rank.in0": 3,
        "dynamic.in0": True, "empty.in0": False, "last.in0": 4, "const.in0": False, "const.in1": True,
        "kind.in1": "int", "length.in1": 2, "values.in1": "2,-2", "all.in1": "mixed", "negative.in1": True,
        "huge.in1": False, "attr.axis": -1, "has.axis": True, "used.out0": True, "used.out1": False,
    }  # fmt: skip
    assert {name: found.get(name) for name in expected} == expected
    assert "dims.in0" not in found
    assert "length.in0" not in found


def test_features_know_defaults_and_what_is_omitted() -> None:
    found = of(
        "(float[1, 1, 4, 4] x) => (float[1, 1, 8, 8] y) <float[4] s = {1, 1, 2, 2}> { y = Resize(x, , s) }", "Resize"
    )
    assert found["attr.mode"] == "nearest"
    assert "has.mode" not in found
    assert (found["given.in1"], found["given.in2"], found["inputs"]) == (False, True, 3)
    assert (found["scale"], found["scale.whole"], found["scale.inner"]) == ("up", True, True)
    pool = of("(float[1, 1, 4, 4] x) => (float[1, 1, 3, 3] y) { y = MaxPool<kernel_shape = [2, 2]>(x) }", "MaxPool")
    assert "has.strides" not in pool
    assert (pool["attr.kernel_shape"], pool["all.kernel_shape"], pool["length.kernel_shape"]) == ("2,2", 2, 2)


def test_features_of_numbers_that_mnn_does_not_hold() -> None:
    found = of("(int64[2] x) => (int64[2] y) <int64 c = {2000000000}> { y = Add(x, c) }", "Add")
    assert (found["huge.in1"], found["value.in1"], found["broadcast"]) == (True, 2_000_000_000, "scalar")


@pytest.mark.parametrize(
    ("made", "expected"),
    [
        ("a = Abs(x)", True),
        ("b = Abs(x) a = Transpose(b)", True),
        ("b = Sigmoid(x) a = Add(b, b)", True),
        ("b = Abs(x) a = Max(b, x)", True),
        ("b = Abs(x) a = Min(b, x)", False),
        ("b = Abs(x) a = Sub(b, b)", False),
        ("a = Identity(x)", False),
        ("a = Constant<value_floats = [1.0, 0.0]>()", True),
        ("a = Constant<value_floats = [1.0, -1.0]>()", False),
    ],
)
def test_what_is_never_negative(made: str, expected: bool) -> None:
    found = of(f"(float[2] x) => (bool[2] y) {{ {made} y = Less(a, x) }}", "Less")
    assert found["nonneg.in0"] is expected
    assert found["nonneg.in1"] is False


def test_indices_that_reach_the_last_dimension() -> None:
    text = "(float[3, 4] x, float[{u}] u) => (float[3, 4] y) <int64[1, {d}] i = {{{n}}}> {{ y = ScatterND(x, i, u) }}"
    assert of(text.format(u="1", d=2, n="0, 1"), "ScatterND")["full_index"] is True
    assert of(text.format(u="1, 4", d=1, n="0"), "ScatterND")["full_index"] is False


def small_table() -> Knowledge:
    """A table of a few operators."""
    rows = {
        "Add": Operator("right"),
        "Relu": Operator("conditional", (Condition({"rank.in0": ">2"}, "wrong", "rank", "some-pass"),)),
        "com.microsoft::Gelu": Operator("right"),
    }
    return Knowledge("1.2.3", frozenset(["Add", "Relu", "Gelu", "Mul"]), rows)


def judged(text: str, **header: Any) -> tuple[str, str] | None:
    """Effect and reason for the first node."""
    graph: Graph = graph_of(f"g {text}", **header)
    found = small_table().judge(graph, next(iter(graph.nodes)))
    return None if found is None else (found.effect, found.why)


def test_judging_nodes() -> None:
    assert judged("(float[2] x) => (float[2] y) { y = Add(x, x) }") is None
    assert judged("(float[2] x) => (float[2] y) { y = Mul(x, x) }") is None
    assert judged("(float[2] x) => (float[2] y) { y = Relu(x) }") is None
    assert judged("(float[2, 1, 1] x) => (float[2, 1, 1] y) { y = Relu(x) }") == ("wrong", "rank")
    assert judged("(float[2] x) => (float[2] y) { y = Mish(x) }") == ("refused", "no such operator in MNN 1.2.3")


def test_domains_are_not_ignored_as_mnn_does() -> None:
    imports = {"com.microsoft": 1, "mine": 1}
    text = "(float[2] x) => (float[2] y) {{ y = {op}(x) }}"
    assert judged(text.format(op="com.microsoft.Gelu"), imports=imports) is None
    assert judged(text.format(op="mine.Flash"), imports=imports) == ("refused", "no such operator in MNN 1.2.3")
    verdict = judged(text.format(op="mine.Relu"), imports=imports)
    assert verdict == ("wrong", "MNN ignores the domain 'mine' and takes it for ONNX's Relu")


def test_functions_of_the_model_are_refused() -> None:
    text = """<ir_version: 8, opset_import: ["": 18, "mine": 1]>
    g (float[2] x) => (float[2] y) { y = mine.Twice(x) }
    <opset_import: ["": 18], domain: "mine"> Twice (a) => (b) { b = Add(a, a) }"""
    graph = graph_of(text)
    found = small_table().judge(graph, next(iter(graph.nodes)))
    assert found is not None
    assert (found.effect, found.fix) == ("refused", "inline-functions")


def test_a_table_is_written_and_read_again(tmp_path: Path) -> None:
    knowledge.write(small_table(), tmp_path / "t.json", onnx="1")
    assert knowledge.load(tmp_path / "t.json") == small_table()
    assert json.loads((tmp_path / "t.json").read_text())["onnx"] == "1"


@pytest.mark.parametrize(
    "text",
    [
        "no JSON",
        "{}",
        '{"mnn": "1", "known": [], "operators": {"Add": {"verdict": "fine"}}}',
        '{"mnn": "1", "known": [], "operators": {"Add": {"verdict": "right", "bad": [{"when": {}}]}}}',
        '{"mnn": "1", "known": [], "operators": {"Add": {"verdict": "wrong", '
        '"bad": [{"when": {}, "effect": "x", "why": ""}]}}}',
    ],
)
def test_a_broken_table_is_told(text: str, tmp_path: Path) -> None:
    (tmp_path / "t.json").write_text(text)
    with pytest.raises(ModelError, match="is not a table of operators"):
        knowledge.load(tmp_path / "t.json")


# -- the table that comes with graphkit -----------------------------------------------------------------------


def shipped() -> dict[str, Any]:
    """The JSON of the table."""
    data: dict[str, Any] = json.loads(resources.files("graphkit").joinpath("mnn/operators.json").read_text("utf-8"))
    return data


def test_the_table_is_sorted_and_complete() -> None:
    data = shipped()
    assert list(data["operators"]) == sorted(data["operators"])
    assert data["known"] == sorted(data["known"])
    assert set(data["known"]) <= set(data["operators"])
    assert {"Add", "Conv", "MatMul", "Softmax"} <= set(data["known"])


def test_every_row_says_what_it_rests_on() -> None:
    for op, row in knowledge.table().operators.items():
        assert row.verdict in knowledge.VERDICTS, op
        assert row.verdict == "untested" or row.evidence or any(item.origin == "hand" for item in row.bad), op
        assert (row.verdict in ("right", "untested")) == (not row.bad), op
        for condition in row.bad:
            assert condition.why, op
            assert condition.origin in ("hand", "learned", "exact"), op
            assert condition.origin == "hand" or (condition.cases and condition.example), op


def test_conditions_speak_of_features_that_exist() -> None:
    names = (
        "attr",
        "has",
        "all",
        "dtype",
        "kind",
        "rank",
        "dynamic",
        "empty",
        "dims",
        "last",
        "const",
        "length",
        "value",
    )
    names += (
        "values",
        "huge",
        "negative",
        "nonneg",
        "given",
        "used",
        "scale",
        "since",
        "inputs",
        "outputs",
        "front",
        "mixed",
        "written",
        "subgraph",
        "broadcast",
    )
    for op, row in knowledge.table().operators.items():
        for name in (name for condition in row.bad for name in condition.when):
            assert name.split(".")[0] in (*names, "full_index"), f"{op}: {name}"


def test_fixes_are_passes() -> None:
    from graphkit.registry import BUILTIN

    fixes = {condition.fix for row in knowledge.table().operators.values() for condition in row.bad}
    assert fixes - {None} <= set(BUILTIN)


def test_operators_of_onnx_that_the_table_calls_right_exist() -> None:
    names = {schema.name for schema in onnx.defs.get_all_schemas_with_history() if schema.domain == ""}
    rows = knowledge.table().operators
    assert {op for op, row in rows.items() if row.verdict == "right" and "::" not in op} <= names

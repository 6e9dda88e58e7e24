"""Loop, Scan and optional values."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from graphkit.graph import Graph
from graphkit.optimizer import optimize
from graphkit.passes.lower_for_mnn import LowerForMnn
from graphkit.testing import assert_equal_outputs, assert_rewrites, assert_unchanged, parse, run
from tests.in_mnn import assert_right_in_mnn

BODY = "(float[2] total, float[2] x) => (float[2] after, float[2] seen) { after = Add(total, x) seen = Mul(after, x) }"
SCAN = "g (float[2] start, float[{steps},2] xs) => (float[2] last, float[{steps},2] all) {{ last, all = Scan "
SCAN += "<num_scan_inputs=1, {more} body: graph = b " + BODY.replace("{", "{{").replace("}", "}}") + ">(start, xs) }}"


def scan(steps: int | str = 3, more: str = "") -> str:
    return SCAN.format(steps=steps, more=more)


def ops(text: str, **header: int) -> set[str]:
    made = optimize(parse(text, **header), "lower-for-mnn", verify="none").model
    return {node.op for node in Graph.of(made).nodes}


@pytest.mark.parametrize("steps", [1, 3, 20, "steps"])
@pytest.mark.parametrize("more", ["", "scan_input_directions=[1],", "scan_output_directions=[1],"])
@pytest.mark.parametrize("opset", [11, 18])
def test_scan_is_steps_or_a_loop(steps: int | str, more: str, opset: int) -> None:
    text = scan(steps, more)
    before = parse(text, opset=opset)
    assert_equal_outputs(before, optimize(before, "lower-for-mnn", verify="none").model)
    assert ("Loop" in ops(text, opset=opset)) == (steps in (20, "steps"))
    assert "Scan" not in ops(text, opset=opset)


@pytest.mark.parametrize("axes", ["scan_input_axes=[1], scan_output_axes=[1],", "scan_input_axes=[-1],"])
@pytest.mark.parametrize("steps", [3, 20])
def test_scan_along_other_axes(axes: str, steps: int) -> None:
    text = scan(steps, axes).replace(f"float[{steps},2] xs", f"float[2,{steps}] xs")
    text = text.replace(f"float[{steps},2] all", "float[a,b] all")
    before = parse(text)
    assert_equal_outputs(before, optimize(before, "lower-for-mnn", verify="none").model)


def test_scan_of_opset_8_runs_for_each_of_the_batch(tmp_path: Path) -> None:
    text = scan().replace("float[2] start", "float[2,2] start").replace("[3,2]", "[2,3,2]")
    text = text.replace("=> (float[2] last", "=> (float[2,2] last").replace("(start, xs)", '("", start, xs)')
    model = parse(text, opset=8)
    assert "Scan" not in ops(text, opset=8)
    rng = np.random.default_rng(0)
    feeds = {"start": rng.standard_normal((2, 2)), "xs": rng.standard_normal((2, 3, 2))}
    feeds = {name: array.astype(np.float32) for name, array in feeds.items()}
    rows = [run(parse(scan()), {name: array[i] for name, array in feeds.items()}) for i in range(2)]
    expected = {name: np.stack([row[name] for row in rows]) for name in ("last", "all")}
    assert_right_in_mnn(model, tmp_path, feeds=feeds, expected=expected)


@pytest.mark.parametrize("steps", [3, 20, "steps"])
def test_scan_in_mnn(steps: int | str, tmp_path: Path) -> None:
    assert_right_in_mnn(scan(steps, "scan_output_directions=[1],"), tmp_path)


@pytest.mark.parametrize(
    ("text", "opset", "reason"),
    [
        (scan("steps", "scan_output_directions=[1],"), 9, "from opset 11"),
        (scan().replace("float[2] start", "float[B,2] start").replace("[3,2]", "[B,3,2]"), 8, "batch size"),
    ],
)
def test_scan_refusals(text: str, opset: int, reason: str) -> None:
    text = text.replace("(start, xs)", '("", start, xs)') if opset == 8 else text
    assert_unchanged(LowerForMnn(), text, refuses=reason, opset=opset)


LOOP = """g (float[3] x) => (float[N,3] z) <int64 count = {{4}}> {{
  z = Loop <body: graph = b (int64 i, bool c) => (bool c1, float[3] row) {{
    c1 = Identity(c) f = Cast<to=1>(i) row = Mul(f, x)
  }}>(count{given}) }}"""


def test_a_loop_without_state_gets_its_condition(tmp_path: Path) -> None:
    """MNN crashes when there is neither condition nor state."""
    before = LOOP.format(given=', ""')
    after = LOOP.format(given=", yes").replace("<int64 count = {4}>", "<int64 count = {4}, bool yes = {1}>")
    assert_rewrites(LowerForMnn(), before, after)
    assert_right_in_mnn(before, tmp_path)


GROWING = """g (float[1,3] x, int64 count) => (float[N,3] y) {
  y = Loop <body: graph = b (int64 i, bool c, float[K,3] s) => (bool c1, float[L,3] s1) {
    c1 = Identity(c) twice = Add(s, s) s1 = Concat<axis=0>(twice, x)
  }>(count, "", x) }"""
NESTED = """g (float[3] x, bool first) => (float[3] y) {
  w = Sin(x)
  y = If(first) <then_branch: graph = a () => (float[3] p) { p = Loop <body: graph = b
      (int64 i, bool c, float[3] s) => (bool c1, float[3] s1) { c1 = Identity(c) s1 = Add(s, w) }>(three, "", x) },
    else_branch: graph = d () => (float[3] q) { q = Sub(w, x) }> }"""


def test_loops_that_mnn_runs_stay(tmp_path: Path) -> None:
    x = np.array([[1, -2, 3]], np.float32)
    assert_right_in_mnn(GROWING, tmp_path, feeds={"x": x, "count": np.array(3)})
    nested = NESTED.replace("=> (float[3] y) {", "=> (float[3] y) <int64 three = {3}> {")
    for first in (True, False):
        assert_right_in_mnn(nested, tmp_path, feeds={"x": x[0], "first": np.array(first)})


def test_names_of_outputs_survive(tmp_path: Path) -> None:
    text = """g (float[3] x, float[3] state) => (float[3] y, float[3] state_out, float[3] same, float[2] k)
      <float[2] k = {1.0, 2.0}> { y = Relu(x) state_out = Identity(state) same = Identity(y) }"""
    assert_right_in_mnn(text, tmp_path)


@pytest.mark.parametrize(
    ("source", "answer"), [("x", 1), ("made", 1), ('""', 0), ("nothing", 0)], ids=["tensor", "made", "none", "empty"]
)
def test_optional_has_element(source: str, answer: int) -> None:
    text = f"""g (float[3] x) => (bool y) {{
      made = Optional(x) nothing = Optional<type: type_proto = tensor(float)>()
      y = OptionalHasElement({source}) }}"""
    text = text.replace("<type: type_proto = tensor(float)>", "")
    made = optimize(parse(text), "lower-for-mnn,cleanup", verify="none").model
    constant = Graph.of(made).constant("y")
    if constant is None:
        constant = Graph.of(made).constant(next(node for node in Graph.of(made).nodes).inputs[0])
    assert constant == bool(answer)


@pytest.mark.parametrize("source", ["x", "made"])
def test_optional_get_element(source: str) -> None:
    text = f"g (float[3] x) => (float[3] y) {{ made = Optional(x) v = OptionalGetElement({source}) y = Sin(v) }}"
    made = optimize(parse(text), "lower-for-mnn,cleanup", verify="none").model
    assert [node.op for node in Graph.of(made).nodes] == ["Sin"]
    x = np.ones(3, np.float32)
    np.testing.assert_allclose(run(made, {"x": x})["y"], np.sin(x), atol=1e-6)


@pytest.mark.parametrize("op", ["OptionalHasElement", "OptionalGetElement"])
def test_optional_inputs_are_refused(op: str) -> None:
    kind = "bool" if op == "OptionalHasElement" else "float[3]"
    text = f"g (optional(float[3]) x) => ({kind} y) {{ y = {op}(x) }}"
    assert_unchanged(LowerForMnn(), text, refuses="not known here")


MAP = """g (float[2,3] x, float[2,3] w) => (float[4,3] y) {{
  a = Sin(x) s = SequenceConstruct(x, a) r = SequenceConstruct({other})
  t = SequenceMap<body: graph = b (float[2,3] i, float[2,3] k) => (float[2,3] o) {{ o = Add(i, k) }}>(s, {second})
  y = ConcatFromSequence<axis=0>(t) }}"""


@pytest.mark.parametrize("second", ["w", "r"], ids=["tensor", "sequence"])
def test_sequence_map(second: str, tmp_path: Path) -> None:
    text = MAP.format(other="w, x", second=second)
    before = parse(text)
    made = optimize(before, "lower-for-mnn", verify="none").model
    assert "SequenceMap" not in {node.op for node in Graph.of(made).nodes}
    assert_equal_outputs(before, made)
    assert_right_in_mnn(text, tmp_path)


def test_sequence_map_refusals() -> None:
    assert_unchanged(LowerForMnn(), MAP.format(other="w", second="r"), refuses="not of the same length")
    unknown = MAP.format(other="w", second="w").replace("s = SequenceConstruct(x, a)", "s = SplitToSequence(x)")
    assert_unchanged(LowerForMnn(), unknown, refuses="not known here")

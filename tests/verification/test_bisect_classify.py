"""What kind of fault a region has: natural ones of MNN 3.6.1, each smaller than a minute's work."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from graphkit import shapes
from graphkit.compare import Tolerance
from graphkit.graph import Graph
from graphkit.mnn.convert import ConverterError
from graphkit.mnn.options import ConverterOptions
from graphkit.testing import parse
from graphkit.verification.bisect import _lab, _second, regions
from graphkit.verification.bisect._lab import GARBAGE, ZEROS, Lab
from graphkit.verification.bisect._values import Truth
from graphkit.verification.bisect.classify import Examiner
from graphkit.verification.bisect.conclusions import Conclusion, rearranged
from graphkit.verification.bisect.locate_faults import bisect_layers
from graphkit.verification.bisect.search import Exhausted

SCATTER = """
    g (float[3,4,2] x, float[2,2] u) => (float[3,4,2] y) <int64[2,2] i = {0, 1, 2, 3}> {
        a = Relu(x) [scatter] b = ScatterND(a, i, u) y = Neg(b)
    }
"""
IN_AN_IF = """
    g (float[1,4,6] x, bool b) => (float[1,4,6] y) {
        z = Relu(x)
        [pick] y = If(b) <
            then_branch = t () => (float[1,4,6] p) {
                c = Neg(z) i = Constant<value = int64[2,2] {0, 1, 0, 2}>()
                u = Constant<value = float[2,6] {1, 2, 3, 4, 5, 6, 1, 2, 3, 4, 5, 6}>()
                [scatter] p = ScatterND(c, i, u)
            },
            else_branch = e () => (float[1,4,6] q) { q = Relu(z) }>
    }
"""
# An empty shape: MNN reads memory that nobody wrote.
EMPTY = """
    g (float[N] x) => (float[N] y) <int64[0] s = {}> {
        [fill] c = ConstantOfShape<value = float[1] {3}>(s) z = Add(x, c) y = Neg(z)
    }
"""
GELU = """
    g (float[2,8] x) => (float[2,8] y) <float r = {1.4142135}, float one = {1}, float half = {0.5}> {
        a = Abs(x) d = Div(a, r) e = Erf(d) f = Add(e, one) m = Mul(a, f) [last] y = Mul(m, half)
    }
"""
# What torch's dynamo exporter leaves: a bias that is computed from constants.
COMPUTED_BIAS = """
    g (float[N,1,4,4] x) => (float[N,2,3,3] y)
    <float[2,1,2,2] w = {1, 2, 3, 4, 5, 6, 7, 8}, float zero = {0}, int64[1] two = {2}> {
        a = Relu(x) [like] z = CastLike(zero, x) [wide] b = Expand(z, two) [conv] c = Conv(a, w, b) y = Neg(c)
    }
"""


def _feeds(text: str) -> dict[str, np.ndarray]:
    rng = np.random.default_rng(0)
    graph = Graph.of(parse(text))
    made = {}
    for name in graph.inputs:
        size = [dim if isinstance(dim, int) else 3 for dim in graph.shape(name) or ()]
        made[name] = np.array(True) if graph.dtype(name) == 9 else rng.standard_normal(size).astype(np.float32)
    return made


def _conclude(
    text: str, lab: Lab | None = None, rtol: float = 1e-3, anchors: tuple[str, ...] = ()
) -> Conclusion | None:
    model = parse(text)
    graph = Graph.of(model)
    shapes.infer(graph)
    examiner = Examiner(lab or Lab(), graph, Truth(model, _feeds(text)), Tolerance(rtol))
    return examiner.conclude(regions.between(graph, graph.outputs, anchors))


def _found(text: str, **how: object) -> Conclusion:
    found = _conclude(text, **how)  # type: ignore[arg-type]
    assert found is not None
    return found


def test_an_operator_that_is_wrong_by_itself() -> None:
    found = _found(SCATTER)
    assert (found.kind, found.node, found.op, found.alone) == ("operator", "scatter", "ScatterND", "wrong")
    assert found.nodes == ("scatter",)
    assert found.max_abs > 0.1
    assert found.witness is not None
    assert len(found.witness.model.proto.graph.node) == 1


def test_right_on_reference_inputs_is_no_fault() -> None:
    lab = Lab()
    text = "g (float[2,8] x) => (float[2,8] y) { a = Abs(x) b = Sqrt(a) y = Tanh(b) }"
    assert _conclude(text, lab) is None
    assert lab.made == 3  # as it is, and with memory full of zeros and of garbage


def test_a_fault_upstream_does_not_count() -> None:
    assert _conclude(SCATTER, anchors=("b",)) is None


def test_inside_the_branch_that_runs() -> None:
    found = _found(IN_AN_IF)
    assert (found.kind, found.node, found.place) == ("operator", "scatter", "pick/then_branch")


@pytest.mark.parametrize("memory", [0, ZEROS, GARBAGE])
def test_memory_that_nobody_wrote_does_not_decide(memory: int) -> None:
    lab = Lab()
    with lab.filled(memory):
        found = _found(EMPTY, lab=lab)
    assert (found.kind, found.node, found.alone) == ("operator", "fill", "wrong")


def test_wrong_only_while_inner_values_are_inner() -> None:
    lab = Lab(ConverterOptions.of(useGeluApproximation=True))
    found = _found(GELU, lab=lab, rtol=1e-5)
    assert (found.kind, found.node, found.alone) == ("fusion", "last", "right")
    assert set(found.nodes) >= {"d", "e", "f", "m", "last"}
    assert found.into == "UnaryOp"


def test_a_node_that_fails_only_with_what_makes_its_inputs() -> None:
    found = _found(COMPUTED_BIAS)
    assert (found.kind in ("refused", "crash"), found.node, found.alone) == (True, "conv", "right")
    assert "wide" in found.nodes
    assert "make its inputs from constants" in found.reason
    assert "bias input should be Constant" in found.reason


def test_a_refused_node_fails_alone() -> None:
    found = _found("g (float[4] x) => (bool[4] y) { a = Relu(x) [nan] y = IsNaN(a) }")
    assert (found.kind, found.node, found.alone, found.nodes) == ("refused", "nan", "fails", ("nan",))


def test_a_reference_that_differs_from_itself() -> None:
    found = _found("g (float[4] x) => (float[4] y) { r = RandomNormalLike(x) y = Add(x, r) }")
    assert found.kind == "nondeterminism"
    assert "reference differs from itself" in found.reason


def test_a_reference_that_is_wrong_is_outvoted() -> None:
    model = parse("g (float[3] x) => (float[3] y) { y = Exp(x) }")
    feeds = {"x": np.float32([0, 1, 2])}
    right = np.exp(feeds["x"])
    wrong = right * np.float32(1.1)
    assert "float64 agrees with MNN" in _second.opinion(model, feeds, "y", wrong, right)
    assert _second.opinion(model, feeds, "y", right, wrong) == ""
    assert _second.opinion(model, feeds, "y", wrong, wrong) == ""


def test_the_examiner_asks_for_the_second_opinion(monkeypatch: pytest.MonkeyPatch) -> None:
    truth_of = Truth.of

    def lying(self: Truth, names: object) -> object:
        values = dict(truth_of(self, names))  # type: ignore[arg-type]
        return {name: value * np.float32(1.5) if name == "y" else value for name, value in values.items()}

    monkeypatch.setattr(Truth, "of", lying)
    found = _found("g (float[3] x) => (float[3] y) { a = Abs(x) [root] y = Sqrt(a) }")
    assert (found.kind, found.node) == ("reference", "root")


def test_a_budget_ends_the_experiments() -> None:
    result = bisect_layers(parse(SCATTER), conversions=3)
    assert result.whole_conversions + result.small_conversions <= 4
    assert "budget" in result.note
    assert not result.ok


@pytest.mark.parametrize(
    ("actual", "answer"),
    [
        (np.arange(6, dtype=np.float32).reshape(2, 3).T, True),
        (np.arange(6, dtype=np.float32)[::-1], True),
        (np.arange(6, dtype=np.float32) + 1, False),
        (np.full(6, np.nan, np.float32), False),
        (np.arange(5, dtype=np.float32), False),
    ],
)
def test_rearranged(actual: np.ndarray, answer: bool) -> None:
    expected = np.arange(6, dtype=np.float32).reshape(2, 3)
    assert rearranged(expected, actual, Tolerance()) is answer


def test_equal_values_everywhere_are_not_rearranged() -> None:
    assert not rearranged(np.ones(4), np.ones(4), Tolerance())


def test_the_environment_is_left_as_it_was(monkeypatch: pytest.MonkeyPatch) -> None:
    import os

    monkeypatch.setenv("GLIBC_TUNABLES", "glibc.malloc.check=0")
    lab = Lab()
    with lab.filled(ZEROS):
        lab.attempt(parse("g (float[2] x) => (float[2] y) { y = Neg(x) }"), {"x": np.ones(2, np.float32)})
    assert os.environ["GLIBC_TUNABLES"] == "glibc.malloc.check=0"
    assert lab.memory == 0
    assert replace(lab, conversions=0).exhausted


def test_a_piece_that_there_was_no_time_for_is_not_blamed_on_mnn() -> None:
    result = bisect_layers(parse(SCATTER), seconds=1e-9)
    assert [(fault.node, fault.kind) for fault in result.faults] == [("scatter", "unexplained")]
    assert "the budget ended before it was known why" in result.faults[0].found.reason
    assert result.answer.endswith("→ not taken apart")
    assert (result.whole_conversions, result.small_conversions) == (1, 0)
    lab = Lab(seconds=1e-9)
    with pytest.raises(Exhausted):
        lab.attempt(parse("g (float[2] x) => (float[2] y) { y = Neg(x) }"), {"x": np.ones(2, np.float32)})
    assert lab.cut


def test_a_model_that_fails_is_told_of_without_time(monkeypatch: pytest.MonkeyPatch) -> None:
    def crash(*args: object, **options: object) -> None:
        raise ConverterError("MNN's converter crashed", signal="SIGSEGV")

    monkeypatch.setattr(_lab, "run_converter", crash)
    result = bisect_layers(parse(SCATTER), seconds=1e-9)
    assert (result.ok, result.faults) == (False, ())
    assert result.answer.startswith("no layer was named: ")
    assert "budget" in result.note


def test_nodes_made_alike_are_looked_for_in_one_go(monkeypatch: pytest.MonkeyPatch) -> None:
    from graphkit.verification.bisect import _failing

    text = " ".join(f"k{i} = Neg(c) v{i + 1} = Mul(v{i}, k{i})" for i in range(40))
    graph = Graph.of(parse(f"g (float[4] v0) => (float[4] v40) <float[4] c = {{1.0, 1.0, 1.0, 1.0}}> {{ {text} }}"))
    node = graph.producer("v1")
    assert node is not None
    asked: list[Graph] = []
    fixed = regions.constant_nodes

    def counted(graph: Graph) -> object:
        asked.append(graph)
        return fixed(graph)

    monkeypatch.setattr(regions, "constant_nodes", counted)
    whole = regions.between(graph, list(graph.outputs))
    fault = Conclusion(node.label, "Mul", "", "crash", (), "fails")
    assert len(_failing._alike(graph, regions.of_nodes(graph, [node]), fault, whole)) == 39
    assert len(asked) == 1

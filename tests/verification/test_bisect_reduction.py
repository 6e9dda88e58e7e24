"""Reduction: the smallest model that still shows a fault, and never another one."""

from __future__ import annotations

import numpy as np
import onnx
import pytest
from bisect_faults import REFUSED, Feeds, confuses, differs, op_types, scatter, swapped
from hypothesis import given, settings
from hypothesis import strategies as st
from random_models import feeds as random_feeds
from random_models import models

from graphkit.errors import ModelError, UsageError
from graphkit.graph import Graph
from graphkit.model import Model
from graphkit.runtime import Session
from graphkit.testing import parse
from graphkit.verification.bisect import mnn_faults
from graphkit.verification.bisect._effort import Effort
from graphkit.verification.bisect.mnn_faults import Observation, describe, observe, same_fault
from graphkit.verification.bisect.reduction import Reduced, reduce_model
from graphkit.verification.bisect.search import Exhausted

ROWS = {"x": np.linspace(0.1, 2, 24, dtype=np.float32).reshape(6, 4)}


def long_chain(length: int, culprit: int) -> Model:
    """A chain of Abs with one Sin in it, each scaled by a weight of its own."""
    lines, value = [], "x"
    for number in range(length):
        op = "Sin" if number == culprit else "Abs"
        lines.append(f"[n{number}] s{number} = Mul({value}, w) \n [m{number}] v{number} = {op}(s{number})")
        value = f"v{number}"
    text = "\n".join([*lines, f"y = Identity({value})"])
    return parse(f"g (float[N,4] x) => (float[N,4] y) <float[4] w = {{0.9, 1.1, 1.0, 0.95}}> {{ {text} }}")


def shown(reduced: Reduced, predicate: object) -> bool:
    onnx.checker.check_model(reduced.model.materialized(), full_check=True)
    return predicate(reduced.model, reduced.feeds) is True  # type: ignore[operator]


@pytest.mark.parametrize("culprit", [0, 17, 39])
def test_one_node_of_many(culprit: int) -> None:
    predicate = confuses("Sin", "Cos")
    reduced = reduce_model(long_chain(40, culprit), ROWS, predicate)
    assert reduced.labels == (f"m{culprit}",)
    assert reduced.complete
    assert [array.shape for array in reduced.feeds.values()] == [(1, 1)]
    assert shown(reduced, predicate)
    assert sum(step.probes for step in reduced.steps) <= 30


def test_where_it_is_believed_to_be_is_tried_first() -> None:
    asked = []
    inner = confuses("Sin", "Cos")

    def predicate(model: Model, feeds: Feeds) -> bool | None:
        asked.append(op_types(model))
        return inner(model, feeds)

    reduced = reduce_model(long_chain(40, 17), ROWS, predicate, near=["m17", "not there"])
    assert asked[1] == ["Sin"]
    assert reduced.labels == ("m17",)
    wrong = reduce_model(long_chain(40, 17), ROWS, inner, near=["m3"])
    assert wrong.labels == ("m17",)


def fuses_wrongly(model: Model) -> Model:
    """A runtime that takes Sigmoid → Mul for Tanh where nothing else reads what is between."""
    graph = Graph.of(model)
    for node in list(graph.by_op("Mul")):
        inner = next((p for v in node.inputs if (p := graph.producer(v)) and p.op == "Sigmoid"), None)
        if inner is not None and graph.sole_consumer(inner.outputs[0]) is node:
            made = onnx.helper.make_node("Tanh", [inner.inputs[0]], list(node.outputs))
            graph.replace_node(node, made)
    return graph.to_model()


def test_what_is_wrong_only_together_stays_together() -> None:
    model = parse(
        """g (float[N,4] x) => (float[N,4] y, float[N,4] z) {
            [a] a = Relu(x)  [b] b = Exp(a)  [gate] g = Sigmoid(b)  [mul] m = Mul(b, g)
            [c] c = Neg(m)  [d] d = Abs(c)  [e] y = Sqrt(d)  [f] z = Cos(a)
        }"""
    )
    reduced = reduce_model(model, ROWS, differs(fuses_wrongly))
    assert sorted(reduced.labels) == ["gate", "mul"]
    assert len(reduced.model.proto.graph.output) == 1


def test_an_output_too_many_is_left_out() -> None:
    model = parse(
        """g (float[N,4] x) => (float[N,2] y, float[N,2] z) { [cut] p, z = Split<axis=1, num_outputs=2>(x)
            [sin] y = Sin(p) }"""
    )

    def predicate(model: Model, feeds: Feeds) -> bool:
        return "Split" in op_types(model) and confuses("Split", "Split")(model, feeds) is False

    assert [info.name for info in reduce_model(model, ROWS, predicate).model.proto.graph.output] == ["p"]


def test_a_branch_that_was_taken_comes_out_of_its_if() -> None:
    model = parse(
        """g (float[N,4] x, bool c) => (float[N,4] y) {
            [before] a = Relu(x)
            [choice] b = If (c) <
                then_branch = then () => (float[N,4] t) { [inside] s = Sin(a)  [after] t = Abs(s) },
                else_branch = otherwise () => (float[N,4] o) { o = Neg(a) }
            >
            [behind] y = Sqrt(b)
        }"""
    )
    predicate = confuses("Sin", "Cos")
    reduced = reduce_model(model, {**ROWS, "c": np.array(True)}, predicate)
    assert reduced.labels == ("inside",)
    assert "the body alone" in [step.what for step in reduced.steps]
    assert shown(reduced, predicate)
    with pytest.raises(UsageError, match="does not show the fault"):
        reduce_model(model, {**ROWS, "c": np.array(False)}, predicate)


def test_an_iteration_comes_out_of_its_loop() -> None:
    model = parse(
        """g (float[N,4] x, int64 n) => (float[N,4] y) <bool go = {1}> {
            [before] a = Abs(x)
            [loop] y = Loop (n, go, a) <
                body = body (int64 i, bool c, float[N,4] v) => (bool d, float[N,4] w) {
                    d = Identity(c)
                    [late] one = Cast<to=1>(i)
                    [wrong] s = Sin(one)
                    [sum] w = Add(v, s)
                }
            >
        }"""
    )

    # Sin(0) and its other form agree: the first iteration alone does not show it.
    predicate = confuses("Sin", "Tan")
    reduced = reduce_model(model, {**ROWS, "n": np.array(3, np.int64)}, predicate)
    assert reduced.labels == ("wrong",)
    assert shown(reduced, predicate)


def test_shapes_that_are_computed_become_constants() -> None:
    model = parse(
        """g (float[N,4] x) => (float[M] y) <int64[1] last = {-1}> {
            [shape] s = Shape(x)  [size] p = ReduceProd<keepdims=1>(s)  [flat] f = Reshape(x, p)
            [sin] g = Sin(f)  [end] y = Abs(g)
        }"""
    )
    for op in ("Sin", "Reshape"):
        predicate = confuses("Sin", "Cos") if op == "Sin" else differs(_reshape_loses)
        reduced = reduce_model(model, ROWS, predicate)
        assert op_types(reduced.model) == [op]
        assert len(reduced.feeds) == 1


def _reshape_loses(model: Model) -> Model:
    graph = Graph.of(model)
    for node in list(graph.by_op("Reshape")):
        value = graph.new_name("moved")
        made = onnx.helper.make_node("Reshape", list(node.inputs), [value])
        out = node.outputs[0]
        graph.replace_node(node, made)
        one = graph.add_constant(np.array(1, np.float32), "one")
        graph.insert(onnx.helper.make_node("Add", [value, one], [out]))
    return graph.to_model()


def test_weights_that_matter_stay_and_others_are_drawn() -> None:
    model = parse(
        """g (float[N,4] x) => (float[N,2] y)
        <float[4,2] w = {1.0, 2.0, 3.0, 4.0, 5.0, 6.0, 7.0, 8.0}, float[2] b = {12345.0, 12346.0}> {
            [mm] m = MatMul(x, w)
            [add] y = Add(m, b)
        }"""
    )

    def predicate(model: Model, feeds: Feeds) -> bool:
        graph = Graph.of(model)
        found = [graph.constant(name) for node in graph.by_op("Add") for name in node.inputs]
        return bool(graph.by_op("MatMul")) and any(a is not None and 12345.0 in a for a in found)

    reduced = reduce_model(model, ROWS, predicate)
    graph = Graph.of(reduced.model)
    weights = {name: weight.array() for name, weight in graph.initializers.items()}
    assert 12345.0 in weights["b"]
    assert not np.isin(weights["w"], np.arange(1, 9)).all()


def test_dynamic_sizes_stay_where_the_fault_needs_them() -> None:
    def predicate(model: Model, feeds: Feeds) -> bool:
        dims = model.proto.graph.input[0].type.tensor_type.shape.dim
        return any(node.op_type == "Sin" for node in model.proto.graph.node) and not dims[0].HasField("dim_value")

    reduced = reduce_model(long_chain(4, 2), ROWS, predicate)
    assert reduced.labels == ("m2",)
    assert not reduced.model.proto.graph.input[0].type.tensor_type.shape.dim[0].HasField("dim_value")


def test_a_size_that_matters_is_not_cut() -> None:
    def predicate(model: Model, feeds: Feeds) -> bool:
        sizes = {size for array in feeds.values() for size in array.shape}
        return "Sin" in op_types(model) and max(sizes) >= 3

    reduced = reduce_model(long_chain(4, 2), ROWS, predicate)
    assert sorted(next(iter(reduced.feeds.values())).shape) == [1, 3]


def test_texts_of_the_exporter_go() -> None:
    model = long_chain(3, 1)
    model.proto.producer_name, model.proto.doc_string = "an exporter", "long"
    model.proto.graph.node[0].doc_string = "where it came from"
    model.proto.metadata_props.add(key="who", value="me")
    reduced = reduce_model(model, ROWS, confuses("Sin", "Cos"))
    text = reduced.model.proto.SerializeToString()
    assert b"exporter" not in text
    assert b"long" not in text
    assert b"me" not in text.replace(b"name", b"")
    assert model.proto.producer_name == "an exporter"


def test_a_budget_keeps_what_was_found() -> None:
    predicate = confuses("Sin", "Cos")
    reduced = reduce_model(long_chain(40, 17), ROWS, predicate, effort=Effort(probes=4))
    assert not reduced.complete
    assert 1 < reduced.nodes < 81
    assert shown(reduced, predicate)


def test_a_candidate_that_does_not_run_is_never_asked_about() -> None:
    inner = confuses("Sin", "Cos")

    def predicate(model: Model, feeds: Feeds) -> bool | None:
        with Session(model) as session:
            session.run(feeds)
        return inner(model, feeds)

    assert reduce_model(long_chain(12, 5), ROWS, predicate).labels == ("m5",)


def test_a_model_that_does_not_run_cannot_be_cut() -> None:
    with pytest.raises(ModelError, match="does not run, so it cannot be cut"):
        reduce_model(long_chain(3, 1), {"x": np.zeros((2, 5), np.float32)}, confuses("Sin", "Cos"))


def test_the_result_as_json() -> None:
    data = reduce_model(long_chain(6, 2), ROWS, confuses("Sin", "Cos")).to_dict()
    assert (data["nodes"], data["labels"], data["complete"]) == (1, ["m2"], True)
    assert data["steps"][0]["what"] == "nodes"


@settings(max_examples=25, deadline=None)
@given(proto=models(shadow=False), flag=st.booleans())
def test_whatever_the_model_what_is_left_shows_it(proto: onnx.ModelProto, flag: bool) -> None:
    model, feeds = Model.from_proto(proto), random_feeds(flag)
    predicate = confuses("Mul", "Div")
    if predicate(model, feeds) is not True:
        return
    reduced = reduce_model(model, feeds, predicate, effort=Effort(probes=150))
    with Session(reduced.model) as session:
        session.run(reduced.feeds)
    assert predicate(reduced.model, reduced.feeds) is True
    assert reduced.nodes <= sum(map(len, Graph.of(model).walk()))


# -- MNN itself -------------------------------------------------------------------------------------------


def test_a_wrong_node_in_mnn() -> None:
    model, feeds = scatter()
    found = observe(model, feeds)
    assert found.kind == "wrong"
    assert found.error is not None
    reduced = reduce_model(model, feeds, same_fault(found), effort=Effort(probes=60))
    assert reduced.labels == ("scatter",)
    again = observe(reduced.model, reduced.feeds)
    assert again.kind == "wrong"
    assert describe(again)["kind"] == "wrong"


def test_a_refused_node_in_mnn() -> None:
    model = parse(REFUSED)
    found = observe(model, ROWS)
    assert (found.kind, found.detail) == ("refused", "IsNaN")
    reduced = reduce_model(model, ROWS, same_fault(found), effort=Effort(probes=40))
    assert reduced.labels == ("nan",)


def test_a_crash_in_mnn() -> None:
    model = parse(
        """g (float[1,3,8,8] x) => (float[1,3,H,W] y) {
            [a] a = Relu(x)  [pool] p = AveragePool<kernel_shape=[2,2]>(a)  [b] y = Abs(p)
        }"""
    )
    feeds = {"x": np.ones((1, 3, 8, 8), np.float32)}
    found = observe(model, feeds)
    assert (found.kind, found.detail) == ("crashed", "SIGFPE")
    reduced = reduce_model(model, feeds, same_fault(found), effort=Effort(probes=40))
    assert "pool" in reduced.labels
    assert reduced.nodes <= 2
    assert observe(reduced.model, reduced.feeds).detail == "SIGFPE"


def test_a_right_model_has_no_fault_to_look_for() -> None:
    found = observe(long_chain(2, 5), ROWS)
    assert found.kind == "right"
    with pytest.raises(UsageError, match="there is no fault to look for: MNN is right"):
        same_fault(found)


@pytest.mark.parametrize(
    ("first", "second", "alike"),
    [
        (Observation("wrong", error=0.5), Observation("wrong", error=0.06), True),
        (Observation("wrong", error=0.5), Observation("wrong", error=0.04), False),
        (Observation("wrong", error=float("inf")), Observation("wrong", error=0.2), True),
        (Observation("wrong", error=1.0, misshapen=True), Observation("wrong", error=1.0), False),
        (Observation("wrong", error=0.5), Observation("right", error=0.0), False),
        (Observation("refused", "A, B"), Observation("refused", "B"), True),
        (Observation("refused", "A"), Observation("refused", "C"), False),
        (Observation("crashed", "SIGSEGV"), Observation("crashed", "SIGABRT"), False),
        (Observation("crashed", "SIGSEGV"), Observation("converter crashed", "SIGSEGV"), False),
        (Observation("failed", "one"), Observation("failed", "other"), True),
        (Observation("wrong", error=0.5), Observation("unfit"), None),
    ],
)
def test_a_reduction_does_not_slip_to_another_fault(
    first: Observation, second: Observation, alike: bool | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("graphkit.verification.bisect.mnn_faults.observe", lambda *given, **more: second)
    assert same_fault(first)(long_chain(1, 0), ROWS) is alike


def test_random_outputs_are_unfit() -> None:
    model = parse("g () => (float[4] y) { y = RandomNormal<shape=[4]>() }")
    assert observe(model, {}).kind == "unfit"
    assert observe(long_chain(1, 0), {}).kind == "unfit"
    assert swapped(long_chain(1, 0), "Sin", "Cos").proto.graph.node[1].op_type == "Cos"


def test_what_depends_on_nothing_is_cut_out_too() -> None:
    model = parse(
        """g (float[N,4] x) => (float[N,4] y) <int64[1] size = {4}> {
            [fill] c = ConstantOfShape<value = float[1] {0.5}>(size)
            [sin] s = Sin(c)
            [add] y = Add(x, s)
        }"""
    )
    predicate = confuses("Sin", "Cos")
    reduced = reduce_model(model, ROWS, predicate)
    assert reduced.labels == ("sin",)
    assert reduced.nodes == 1
    assert len(reduced.feeds) == 1  # MNN runs no model without inputs
    assert shown(reduced, predicate)


def test_candidates_that_do_not_run_are_told() -> None:
    model = parse(
        """g (float[N,4] x) => (float[N,4] y) {
            [parts] s = SplitToSequence<axis=1, keepdims=1>(x)
            [joined] j = ConcatFromSequence<axis=1>(s)
            [sin] y = Sin(j)
        }"""
    )

    def predicate(model: Model, feeds: Feeds) -> bool:
        return "ConcatFromSequence" in op_types(model)

    reduced = reduce_model(model, ROWS, predicate)
    assert reduced.labels == ("parts", "joined")
    assert reduced.unfit > 0
    assert "candidates did not run; the last:" in reduced.note


def test_without_time_the_model_stays_as_it_is() -> None:
    def never(model: Model, feeds: Feeds) -> bool:
        raise AssertionError("the time is up")

    model = long_chain(3, 1)
    reduced = reduce_model(model, ROWS, never, effort=Effort(1e-9))
    assert (reduced.model, reduced.complete, reduced.steps) == (model, False, ())


def test_a_run_that_the_time_ended_says_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    model, feeds = scatter()
    first = Observation("hung")
    monkeypatch.setattr(mnn_faults, "observe", lambda *args, **options: first)
    assert same_fault(first, timeout=1.0)(model, feeds) is True
    with pytest.raises(Exhausted):
        same_fault(first, effort=Effort(60.0))(model, feeds)
    with pytest.raises(Exhausted):
        same_fault(first, effort=Effort(1e-9))(model, feeds)

"""What counts as noise: by operator, by type, and by how far the reference moves on its own."""

from __future__ import annotations

import numpy as np
import pytest

from graphkit.model import Model
from graphkit.testing import graph_of, parse, random_feeds, run
from graphkit.verification.bisect.noise import Allowance, Drift, accumulated, allowance, drifts, nudged
from graphkit.verification.bisect.references import gather

FLOAT = np.dtype(np.float32)


def measured(text: str, feeds: dict[str, np.ndarray], *names: str) -> dict[str, Drift]:
    """Drifts of tensors of a model in text."""
    model = parse(text)
    with gather(model, feeds, names) as references:
        return drifts(model, references, names)


def test_a_linear_model_moves_by_a_millionth() -> None:
    x = np.random.default_rng(0).standard_normal((3, 4)).astype(np.float32)
    found = measured("g (float[3,4] x) => (float[3,4] y) { y = Neg(x) }", {"x": x}, "y")
    assert 1e-7 < found["y"].error < 2e-6
    assert found["y"].flips == 0


def test_cancellation_shows_as_drift() -> None:
    x = np.array([1000.0, 1000.01, 1000.02, 999.99], np.float32)
    found = measured(
        "g (float[4] x) => (float[4] y) { m = ReduceMean<keepdims = 1>(x) y = Sub(x, m) }", {"x": x}, "m", "y"
    )
    assert found["m"].error < 1e-5
    assert found["y"].error > 1e-3


def test_integers_that_flip_are_ties() -> None:
    x = np.array([0.5, 1.2, 7.5, 2.0], np.float32)
    found = measured("g (float[4] x) => (int64[4] y) { y = Cast<to = 7>(x) }", {"x": x}, "y")
    assert found["y"].flips <= 1  # 2.0 may become 1.9999
    steady = measured("g (float[4] x) => (int64[4] y) { y = Cast<to = 7>(x) }", {"x": x + np.float32(0.3)}, "y")
    assert steady["y"].flips == 0


def test_rows_of_a_table_are_moved_where_only_integers_come_in() -> None:
    model = parse("g (int64[2] i, float[5,3] t) => (float[2,3] y) { e = Gather(t, i) y = Neg(e) }")
    feeds = {"i": np.array([1, 4]), "t": np.random.default_rng(0).standard_normal((5, 3)).astype(np.float32)}
    proto = model.proto
    table = proto.graph.input.pop()
    import onnx

    proto.graph.initializer.append(onnx.numpy_helper.from_array(feeds.pop("t"), table.name))
    with gather(Model.from_proto(proto), feeds, ["y"]) as references:
        found = drifts(Model.from_proto(proto), references, ["y"])
    assert 1e-7 < found["y"].error < 2e-6


def test_nudging_reaches_into_branches() -> None:
    model = parse(
        """g (bool c, float[2] x) => (float[2] y) {
            y = If (c) <then_branch = t () => (float[2] a) { a = Neg(x) }, else_branch = e () => (float[2] b)
            { b = Abs(x) }> }"""
    )
    feeds = {"c": np.array(True), "x": np.array([1.5, -2.25], np.float32)}
    before, after = run(model, feeds)["y"], run(nudged(model), feeds)["y"]
    assert not np.array_equal(before, after)
    np.testing.assert_allclose(before, after, rtol=2e-6)


def test_half_floats_move_by_their_last_digit() -> None:
    model = parse("g (float16[3] x) => (float16[3] y) { y = Neg(x) }")
    feeds = {"x": np.array([1, 2, 3], np.float16)}
    np.testing.assert_allclose(run(nudged(model), feeds)["y"], -feeds["x"], rtol=2e-3)
    assert not np.array_equal(run(nudged(model), feeds)["y"], -feeds["x"])


def test_equal_seeds_move_equally_and_others_do_not() -> None:
    model = parse("g (float[N] x) => (float[N] y) { y = Neg(x) }")
    feeds = random_feeds(model)
    one, two, other = (run(nudged(model, seed), feeds)["y"] for seed in (0, 0, 1))
    np.testing.assert_array_equal(one, two)
    assert not np.array_equal(one, other)


def nodes(text: str) -> list:
    """The nodes of a graph in text."""
    return list(graph_of(text).nodes)


def test_products_may_be_off_by_more_than_sums() -> None:
    product = allowance(nodes("g (float[2,2] x) => (float[2,2] y) { y = MatMul(x, x) }"), Drift(), FLOAT)
    total = allowance(nodes("g (float[2,2] x) => (float[2,2] y) { y = Add(x, x) }"), Drift(), FLOAT)
    assert total.rtol < product.rtol < 1e-4


def test_what_saturates_is_measured_in_ones() -> None:
    found = allowance(nodes("g (float[2] x) => (float[2] y) { y = Sigmoid(x) }"), Drift(), FLOAT)
    assert found.over(1.0) < 1e-4
    assert found.over(1e-6) > 0.1  # 2e-7 next to values of a millionth


def test_drift_widens_but_excuses_no_fault() -> None:
    sums = nodes("g (float[2] x) => (float[2] y) { y = Add(x, x) }")
    assert allowance(sums, Drift(1e-4), FLOAT).rtol == pytest.approx(1e-3)
    assert allowance(sums, Drift(0.5), FLOAT).rtol == 1e-2


def test_behind_a_rounding_any_drift_counts() -> None:
    steps = nodes("g (float[2] x) => (float[2] y) { y = Round(x) }")
    assert allowance(steps, Drift(0.5), FLOAT).rtol == 0.5


def test_integers_are_exact_unless_they_flip() -> None:
    cast = nodes("g (float[2] x) => (int64[2] y) { y = Cast<to = 7>(x) }")
    assert allowance(cast, Drift(), np.dtype(np.int64)) == Allowance(0.0)
    assert allowance(cast, Drift(0.1, flips=3), np.dtype(np.int64)).flips == 7


def test_half_floats_may_be_off_by_more() -> None:
    sums = nodes("g (float16[2] x) => (float16[2] y) { y = Add(x, x) }")
    half, stored = allowance(sums, Drift(), np.dtype(np.float16)), allowance(sums, Drift(), FLOAT, halved=True)
    assert half.rtol == stored.rtol > 1e-3


def test_without_forcing_the_whole_way_counts() -> None:
    local = Allowance(1e-5)
    assert accumulated(Drift(), local).rtol == 1e-3
    assert accumulated(Drift(2e-3), local).rtol == pytest.approx(2e-2)


def test_a_loop_may_be_off_by_what_its_body_may() -> None:
    graph = graph_of("""g (float[2] x) => (float[2] y) <int64 n = {3}, bool go = {1}> { y = Loop(n, go, x) <body = b
        (int64 i, bool c, float[2] s) => (bool d, float[2] t) { d = Identity(c) t = Tanh(s) }> }""")
    (loop,) = (node for node in graph.nodes if node.op == "Loop")
    assert allowance([loop], Drift(), FLOAT).atol == 5e-7

"""Metrics: their values against the definitions, their edges, and functions of users."""

from __future__ import annotations

import math
import pickle
from pathlib import Path

import numpy as np
import pytest

from graphkit.errors import UsageError
from graphkit.quant.metric import Metric, cosine_distance, relative_l2

ONE = np.array([3.0, 4.0], np.float32)


def test_values_by_definition() -> None:
    rng = np.random.default_rng(0)
    one, two = rng.normal(size=(2, 50))
    assert relative_l2(one, two) == pytest.approx(np.linalg.norm(two - one) / np.linalg.norm(one))
    assert cosine_distance(one, two) == pytest.approx(1 - one @ two / np.linalg.norm(one) / np.linalg.norm(two))
    assert relative_l2(ONE, 2 * ONE) == 1
    assert cosine_distance(ONE, 2 * ONE) < 1e-30


def test_small_angles_keep_their_digits() -> None:
    two = ONE + np.array([-4e-9, 3e-9])
    assert cosine_distance(ONE, two) == pytest.approx((5e-9 / 5) ** 2 / 2, rel=1e-6, abs=0)


@pytest.mark.parametrize("measure", [relative_l2, cosine_distance])
def test_edges(measure: object) -> None:
    assert callable(measure)
    zero, empty = np.zeros(2, np.float32), np.zeros((0, 3), np.float32)
    assert measure(ONE, ONE) == measure(zero, zero) == measure(empty, empty) == 0
    assert measure(zero, ONE) == measure(ONE, zero) == 1
    assert measure(ONE, ONE[:1]) == 1
    assert measure(ONE, np.array([3.0, np.nan])) == measure(ONE, np.array([np.inf, 4.0])) == math.inf
    masked = np.array([3.0, 4.0, -np.inf, np.nan])
    assert measure(masked, np.array([3.0, 4.0, -1e30, 0.0])) == 0
    assert measure(np.array(["a"]), np.array(["a"])) == 0
    assert measure(np.array(["a"]), np.array(["b"])) == 1
    assert measure(np.array([1, 2]), np.array([1, 2])) == 0
    assert measure(ONE.astype(np.float16) * 10000, ONE.astype(np.float16) * 10000) == 0


def test_half_outputs_do_not_overflow() -> None:
    big = np.full(1000, 60000, np.float16)
    assert relative_l2(big, big * np.float16(0.5)) == pytest.approx(0.5)


def test_mean_over_samples_of_the_worst_output() -> None:
    expected = [{"a": ONE, "b": ONE, "n": np.array([1])}] * 2
    actual = [{"a": ONE, "b": ONE * 1.3, "n": np.array([7])}, {"a": ONE * 1.1, "b": ONE * 1.4, "n": np.array([1])}]
    assert Metric().distance(expected, actual) == pytest.approx(math.sqrt((0.3**2 + 0.4**2) / 2))
    assert Metric.parse("relative-l2:a").distance(expected, actual) == pytest.approx(math.sqrt(0.1**2 / 2))
    assert Metric.parse("relative-l2:n").distance(expected, actual) == pytest.approx(math.sqrt(6**2 / 2))
    assert Metric.parse("cosine").distance(expected, actual) < 1e-12


def test_integers_count_where_there_is_nothing_else() -> None:
    assert Metric().distance([{"n": np.array([2, 0])}], [{"n": np.array([2, 1])}]) == 0.5


def test_huge_errors() -> None:
    assert Metric().distance([{"a": ONE}], [{"a": ONE.astype(np.float64) * 1e200}]) == math.inf


def test_unknown_output() -> None:
    metric = Metric.parse("cosine:embeding")
    for use in (
        lambda: metric.check({"embedding": ONE}),
        lambda: metric.distance([{"embedding": ONE}], [{"embedding": ONE}]),
    ):
        with pytest.raises(UsageError, match="no output 'embeding'") as caught:
            use()
        assert caught.value.hint == "outputs: embedding"


def test_powers() -> None:
    assert (Metric().power, Metric("cosine").power, Metric.of(_share).power) == (2, 1, 1)


def _share(expected: dict[str, np.ndarray], actual: dict[str, np.ndarray]) -> float:
    return float(np.mean(expected["a"] != actual["a"]))


def test_a_function() -> None:
    metric = Metric.of(_share)
    assert metric.distance([{"a": ONE}] * 2, [{"a": ONE}, {"a": np.array([3.0, 5.0])}]) == 0.25
    again = pickle.loads(pickle.dumps(metric))
    assert again == metric
    assert again.identity() == metric.identity()
    assert Metric.of(lambda one, two: math.nan).distance([{"a": ONE}], [{"a": ONE}]) == math.inf
    assert str(metric) == "_share"


def test_a_function_that_fails() -> None:
    with pytest.raises(UsageError, match="the metric '_share' failed: KeyError: 'a'"):
        Metric.of(_share).distance([{"b": ONE}], [{"b": ONE}])


def test_a_function_of_a_file_travels_with_its_code(tmp_path: Path) -> None:
    file = tmp_path / "mine.py"
    file.write_text(
        "import numpy as np\nHALF = 0.5\ndef f(one, two): return HALF * float(np.abs(one['a'] - two['a']).max())\n"
    )
    metric = Metric.parse(f"{file}:f")
    identity = metric.identity()
    file.write_text("def f(one, two): return 7.0\n")
    assert pickle.loads(pickle.dumps(metric)).distance([{"a": ONE}], [{"a": ONE + 3}]) == 1.5
    assert Metric.parse(f"{file}:f").identity() != identity == metric.identity()


def test_a_function_of_a_module() -> None:
    metric = Metric.parse("operator:is_not")
    assert metric.distance([{"a": ONE}], [{"a": ONE}]) == 1.0


def test_code_that_cannot_be_read_is_never_the_same() -> None:
    names: dict[str, object] = {"__name__": "nowhere"}
    exec("def f(one, two): return 0.0", names)
    metric = Metric.of(names["f"])  # type: ignore[arg-type]
    assert metric.identity() != metric.identity()


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("l3", "no metric"),
        ("", "no metric"),
        (":f", "no metric"),
        ("a:b c", "no metric"),
        ("no_such_module_at_all:f", "cannot be imported"),
        ("operator:nothing", "no function 'nothing'"),
        ("missing.py:f", "cannot be read"),
    ],
)
def test_bad_text(text: str, message: str) -> None:
    with pytest.raises(UsageError, match=message):
        Metric.parse(text)


def test_bad_files(tmp_path: Path) -> None:
    file = tmp_path / "mine.py"
    file.write_text("def f(:")
    with pytest.raises(UsageError, match="does not run: SyntaxError"):
        Metric.parse(f"{file}:f")
    file.write_text("g = 1")
    with pytest.raises(UsageError, match="no function 'f'"):
        Metric.parse(f"{file}:f")


def test_texts_print_as_they_parse() -> None:
    for text in ("cosine", "relative-l2:a,b"):
        assert str(Metric.parse(text)) == text

"""Budgets: their text, and choices that are as good as trying everything."""

from __future__ import annotations

import itertools
import time

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from graphkit.errors import UsageError
from graphkit.quant import _knapsack
from graphkit.quant.budget import Budget, parse_budget, solve
from graphkit.quant.setting import FLOAT, Setting

Table = dict[str, dict[int, float]]


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("12MB", Budget(12e6)),
        ("12.5 MiB", Budget(12.5 * 2**20)),
        ("900kb", Budget(900e3)),
        ("1GiB", Budget(2**30)),
        ("77B", Budget(77)),
        ("60%", Budget(0.6, "float")),
        ("60% of float", Budget(0.6, "float")),
        ("62.5 % of W8", Budget(0.625, "w8")),
    ],
)
def test_budget_text(text: str, expected: Budget) -> None:
    assert parse_budget(text) == expected


@pytest.mark.parametrize(
    "text", ["", "12", "12XB", "-3MB", "0MB", "0%", "MB", "60% of w4", "12MB of w8", "1e3MB", "nan%"]
)
def test_bad_budget_text(text: str) -> None:
    with pytest.raises(UsageError) as caught:
        parse_budget(text)
    assert "12MB" in (caught.value.hint or "")


def test_percent_are_of_float_or_of_w8() -> None:
    assert parse_budget("60%").resolve(1000, 300) == 600
    assert parse_budget("60% of w8").resolve(1000, 300) == 180
    assert parse_budget("500B").resolve(1000, 300) == 500


@pytest.mark.parametrize("text", ["12 MB", "60%", "62.5% of w8", "77 B"])
def test_budgets_print_as_they_parse(text: str) -> None:
    assert str(parse_budget(text)) == text


@pytest.mark.parametrize(
    ("text", "setting"),
    [
        ("8", Setting(8)),
        ("4b32", Setting(4, 32)),
        ("3b128a", Setting(3, 128, False)),
        ("2a", Setting(2, 0, False)),
        ("float", FLOAT),
    ],
)
def test_setting_text(text: str, setting: Setting) -> None:
    assert str(setting) == text


@pytest.mark.parametrize(("bits", "block"), [(1, 0), (9, 0), (4, 8), (4, 33), (32, 16), (-4, 0)])
def test_bad_settings(bits: int, block: int) -> None:
    with pytest.raises(UsageError):
        Setting(bits, block)


@pytest.mark.parametrize("text", ["9" * 400 + "MB", "9" * 400 + "%", "9" * 300 + "GB", "9" * 400 + "% of w8"])
def test_budgets_beyond_all_numbers(text: str) -> None:
    with pytest.raises(UsageError, match="9…' is no budget"):
        parse_budget(text)


def test_block_only_where_it_divides() -> None:
    assert Setting(4, 32).for_channels(96) == Setting(4, 32)
    assert Setting(4, 32, False).for_channels(48) == Setting(4, 0, False)


def _tables(sizes: list[list[int]], faults: list[list[float]]) -> tuple[dict[str, dict[int, int]], Table]:
    costs = {f"l{i}": dict(enumerate(row)) for i, row in enumerate(sizes)}
    return costs, {f"l{i}": dict(enumerate(row)) for i, row in enumerate(faults)}


def _all(costs: dict[str, dict[int, int]], errors: Table) -> list[tuple[int, float]]:
    """Bytes and error of every choice there is."""
    picks = itertools.product(*(list(of) for of in costs.values()))
    return [
        (
            sum(costs[n][c] for n, c in zip(costs, p, strict=True)),
            sum(errors[n][c] for n, c in zip(costs, p, strict=True)),
        )
        for p in picks
    ]


_problems = st.integers(1, 5).flatmap(
    lambda layers: st.integers(1, 4).flatmap(
        lambda options: st.tuples(
            st.lists(
                st.lists(st.integers(1, 60), min_size=options, max_size=options), min_size=layers, max_size=layers
            ),
            st.lists(
                st.lists(st.integers(-3, 60), min_size=options, max_size=options), min_size=layers, max_size=layers
            ),
            st.floats(0, 1),
        )
    )
)


@settings(max_examples=300, deadline=None)
@given(_problems)
def test_no_choice_is_better(problem: tuple[list[list[int]], list[list[int]], float]) -> None:
    sizes, faults, place = problem
    costs, errors = _tables(sizes, [[float(e) for e in row] for row in faults])
    every = _all(costs, errors)
    limits = sorted(size for size, _ in every)
    budget = int(limits[0] + place * (limits[-1] - limits[0]))
    found = solve(costs, errors, budget=budget)
    assert found.exact
    assert found.bytes <= budget
    assert found.error == min(error for size, error in every if size <= budget) == found.bound
    assert found.bytes == sum(costs[name][c] for name, c in found.choice.items())
    assert found.error == sum(errors[name][c] for name, c in found.choice.items())

    levels = sorted(error for _, error in every)
    allowed = levels[0] + place * (levels[-1] - levels[0])
    found = solve(costs, errors, max_error=allowed)
    assert found.error <= allowed + 1e-9
    assert found.bytes == min(size for size, error in every if error <= allowed + 1e-9) == found.bound


def test_the_greedy_answer_is_improved() -> None:
    """Best gain per byte first takes l0, after which nothing fits; l1 alone is better."""
    costs, errors = _tables([[0, 6], [0, 10]], [[10.0, 3.0], [10.0, 0.0]])
    assert solve(costs, errors, budget=10).choice == {"l0": 0, "l1": 1}


def test_all_that_fits_when_the_budget_is_wide() -> None:
    costs, errors = _tables([[1, 2, 3], [1, 2, 3]], [[9.0, 1.0, 1.0], [9.0, 2.0, 0.5]])
    found = solve(costs, errors, budget=100, fixed=7)
    assert found.choice == {"l0": 1, "l1": 2}  # 3 bytes for the error that 2 give are wasted
    assert (found.bytes, found.error, found.bound) == (12, 1.5, 1.5)


def test_what_stays_float_counts() -> None:
    costs, errors = _tables([[10, 20]], [[1.0, 0.0]])
    assert solve(costs, errors, budget=25).choice == {"l0": 1}
    assert solve(costs, errors, budget=25, fixed=6).choice == {"l0": 0}
    assert solve(costs, errors, max_error=0.0, fixed=6).bound == 26


def test_impossible_budget_says_the_smallest() -> None:
    costs, errors = _tables([[1000, 2000], [500, 900]], [[1.0, 0.0], [1.0, 0.0]])
    with pytest.raises(
        UsageError, match=r"1\.4 KB is impossible: the smallest possible is 1\.6 KB \(1600 bytes, of which 100 B"
    ):
        solve(costs, errors, budget=1400, fixed=100)


def test_impossible_error_says_the_smallest() -> None:
    costs, errors = _tables([[1, 2]], [[0.5, 0.25]])
    with pytest.raises(UsageError, match=r"error at 0\.1: the smallest possible is 0\.25"):
        solve(costs, errors, max_error=0.1)


def test_settings_that_broke_the_model_are_not_taken() -> None:
    costs, errors = _tables([[1, 2, 3]], [[float("nan"), float("inf"), 0.5]])
    assert solve(costs, errors, budget=3).choice == {"l0": 2}
    with pytest.raises(UsageError, match="smallest possible is 3 B"):
        solve(costs, errors, budget=2)
    with pytest.raises(UsageError, match="no setting of layer 'l0' has a finite error"):
        solve(*_tables([[1]], [[float("nan")]]), budget=9)


def test_one_of_budget_and_error() -> None:
    costs, errors = _tables([[1]], [[0.0]])
    with pytest.raises(UsageError, match="not both"):
        solve(costs, errors, budget=1, max_error=1.0)
    with pytest.raises(UsageError, match="either"):
        solve(costs, errors)


def test_nothing_to_choose() -> None:
    assert solve({}, {}, budget=10, fixed=10).choice == {}
    with pytest.raises(UsageError, match="smallest possible is 10 B"):
        solve({}, {}, budget=9, fixed=10)


def _realistic(layers: int, seed: int) -> tuple[dict[str, dict[int, int]], Table]:
    """Errors that fall by 4 per bit, with noise; sizes of many different layers."""
    rng = np.random.default_rng(seed)
    size = rng.integers(10_000, 4_000_000, layers)
    scale = 10 ** rng.uniform(-6, -2, layers)
    costs = {f"l{i}": {b: int(size[i]) * b // 8 for b in range(2, 9)} for i in range(layers)}
    errors = {
        f"l{i}": {b: float(scale[i] * 4.0**-b * rng.uniform(0.7, 1.4)) for b in range(2, 9)} for i in range(layers)
    }
    return costs, errors


def test_300_layers_are_solved_well_and_soon() -> None:
    costs, errors = _realistic(300, 0)
    budget = sum(of[4] for of in costs.values())
    begin = time.process_time()
    found = solve(costs, errors, budget=budget)
    assert time.process_time() - begin < 20
    assert found.bytes <= budget
    assert found.bound <= found.error <= found.bound * 1.0001
    uniform = sum(of[4] for of in errors.values())
    assert found.error < uniform / 5


def test_a_cut_search_still_bounds(monkeypatch: pytest.MonkeyPatch) -> None:
    costs, errors = _realistic(30, 1)
    budget = sum(of[4] for of in costs.values())
    best = solve(costs, errors, budget=budget)
    monkeypatch.setattr(_knapsack, "MAX_STATES", 3)
    cut = solve(costs, errors, budget=budget)
    assert best.exact
    assert not cut.exact
    assert cut.bytes <= budget
    assert cut.bound <= best.error <= cut.error <= cut.bound * 1.05

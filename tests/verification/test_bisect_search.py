"""The searches against brute force."""

from __future__ import annotations

from itertools import combinations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from graphkit.errors import UsageError
from graphkit.verification.bisect._effort import Effort
from graphkit.verification.bisect.search import Answer, Exhausted, FirstBad, first_bad, minimize, smallest

ANSWERS = st.lists(st.sampled_from([True, False, None]), max_size=40)


def bounded(answers: list[Answer]) -> list[Answer]:
    """Answers with a good one in front and a bad one behind."""
    return [False, *answers, True]


@given(st.integers(0, 60), st.integers(1, 60))
def test_the_first_bad_number_of_a_step(good: int, bad: int) -> None:
    asked: list[int] = []

    def predicate(number: int) -> bool:
        asked.append(number)
        return number >= good + 1

    found = first_bad(0, good + bad, predicate)
    assert (found.last_good, found.first_bad) == (good, good + 1)
    assert found.exact
    assert list(found.candidates) == [good + 1]
    assert len(asked) == len(set(asked)) <= (good + bad).bit_length()
    assert list(found.probes) == asked


@given(ANSWERS)
def test_what_is_left_lies_between_good_and_bad_with_nothing_but_skips_between(answers: list[Answer]) -> None:
    values = bounded(answers)
    found = first_bad(0, len(values) - 1, lambda number: values[number])
    assert values[found.last_good] is False
    assert values[found.first_bad] is True
    assert all(values[number] is None for number in range(found.last_good + 1, found.first_bad))
    assert found.complete
    assert all(values[number] is answer for number, answer in found.probes.items())


@given(st.integers(1, 30), st.integers(0, 30), st.integers(1, 30))
def test_a_run_of_skips_is_named_whole(good: int, skips: int, bad: int) -> None:
    values = [False] * good + [None] * skips + [True] * bad
    found = first_bad(0, len(values) - 1, lambda number: values[number])
    assert (found.last_good, found.first_bad) == (good - 1, good + skips)
    assert len(found.candidates) == skips + 1


def test_numbers_far_from_a_run_of_skips_are_asked_soon() -> None:
    values = [False, *[None] * 1000, *[True] * 3000]
    found = first_bad(0, 4000, lambda number: values[number])
    assert found.first_bad == 1001
    assert sum(answer is True for answer in found.probes.values()) <= 12


@pytest.mark.parametrize("ends", [(3, 3), (4, 3)])
def test_ends_in_the_wrong_order(ends: tuple[int, int]) -> None:
    with pytest.raises(UsageError, match="a good number before a bad one"):
        first_bad(*ends, lambda number: True)


def test_a_search_that_is_ended_says_what_it_knows() -> None:
    budget = Effort(probes=2)

    def predicate(number: int) -> bool:
        budget.spend()
        return number > 5

    assert first_bad(0, 64, predicate) == FirstBad(0, 16, {32: True, 16: True}, complete=False)


@given(st.integers(1, 50), st.integers(0, 50))
def test_the_smallest_size(first: int, more: int) -> None:
    asked: list[int] = []

    def predicate(size: int) -> bool:
        asked.append(size)
        return size >= first

    assert smallest(1, first + more, predicate) == first
    assert len(asked) == len(set(asked))


@given(st.sets(st.integers(1, 30)), st.integers(1, 31))
def test_a_size_that_is_found_is_bad_and_the_next_smaller_one_is_not(bad: set[int], high: int) -> None:
    found = smallest(1, high, lambda size: size in bad)
    assert found == high or found in bad
    assert found == 1 or found - 1 not in bad


def test_a_size_search_that_is_ended_keeps_what_was_known() -> None:
    def never(size: int) -> bool:
        raise Exhausted

    assert smallest(1, 9, never) == 9
    assert smallest(9, 9, never) == 9


# -- minimize ---------------------------------------------------------------------------------------------

SIZE = 6
SETS = [frozenset(chosen) for size in range(SIZE + 1) for chosen in combinations(range(SIZE), size)]


@given(st.sets(st.sampled_from(SETS)))
def test_no_item_of_the_result_can_be_left_out(bad: set[frozenset[int]]) -> None:
    whole = frozenset(range(SIZE))
    bad = bad | {whole}
    asked: list[tuple[int, ...]] = []

    def predicate(chosen: tuple[int, ...]) -> bool:
        asked.append(chosen)
        return frozenset(chosen) in bad

    found = minimize(range(SIZE), predicate)
    assert frozenset(found.items) in bad
    assert all(frozenset(found.items) - {item} not in bad for item in found.items)
    assert list(found.items) == sorted(found.items)
    assert found.complete
    assert len(asked) == len(set(asked)) == found.probes


@given(st.lists(st.sets(st.integers(0, 11), min_size=1, max_size=4), min_size=1, max_size=3))
def test_of_sets_that_each_are_enough_one_is_found(enough: list[set[int]]) -> None:
    found = minimize(range(12), lambda chosen: any(needed <= set(chosen) for needed in enough))
    least = [needed for needed in enough if not any(other < needed for other in enough)]
    assert set(found.items) in least


@given(st.integers(0, 399))
def test_one_item_of_many_costs_few_questions(culprit: int) -> None:
    found = minimize(range(400), lambda chosen: culprit in chosen)
    assert found.items == (culprit,)
    assert found.probes <= 22


@given(ANSWERS)
def test_what_cannot_be_told_is_not_taken(answers: list[Answer]) -> None:
    found = minimize(answers, lambda chosen: True if len(chosen) == len(answers) else None)
    assert list(found.items) == answers


def test_items_go_by_position() -> None:
    found = minimize(["a", "a", "b", "a"], lambda chosen: chosen.count("a") >= 2)
    assert found.items == ("a", "a")


def test_nothing_at_all_may_be_enough() -> None:
    assert minimize([1, 2, 3], lambda chosen: True).items == ()
    assert minimize([], lambda chosen: True).items == ()


def test_what_is_not_bad_cannot_be_reduced() -> None:
    with pytest.raises(UsageError, match="does not show the fault"):
        minimize([1, 2], lambda chosen: False)


def test_a_reduction_that_is_ended_keeps_what_it_has() -> None:
    budget = Effort(probes=4)

    def predicate(chosen: tuple[int, ...]) -> bool:
        budget.spend()
        return 0 in chosen

    found = minimize(range(64), predicate)
    assert found.items == tuple(range(16))
    assert not found.complete


def test_a_budget_of_seconds_ends_too() -> None:
    budget = Effort(seconds=1e-9)
    with pytest.raises(Exhausted):
        budget.spend()
    assert budget.spent == 0


@pytest.mark.parametrize("wrong", [{"seconds": 0}, {"probes": 0}, {"seconds": float("nan")}])
def test_a_budget_is_positive(wrong: dict[str, float]) -> None:
    with pytest.raises(UsageError, match="a budget is positive"):
        Effort(**wrong)  # type: ignore[arg-type]

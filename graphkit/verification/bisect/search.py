"""Searches over a predicate: the first bad number, the smallest set that is still bad, the smallest size.

Nothing here knows of models. A predicate answers True (bad: it shows the fault), False (good) or None (it cannot be
told, as git bisect's skip), and may raise `Exhausted` to end a search: what was found until then is the result. No
question is asked twice.

Sources: git-bisect(1) for the search with skips; Zeller and Hildebrandt 2002, "Simplifying and Isolating
Failure-Inducing Input", IEEE TSE 28(2), for `minimize` (ddmin).
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Generic, TypeVar

from graphkit.errors import UsageError

Answer = bool | None
T = TypeVar("T")


class Exhausted(Exception):
    """Raised by a predicate that may not be asked any more; ends a search, never reaches its caller."""


@dataclass(frozen=True)
class FirstBad:
    """Where good turns into bad: after `last_good`, at `first_bad` at the latest.

    probes: every number that was asked, with its answer, in order. complete: False when the search was ended early.
    """

    last_good: int
    first_bad: int
    probes: Mapping[int, Answer]
    complete: bool = True

    @property
    def exact(self) -> bool:
        """True when one number is left."""
        return self.first_bad - self.last_good == 1

    @property
    def candidates(self) -> range:
        """The numbers of which one is the first bad one; more than one when those between could not be told."""
        return range(self.last_good + 1, self.first_bad + 1)


def first_bad(low: int, high: int, predicate: Callable[[int], Answer]) -> FirstBad:
    """Find a number whose predecessor is good and which is bad itself, between `low` (good) and `high` (bad).

    The two ends are the caller's word and are not asked. When good and bad alternate, one of the changes is found.
    About log2(high - low) questions, more where the answer is None. Raises UsageError unless low < high.
    """
    if low >= high:
        raise UsageError(f"a search needs a good number before a bad one, not {low} and {high}")
    answers: dict[int, Answer] = {}
    complete = True
    while (middle := next((m for m in _middles(low, high) if m not in answers), None)) is not None:
        try:
            answers[middle] = predicate(middle)
        except Exhausted:
            complete = False
            break
        if answers[middle] is True:
            high = middle
        elif answers[middle] is False:
            low = middle
    return FirstBad(low, high, answers, complete)


def _middles(low: int, high: int) -> Iterator[int]:
    """The middle, then the middles of both halves, and so on: numbers that cannot be told often come in runs."""
    waiting = deque([(low, high)])
    while waiting:
        start, end = waiting.popleft()
        if end - start > 1:
            middle = (start + end) // 2
            yield middle
            waiting += ((start, middle), (middle, end))


def smallest(low: int, high: int, predicate: Callable[[int], Answer]) -> int:
    """The smallest size from `low` to `high` (known to be bad) that is bad, if all above it are; else one such that
    the next smaller one is not. `low` is asked first: most often it will do. What cannot be told counts as good."""
    if low >= high:
        return high
    try:
        if predicate(low):
            return low
    except Exhausted:
        return high
    return first_bad(low, high, lambda size: bool(predicate(size))).first_bad


@dataclass(frozen=True)
class Minimum(Generic[T]):
    """Items that are bad together, in their order.

    complete: True when none of them can be left out alone; False when the search was ended early. probes: how many
    sets were asked about.
    """

    items: tuple[T, ...]
    complete: bool
    probes: int


def minimize(items: Sequence[T], predicate: Callable[[tuple[T, ...]], Answer]) -> Minimum[T]:
    """Leave out as many items as possible while the predicate stays True (ddmin).

    Asked about all of them first, then about none. A set of which nothing can be told is not taken. Items may be
    equal: they go by position. Raises UsageError when the items are not bad together.
    """
    search = _Minimizing(items, predicate)
    try:
        if not search.bad(tuple(range(len(items)))):
            raise UsageError("there is nothing to reduce: what was asked about does not show the fault")
        complete = search.run()
    except Exhausted:
        complete = False
    return Minimum(tuple(items[i] for i in search.best), complete, len(search.answers))


class _Minimizing(Generic[T]):
    """Positions that are bad together, and what was asked so far."""

    def __init__(self, items: Sequence[T], predicate: Callable[[tuple[T, ...]], Answer]) -> None:
        self.items, self.predicate = items, predicate
        self.answers: dict[tuple[int, ...], bool] = {}
        self.best = tuple(range(len(items)))

    def bad(self, chosen: tuple[int, ...]) -> bool:
        """Ask about some positions, once."""
        if chosen not in self.answers:
            self.answers[chosen] = self.predicate(tuple(self.items[i] for i in chosen)) is True
        return self.answers[chosen]

    def run(self) -> bool:
        """Reduce `best`; True in the end."""
        if self.bad(()):
            self.best = ()
        parts = 2
        while len(self.best) > 1:
            found, next_parts = self._step(parts)
            if found is None:
                if parts >= len(self.best):
                    break
                parts = min(2 * parts, len(self.best))
                continue
            self.best = found
            parts = min(max(next_parts, 2), len(found))
        return True

    def _step(self, parts: int) -> tuple[tuple[int, ...] | None, int]:
        """A part that is bad alone, or all but one part; and into how many parts to cut that next."""
        cut = _parts(self.best, parts)
        for part in cut:
            if self.bad(part):
                return part, 2
        for index in range(len(cut)) if parts > 2 else ():
            rest = tuple(i for number, part in enumerate(cut) if number != index for i in part)
            if self.bad(rest):
                return rest, parts - 1
        return None, parts


def _parts(chosen: tuple[int, ...], parts: int) -> list[tuple[int, ...]]:
    """Cut into so many runs of nearly equal length."""
    edges = [len(chosen) * k // parts for k in range(parts + 1)]
    return [chosen[start:end] for start, end in pairwise(edges)]

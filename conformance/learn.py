"""Learn from forms that go wrong and forms that go right the shortest conditions that tell them apart.

A decision list by separate-and-conquer, as in CN2 (Clark and Niblett, 1989): the conjunction of at most three tests
that covers the most bad forms and no good one comes first, what it covers is set aside, and so on. Tests that say
little about other models (an element) cost more than those that do (an attribute, an element type); shapes are no tests
at all, but for ranks and dimensions of 0 and 1.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations

from graphkit.knowledge import Feature, Test, holds

Form = Mapping[str, Feature]
_Pair = tuple[str, Test]

_COSTS = (
    ("attr.", 1.0), ("has.", 1.3), ("dtype.", 1.1), ("kind.", 1.0), ("rank.", 0.9), ("all.", 1.2), ("given.", 0.8),
    ("used.", 1.1), ("const.", 1.2), ("empty.", 1.1), ("dynamic.", 1.2), ("since", 1.2), ("broadcast", 1.2),
    ("scale", 1.0), ("full_index", 0.9), ("nonneg.", 1.3), ("huge.", 1.0), ("negative.", 1.1), ("inputs", 1.3),
    ("outputs", 1.3), ("subgraph", 1.2), ("mixed", 1.0), ("written", 1.6), ("length.", 3.5),
    ("front.", 3.5), ("last.", 3.5), ("value.", 2.0), ("values.", 3.0),
)  # fmt: skip
_DEFAULT_COST = 3.0
_LISTS = 2.0  # an attribute that holds a list: its exact numbers say little
_OPEN = 0.05  # so that of two tests that the same forms pass the more careful one is taken
_PRICE = 0.3  # of a unit of cost, in bad forms covered
_LUCK = 0.25  # of the bad forms covered: so many may be right by luck
_PAIRS = 150  # promising pairs of tests that are tried with a third
_ONE_WAY = ("dynamic.", "subgraph", "mixed")
_SIZES = ("length.in", "length.out", "front.", "last.")
_ORDERED = ("rank.", "since", "inputs", "outputs", "value.", "attr.", "all.")


@dataclass(frozen=True)
class Learned:
    """One conjunction, and the numbers of the bad forms that it was learned from."""

    when: Mapping[str, Test]
    covers: tuple[int, ...]


@dataclass(frozen=True)
class _Candidate:
    tests: tuple[_Pair, ...]
    bad: int  # bit set of the bad forms that pass
    good: int
    lucky: int
    cost: float

    def joined(self, other: _Candidate) -> _Candidate:
        tests = tuple(dict.fromkeys((*self.tests, *other.tests)))
        bad, good, lucky = self.bad & other.bad, self.good & other.good, self.lucky & other.lucky
        return _Candidate(tests, bad, good, lucky, self.cost + other.cost)

    def sound(self, left: int) -> bool:
        """True when no good form passes, and few that may be right by luck."""
        covers = (self.bad & left).bit_count()
        return not self.good and covers > 0 and self.lucky.bit_count() <= _LUCK * covers

    def score(self, left: int) -> float:
        return (self.bad & left).bit_count() - _PRICE * self.cost - self.lucky.bit_count() / 2


def cover(bad: Sequence[Form], good: Sequence[Form], lucky: Sequence[Form] = ()) -> tuple[list[Learned], list[int]]:
    """Conditions that hold for bad forms and for no good one, and the numbers of the bad forms without one.

    lucky: forms that were right once and may be so by luck of the numbers; a condition may hold for a few of them.
    """
    if not good and not lucky:
        return ([Learned({}, tuple(range(len(bad))))] if bad else []), []
    singles = _singles(bad, good, lucky)
    learned: list[Learned] = []
    left = (1 << len(bad)) - 1
    while left:
        best = _best(singles, left)
        if best is None:
            break
        learned.append(Learned(dict(sorted(best.tests, key=lambda pair: pair[0])), _bits(best.bad & left)))
        left &= ~best.bad
    return learned, list(_bits(left))


def _best(singles: Sequence[_Candidate], left: int) -> _Candidate | None:
    """The best conjunction of up to three tests without a good form in it; None when there is none."""
    useful = [item for item in singles if item.bad & left]
    best: _Candidate | None = None
    for item in useful:
        best = _better(best, item, left)
    pairs = []
    for a, b in combinations(useful, 2):
        if a.bad & b.bad & left and a.tests[0][0] != b.tests[0][0]:
            pair = a.joined(b)
            best = _better(best, pair, left)
            if not pair.sound(left):
                pairs.append(pair)
    pairs.sort(key=lambda pair: ((pair.good | pair.lucky).bit_count() - (pair.bad & left).bit_count(), pair.cost))
    for pair in pairs[:_PAIRS]:
        for item in useful:
            if pair.bad & item.bad & left:
                best = _better(best, pair.joined(item), left)
    return best


def _better(best: _Candidate | None, item: _Candidate, left: int) -> _Candidate | None:
    if not item.sound(left):
        return best
    if best is None:
        return item
    a, b = item.score(left), best.score(left)
    return item if a > b or (a == b and str(item.tests) < str(best.tests)) else best


def _singles(bad: Sequence[Form], good: Sequence[Form], lucky: Sequence[Form]) -> list[_Candidate]:
    """All tests, of those that the same forms pass only the cheapest."""
    cheapest: dict[tuple[int, int, int], _Candidate] = {}
    for name, test in sorted(set(_tests(bad, [*good, *lucky])), key=str):
        masks = (_mask(bad, name, test), _mask(good, name, test), _mask(lucky, name, test))
        known = cheapest.get(masks)
        price = cost(name, test)
        if masks[0] and (known is None or price < known.cost):
            cheapest[masks] = _Candidate(((name, test),), *masks, price)
    return list(cheapest.values())


def _mask(forms: Sequence[Form], name: str, test: Test) -> int:
    return sum(1 << number for number, form in enumerate(forms) if holds(test, form.get(name)))


def _tests(bad: Sequence[Form], good: Sequence[Form]) -> Iterator[_Pair]:
    for form in bad:
        for name, value in form.items():
            if value != value or _says_nothing(name, value):  # NaN equals nothing
                continue
            yield name, value
            if name.startswith(_ORDERED) and not isinstance(value, bool | str):
                yield from _limits(name, value, good)
    for name in {name for form in good for name in form if name.startswith("has.")}:
        yield name, None
    texts = {name for form in bad for name, value in form.items() if isinstance(value, str)}
    for name in (name for name in texts if not name.startswith(("dims.", "values."))):
        values = {text for form in good if isinstance(text := form.get(name), str)}
        if len(values) == 1:
            yield name, f"!{values.pop()}"


def _says_nothing(name: str, value: Feature) -> bool:
    """True for what other models may well lack without being any better: static shapes, sizes but for 0 and 1."""
    if name.startswith(("has.", "dims.")):
        return True  # what an attribute says counts, not that it is written; that it is not may count
    return (name.startswith(_ONE_WAY) and value is False) or (name.startswith(_SIZES) and value not in (0, 1))


def _limits(name: str, value: Feature, good: Sequence[Form]) -> Iterator[_Pair]:
    """The tightest bounds that shut out good forms below and above a bad one's number."""
    numbers = [n for form in good if not isinstance(n := form.get(name), bool | str | None)]
    below = [n for n in numbers if n < value]  # type: ignore[operator]
    above = [n for n in numbers if n > value]  # type: ignore[operator]
    if below:
        yield name, f">{max(below)}"
    if above:
        yield name, f"<{min(above)}"


def cost(name: str, test: Test) -> float:
    """What a test costs: little when it says much about models that were not seen."""
    base = next((number for prefix, number in _COSTS if name.startswith(prefix)), _DEFAULT_COST)
    open_ended = isinstance(test, str) and test[:1] in ("<", ">", "!")
    if open_ended != name.startswith("rank."):  # beyond a rank is likely as bad; other values than one may be fine
        base += _OPEN
    return base + (_LISTS if name.startswith("attr.") and isinstance(test, str) and "," in test else 0)


def _bits(mask: int) -> tuple[int, ...]:
    return tuple(number for number in range(mask.bit_length()) if mask >> number & 1)

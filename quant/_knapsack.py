"""Choose one option per item: the least total price under a limit on total weight (multiple-choice knapsack).

The convex hulls of the items give a first answer and a lower bound (Lagrange; Sinha and Zoltners, "The
Multiple-Choice Knapsack Problem", Operations Research 27, 1979); dynamic programming over undominated states,
pruned by that bound, then finds the best answer (Pisinger, "A minimal algorithm for the multiple-choice knapsack
problem", EJOR 83, 1995, has the idea). Exact unless the states outgrow `MAX_STATES`.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

Array = npt.NDArray[Any]

MAX_STATES = 20_000
_SLACK = 1e-12  # sums of floats in another order


class Impossible(Exception):
    """No choice keeps the limit; `least` is the smallest total weight."""

    def __init__(self, least: float) -> None:
        super().__init__(f"the smallest total weight is {least}")
        self.least = least


@dataclass(frozen=True)
class Answer:
    """`options` holds the chosen option of each item; no choice under the limit has a price below `bound`.

    `exact`: `price` is the least possible one.
    """

    options: tuple[int, ...]
    price: float
    bound: float
    exact: bool


@dataclass(frozen=True)
class _Item:
    """The undominated options of one item: weights ascend, prices descend; `index` is their place in the input."""

    index: Array
    weight: Array
    price: Array

    def hull(self) -> list[int]:
        """Options on the lower convex hull, lightest first."""
        corners: list[int] = []
        for new in range(len(self.weight)):
            while len(corners) > 1 and self._is_above(corners[-2], corners[-1], new):
                corners.pop()
            corners.append(new)
        return corners

    def _is_above(self, first: int, middle: int, last: int) -> bool:
        w, p = self.weight, self.price
        return bool((p[middle] - p[first]) * (w[last] - w[first]) >= (p[last] - p[first]) * (w[middle] - w[first]))


def choose(prices: Sequence[Array], weights: Sequence[Array], limit: float) -> Answer:
    """The cheapest choice whose total weight is at most `limit`; prices and weights are float64 per item and option.

    Options whose price or weight is not finite are not taken. Raises Impossible.
    """
    items = [_undominated(np.asarray(p, float), np.asarray(w, float)) for p, w in zip(prices, weights, strict=True)]
    lightest = [0] * len(items)
    least = _total(items, lightest, "weight")
    room = limit + _SLACK * abs(limit)
    if not least <= room:
        raise Impossible(least)
    rate, picks = _fill(items, room)
    if rate == 0.0:
        price = _total(items, picks, "price")
        return Answer(_original(items, picks), price, price, True)
    search = _Search(items, room, rate, picks)
    picks, exact = search.run()
    price = _total(items, picks, "price")
    return Answer(_original(items, picks), price, price if exact else search.bound, exact)


def _undominated(price: Array, weight: Array) -> _Item:
    finite = np.flatnonzero(np.isfinite(price) & np.isfinite(weight))
    if not len(finite):
        raise Impossible(float("inf"))
    order = finite[np.lexsort((price[finite], weight[finite]))]
    kept = order[_descends(price[order])]
    return _Item(kept, weight[kept], price[kept])


def _descends(price: Array) -> Array:
    """True where a price is below all before it."""
    before = np.minimum.accumulate(np.concatenate(([np.inf], price[:-1])))
    return np.asarray(price < before)


def _fill(items: Sequence[_Item], room: float) -> tuple[float, list[int]]:
    """Greedy along the hulls: the price per weight at which the limit binds (0: it does not), and the choice.

    The steps that no longer fit are passed over, then what room is left goes to whatever lowers the price most.
    """
    steps = []
    for number, item in enumerate(items):
        corners = item.hull()
        for low, high in itertools.pairwise(corners):
            added = item.weight[high] - item.weight[low]
            steps.append((float((item.price[low] - item.price[high]) / added), number, low, high))
    steps.sort(key=lambda step: (-step[0], step[1], step[2]))
    picks, weight, rate = [0] * len(items), _total(items, [0] * len(items), "weight"), 0.0
    for gain, number, low, high in steps:
        added = float(items[number].weight[high] - items[number].weight[low])
        if picks[number] == low and weight + added <= room:
            picks[number], weight = high, weight + added
        elif rate == 0.0:
            rate = gain
    return rate, _use_up(items, picks, room)


def _use_up(items: Sequence[_Item], picks: list[int], room: float) -> list[int]:
    """Raise single items as far as the room allows, best gain first, until nothing fits."""
    picks = list(picks)
    while True:
        left = room - _total(items, picks, "weight")
        best = max(_raises(items, picks, left), default=None)
        if best is None:
            return picks
        picks[best[1]] = best[2]


def _raises(items: Sequence[_Item], picks: Sequence[int], left: float) -> Iterator[tuple[float, int, int]]:
    for number, (item, pick) in enumerate(zip(items, picks, strict=True)):
        for option in range(pick + 1, len(item.weight)):
            if item.weight[option] - item.weight[pick] <= left:
                yield float(item.price[pick] - item.price[option]), number, option


class _Search:
    """Dynamic programming over (weight, price) states, item by item."""

    def __init__(self, items: Sequence[_Item], room: float, rate: float, picks: list[int]) -> None:
        self._items = items
        self._room = room
        self._rate = rate
        self._picks = picks
        self._best = _total(items, picks, "price")
        # The largest first: what is left to decide at the end is small change.
        self._order = sorted(range(len(items)), key=lambda i: -float(np.ptp(items[i].weight)))
        reduced = np.array([float(np.min(items[i].price + rate * items[i].weight)) for i in self._order])
        lightest = np.array([float(items[i].weight[0]) for i in self._order])
        self._rest_reduced = np.append(np.cumsum(reduced[::-1])[::-1], 0.0)
        self._rest_weight = np.append(np.cumsum(lightest[::-1])[::-1], 0.0)
        self.bound = float(self._rest_reduced[0] - rate * room)

    def run(self) -> tuple[list[int], bool]:
        """The best choice, and whether it is proven best."""
        weight, price, exact = np.zeros(1), np.zeros(1), True
        trail: list[tuple[Array, Array]] = []
        for depth, number in enumerate(self._order, 1):
            item = self._items[number]
            weight, price, parent, option = _spread(item, weight, price)
            kept, whole = self._keep(weight, price, depth)
            exact = exact and whole
            weight, price = weight[kept], price[kept]
            trail.append((parent[kept], option[kept]))
        if len(price) and float(price.min()) < self._best:
            return self._trace(trail, int(price.argmin())), exact
        return self._picks, exact

    def _keep(self, weight: Array, price: Array, depth: int) -> tuple[Array, bool]:
        """States worth going on from; False when some of them had to be given up."""
        reduced = price + self._rate * weight + self._rest_reduced[depth] - self._rate * self._room
        hopeful = (weight + self._rest_weight[depth] <= self._room) & (reduced < self._best)
        kept = np.flatnonzero(hopeful)
        kept = kept[np.lexsort((price[kept], weight[kept]))]
        kept = kept[_descends(price[kept])] if len(kept) else kept
        if len(kept) <= MAX_STATES:
            return kept, True
        return kept[np.argpartition(reduced[kept], MAX_STATES)[:MAX_STATES]], False

    def _trace(self, trail: Sequence[tuple[Array, Array]], state: int) -> list[int]:
        picks = [0] * len(self._items)
        for number, (parent, option) in zip(reversed(self._order), reversed(trail), strict=True):
            picks[number] = int(option[state])
            state = int(parent[state])
        return picks


def _spread(item: _Item, weight: Array, price: Array) -> tuple[Array, Array, Array, Array]:
    """Every state with every option: weights, prices, the state before, the option taken."""
    states, options = len(weight), len(item.weight)
    return (
        (weight[:, None] + item.weight).reshape(-1),
        (price[:, None] + item.price).reshape(-1),
        np.repeat(np.arange(states), options),
        np.tile(np.arange(options), states),
    )


def _total(items: Sequence[_Item], picks: Sequence[int], what: str) -> float:
    return float(sum(getattr(item, what)[pick] for item, pick in zip(items, picks, strict=True)))


def _original(items: Sequence[_Item], picks: Sequence[int]) -> tuple[int, ...]:
    return tuple(int(item.index[pick]) for item, pick in zip(items, picks, strict=True))

"""Find which operator of one graph is which of another: by name, by what it makes, by where it stands.

Every step looks at each operator a fixed number of times, so that graphs of tens of thousands are matched in a second.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import defaultdict
from collections.abc import Callable, Hashable
from dataclasses import dataclass, field

from graphkit.mnn._diff_types import Body, Item, MatchedBy

_ROUNDS = 8  # of looking forward and back; each adds a pair or is the last


@dataclass
class Match:
    """Which operators of A and B belong together.

    pairs: positions in A and B, in A's order. values: what the values of A are called in B, as far as known.
    """

    pairs: dict[int, int] = field(default_factory=dict)
    back: dict[int, int] = field(default_factory=dict)
    how: dict[int, MatchedBy] = field(default_factory=dict)
    values: dict[str, str] = field(default_factory=dict)

    @property
    def moved(self) -> int:
        """Operators that stand elsewhere in the order of the file."""
        tails: list[int] = []
        for _, place in sorted(self.pairs.items()):
            at = bisect_left(tails, place)
            tails[at : at + 1] = [place]
        return len(self.pairs) - len(tails)


def match(a: Body, b: Body, values: dict[str, str]) -> Match:
    """Match the operators of two graphs.

    values: what is known beforehand: what A's inputs, initializers and outer values are called in B.
    """
    matcher = _Matcher(a, b, Match(values=dict(values)))
    matcher.by_key("name", lambda item: (item.name, item.type) if item.name else None)
    matcher.by_key("outputs", _by_outputs)
    for _ in range(_ROUNDS):
        known = len(matcher.found.pairs)
        matcher.forward()
        matcher.backward()
        if len(matcher.found.pairs) == known:
            break
    matcher.by_key("name", lambda item: item.name or None)
    matcher.by_key("structure", _by_content)
    return matcher.found


def _by_outputs(item: Item) -> Hashable:
    return (item.outputs, item.type) if any(item.outputs) else None


def _by_content(item: Item) -> Hashable:
    """For what reads and makes nothing, in damaged files: type and fields."""
    if item.inputs or any(item.outputs):
        return None
    arrays = [(name, array.dtype, array.shape) for name, array in item.arrays.items()]
    return (item.type, repr(item.fields), tuple(arrays))


class _Matcher:
    def __init__(self, a: Body, b: Body, found: Match) -> None:
        self.a, self.b, self.found = a, b, found
        self.made_a, self.made_b = _producers(a.items), _producers(b.items)

    def by_key(self, how: MatchedBy, key: Callable[[Item], Hashable]) -> None:
        """Pair what has the same key, in the order of the files; None is no key."""
        places: dict[Hashable, list[int]] = defaultdict(list)
        for place, item in self._free(self.b.items, self.found.back):
            if (named := key(item)) is not None:
                places[named].append(place)
        taken: dict[Hashable, int] = defaultdict(int)
        for place, item in self._free(self.a.items, self.found.pairs):
            named = key(item)
            number = taken[named]
            if named is not None and number < len(places.get(named, ())):
                taken[named] += 1
                self._pair(place, places[named][number], how)

    def forward(self) -> None:
        """Pair operators of one type that read the same values, or constants alike."""
        places: dict[Hashable, list[int]] = defaultdict(list)
        taken = set(self.found.values.values())
        for place, item in reversed(self._free(self.b.items, self.found.back)):
            reads = [
                self._token(self.b, self.made_b, self.found.back, name, name, name in taken) for name in item.inputs
            ]
            places[item.type, tuple(reads)].append(place)
        for place, item in self._free(self.a.items, self.found.pairs):
            values = self.found.values
            reads = [
                self._token(self.a, self.made_a, self.found.pairs, name, values.get(name, name), name in values)
                for name in item.inputs
            ]
            candidates = places.get((item.type, tuple(reads)), [])
            if candidates and reads:  # what reads nothing is a constant: who reads it tells which it is
                self._pair(place, candidates.pop(), "structure")

    def backward(self) -> None:
        """Pair operators of one type that pairs read at the same input, or that make the same outputs."""
        ends = zip(self.a.outputs, self.b.outputs, strict=False)
        stack = [(self.made_a.get(old), self.made_b.get(new)) for old, new in ends]
        stack += [feeders for old, new in self.found.pairs.items() for feeders in self._feeders(old, new)]
        while stack:
            old, new = stack.pop()
            if old is None or new is None or old in self.found.pairs or new in self.found.back:
                continue
            if self.a.items[old].type == self.b.items[new].type:
                self._pair(old, new, "structure")
                stack += self._feeders(old, new)

    def _feeders(self, old: int, new: int) -> list[tuple[int | None, int | None]]:
        inputs = zip(self.a.items[old].inputs, self.b.items[new].inputs, strict=False)
        return [(self.made_a.get(x), self.made_b.get(y)) for x, y in inputs]

    @staticmethod
    def _token(
        body: Body, made: dict[str, int], matched: dict[int, int], name: str, in_b: str, known: bool
    ) -> Hashable:
        """What a value goes by in both graphs: its name in B; type and shape for a constant not matched yet.

        in_b: its name in B. known: whether an initializer is matched already.
        """
        if name in body.weights:
            weight = body.weights[name]
            return in_b if known else (weight.dtype, weight.shape)
        place = made.get(name)
        if place is None or place in matched or body.items[place].inputs:
            return in_b
        item = body.items[place]
        return (item.type, *((array.dtype, array.shape) for array in item.arrays.values()))

    def _pair(self, old: int, new: int, how: MatchedBy) -> None:
        self.found.pairs[old], self.found.back[new], self.found.how[old] = new, old, how
        one, other = self.a.items[old], self.b.items[new]
        for x, y in zip(one.outputs, other.outputs, strict=False):
            if x and y:
                self.found.values.setdefault(x, y)
        for x, y in zip(one.inputs, other.inputs, strict=False):
            # Initializers of other names that matched operators read at the same place are the same, renamed.
            if x in self.a.weights and y in self.b.weights and x not in self.b.weights and y not in self.a.weights:
                self.found.values.setdefault(x, y)

    @staticmethod
    def _free(items: list[Item], matched: dict[int, int]) -> list[tuple[int, Item]]:
        return [(place, item) for place, item in enumerate(items) if place not in matched]


def _producers(items: list[Item]) -> dict[str, int]:
    made: dict[str, int] = {}
    for place, item in enumerate(items):
        for name in item.outputs:
            if name:
                made.setdefault(name, place)
    return made

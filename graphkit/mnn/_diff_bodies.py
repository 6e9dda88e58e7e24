"""Compare two graphs of one format, operator by operator, and the graphs inside them."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from graphkit.mnn._diff_match import Match, match
from graphkit.mnn._diff_types import (
    ABSENT,
    ArrayChange,
    ArrayFacts,
    Body,
    Change,
    Item,
    OpChange,
    Side,
    WeightChange,
)
from graphkit.mnn._diff_values import compare_arrays, facts_of, release
from graphkit.mnn.document.stored import StoredArray

_LARGE = 1 << 20  # bytes of arrays after which pages of the files are given back
_USERS = 3  # operators named that read a weight
_TOLD = ("", ".type", ".aMaxOrBits", ".aMin", ".readType", ".scaleStorage", ".quantScale")  # what a scheme says


@dataclass
class Found:
    """What comparing graphs has found so far; `moved`, `quiet` and `declared` count what makes no difference.

    sides: the two models, so that what was read of their files need not stay in memory.
    """

    sides: tuple[Side, Side]

    model: list[Change] = field(default_factory=list)
    ops: list[OpChange] = field(default_factory=list)
    weights: list[WeightChange] = field(default_factory=list)
    same: int = 0
    moved: int = 0
    quiet: int = 0
    declared: int = 0

    def facts(self, array: StoredArray) -> ArrayFacts:
        """What is told of an array that only one side has."""
        facts = facts_of(array)
        self._release(array.nbytes)
        return facts

    def _release(self, nbytes: int) -> None:
        if nbytes >= _LARGE:
            for side in self.sides:
                release(side.mapped())

    def compare(self, name: str, old: StoredArray, new: StoredArray) -> ArrayChange | None:
        """Compare two arrays and give back the memory of the pieces of files that this took."""
        change = compare_arrays(name, old, new)
        self._release(max(old.nbytes, new.nbytes))
        return change


def compare_bodies(a: Body, b: Body, found: Found, where: str = "", outer: Mapping[str, str] | None = None) -> None:
    """Compare two graphs and add to `found`.

    where: the path of the graph. outer: what the values of the graph around it are called in B.
    Raises ModelError when weights cannot be read.
    """
    prefix = f"{where}: " if where else ""
    values = dict(outer or {})
    values.update({name: name for name in a.weights if name in b.weights})
    values.update(_compare_ports(f"{prefix}inputs", a.inputs, b.inputs, a.by_place, found))
    _compare_ports(f"{prefix}outputs", a.outputs, b.outputs, a.by_place, found)
    matched = match(a, b, values)
    found.moved += matched.moved
    found.declared += sum(name in b.shapes and name not in a.shapes for name in b.shapes)
    for old, item in enumerate(a.items):
        if old in matched.pairs:
            _compare_pair(_Pair(a, b, item, b.items[matched.pairs[old]], matched, where), old, found)
    _one_sided(a, b, matched, found, where)
    _compare_weights(a, b, matched, found, where)


Ports = Mapping[str, dict[str, Any]]


def _compare_ports(field_: str, a: Ports, b: Ports, by_place: bool, found: Found) -> dict[str, str]:
    """Compare inputs or outputs, and return which is which."""
    pairs = dict(zip(a, b, strict=False)) if by_place else _by_name(a, b)
    found.model += [Change(f"{field_}[{name}]", describe(a[name]), ABSENT) for name in a if name not in pairs]
    taken = set(pairs.values())
    found.model += [Change(f"{field_}[{name}]", ABSENT, describe(b[name])) for name in b if name not in taken]
    for old, new in pairs.items():
        if old != new and not by_place:
            found.model.append(Change(f"{field_}[{old}].name", old, new))
        found.model += [
            Change(f"{field_}[{old}].{change.field}", change.old, change.new)
            for change in compare_fields(a[old], b[new])
        ]
    if len(pairs) == len(a) == len(b) and [pairs[name] for name in a] != list(b):
        found.model.append(Change(f"{field_} in order", list(a), list(b)))
    return pairs


def _by_name(a: Ports, b: Ports) -> dict[str, str]:
    """Which is which by name, and what is left, when it is as many, by place."""
    pairs = {name: name for name in a if name in b}
    left = [name for name in a if name not in b], [name for name in b if name not in a]
    return pairs | dict(zip(*left, strict=True)) if len(left[0]) == len(left[1]) else pairs


def describe(port: Mapping[str, Any]) -> str:
    """An input or output in a few words."""
    words = [_shape(value) if isinstance(value, tuple) else str(value) for value in port.values() if value is not None]
    return " ".join(words) or "present"


def _shape(dims: tuple[Any, ...]) -> str:
    return f"[{','.join(map(str, dims))}]"


def compare_fields(a: Mapping[str, Any], b: Mapping[str, Any]) -> list[Change]:
    """Fields that differ, in A's order and then B's, without those of a table that only one of them has.

    NaN is NaN, −0 is not 0.
    """
    names = [*a, *(name for name in b if name not in a)]
    pairs = ((name, a.get(name, ABSENT), b.get(name, ABSENT)) for name in names)
    found = [Change(name, old, new) for name, old, new in pairs if not _same(old, new)]
    alone = tuple(f"{change.field}." for change in found if ABSENT in (change.old, change.new))
    return [change for change in found if not change.field.startswith(alone)] if alone else found


def _same(old: Any, new: Any) -> bool:
    if type(old) is not type(new):
        return False
    return bool(repr(old) == repr(new)) if isinstance(old, float | tuple) else bool(old == new)


@dataclass(frozen=True)
class _Pair:
    """Two operators that are one, with their graphs and what is known of the values."""

    a: Body
    b: Body
    old: Item
    new: Item
    matched: Match
    where: str

    def fields(self) -> Iterator[Change]:
        """All that differs but arrays and the graphs inside."""
        if self.old.type != self.new.type:
            yield Change("type", self.old.type, self.new.type)
        yield from self._inputs()
        yield from self._outputs()
        yield from compare_fields(self.old.fields, self.new.fields)

    def _inputs(self) -> Iterator[Change]:
        for number, old, new in _aligned(self.old.inputs, self.new.inputs):
            known_as = self.matched.values.get(old, old)
            if known_as != new:
                shown = f"{old} (now {known_as})" if old == new else old
                yield Change(f"inputs[{number}]", shown or ABSENT, new or ABSENT)

    def _outputs(self) -> Iterator[Change]:
        for number, old, new in _aligned(self.old.outputs, self.new.outputs):
            if old != new:
                yield Change(f"outputs[{number}]", old or ABSENT, new or ABSENT)
            shapes = self.a.shapes.get(old), self.b.shapes.get(new)
            if None not in shapes and shapes[0] != shapes[1]:
                yield Change(f"outputs[{number}] shape", *shapes)

    def arrays(self, found: Found) -> Iterator[ArrayChange]:
        """Arrays that both have and that differ."""
        for name, old in self.old.arrays.items():
            new = self.new.arrays.get(name)
            change = found.compare(name, old, new) if new is not None else None
            if change is not None:
                yield change

    def only_one(self) -> Iterator[Change]:
        """Arrays and graphs that only one of them has."""
        for name, array in self.old.arrays.items():
            if name not in self.new.arrays:
                yield Change(name, _array(array), ABSENT)
        for name, array in self.new.arrays.items():
            if name not in self.old.arrays:
                yield Change(name, ABSENT, _array(array))
        for name in self.old.bodies.keys() ^ self.new.bodies.keys():
            sides = "a graph" if name in self.old.bodies else ABSENT, "a graph" if name in self.new.bodies else ABSENT
            yield Change(name, *sides)


def _aligned(a: tuple[str, ...], b: tuple[str, ...]) -> Iterator[tuple[int, str, str]]:
    for number in range(max(len(a), len(b))):
        yield number, a[number] if number < len(a) else "", b[number] if number < len(b) else ""


def _array(array: StoredArray) -> str:
    return f"{array.dtype}{list(array.shape)}"


def _compare_pair(pair: _Pair, place: int, found: Found) -> None:
    old, new = pair.old, pair.new
    arrays = tuple(pair.arrays(found))
    told = {f"main.quanParameter{name}" for name in _TOLD} if any(map(_requantized, arrays)) else set()
    fields = tuple(change for change in (*pair.fields(), *pair.only_one()) if change.field not in told)
    renamed = old.name if old.name != new.name else ""
    found.quiet += old.quiet != new.quiet
    if fields or arrays or old.name != new.name:
        how = pair.matched.how[place]
        found.ops.append(
            OpChange("changed", pair.where, label(new), new.type, renamed, how, fields, arrays, new.outputs)
        )
    else:
        found.same += 1
    for name in old.bodies.keys() & new.bodies.keys():
        inner = "/".join(filter(None, (pair.where, label(new), name)))
        compare_bodies(old.bodies[name], new.bodies[name], found, inner, pair.matched.values)


def label(item: Item) -> str:
    """What an operator is called: its name, else what it makes."""
    return item.name or next((f"({name})" for name in item.outputs if name), "(no name)")


def _requantized(change: ArrayChange) -> bool:
    return (change.old.dtype, change.old.quantization) != (change.new.dtype, change.new.quantization)


def _one_sided(a: Body, b: Body, matched: Match, found: Found, where: str) -> None:
    gone = [item for place, item in enumerate(a.items) if place not in matched.pairs]
    makers = {name: label(item) for item in gone for name in item.outputs if name}
    for item in gone:
        found.ops.append(OpChange("removed", where, label(item), item.type, outputs=item.outputs))
    for place, item in enumerate(b.items):
        if place not in matched.back:
            instead = next((makers[name] for name in item.outputs if name in makers), "")
            found.ops.append(OpChange("added", where, label(item), item.type, outputs=item.outputs, instead_of=instead))


def _compare_weights(a: Body, b: Body, matched: Match, found: Found, where: str) -> None:
    users_a, users_b = _users(a), _users(b)
    pairs = {name: known_as for name in a.weights if (known_as := matched.values.get(name)) in b.weights}
    taken = set(pairs.values())
    for old, new in pairs.items():
        change = found.compare(new, a.weights[old], b.weights[new])
        if change is not None or old != new:
            facts = change.new if change is not None else found.facts(b.weights[new])
            renamed = old if old != new else ""
            found.weights.append(WeightChange("changed", where, new, facts, renamed, users_b.get(new, ()), change))
    for name, array in a.weights.items():
        if name not in pairs:
            found.weights.append(WeightChange("removed", where, name, found.facts(array), "", users_a.get(name, ())))
    for name, array in b.weights.items():
        if name not in taken:
            found.weights.append(WeightChange("added", where, name, found.facts(array), "", users_b.get(name, ())))


def _users(body: Body) -> dict[str, tuple[str, ...]]:
    users: dict[str, list[str]] = defaultdict(list)
    for item in body.items:
        for name in item.inputs:
            if name in body.weights and len(users[name]) < _USERS:
                users[name].append(label(item))
    return {name: tuple(labels) for name, labels in users.items()}

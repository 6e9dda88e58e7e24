"""Bindings of input sizes in text form (`batch=1`, `x[0]=1`, `x=1x3x224x224`), checked against a graph."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from graphkit.errors import UsageError
from graphkit.graph import Graph
from graphkit.node import Dim, TensorType, type_of_info
from graphkit.options import suggest

_PLACE = re.compile(r"(?P<input>.+)\[(?P<axis>-?\d+)\]")
_LARGEST = 2**31 - 1  # MNN computes shapes in 32 bits
_SEPARATOR = re.compile(r"\s*[x×,*]\s*")


@dataclass
class Bindings:
    """New input types by input name, and notes on fixed sizes that were changed."""

    types: dict[str, TensorType] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)
    after: dict[str, TensorType] = field(default_factory=dict)

    def open_sizes(self) -> list[str]:
        """A note that lists the input axes that are still dynamic, if any."""
        found = [
            f"{value}[{axis}]" + (f" ({dim})" if dim else "")
            for value, type_ in self.after.items()
            for axis, dim in enumerate(type_.shape or ())
            if not isinstance(dim, int)
        ]
        return [f"still dynamic: {', '.join(found)}"] if found else []


def resolve(graph: Graph, options: Iterable[tuple[str, str]]) -> Bindings:
    """Work out new input types. Raises UsageError for unknown names, bad sizes, wrong ranks, conflicts."""
    return _Resolver(graph).resolve(options)


class _Resolver:
    def __init__(self, graph: Graph) -> None:
        declared = {
            value: type_of_info(info) for value, info in graph.input_infos.items() if value not in graph.initializers
        }
        self.types = {value: type_ for value, type_ in declared.items() if type_ is not None}
        self.places: dict[tuple[str, int], int] = {}
        self.names: dict[str, int] = {}
        self.known = {dim: None for type_ in self.types.values() for dim in type_.shape or () if isinstance(dim, str)}

    def resolve(self, options: Iterable[tuple[str, str]]) -> Bindings:
        for key, value in options:
            self._bind(key, value)
        bindings = Bindings()
        for value, type_ in self.types.items():
            shape = self._bound(value, type_.shape, bindings.notes)
            bindings.after[value] = TensorType(type_.dtype, shape)
            if shape != type_.shape:
                bindings.types[value] = bindings.after[value]
        return bindings

    def _bound(self, value: str, shape: tuple[Dim, ...] | None, notes: list[str]) -> tuple[Dim, ...] | None:
        if shape is None:
            sizes = [self.places[place] for place in sorted(self.places) if place[0] == value]
            return tuple(sizes) or None
        found: list[Dim] = []
        for axis, dim in enumerate(shape):
            size = self.places.get((value, axis), self.names.get(dim) if isinstance(dim, str) else None)
            if isinstance(dim, int) and size is not None and size != dim:
                notes.append(f"input '{value}' axis {axis} was declared {dim} and is {size} now, as asked")
            found.append(dim if size is None else size)
        return tuple(found)

    def _bind(self, key: str, text: str) -> None:
        place = _PLACE.fullmatch(key)
        if key in self.known and not (key in self.types and _SEPARATOR.search(text)):
            self._bind_name(key, _size(text, key), key)
        elif key in self.types:
            self._bind_input(key, text)
        elif place is not None and place["input"] in self.types:
            self._bind_place(place["input"], int(place["axis"]), text, key)
        else:
            word = place["input"] if place is not None else key
            raise UsageError(
                f"'{word}' is no {'input' if place else 'dim or input'} of this model"
                f"{suggest(word, [*self.known, *self.types])}",
                hint=f"dims: {_listing(self.known)}; inputs: {_listing(self._described())}",
            )

    def _described(self) -> list[str]:
        return [f"{value} {type_}" for value, type_ in self.types.items()]

    def _bind_name(self, name: str, size: int, key: str) -> None:
        if self.names.setdefault(name, size) != size:
            raise UsageError(f"'{key}' asks for {name} = {size}, but it is {self.names[name]} already")

    def _bind_place(self, value: str, axis: int, text: str, key: str) -> None:
        shape = self.types[value].shape
        if shape is None:
            raise UsageError(f"the rank of input '{value}' is unknown", hint=f"give its whole shape: {value}=1x2x3")
        if not -len(shape) <= axis < len(shape):
            raise UsageError(f"input '{value}' has {len(shape)} axes; there is no '{key}'")
        self._bind_axis(value, axis % len(shape), shape, _size(text, key), key)

    def _bind_axis(self, value: str, axis: int, shape: Sequence[Dim], size: int, key: str) -> None:
        dim = shape[axis] if axis < len(shape) else None
        if isinstance(dim, str):
            self._bind_name(dim, size, key)
        elif self.places.setdefault((value, axis), size) != size:
            raise UsageError(f"'{key}' asks for {size}, but {value}[{axis}] is {self.places[value, axis]} already")

    def _bind_input(self, value: str, text: str) -> None:
        shape = self.types[value].shape
        parts = _SEPARATOR.split(text.strip().strip("[]()")) if text.strip("[]() ") else []
        if shape is not None and len(parts) != len(shape):
            raise UsageError(
                f"'{value}={text}' gives {len(parts)} sizes, but the input has {len(shape)} axes",
                hint=f"it is declared {self.types[value]}",
            )
        for axis, part in enumerate(parts):
            if shape is None or part not in (str(shape[axis]), "?"):
                self._bind_axis(value, axis, shape or (), _size(part, value), f"{value}={text}")


def _size(text: str, key: str) -> int:
    try:
        size = int(text)
    except ValueError:
        size = 0
    if not 1 <= size <= _LARGEST:
        raise UsageError(f"a size is a whole number from 1 to {_LARGEST}, not '{key}={text}'")
    return size


def _listing(words: Iterable[str]) -> str:
    return ", ".join(words) or "none"

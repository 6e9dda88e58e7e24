"""Tensors by name beside their numbers, and places of a document as a person would say them."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np

from graphkit.errors import ModelError
from graphkit.mnn.document import _json_numbers as numbers
from graphkit.mnn.document._path_text import quoted
from graphkit.mnn.document.schema import Field, Schema, TableType
from graphkit.mnn.document.tree import Table
from graphkit.mnn.document.values import Decoder, Encoder

_TENSORS = {"Net": "tensorName", "SubGraphProto": "tensors"}  # where a graph keeps the names of its tensors
_REFERENCES = (
    ("Op", "inputIndexes"),
    ("Op", "outputIndexes"),
    ("SubGraphProto", "inputs"),
    ("SubGraphProto", "outputs"),
    ("TensorDescribe", "index"),
)
_SAYABLE = 200  # characters of a name
_MANY = 4096  # references of one operator; more are written as numbers
_SURROGATE = re.compile("[\ud800-\udfff]")  # no terminal can show it
_REFERENCE = re.compile(r"(-?\d{1,10}):(.*)", re.DOTALL)


def label(name: Any, index: int) -> str:
    """What stands in brackets for an operator or subgraph: its name, its index when it has none that one can say."""
    if not isinstance(name, str) or not 0 < len(name) <= _SAYABLE:
        return str(index)
    return quoted(name) if name.isascii() or not _SURROGATE.search(name) else json.dumps(name)


def op_path(where: str, name: Any, index: int) -> str:
    """The path of an operator in the list `where`: `ops[conv1]`."""
    return f"{where.removesuffix('oplists').removesuffix('nodes')}ops[{label(name, index)}]"


def _references(schema: Schema) -> frozenset[int]:
    return frozenset(id(schema.tables[table].fields[name]) for table, name in _REFERENCES)


class NamingEncoder(Encoder):
    """Writes indexes of tensors as `"12:conv1_out"`; numbers beyond the graph's tensors stay numbers.

    named: whether it does; else all indexes are numbers.
    """

    named = True

    def __init__(self, schema: Schema) -> None:
        super().__init__(schema)
        self.tensors: list[str] = []
        self._references = _references(schema)

    @contextmanager
    def naming(self, graph: Table) -> Iterator[None]:
        """Inside, indexes are those of this graph's tensors."""
        outer = self.tensors
        self.tensors = graph.texts(_TENSORS[graph.type.name]) if self.named else []
        try:
            yield
        finally:
            self.tensors = outer

    def value(self, value: Any, field: Field, path: str) -> Any:
        """One value of a field."""
        if id(field) in self._references and self.tensors:
            if not isinstance(value, np.ndarray):
                return self._reference(int(value))
            if value.size <= _MANY:
                return [self._reference(index) for index in value.tolist()]
        return super().value(value, field, path)

    def _reference(self, index: int) -> int | str:
        return f"{index}:{self.tensors[index]}" if 0 <= index < len(self.tensors) else index


class NamingDecoder(Decoder):
    """Reads what `NamingEncoder` writes: an index and a name must agree; an index alone is taken as it is.

    `where` in messages is the path that `graphkit mnn get` takes: `ops[conv1].main.common`.
    """

    def __init__(self, schema: Schema) -> None:
        super().__init__(schema)
        self.tensors: list[str] = []
        self._references = _references(schema)

    def table(self, raw: Any, type_: TableType, where: str) -> Table:
        """The table that an object stands for."""
        if type_.name not in _TENSORS or not isinstance(raw, dict):
            return super().table(raw, type_, where)
        outer = self.tensors
        field = type_.fields[_TENSORS[type_.name]]
        dot = f"{where}." if where else ""
        self.tensors = self.vector(raw[field.name], field, f"{dot}{field.name}") if field.name in raw else []
        found = super().table(raw, type_, where)
        self.tensors = outer
        return found

    def items(self, raw: list[Any], type_: TableType, where: str) -> list[Table]:
        """A vector of tables, operators and subgraphs by name in messages."""
        if type_.name not in ("Op", "SubGraphProto"):
            return super().items(raw, type_, where)
        found = []
        for k, item in enumerate(raw):
            name = item.get("name") if isinstance(item, dict) else None
            place = op_path(where, name, k) if type_.name == "Op" else f"{where}[{label(name, k)}]"
            found.append(self.table(item, type_, place))
        return found

    def value(self, raw: Any, field: Field, where: str, member: str | None = None) -> Any:
        """One value of a field; `member` is the table of a union."""
        if id(field) in self._references:
            if isinstance(raw, list):
                raw = [self._index(item, f"{where}[{k}]") for k, item in enumerate(raw)]
            elif not field.vector:
                raw = self._index(raw, where)
        return super().value(raw, field, where, member)

    def _index(self, raw: Any, where: str) -> Any:
        if not isinstance(raw, str):
            return raw
        match = _REFERENCE.fullmatch(raw)
        if match is None:
            raise self._no_reference(raw, where)
        index, name = int(match[1]), self.text(match[2], where)
        if not 0 <= index < len(self.tensors):
            raise ModelError(f"{where}: there is no tensor {index}; the graph has {len(self.tensors)}")
        if self.tensors[index] != name:
            raise self._disagrees(index, name, where)
        return index

    def _no_reference(self, raw: str, where: str) -> ModelError:
        found = f"; {numbers.show(raw)} is tensor {self.tensors.index(raw)}" if raw in self.tensors else ""
        return ModelError(
            f'{where}: expected a tensor as "index:name", got {numbers.show(raw)}{found}',
            hint='such as "12:conv1_out", or the index alone',
        )

    def _disagrees(self, index: int, name: str, where: str) -> ModelError:
        hint = "to rename a tensor use `graphkit mnn rename`; it changes every place that names it"
        if name in self.tensors:
            hint = f"{numbers.show(name)} is tensor {self.tensors.index(name)}: give index and name of the same tensor"
        return ModelError(
            f"{where}: tensor {index} is named {numbers.show(self.tensors[index])}, not {numbers.show(name)}", hint=hint
        )

"""Write the JSON text of a document: a line for each operator, tensor and subgraph.

Long arrays are not made part of a line before it is written: they stand as numbers in it and are streamed in their
place.
"""

from __future__ import annotations

import json
import re
import secrets
from collections.abc import Callable, Iterator
from typing import Any

from graphkit.mnn.document._json_names import NamingEncoder, label, op_path
from graphkit.mnn.document.tree import Array, Table

_BLOCKS = frozenset({"oplists", "nodes", "subgraphs", "extraTensorDescribe", "tensorName", "tensors", "outputName"})
# What ends a line for some tools, what no editor shows, and what turns the direction of the text.
_ESCAPED = re.compile("[\x7f-\x9f\u2028-\u202e\u2066-\u2069\ufeff\ud800-\udfff]")


def dumps(value: Any) -> str:
    """One value on one line; characters that no editor shows are escaped."""
    text = json.dumps(value, ensure_ascii=False, separators=(",", ":"), allow_nan=False)
    return text if text.isascii() and "\x7f" not in text else _ESCAPED.sub(_escape, text)


def _escape(match: re.Match[str]) -> str:
    return f"\\u{ord(match[0]):04x}"


class Spool:
    """Arrays that stand in a line as numbers until the line is written; `text` gives the pieces of one's text."""

    def __init__(self, text: Callable[[Array], Iterator[str]]) -> None:
        self._text = text
        self._mark = f"array-{secrets.token_hex(8)}-"
        self._split = re.compile(f'"{self._mark}(\\d+)"')
        self._arrays: list[Array] = []

    def put(self, array: Array) -> str:
        """What stands for an array."""
        self._arrays.append(array)
        return f"{self._mark}{len(self._arrays) - 1}"

    def pieces(self, line: str) -> Iterator[str]:
        """A line with its arrays in their places; these are then forgotten."""
        parts = self._split.split(line)
        yield parts[0]
        for number, rest in zip(parts[1::2], parts[2::2], strict=True):
            yield from self._text(self._arrays[int(number)])
            yield rest
        self._arrays.clear()


def net_lines(net: Table, encoder: NamingEncoder) -> Iterator[str]:
    """The root table in pieces; lists of operators, tensors and subgraphs have a line for each item."""
    with encoder.naming(net):
        yield from _block(net, encoder, "")


def _block(table: Table, encoder: NamingEncoder, where: str) -> Iterator[str]:
    dot = f"{where}." if where else ""
    sign = "{"
    for name in encoder.order(table):
        value = table.fields[name]
        yield f"{sign}\n{dumps(name)}: "
        sign = ","
        if name in _BLOCKS and isinstance(value, list) and value:
            yield from _items(value, name, encoder, dot)
        else:
            yield dumps(encoder.value(value, table.type.fields[name], f"{dot}{name}"))
    yield "{}" if sign == "{" else "\n}"


def _items(items: list[Any], name: str, encoder: NamingEncoder, dot: str) -> Iterator[str]:
    sign = "["
    for k, item in enumerate(items):
        yield f"{sign}\n"
        sign = ","
        if not isinstance(item, Table):
            yield dumps(item)
        elif item.type.name == "SubGraphProto":
            with encoder.naming(item):
                yield from _block(item, encoder, f"{dot}{name}[{label(item.fields.get('name'), k)}]")
        else:
            path = (
                op_path(f"{dot}{name}", item.fields.get("name"), k)
                if name != "extraTensorDescribe"
                else f"{dot}{name}[{k}]"
            )
            yield dumps(encoder.table(item, path))
    yield "\n]"

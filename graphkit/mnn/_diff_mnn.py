"""A .mnn model in the form in which models are compared."""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Iterator
from typing import Any

import numpy as np

from graphkit.mnn._diff_types import Body, Item, Side
from graphkit.mnn.document.arrays import arrays_of
from graphkit.mnn.document.files import Document, GraphView
from graphkit.mnn.document.schema import Field
from graphkit.mnn.document.stored import Outside
from graphkit.mnn.document.summary import input_of, outside_of
from graphkit.mnn.document.tree import Array, Table

_LONG = 64  # elements of a vector above which its hash stands for it
_OWN = frozenset({"inputIndexes", "outputIndexes", "name", "type", "main", "main_type"})
_OF_NET = frozenset({"oplists", "subgraphs", "tensorName", "outputName", "mnn_uuid", "extraTensorDescribe"})
_WHERE = frozenset({"tensorNumber"})  # how long a list is that is compared itself


def side_of(doc: Document, uuid: bool) -> Side:
    """A document to compare; weights are read when they are compared. uuid: `mnn_uuid` counts."""
    net, outside = doc.net, outside_of(doc)
    facts = dict(_fields(net, "", _OF_NET | _WHERE))
    quiet: dict[str, Any] = {"where weights are kept": _keeps_outside(doc)}
    (facts if uuid else quiet)["mnn_uuid"] = net["mnn_uuid"] or ""
    bodies = {}
    taken: Counter[str] = Counter()
    for graph in doc.graphs():
        taken[graph.name] += 1
        name = graph.name if taken[graph.name] == 1 else f"{graph.name}#{taken[graph.name]}"
        bodies[name] = _body(graph, outside)
        facts |= _descriptions(graph, f"{name}: " if name else "")
    for line in doc.unknown():
        facts[f"unknown: {line}"] = "present"
    return Side(facts, quiet, bodies, lambda: [*([doc.origin.data] if doc.origin else []), *outside.mapped])


def _keeps_outside(doc: Document) -> bool:
    return any("external" in table for _, table in doc.net.walk())


def value_names(tensors: list[str]) -> list[str]:
    """Tensors by name, of those with one name the second as `name#2`."""
    taken: Counter[str] = Counter()
    names = []
    for name in tensors:
        taken[name] += 1
        names.append(f"{name}#{taken[name]}" if taken[name] > 1 or not name else name)
    return names


def _body(graph: GraphView, outside: Outside) -> Body:
    names = value_names(graph.tensors)
    inputs: dict[str, dict[str, Any]] = {}
    items = []
    for op in graph.ops:
        written = _named(op, "outputIndexes", names)
        if op.label("type") == "Input":
            facts = input_of(op)
            inputs[written[0] if written else str(op["name"])] = {
                "dtype": facts.dtype,
                "shape": tuple("?" if dim < 0 else dim for dim in facts.shape),
                "layout": facts.layout,
            }
        else:
            items.append(_item(op, _named(op, "inputIndexes", names), written, outside))
    if graph.table.type.name == "Net":
        outputs = tuple(graph.table.texts("outputName"))
    else:
        outputs = _named(graph.table, "outputs", names)
        inputs |= {name: {} for name in _named(graph.table, "inputs", names) if name not in inputs}
    return Body(items, inputs, {name: {} for name in outputs})


def _named(table: Table, field: str, names: list[str]) -> tuple[str, ...]:
    """Tensors by name; one that is not there by its number."""
    return tuple(names[k] if 0 <= k < len(names) else f"tensor {k}" for k in table.ints(field))


def _item(op: Table, inputs: tuple[str, ...], outputs: tuple[str, ...], outside: Outside) -> Item:
    arrays, covered = arrays_of(op, outside)
    fields = dict(_fields(op, "", _OWN))
    main = op["main"]
    if isinstance(main, Table):
        fields["main_type"] = main.type.name
        fields.update(_fields(main, "main.", frozenset(), covered))
    return Item(op["name"] or "", op.label("type"), inputs, outputs, fields, {x.field: x for x in arrays})


def _fields(
    table: Table, prefix: str, without: frozenset[str], covered: set[str] | frozenset[str] = frozenset()
) -> Iterator[tuple[str, Any]]:
    """Fields by path, the schema's default where the file holds none; `covered` are compared elsewhere."""
    for field in table.type.by_slot:
        path = prefix + field.name
        if field.name in without or path in covered or field.kind == "utype":
            continue
        value = table.fields.get(field.name)
        if isinstance(value, Table):
            yield path, value.type.name
            yield from _fields(value, f"{path}.", frozenset(), covered)
        elif isinstance(value, list) and value and isinstance(value[0], Table):
            for number, inner in enumerate(value):
                yield from _fields(inner, f"{path}[{number}].", frozenset(), covered)
        elif value is not None or not (field.vector or field.kind in ("string", "table", "union")):
            yield path, _value(table, field, value)


def _value(table: Table, field: Field, value: Any) -> Any:
    if isinstance(value, np.ndarray):
        return _vector(value)
    if isinstance(value, list):
        return tuple(value)
    if field.kind == "enum":
        return table.label(field.name)
    value = table[field.name]
    return float(str(value)) if isinstance(value, np.floating) else value


def _vector(values: Array) -> Any:
    if values.size > _LONG:
        return f"{values.size} numbers, SHA-256 {hashlib.sha256(values.tobytes()).hexdigest()[:16]}"
    return tuple(float(str(x)) for x in values) if values.dtype.kind == "f" else tuple(values.tolist())


def _descriptions(graph: GraphView, prefix: str) -> dict[str, Any]:
    """What extraTensorDescribe says, by tensor: ranges of quantized activations."""
    names = value_names(graph.tensors)
    found: dict[str, Any] = {}
    for entry in graph.table.tables("extraTensorDescribe"):
        number = entry["index"]
        name = names[number] if 0 <= number < len(names) else f"tensor {number}"
        found |= dict(_fields(entry, f"{prefix}tensors[{name}].", frozenset({"index"})))
    return found

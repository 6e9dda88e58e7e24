"""Faults planted in a .mnn file: what a broken converter or a slip of the hand would leave."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from graphkit.graph import Graph
from graphkit.mnn.convert import run_converter
from graphkit.mnn.document import Document, read, write
from graphkit.mnn.document.tree import Table
from graphkit.mnn.handoff import ready
from graphkit.mnn.handoff import write as hand_over
from graphkit.mnn.options import ConverterOptions
from graphkit.model import Model

Plant = Callable[[Document], None]


def converted(model: Model, folder: Path, name: str = "model", **options: Any) -> tuple[Model, Path]:
    """A model as MNN's converter gets it (no passes), and the file that comes out."""
    model = ready(model)
    source, made = folder / f"{name}.onnx", folder / f"{name}.mnn"
    hand_over(model, source)
    run_converter(source, made, ConverterOptions.of(**options))
    return model, made


def planted(source: Path, target: Path, *plants: Plant) -> Path:
    """A copy of a .mnn file with faults in it."""
    document = read(source)
    for plant in plants:
        plant(document)
    write(document, target)
    return target


def op_named(document: Document, name: str) -> Table:
    """The operator of this name (inputs apart), in whichever graph it is; the name must be the only one."""
    ops = [op for view in document.graphs() for op in view.ops if op.label("type") != "Input"]
    found = [op for op in ops if op["name"] == name]
    assert len(found) == 1, f"{len(found)} operators are called {name}"
    return found[0]


def scaled(name: str, field: str, factor: float) -> Plant:
    """Numbers of an operator's parameters times a factor: `weight` of a convolution, `gamma` of LayerNorm."""

    def plant(document: Document) -> None:
        main = op_named(document, name)["main"]
        main.fields[field] = (main[field] * np.float32(factor)).astype("<f4")

    return plant


def put(name: str, field: str, values: Any) -> Plant:
    """Other numbers for an operator's parameters."""

    def plant(document: Document) -> None:
        main = op_named(document, name)["main"]
        assert main[field].size == np.size(values)
        main.fields[field] = np.ascontiguousarray(values, "<f4").reshape(-1)

    return plant


def one_channel(name: str, channel: int, factor: float) -> Plant:
    """The weights of one output channel of a convolution times a factor."""

    def plant(document: Document) -> None:
        main = op_named(document, name)["main"]
        weight = main["weight"].reshape(main["common"]["outputCount"], -1).copy()
        weight[channel] *= np.float32(factor)
        main.fields["weight"] = weight.reshape(-1)

    return plant


def wrong_scale(name: str, factor: float) -> Plant:
    """The scales of a quantized convolution times a factor."""

    def plant(document: Document) -> None:
        quantized = op_named(document, name)["main"]["quanParameter"]
        field = "alpha" if "alpha" in quantized else "alphaFp16"
        values = quantized[field]
        wide = values if field == "alpha" else values.view("<f2")
        made = (wide.astype("<f4") * np.float32(factor)).astype(wide.dtype)
        quantized.fields[field] = made if field == "alpha" else made.view(values.dtype)

    return plant


def changed(name: str, field: str, value: Any) -> Plant:
    """Another value of an attribute; a dot leads into a table inside (`common.relu`)."""

    def plant(document: Document) -> None:
        table = op_named(document, name)["main"]
        *inside, last = field.split(".")
        for step in inside:
            table = table[step]
        assert table[last] != value if np.isscalar(value) else True
        table.fields[last] = value

    return plant


def unary(name: str, operation: str) -> Plant:
    """Another function in a UnaryOp."""

    def plant(document: Document) -> None:
        main = op_named(document, name)["main"]
        main.fields["opType"] = document.schema.enums["UnaryOpOperation"].numbers[operation]

    return plant


def swapped(name: str) -> Plant:
    """The first two inputs of an operator in the other order."""

    def plant(document: Document) -> None:
        op = op_named(document, name)
        first, second, *rest = op.ints("inputIndexes")
        op.fields["inputIndexes"] = np.array([second, first, *rest], "<i4")

    return plant


def frozen(name: str, slot: int, values: Sequence[float]) -> Plant:
    """An input of an operator of the main graph replaced by constant floats."""

    def plant(document: Document) -> None:
        ops, tensors = document.net.tables("oplists"), document.net.texts("tensorName")
        user = op_named(document, name)
        made = Table(user.type, user.schema)
        blob = Table(user.schema.tables["Blob"], user.schema)
        data = np.array(values, "<f4")
        blob.fields = {"dims": np.array([data.size], "<i4"), "dataFormat": 0, "dataType": 1, "float32s": data}
        made.fields = {
            "main_type": user.schema.member_number("Blob"), "main": blob, "name": f"{name}/frozen",
            "outputIndexes": np.array([len(tensors)], "<i4"), "type": user.schema.enums["OpType"].numbers["Const"],
        }  # fmt: skip
        reads = list(user.ints("inputIndexes"))
        reads[slot] = len(tensors)
        user.fields["inputIndexes"] = np.array(reads, "<i4")
        tensors.append(f"{name}/frozen")
        ops.insert(0, made)

    return plant


def rewired(name: str, slot: int, other: str) -> Plant:
    """An input of an operator taken from another operator of the same graph."""

    def plant(document: Document) -> None:
        user, maker = op_named(document, name), op_named(document, other)
        reads = np.array(user.ints("inputIndexes"), "<i4")
        reads[slot] = maker.ints("outputIndexes")[0]
        user.fields["inputIndexes"] = reads

    return plant


def rows_emptied(name: str, first: int) -> Plant:
    """The rows of a constant table from `first` on set to zero."""

    def plant(document: Document) -> None:
        main = op_named(document, name)["main"]
        table = main["float32s"].reshape(int(main["dims"][0]), -1).copy()
        table[first:] = 0
        main.fields["float32s"] = table.reshape(-1)

    return plant


def constant_scaled(name: str, factor: float) -> Plant:
    """A constant times a factor: masks, scales."""

    def plant(document: Document) -> None:
        main = op_named(document, name)["main"]
        field = "float32s" if "float32s" in main else "int32s"
        main.fields[field] = (main[field] * factor).astype(main[field].dtype)

    return plant


def labels_of(model: Model, tensor: str) -> str:
    """The label of the node that makes a tensor."""
    node = Graph.of(model).producer(tensor)
    assert node is not None, tensor
    return node.label

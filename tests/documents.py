"""Small .mnn documents for tests: built by hand, or drawn at random by the schema."""

from __future__ import annotations

import random
from typing import Any

import numpy as np

from graphkit.mnn.document import Document
from graphkit.mnn.document.schema import Field, schema_for
from graphkit.mnn.document.tree import Table

SCHEMA = schema_for("")
NAMES = ("", "x", "conv/1", "ä", "日本", "𝄞", "a\0b", "tab\t", '"quoted"', "\udcff\udcfe", "long" * 40)
NUMBERS = (0, 1, -1, 2, 7, 127, -128, 2**31 - 1, -(2**31))


def table(type_: str, **fields: Any) -> Table:
    """A table of the newest format."""
    return Table(SCHEMA.tables[type_], SCHEMA, fields)


def ints(*values: int) -> np.ndarray[Any, np.dtype[Any]]:
    """A vector of 32-bit integers."""
    return np.array(values, "<i4")


def op(type_: str, name: str, reads: tuple[int, ...], writes: tuple[int, ...], main: Table | None = None) -> Table:
    """An operator; its parameters' kind follows from `main`."""
    made = table("Op", inputIndexes=ints(*reads))
    if main is not None:
        made.fields |= {"main_type": SCHEMA.member_number(main.type.name), "main": main}
    number = SCHEMA.enums["OpType"].numbers[type_]
    made.fields |= {"name": name, "outputIndexes": ints(*writes), "type": number}
    return made


def small() -> Document:
    """Input, Convolution with a long and a short array, UnaryOp; one subgraph, a list of tables, floats and strings."""
    common = table("Convolution2DCommon", kernelX=3, kernelY=3, padMode=2, outputCount=64, relu=True)
    weight = np.random.default_rng(0).standard_normal(64 * 9).astype("<f4")
    conv = table("Convolution2D", common=common, weight=weight, bias=np.zeros(64, "<f4"))
    sine = table("UnaryOp", opType=SCHEMA.enums["UnaryOpOperation"].numbers["SIN"], T=1)
    data = table("Input", dims=ints(1, 1, 8, 8), dtype=1, dformat=0)
    body = table("SubGraphProto", name="body", inputs=ints(0), outputs=ints(1), tensors=["a", "b"])
    body.fields["nodes"] = [op("UnaryOp", "b", (0,), (1,), table("UnaryOp", opType=9, T=1))]
    scale = table("TensorQuantInfo", scale=np.float32(0.1), zero=np.float32("nan"))
    net = table(
        "Net",
        extraTensorDescribe=[table("TensorDescribe", index=2, name="y", quantInfo=scale)],
        extraInfo=table("ExtraInfo", version="3.6.1"),
        oplists=[op("Input", "x", (), (0,), data), op("Convolution", "c", (0,), (1,), conv)],
        outputName=["y"],
        tensorName=["x", "c", "y"],
        subgraphs=[body],
    )
    net.fields["oplists"].append(op("UnaryOp", "y", (1,), (2,), sine))
    return Document(net, SCHEMA, "3.6.1")


def random_document(draw: random.Random, size: int = 60) -> Document:
    """A document of any tables that the schema allows, about `size` of them at most."""
    maker = _Maker(draw, size)
    net = maker.table("Net", 0)
    net.fields.pop("extraInfo", None)
    return Document(net, SCHEMA, "")


class _Maker:
    def __init__(self, draw: random.Random, size: int) -> None:
        self.draw = draw
        self.left = size

    def table(self, type_: str, depth: int) -> Table:
        self.left -= 1
        made = table(type_)
        for field in made.type.by_slot:
            rich = field.kind in ("table", "union") and depth < 20
            if self.draw.random() < (0.8 if rich else 0.4) and (self.left > 0 or not rich):
                self.fill(made, field, depth)
        if "main" not in made and type_ == "Op" and self.draw.random() < 0.5:
            made.fields.pop("main_type", None)
        return made

    def fill(self, made: Table, field: Field, depth: int) -> None:
        if field.kind == "utype":
            made.fields[field.name] = self.draw.randrange(1, len(SCHEMA.members))
        elif field.kind == "union":
            if f"{field.name}_type" in made:
                member = SCHEMA.members[made.fields[f"{field.name}_type"]]
                made.fields[field.name] = self.table(member, depth + 1)
        elif field.vector:
            count = self.draw.choice((0, 1, 2, 3, 17, 300))
            made.fields[field.name] = self.vector(field, count, depth)
        else:
            made.fields[field.name] = self.one(field, depth)

    def vector(self, field: Field, count: int, depth: int) -> Any:
        if field.dtype is not None:
            return np.frombuffer(self.draw.randbytes(count * field.dtype.itemsize), field.dtype)
        if field.kind == "table":
            count = min(count, 4, max(self.left, 0))
        return [self.one(field, depth) for _ in range(count)]

    def one(self, field: Field, depth: int) -> Any:
        if field.kind == "string":
            return self.draw.choice(NAMES)
        if field.kind == "table":
            return self.table(field.type, depth + 1)
        if field.type == "bool":
            return self.draw.choice((False, True, 7))
        assert field.dtype is not None
        number = np.frombuffer(self.draw.randbytes(field.dtype.itemsize), field.dtype)[0]
        if field.type == "float":
            return self.draw.choice((number, np.float32(-0.0), np.float32("inf"), np.float32(0.1)))
        return int(number)

"""The operators, inputs and outputs of a .mnn file by name, read without MNN."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from graphkit.errors import ModelError
from graphkit.mnn.document.files import Document, GraphView, read
from graphkit.mnn.document.tree import Table

_DTYPES = {1: "float32", 3: "int32", 4: "uint8", 6: "int8", 9: "int64", 10: "bool", 19: "float16"}
_LAYOUTS = {0: "NCHW", 1: "NHWC", 2: "NC4HW4"}


@dataclass(frozen=True)
class FileOp:
    """One operator: MNN's type and name, and the names of the tensors it reads and writes."""

    type: str
    name: str
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]


@dataclass(frozen=True)
class FileInput:
    """One declared input: numpy dtype name, shape (-1 where unknown), MNN's dimension order."""

    name: str
    dtype: str
    shape: tuple[int, ...]
    layout: str


@dataclass(frozen=True)
class FileInfo:
    """What a .mnn file holds; `ops` are those of the main graph, `subgraphs` those of If and While bodies.

    `op_counts` and `op_total` count every entry of the file's operator lists, Input and Const included,
    subgraphs too; that is the number by which converters are compared. For exports by TorchScript it is
    173 for a MobileNetV3 (of which 11 are Const and 1 is Input), 700 for a small Qwen2, 389 or 390 for a
    two-layer BERT, whose ConstantOfShape MNN evaluates from uninitialised memory.
    """

    inputs: tuple[FileInput, ...]
    outputs: tuple[str, ...]
    ops: tuple[FileOp, ...]
    subgraphs: Mapping[str, tuple[FileOp, ...]]
    version: str

    @property
    def op_counts(self) -> dict[str, int]:
        """Operators by type, most frequent first."""
        bodies = (op for ops in self.subgraphs.values() for op in ops)
        return dict(Counter(op.type for op in (*self.ops, *bodies)).most_common())

    @property
    def op_total(self) -> int:
        """All operators."""
        return sum(self.op_counts.values())


def read_file_info(path: Path) -> FileInfo:
    """Read a .mnn file; raises ModelError when it is missing or not a .mnn file, or names tensors it does not have."""
    return file_info(read(path))


class _BadIndex(Exception):
    """An operator uses a tensor that its graph does not have."""


def file_info(document: Document) -> FileInfo:
    """What `read_file_info` tells of a file, of a document in memory. Raises ModelError for bad tensor indexes."""
    try:
        return _file_info(document)
    except _BadIndex as error:
        raise ModelError(f"is not an MNN model, or it is damaged ({error})", file=document.source) from None


def _file_info(document: Document) -> FileInfo:
    main, *bodies = document.graphs()
    if not main.tensors:
        raise _BadIndex("it names no tensors")
    return FileInfo(
        inputs=tuple(_input(op, main) for op in main.ops if _type(op) == "Input"),
        outputs=tuple(_plain(name) for name in document.net.texts("outputName")),
        ops=_ops(main),
        subgraphs={_plain(body.name): _ops(body) for body in bodies},
        version=_plain(document.version),
    )


def _type(op: Table) -> str:
    number = op["type"]
    return op.schema.enums["OpType"].names.get(number, f"op {number}")


def _ops(graph: GraphView) -> tuple[FileOp, ...]:
    return tuple(
        FileOp(_type(op), _name(op), _tensors(op, "inputIndexes", graph), _tensors(op, "outputIndexes", graph))
        for op in graph.ops
    )


def _name(op: Table) -> str:
    return _plain(op["name"] or "")


def _tensors(op: Table, field: str, graph: GraphView) -> tuple[str, ...]:
    indexes = op.ints(field)
    if indexes and not 0 <= min(indexes) <= max(indexes) < len(graph.tensors):
        raise _BadIndex(f"'{_name(op)}' uses a tensor that is none of the {len(graph.tensors)} of its graph")
    return tuple(_plain(graph.tensors[k]) for k in indexes)


def _plain(text: str) -> str:
    """The text as it can be printed: bytes that are no UTF-8 become question marks."""
    return text if text.isascii() else text.encode("utf-8", "surrogateescape").decode("utf-8", "replace")


def _input(op: Table, graph: GraphView) -> FileInput:
    written = _tensors(op, "outputIndexes", graph)
    name = written[0] if written else _name(op)
    main = op["main"]
    if main is None or main.type.name != "Input":
        return FileInput(name, "float32", (), "NCHW")
    dtype = main["dtype"]
    return FileInput(name, _DTYPES.get(dtype, f"type {dtype}"), main.ints("dims"), _LAYOUTS.get(main["dformat"], "?"))

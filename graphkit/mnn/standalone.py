"""A part of a .mnn file as a file of its own: the body of an If without the Ifs inside it, or a few operators.

Nothing is converted again: operators keep their parameters, and only what they read from outside is replaced, by
inputs with reference values. So a fault of the file stays in the part. Sessions cannot run If and Loop; what they
would have computed is given instead.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from graphkit.mnn.document.files import Document, GraphView
from graphkit.mnn.document.tree import Array, Table

CONTROL = frozenset({"If", "While"})
_FROZEN = 64  # elements: integers of this size are shapes and axes, which MNN has to know before it runs
_CHANNELS = ("Convolution", "Deconvolution", "ConvInt8", "DepthwiseConvInt8", "Pooling", "BatchNorm", "Scale", "Interp")
_PLAIN = frozenset({"Shape", "Size", "Rank", "Const", "Input", "If", "While", "MatMul", "LayerNorm"})

Value = Callable[[Table, int, str], Array | None]  # operator, slot, tensor name


@dataclass
class Part:
    """A document of its own and what its inputs are fed.

    outputs: names of its outputs by operator and slot. given: operators whose outputs became inputs, by name and slot.
    left_out: operators that could not be kept, for what they read is not known.
    """

    document: Document
    feeds: dict[str, Array] = field(default_factory=dict)
    outputs: dict[tuple[str, int], str] = field(default_factory=dict)
    given: list[tuple[str, int]] = field(default_factory=list)
    left_out: list[str] = field(default_factory=list)


def opened(document: Document, view: GraphView, value: Value) -> Part:
    """A graph of a file without its control flow, as a main graph.

    value: what an operator's output is, for operators that cannot stay (inputs of the graph, If, While, and what
    depends on outputs that nobody knows); None when it is not known.
    """
    maker = _Maker(document, view)
    ready: set[int] = set()
    for op in view.ops:
        kind = op.label("type")
        keep = kind not in CONTROL and kind != "Input" and ready.issuperset(op.ints("inputIndexes"))
        if keep:
            maker.ops.append(op)
            ready.update(op.ints("outputIndexes"))
            continue
        known = [maker.give(op, slot, value) for slot in range(len(op.ints("outputIndexes")))]
        ready.update(index for index in known if index is not None)
        if not any(index is not None for index in known) and kind != "Input":
            maker.part.left_out.append(op["name"] or "")
    return maker.done(maker.loose())


def between(document: Document, view: GraphView, outputs: Sequence[tuple[str, int]], value: Value) -> Part:
    """The operators that compute some outputs (by name and slot), from the nearest known values upstream.

    value as in `opened`; asked only of operators whose result has a plain layout. If and While stay, with their bodies.
    """
    maker = _Maker(document, view, bodies=True)
    makers = {index: (op, slot) for op in view.ops for slot, index in enumerate(op.ints("outputIndexes"))}
    blocked = channelled(view)
    wanted = [index for index, (op, slot) in makers.items() if (op["name"], slot) in set(outputs)]
    waiting, seen, kept = list(wanted), set[int](), set[int]()
    while waiting:
        index = waiting.pop()
        if index in seen or index not in makers:
            continue
        seen.add(index)
        op, slot = makers[index]
        if index not in wanted and index not in blocked and maker.give(op, slot, value) is not None:
            continue
        kept.add(id(op))
        waiting += op.ints("inputIndexes")
    maker.ops += [op for op in view.ops if id(op) in kept]
    return maker.done(wanted)


def channelled(view: GraphView) -> set[int]:
    """Tensors that may lie in memory by blocks of channels, by index.

    An input in the place of one would have another layout, and one of fewer dimensions than four is not read back
    right by the Module API (measured: Squeeze behind a convolution).
    """
    found: set[int] = set()
    for op in view.ops:
        kind = op.label("type")
        if kind == "ConvertTensor":
            inside = op["main"] is not None and op["main"]["dest"] == 2
        elif kind in _PLAIN:
            inside = False
        else:
            inside = kind.startswith(_CHANNELS) or any(index in found for index in op.ints("inputIndexes"))
        if inside:
            found.update(op.ints("outputIndexes"))
    return found


class _Maker:
    """Collects operators and inputs; tensors keep their numbers, so nothing else has to change."""

    def __init__(self, document: Document, view: GraphView, *, bodies: bool = False) -> None:
        self.source, self.view, self.bodies = document, view, bodies
        self.ops: list[Table] = []
        self.inputs: list[Table] = []
        self.tensors = _unique(view.tensors)
        self.part = Part(document)

    def give(self, op: Table, slot: int, value: Value) -> int | None:
        """Make an output an input or a constant; its number, None when its value is not known."""
        index = op.ints("outputIndexes")[slot]
        array = value(op, slot, self.view.tensors[index])
        if array is None or not array.size:
            return None
        array = _as_mnn(array)
        name = self.tensors[index]
        stays = op.label("type") == "Input" and not self.view.name
        if array.dtype == np.int32 and array.size <= _FROZEN and not stays:
            self.inputs.append(self._op("Const", name, index, "Blob", _blob(array)))
        else:
            dtype = 3 if array.dtype == np.int32 else 1
            dims = np.array(array.shape, "<i4")
            self.inputs.append(self._op("Input", name, index, "Input", {"dims": dims, "dtype": dtype, "dformat": 0}))
            self.part.feeds[name] = array
        self.part.given.append((op["name"] or "", slot))
        return index

    def _op(self, kind: str, name: str, index: int, member: str, main: Mapping[str, Any]) -> Table:
        schema = self.source.schema
        table = Table(schema.tables["Op"], schema)
        table.fields = {
            "main_type": schema.member_number(member), "main": Table(schema.tables[member], schema, dict(main)),
            "name": name, "outputIndexes": np.array([index], "<i4"),
            "type": schema.enums["OpType"].numbers[kind], "defaultDimentionFormat": 1,
        }  # fmt: skip
        return table

    def loose(self) -> list[int]:
        """Tensors that no operator kept here reads."""
        read = {index for op in self.ops for index in op.ints("inputIndexes")}
        made = [index for op in self.ops for index in op.ints("outputIndexes") if op.label("type") != "Const"]
        return [index for index in made if index not in read]

    def done(self, outputs: Iterable[int]) -> Part:
        """The document; inputs that nothing in it reads are left out, for a session does not have them either."""
        read = {index for op in self.ops for index in op.ints("inputIndexes")}
        self.inputs = [op for op in self.inputs if read.issuperset(op.ints("outputIndexes"))]
        names = {op["name"] for op in self.inputs}
        self.part.feeds = {name: array for name, array in self.part.feeds.items() if name in names}
        net = Table(self.source.net.type, self.source.schema, dict(self.source.net.fields))
        for name in ("extraTensorDescribe", "tensorNumber", *(() if self.bodies else ("subgraphs",))):
            net.fields.pop(name, None)
        net.fields["oplists"] = [*self.inputs, *self.ops]
        net.fields["tensorName"] = self.tensors
        makers = {
            index: (op["name"] or "", slot) for op in self.ops for slot, index in enumerate(op.ints("outputIndexes"))
        }
        self.part.outputs = {makers[index]: self.tensors[index] for index in outputs}
        net.fields["outputName"] = list(self.part.outputs.values())
        self.part.document = Document(
            net, self.source.schema, self.source.version, self.source.source, self.source.weights
        )
        return self.part


def _unique(names: Sequence[str]) -> list[str]:
    """The names, those that came before with their number behind them."""
    seen: set[str] = set()
    made = []
    for number, name in enumerate(names):
        made.append(name if name not in seen else f"{name}#{number}")
        seen.add(name)
    return made


def _as_mnn(array: Array) -> Array:
    """Float32 or int32, as MNN has it."""
    kind = np.int32 if array.dtype.kind in "iub" else np.float32
    with np.errstate(over="ignore", invalid="ignore"):
        made = np.ascontiguousarray(np.clip(array, -(2**31), 2**31 - 1) if array.dtype == np.int64 else array)
        return made.astype(kind).reshape(array.shape)


def _blob(array: Array) -> dict[str, Any]:
    fields: dict[str, Any] = {"dims": np.array(array.shape, "<i4")} if array.ndim else {}
    return fields | {"dataFormat": 0, "dataType": 3, "int32s": array.reshape(-1).astype("<i4")}

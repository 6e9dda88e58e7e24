"""What is in a .mnn file, as facts: inputs, outputs, operators, bytes by kind and type, quantized layers.

No array is read for it: sizes and schemes stand in the tables.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from graphkit.mnn.document.arrays import arrays_of
from graphkit.mnn.document.files import Document, GraphView
from graphkit.mnn.document.stored import Outside, StoredArray
from graphkit.mnn.document.tree import Table

_DTYPES = {"DT_FLOAT": "float32", "DT_DOUBLE": "float64", "DT_HALF": "float16", "DT_BFLOAT16": "bfloat16"}
_TEXTS = frozenset({"name", "tensorName", "tensors", "outputName"})
_DEFAULTS = {"preferForwardType": "CPU", "usage": "INFERENCE"}


@dataclass
class Size:
    """How many arrays there are of one sort, and the bytes they take."""

    arrays: int = 0
    nbytes: int = 0

    def add(self, nbytes: int) -> None:
        """Count one more."""
        self.arrays += 1
        self.nbytes += nbytes


@dataclass(frozen=True)
class ModelInput:
    """One declared input: numpy dtype name, shape (-1 where unknown), MNN's dimension order."""

    name: str
    dtype: str
    shape: tuple[int, ...]
    layout: str


@dataclass(frozen=True)
class QuantizedLayer:
    """One operator with quantized weights.

    sharing: `per channel`, `per tensor` or `block 32` (input channels that share a scale). symmetry: `symmetric` or
    `asymmetric`. scales: dtype of the stored scales. weights: how many there are, 0 when the file does not say.
    nbytes: codes and scales. activations: True for int8 convolutions, which quantize what they read, too.
    """

    graph: str
    name: str
    type: str
    bits: int
    sharing: str
    symmetry: str
    scales: str
    weights: int
    nbytes: int
    activations: bool = False


@dataclass(frozen=True)
class Summary:
    """What a document holds.

    ops: operators by type, subgraphs included, most frequent first. subgraphs: operators of each. settings: what the
    file says of itself (source, bizCode, mnn_uuid, preferForwardType, usage), where it says anything. by_kind,
    by_dtype, by_operator: arrays, largest first; arrays kept outside are counted too. texts: bytes of names. external:
    bytes of arrays that are kept outside. unknown: what the schema does not know, as text.
    """

    version: str
    inputs: tuple[ModelInput, ...]
    outputs: tuple[str, ...]
    ops: Mapping[str, int]
    subgraphs: Mapping[str, int]
    settings: Mapping[str, str]
    by_kind: Mapping[str, Size]
    by_dtype: Mapping[str, Size]
    by_operator: Mapping[str, Size]
    quantized: tuple[QuantizedLayer, ...]
    external: int
    weights: Path | None
    texts: int
    unknown: tuple[str, ...] = ()

    @property
    def op_total(self) -> int:
        """All operators."""
        return sum(self.ops.values())

    @property
    def arrays(self) -> Size:
        """All arrays."""
        sizes = self.by_operator.values()
        return Size(sum(size.arrays for size in sizes), sum(size.nbytes for size in sizes))


def summarize(doc: Document) -> Summary:
    """The facts of a document; reads none of its arrays."""
    graphs = list(doc.graphs())
    tally = _Tally()
    outside = outside_of(doc)
    for graph in graphs:
        for op in graph.ops:
            tally.op(graph, op, outside)
    return Summary(
        version=doc.version,
        inputs=tuple(map(input_of, _inputs(graphs[0]))),
        outputs=tuple(doc.net.texts("outputName")),
        ops=dict(tally.ops.most_common()),
        subgraphs=_subgraphs(graphs[1:]),
        settings=_settings(doc.net),
        by_kind=_largest_first(tally.kinds),
        by_dtype=_largest_first(tally.dtypes),
        by_operator=_largest_first(tally.operators),
        quantized=tuple(tally.quantized),
        external=tally.external,
        weights=doc.weights,
        texts=_texts(doc.net),
        unknown=tuple(doc.unknown()),
    )


def outside_of(doc: Document) -> Outside:
    """Where a document's arrays are that it keeps in a second file."""
    return Outside(str(doc.source or "the model"), doc.weights)


def input_of(op: Table) -> ModelInput:
    """What an operator of type Input declares."""
    main = op["main"]
    name = op["name"] or ""
    if not isinstance(main, Table) or main.type.name != "Input":
        return ModelInput(name, "float32", (), "NCHW")
    return ModelInput(name, dtype_name(main.label("dtype")), main.ints("dims"), main.label("dformat"))


def dtype_name(label: str) -> str:
    """The numpy name of MNN's DataType: `float32` for DT_FLOAT."""
    return _DTYPES.get(label, label.removeprefix("DT_").lower())


def _inputs(graph: GraphView) -> Iterator[Table]:
    return (op for op in graph.ops if op.label("type") == "Input")


def _subgraphs(graphs: list[GraphView]) -> dict[str, int]:
    found: dict[str, int] = {}
    for number, graph in enumerate(graphs):
        name = graph.name or f"subgraph {number}"
        found[name if name not in found else f"{name} ({number})"] = len(graph.ops)
    return found


def _settings(net: Table) -> dict[str, str]:
    found = {name: str(net[name]) for name in ("bizCode", "mnn_uuid") if net[name]}
    if "sourceType" in net:
        found["sourceType"] = net.label("sourceType")
    return found | {name: label for name, usual in _DEFAULTS.items() if (label := net.label(name)) != usual}


def _texts(net: Table) -> int:
    """Bytes of the names of operators and tensors."""
    total = 0
    for _, table in net.walk():
        for name in _TEXTS & table.fields.keys():
            value = table.fields[name]
            total += sum(len(text.encode("utf-8", "surrogateescape")) for text in _listed(value))
    return total


def _listed(value: object) -> list[str]:
    return value if isinstance(value, list) else [value] if isinstance(value, str) else []


def _largest_first(sizes: Mapping[str, Size]) -> dict[str, Size]:
    return dict(sorted(sizes.items(), key=lambda item: -item[1].nbytes))


@dataclass
class _Tally:
    """Counts of operators and arrays."""

    ops: Counter[str] = field(default_factory=Counter)
    kinds: dict[str, Size] = field(default_factory=dict)
    dtypes: dict[str, Size] = field(default_factory=dict)
    operators: dict[str, Size] = field(default_factory=dict)
    quantized: list[QuantizedLayer] = field(default_factory=list)
    external: int = 0

    def op(self, graph: GraphView, op: Table, outside: Outside) -> None:
        """Count an operator and its arrays."""
        kind = op.label("type")
        self.ops[kind] += 1
        for array in arrays_of(op, outside)[0]:
            self.external += array.nbytes if array.external else 0
            self._array(kind, array)
            layer = _quantized(graph.name, op, array)
            if layer is not None:
                self.quantized.append(layer)

    def _array(self, operator: str, array: StoredArray) -> None:
        scales = array.scale_bytes
        if array.scheme is None:
            self._count(operator, array.kind, array.dtype, array.nbytes)
            return
        self._count(operator, "quantized weights", array.dtype, array.nbytes - scales)
        self._count(operator, "quantization scales", array.scheme.scales, scales)

    def _count(self, operator: str, kind: str, dtype: str, nbytes: int) -> None:
        for sizes, name in ((self.operators, operator), (self.kinds, kind), (self.dtypes, dtype)):
            sizes.setdefault(name, Size()).add(nbytes)


def _quantized(graph: str, op: Table, array: StoredArray) -> QuantizedLayer | None:
    main = op["main"]
    name, kind = op["name"] or "", op.label("type")
    activations = kind in ("ConvInt8", "DepthwiseConvInt8")
    if array.scheme is not None:
        scheme = array.scheme
        count = _weights(main["common"]) if isinstance(main, Table) and "common" in main else 0
        return QuantizedLayer(
            graph, name, kind, scheme.bits, scheme.sharing, scheme.symmetry, scheme.scales, count, array.nbytes,
            activations,
        )  # fmt: skip
    if array.field.endswith("symmetricQuan.weight") and isinstance(main, Table):
        bits = int(main["symmetricQuan"]["nbits"])
        return QuantizedLayer(
            graph, name, kind, bits, "per channel", "symmetric", "float32", array.shape[0], array.nbytes, activations
        )
    return None


def _weights(common: Table) -> int:
    """How many weights a convolution has, 0 when its table does not tell its input channels."""
    group = max(1, int(common["group"]))
    count = int(common["outputCount"]) * int(common["inputCount"]) * int(common["kernelX"]) * int(common["kernelY"])
    return count // group

"""Which weights of a graph can be quantized, and how each is a matrix.

A layer is a constant that a Conv, ConvTranspose, Gemm or MatMul multiplies with, or a table that a Gather reads.
Everything else that is a float constant is named with the reason why it stays float.
"""

from __future__ import annotations

import itertools
import math
from collections import Counter
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Literal, cast

import numpy as np
from onnx import TensorProto

from graphkit.errors import UsageError
from graphkit.graph import Graph
from graphkit.quant._layer_uses import Stored, Use, reason_of, stored_constant, uses_of
from graphkit.quant.codes import Array, as_matrix, check_finite, stored_bytes

Kind = Literal["Conv", "ConvTranspose", "Gemm", "MatMul", "Embedding"]
Layout = Literal["rows", "columns", "transposed-convolution"]

LISTED_BYTES = 1024  # smaller constants that stay float are not worth a line


@dataclass(frozen=True)
class Layer:
    """A weight of an ONNX graph that can be quantized.

    name: what users call it: the node's name, else its first output. kind: operator, or Embedding for a table that a
    Gather reads. weight: value name of the constant (an initializer or the output of a Constant node).
    shape: as stored in ONNX. rows, columns: as a matrix, columns being channels per group × kernel elements.
    kernel: elements of the kernel, 1 for products. groups: of a convolution, rows of a group lying together.
    layout: how the stored array becomes the matrix. nodes, outputs: labels and first outputs of all nodes that use the
    weight this way. home, places: the graphs that define the weight and that hold each of the nodes, by their number in
    `Graph.walk` (branches may have values of one name). dtype: ONNX element type as stored.
    """

    name: str
    kind: Kind
    weight: str
    shape: tuple[int, ...]
    rows: int
    columns: int
    kernel: int = 1
    groups: int = 1
    layout: Layout = "rows"
    nodes: tuple[str, ...] = ()
    outputs: tuple[str, ...] = ()
    home: int = 0
    places: tuple[int, ...] = ()
    dtype: int = TensorProto.FLOAT

    @property
    def where(self) -> tuple[int, str]:
        """The weight, told from others of its name in other graphs."""
        return self.home, self.weight

    @property
    def channels(self) -> int:
        """Input channels of a group: what a block is counted in."""
        return self.columns // self.kernel

    @property
    def axis(self) -> int | None:
        """Axis of the stored array along which rows lie; None when they lie along two (grouped ConvTranspose)."""
        if self.layout == "rows" or (self.columns == self.kernel and self.rows == self.groups):
            return 0
        return 1 if self.groups == 1 else None

    def block_columns(self, block: int) -> int:
        """Columns of a block of so many input channels; 0 (one scale for each row) stays 0.

        Raises UsageError when the block does not divide the layer's input channels.
        """
        if block == 0:
            return 0
        if block < 0 or self.channels % block:
            raise UsageError(
                f"a block of {block} input channels does not divide the {self.channels} that the layer has",
                node=self.name,
                hint=f"blocks that do: {_divisors(self.channels)}; or 0 for one scale a channel",
            )
        return block * self.kernel

    def mnn_bytes(self, bits: int, block: int = 0, *, symmetric: bool = True, half_scales: bool = False) -> int:
        """Bytes of the layer in a .mnn file, quantized like this, with the header of its codes.

        MNN stores a transposed convolution input channels first, so that a scale for each output channel is repeated
        for each input channel; an embedding is a tensor of bytes, whatever the bits, and one of float32 scales (and
        one of zero points).
        """
        if self.kind == "Embedding":
            return self.rows * (self.columns + 4 * (1 if symmetric else 2))
        blocks = self.channels // block if block else 1
        if self.layout == "transposed-convolution":
            blocks = self.channels
        rows = self.rows // self.parts
        one = stored_bytes(rows, self.columns, blocks, bits, symmetric=symmetric, half_scales=half_scales)
        return self.parts * one

    @property
    def parts(self) -> int:
        """How many layers MNN's converter makes of a convolution: one a group, or of a depthwise one, one for each
        output that an input channel has."""
        if self.groups == 1:
            return 1
        return self.groups if self.channels > 1 else self.rows // self.groups

    def matrix(self, array: Array) -> Array:
        """The stored array as float32 [rows, columns].

        Raises ModelError, naming the layer, when weights are NaN or infinite.
        """
        found: Array = np.asarray(self._to_rows(array), np.float32)
        if not found.flags.f_contiguous:  # turning a matrix round costs more than rounding it: see _columns
            found = as_matrix(found, self.name)
        flat = found.reshape(-1, order="A")
        if not np.isfinite(np.vdot(flat, flat)):  # so are squares of large weights
            check_finite(np.stack([found.min(), found.max()]), self.name)
        return found

    def restore(self, matrix: Array) -> Array:
        """A [rows, columns] matrix of any dtype (values or codes) in the stored shape; contiguous."""
        return np.ascontiguousarray(self._from_rows(matrix))

    def _to_rows(self, array: Array) -> Array:
        if self.layout == "columns":
            return array.reshape(self.columns, self.rows).T
        if self.layout == "transposed-convolution":
            split = array.reshape(self.groups, self.channels, self.rows // self.groups, self.kernel)
            return split.swapaxes(1, 2).reshape(self.rows, self.columns)
        return array.reshape(self.rows, self.columns)

    def _from_rows(self, matrix: Array) -> Array:
        if self.layout == "columns":
            return matrix.T.reshape(self.shape)
        if self.layout == "transposed-convolution":
            split = matrix.reshape(self.groups, self.rows // self.groups, self.channels, self.kernel)
            return split.swapaxes(1, 2).reshape(self.shape)
        return matrix.reshape(self.shape)


@dataclass(frozen=True)
class Excluded:
    """A float constant that stays float.

    name: of the node that uses it (or of the constant, when several kinds do). op: its operator. reason: why.
    bytes: size of the constant as stored. weight: value name of the constant.
    """

    name: str
    op: str
    reason: str
    bytes: int
    weight: str = ""


def find_layers(graph: Graph) -> tuple[list[Layer], list[Excluded]]:
    """Quantizable weights of a graph and its subgraphs in the order of their use, and the constants that stay float.

    A weight that several nodes use in one way is one layer; used in two ways (a table that a Gather reads and a
    product multiplies with), it is two. Constants under 1 KB that stay float are not listed. Local functions are not
    looked into: inline them first.
    """
    numbers = {inner: number for number, inner in enumerate(graph.walk())}
    groups: dict[tuple[object, ...], list[Use]] = {}
    excluded: dict[tuple[int, str], Excluded] = {}
    for inner in numbers:
        for node in inner.nodes:
            for use in uses_of(inner, node):
                if use.reason:
                    stored = use.stored
                    excluded.setdefault(
                        (numbers[use.home], stored.name),
                        Excluded(node.label, node.op, use.reason, stored.nbytes, stored.name),
                    )
                else:
                    groups.setdefault(use.key, []).append(use)
    layers = _named([_layer(uses, numbers) for uses in groups.values()])
    taken = {layer.where for layer in layers}
    found = [entry for where, entry in excluded.items() if where not in taken]
    found += _others(numbers, taken | excluded.keys())
    return layers, [entry for entry in found if entry.bytes >= LISTED_BYTES]


def _layer(uses: list[Use], numbers: Mapping[Graph, int]) -> Layer:
    """The layer of all uses of one weight in one way."""
    first = uses[0]
    stored, node = first.stored, first.node
    kind = cast(Kind, "Embedding" if first.way == "table" else node.op)
    return Layer(
        name=node.label,
        kind=kind,
        weight=stored.name,
        shape=stored.shape,
        rows=first.rows,
        columns=math.prod(stored.shape) // first.rows,
        kernel=first.kernel,
        groups=first.groups,
        layout=cast(Layout, first.layout),
        nodes=tuple(use.node.label for use in uses),
        outputs=tuple(use.node.outputs[0] for use in uses),
        home=numbers[first.home],
        places=tuple(numbers[use.node.graph] for use in uses),
        dtype=stored.dtype,
    )


def _named(layers: list[Layer]) -> list[Layer]:
    """The layers, those whose node's name is not theirs alone called by their first output.

    Where that is taken, too (branches may have values of one name), a number follows.
    """
    count = Counter(layer.name for layer in layers)
    taken = {name for name, times in count.items() if times == 1}
    found = []
    for layer in layers:
        name = layer.name
        if count[name] > 1:
            tries = itertools.chain(layer.outputs[:1], (f"{layer.outputs[0]}#{n}" for n in itertools.count(2)))
            name = next(text for text in tries if text not in taken)
            taken.add(name)
        found.append(layer if name == layer.name else replace(layer, name=name))
    return found


def _others(numbers: Mapping[Graph, int], known: Collection[tuple[int, str]]) -> Iterator[Excluded]:
    """Float constants that no layer could be made of."""
    for inner, number in numbers.items():
        made = [node.outputs[0] for node in inner.by_op("Constant")]
        for value in [*inner.initializers, *made]:
            if (number, value) in known or not inner.is_used(value):
                continue
            stored = stored_constant(inner, value)
            if isinstance(stored, Stored):
                label, op, reason = reason_of(inner, value)
                yield Excluded(label, op, reason, stored.nbytes, value)


def _divisors(channels: int) -> str:
    found = [str(block) for block in range(16, channels, 16) if channels % block == 0]
    return ", ".join(found[:8]) or "none"

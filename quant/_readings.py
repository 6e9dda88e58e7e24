"""Where the input of a layer can be seen, and the vectors that its weights are multiplied with."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from graphkit.graph import Graph
from graphkit.quant._unfold import Geometry, unfold
from graphkit.quant.layers import Layer

Array = npt.NDArray[Any]

_OBSERVED = ("Conv", "ConvTranspose", "Gemm", "MatMul")


@dataclass(frozen=True)
class Reading:
    """One way in which a value meets a weight. Equal readings give equal vectors, whichever layer they belong to.

    geometry: of a convolution, None for a product. transposed: the vectors of a product lie along axis 0 (Gemm's
    transA).
    """

    value: str
    geometry: Geometry | None = None
    transposed: bool = False

    def vectors(self, x: Array, kept: Array | None = None) -> Iterator[Array]:
        """The vectors in x as float32 [groups, columns, vectors], in pieces.

        `kept` [batch, length] is False at padding: products leave out its vectors where x has these first axes, or
        both in one (row after row). Convolutions and products of anything else see all.
        """
        if self.geometry is not None:
            yield from unfold(x, self.geometry)
            return
        rows = np.asarray(x.T if self.transposed else x, np.float32)
        if kept is not None and rows.shape[:-1] in (kept.shape, (kept.size,)):
            rows = rows[kept if rows.ndim > 2 else kept.reshape(-1)]
        yield rows.reshape(-1, rows.shape[-1]).T[None] if rows.size else np.zeros((1, rows.shape[-1], 0), np.float32)


def readings(graph: Graph, layer: Layer) -> tuple[Reading, ...]:
    """The readings of all uses of a layer's weight in the main graph; none when there are no such uses."""
    if layer.kind not in _OBSERVED:
        return ()
    uses = zip(layer.places, layer.outputs, strict=True)
    nodes = [graph.producer(output) for place, output in uses if not place]
    found = []
    for node in nodes:
        if node is None or not node.inputs[0]:
            continue
        if layer.kind in ("Conv", "ConvTranspose"):
            found.append(Reading(node.inputs[0], Geometry.of(node, tuple(layer.shape[2:]))))
        else:
            found.append(Reading(node.inputs[0], None, node.op == "Gemm" and bool(node.attr("transA", 0))))
    return tuple(found)


def reason_unseen(layer: Layer) -> str:
    """Why a layer without readings has none."""
    if layer.kind not in _OBSERVED:
        return f"a layer of kind {layer.kind} multiplies no inputs"
    return "all its nodes are in subgraphs, whose values cannot be seen from outside"


def rows_kept(sample: Mapping[str, Array]) -> Array | None:
    """Which tokens of a sample are text and not padding: bool [batch, length]; None when all are, or none is known.

    Told by an input with 'mask' in its name that has two axes and holds only 0 and 1, beside another integer input
    [batch, length]; of a longer mask (with a past) the last `length` columns count.
    """
    masks = [(n, a) for n, a in sample.items() if "mask" in n.lower() and a.ndim == 2]
    others = [a for n, a in sample.items() if "mask" not in n.lower() and a.ndim == 2 and a.dtype.kind in "iu"]
    if len(masks) != 1 or not others:
        return None
    mask, (batch, length) = masks[0][1], others[0].shape
    if mask.shape[0] != batch or not 0 < length <= mask.shape[1] or not np.isin(mask, (0, 1)).all():
        return None
    kept: Array = mask[:, mask.shape[1] - length :].astype(bool)
    return None if kept.all() or not kept.any() else kept

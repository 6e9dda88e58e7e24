"""What became of quantized weights that no layer got: tables that stay bytes, and why the others are float."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence

import numpy as np

from graphkit.mnn.carry.lift import Lifted, Use
from graphkit.mnn.carry.readers import TABLE
from graphkit.mnn.carry.results import CarriedLayer, LeftFloat
from graphkit.mnn.document.files import Document
from graphkit.mnn.document.stored import Outside
from graphkit.mnn.document.tree import Array, Table

_BYTES = ("int8s", "uint8s")
_RECURRENT = ("LSTM", "GRU", "RNN")
_FLAT = 4  # dims of the weights of a convolution of two dimensions
_FLIP = np.uint8(0x80)


def kept_tables(document: Document, lifted: Sequence[Lifted]) -> dict[Lifted, CarriedLayer]:
    """Weights that the file holds at a byte a number: tables of which rows are gathered before they are scaled."""
    gathered = [weight for weight in lifted if any(use.op == "Gather" for use in weight.uses)]
    found: dict[Lifted, CarriedLayer] = {}
    for weight in gathered if gathered else ():
        parts = weight.parts(weight.forms[0])
        if isinstance(parts, str):
            continue
        codes = np.ascontiguousarray(parts.codes).reshape(-1).view(np.uint8)
        for op, array in _byte_constants(document):
            if array.size == codes.size and (np.array_equal(array, codes) or np.array_equal(array, codes ^ _FLIP)):
                symmetric, block = parts.zero is None, _block(weight)
                params = parts.scale.nbytes // (block or 1) * (1 if symmetric else 2)
                found[weight] = CarriedLayer(
                    op["name"] or "", "Gather", (weight.name,), 8, block, symmetric, "float32",
                    weight.float_bytes, array.nbytes + params,
                )  # fmt: skip
    return found


def _block(weight: Lifted) -> int:
    """Columns that share a scale; 0 for whole rows."""
    start = weight.forms[0].start
    return int(start.attr("block_size", 128)) if start is not None and start.op == TABLE else 0


def _byte_constants(document: Document) -> Iterator[tuple[Table, Array]]:
    """Constants of bytes, as uint8."""
    outside = Outside(str(document.source), document.weights)
    for graph in document.graphs():
        for op in graph.ops:
            blob = op["main"]
            if op.label("type") != "Const" or not isinstance(blob, Table) or blob.type.name != "Blob":
                continue
            held = next((blob[field] for field in _BYTES if blob[field] is not None), None)
            if held is not None:
                yield op, held.view(np.uint8)
            elif blob.label("dataType") in ("DT_INT8", "DT_UINT8") and len(blob.ints("external")) > 1:
                start, size = blob.ints("external")[:2]
                yield op, outside.read(start, size, "u1")


def explain(
    lifted: Sequence[Lifted], carried: Collection[Lifted], refused: Mapping[Lifted, str], anew: bool
) -> Iterator[LeftFloat]:
    """An entry for each weight that is float somewhere in the file.

    refused: reasons that are known already. anew: MNN's converter has quantized weights by its own rule.
    """
    for weight in lifted:
        if weight not in carried:
            reason = refused.get(weight) or _reason(weight, anew)
        elif any(use.op == "Gather" for use in weight.uses):
            reason = "a layer has its codes, but Gather reads it too, from floats"
        else:
            continue
        yield LeftFloat(weight.name, weight.node, reason, weight.float_bytes, weight.stored)


def _reason(weight: Lifted, anew: bool) -> str:
    """Why no layer of the .mnn file holds a weight, by what uses it."""
    for use in weight.uses:
        reason = _of_use(use)
        if reason:
            return reason
    if anew:
        return "MNN's converter quantized it anew, by its own rule (--weightQuantBits or --compressionParamsFile)"
    ops = ", ".join(dict.fromkeys(use.op or "a graph output" for use in weight.uses)) or "nothing"
    return f"no layer of MNN's file holds these weights (used by {ops})"


def _of_use(use: Use) -> str:
    if use.op == "Gather" and use.index == 0:
        return "a table that Gather reads; MNN keeps codes of 8 bits there, if one scale is for a row or for all"
    if use.op in ("MatMul", "Gemm") and use.index == 0:
        return f"it is the left-hand side of '{use.node}' ({use.op}), which MNN computes from floats"
    if use.op == "MatMul" and use.rank > 2:
        return f"'{use.node}' (MatMul) has a matrix for each batch, which MNN computes from floats"
    if use.op in ("Conv", "ConvTranspose") and use.rank > _FLAT:
        return f"'{use.node}' ({use.op}) has three dimensions, and MNN's layer for that holds floats"
    if use.op in _RECURRENT:
        return f"weights of '{use.node}' ({use.op}), which MNN's converter rearranges"
    return ""

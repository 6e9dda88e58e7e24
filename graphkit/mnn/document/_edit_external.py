"""Arrays that a model keeps in its second file, brought into the model.

`external` of a table is an offset into that file and the bytes of each array there, one after another; in which order
is MNN's converter's (see arrays.py).
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from graphkit.errors import ModelError
from graphkit.mnn.document.stored import Outside

if TYPE_CHECKING:
    from graphkit.mnn.document.files import Document
    from graphkit.mnn.document.tree import Table

_PAIRS = {
    "Convolution2D": ("weight", "bias"),
    "Convolution3D": ("weight", "bias"),
    "Scale": ("scaleData", "biasData"),
    "LayerNorm": ("gamma", "beta"),
    "GroupNorm": ("gamma", "beta"),
}


def is_external(table: Table) -> bool:
    """True when arrays of a table are in the second file."""
    return len(table.ints("external")) > 1


def bring_in(doc: Document, table: Table) -> None:
    """Make all arrays of a table the model's own: views of the second file, which writing copies.

    Raises ModelError when that file is missing or too short, and for a kind of table that has no external arrays.
    """
    start, *sizes = table.ints("external")
    outside = Outside(str(doc.source or "the model"), doc.weights)
    offset = start
    found = []
    for (holder, name, dtype), size in zip(_layout(table), sizes, strict=False):
        if size > 0 and name not in holder:
            found.append((holder, name, outside.read(offset, size, dtype)))
        offset += size
    for holder, name, array in found:
        holder.fields[name] = array
    del table.fields["external"]
    if not any(is_external(each) for _, each in doc.net.walk() if "external" in each.type.fields):
        doc.weights = None


def _layout(table: Table) -> list[tuple[Table, str, str]]:
    """What `external` lists: the table and field of each array, and its element type."""
    quan = table.fields.get("quanParameter")
    if quan is not None:
        half = quan.label("scaleStorage") == "FP16"
        scales = (quan, "alphaFp16", "<u2") if half else (quan, "alpha", "<f4")
        return [(quan, "buffer", "i1"), scales, (table, "bias", "<f4"), (quan, "index", "<u4")]
    if table.type.name not in _PAIRS:
        raise ModelError(f"{table.type.name}: the arrays that it keeps outside cannot be brought in")
    return [(table, name, "<f4") for name in _PAIRS[table.type.name]]

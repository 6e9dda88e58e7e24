"""Replace the weights of an operator by arrays of the same shape."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from graphkit.errors import UsageError
from graphkit.mnn.document import quantized
from graphkit.mnn.document._edit_external import bring_in, is_external
from graphkit.mnn.document._edit_graph import Edit, find_op, op_path
from graphkit.mnn.document._edit_shapes import check_shape, convolution_shape, floats, narrowed
from graphkit.mnn.document.tree import Array, Table

if TYPE_CHECKING:
    from graphkit.mnn.document.files import Document

FIELDS: Mapping[str, tuple[str, ...]] = {
    "Blob": ("values",),
    "Convolution2D": ("weight", "bias"),
    "Convolution3D": ("weight", "bias"),
    "InnerProduct": ("weight", "bias"),
    "MatMul": ("weight", "bias"),
    "LayerNorm": ("gamma", "beta"),
    "GroupNorm": ("gamma", "beta"),
    "Scale": ("scaleData", "biasData"),
    "BatchNorm": ("slopeData", "biasData", "meanData", "varData"),
    "PRelu": ("slope",),
    "Normalize": ("scale",),
    "LSTM": ("weightI", "weightH", "bias"),
    "RNNParam": (
        "fwGateWeight", "fwGateBias", "fwCandidateWeight", "fwCandidateBias", "fwRecurrentBias",
        "bwGateWeight", "bwGateBias", "bwCandidateWeight", "bwCandidateBias", "bwRecurrentBias",
    ),
}  # fmt: skip
_STORED = {
    "DT_FLOAT": ("float32s", "<f4"),
    "DT_INT32": ("int32s", "<i4"),
    "DT_INT64": ("int64s", "<i8"),
    "DT_INT8": ("int8s", "i1"),
    "DT_UINT8": ("uint8s", "u1"),
    "DT_QUINT8": ("uint8s", "u1"),
    "DT_HALF": ("uint8s", "<f2"),
}


def weight_fields(op: Table) -> tuple[str, ...]:
    """Names of the arrays of an operator that can be replaced, the one meant by default first; empty for others."""
    main = op["main"]
    return FIELDS.get(main.type.name, ()) if isinstance(main, Table) else ()


def set_weights(
    doc: Document,
    op: str | int,
    arrays: npt.ArrayLike | Mapping[str, npt.ArrayLike],
    *,
    graph: str | None = None,
    dequantize: bool = False,
) -> list[Edit]:
    """Replace arrays of an operator, given by name or index: a mapping from field to array, or the main one alone.

    Convolutions: `weight` [out, in / group, kh, kw] (deconvolutions [in, out / group, kh, kw]; dims of 1 at the end
    may be left out) and `bias`; constants: `values`, of the shape and type that they have; LayerNorm and GroupNorm
    `gamma` and `beta`, Scale `scaleData` and `biasData`, and so on (`weight_fields` tells). A flat array of the right
    length will do. Floats are stored as float32, or as float16 where the file has float16. Arrays that the model
    keeps in its `.weight` file move into the model.

    dequantize: let floats take the place of quantized weights; without it that is refused.

    Raises UsageError, and changes nothing, for operators without weights, wrong names, shapes or types, numbers that
    do not fit, and quantized weights; ModelError when the `.weight` file is missing.
    """
    view, at = find_op(doc, op, graph)
    table, where = view.ops[at], op_path(view, at)
    names = weight_fields(table)
    if not names:
        raise UsageError(f"{where} ({table.label('type')}) has no weights that can be replaced")
    wanted = arrays if isinstance(arrays, Mapping) else {names[0]: arrays}
    for name in wanted:
        if name not in names:
            raise UsageError(f"{where} has no array '{name}'", hint=f"arrays of {_kind(table)}: {', '.join(names)}")
    task = _Task(doc, table, where, dequantize)
    plans = [task.plan(name, np.asarray(array)) for name, array in wanted.items()]
    return [task.do(plan) for plan in plans]


def _kind(op: Table) -> str:
    return f"{op.label('type')} ({op['main'].type.name})"


class _Plan:
    """An array in the form it will be stored in."""

    def __init__(self, name: str, holder: Table, field: str, array: Array, note: str = "") -> None:
        self.name, self.holder, self.field, self.array, self.note = name, holder, field, array, note


class _Task:
    """Replacing arrays of one operator: first all plans, which change nothing, then the changes."""

    def __init__(self, doc: Document, op: Table, where: str, dequantize: bool) -> None:
        self.doc, self.op, self.where, self.dequantize = doc, op, where, dequantize
        self.main: Table = op["main"]

    def plan(self, name: str, array: Array) -> _Plan:
        """Check one array against the operator."""
        place = f"{self.where}.main.{name}"
        if self.main.type.name == "Blob":
            return self._constant(name, self.main, array, f"{self.where}.main")
        if self.main.field(name).type == "Blob":
            blob = self.main.fields.get(name)
            if blob is None:
                raise UsageError(f"{place} is not in this model", hint="only arrays that are there can be replaced")
            return self._constant(name, blob, array, place)
        if name == "weight" and self.main.fields.get("quanParameter") is not None:
            return self._quantized(name, array, place)
        if name == "weight" and any(self.main.fields.get(key) for key in ("symmetricQuan", "sparseParameter")):
            raise UsageError(f"{place} is stored in integers or sparsely; it cannot be replaced by floats")
        check_shape(place, array, self._shapes(name))
        return _Plan(name, self.main, name, narrowed(floats(array, place), "<f4", place))

    def do(self, plan: _Plan) -> Edit:
        """Store a planned array."""
        if "external" in self.main.type.fields and is_external(self.main):
            bring_in(self.doc, self.main)
        if "external" in plan.holder.type.fields and is_external(plan.holder):
            bring_in(self.doc, plan.holder)
        if plan.name == "weight" and plan.holder is self.main:
            self.main.fields.pop("quanParameter", None)
        plan.holder.fields[plan.field] = plan.array.view(plan.holder.field(plan.field).dtype)
        path = f"{self.where}.main" + ("" if plan.name == "values" else f".{plan.name}")
        detail = f"{path}: {plan.array.size:,} numbers replaced ({plan.array.dtype.name}){plan.note}"
        return Edit("set weights", path, detail)

    def _constant(self, name: str, blob: Table, array: Array, place: str) -> _Plan:
        field, dtype = _STORED.get(blob.label("dataType"), ("", ""))
        if not field:
            raise UsageError(f"{place} is of {blob.label('dataType')}, which cannot be replaced")
        check_shape(place, array, [blob.ints("dims")])
        target = floats(array, place) if np.dtype(dtype).kind == "f" else array
        return _Plan(name, blob, field, narrowed(target, dtype, place))

    def _quantized(self, name: str, array: Array, place: str) -> _Plan:
        quan: Table = self.main["quanParameter"]
        check_shape(place, array, self._shapes(name))
        if quan["type"] == quantized.HALF:
            return _Plan(name, quan, "buffer", narrowed(floats(array, place), "<f2", place))
        if not self.dequantize:
            raise UsageError(
                f"{place} is quantized ({_codes(quan)}), and floats would take its place",
                hint="allow that with --dequantize (the layer is float32 then), or quantize the whole model again: "
                "graphkit convert … --weightQuantBits 8",
            )
        note = f" in place of {_codes(quan)}"
        return _Plan(name, self.main, "weight", narrowed(floats(array, place), "<f4", place), note)

    def _shapes(self, name: str) -> list[tuple[int, ...]]:
        """Shapes that the array may have, the full one first."""
        held = self.main.fields.get(name)
        if self.main.type.name == "Convolution2D":
            return convolution_shape(self.op, name, self.where)
        if held is not None:
            return [(held.size,)]
        number = FIELDS[self.main.type.name].index(name) + 1
        external = self.main.ints("external") if "external" in self.main.type.fields else ()
        if len(external) > number and external[number] > 0:
            return [(external[number] // 4,)]
        raise UsageError(
            f"{self.where}.main.{name} is not in this model", hint="only arrays that are there can be replaced"
        )


def _codes(quan: Table) -> str:
    bits: Any = quan["aMaxOrBits"]
    return f"{bits}-bit codes" if quan["type"] == 1 and 0 < bits <= 8 else "codes of few bits"

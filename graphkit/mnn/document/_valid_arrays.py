"""Constants and other arrays: whether their buffers hold what their dims and counts promise."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping

from graphkit.mnn.document._valid_external import Outside, reads_outside
from graphkit.mnn.document._valid_problem import Problem, error, warning
from graphkit.mnn.document.tree import Table

_MAX_DIMS = 9  # MNN_MAX_TENSOR_DIM: dims are copied into an array of this length

# DataType of a constant: the field MNN copies it from, and bytes of an element (of a float16, two in uint8s).
_BUFFERS: Mapping[str, tuple[str, int]] = {
    "DT_FLOAT": ("float32s", 4),
    "DT_INT32": ("int32s", 4),
    "DT_UINT8": ("uint8s", 1),
    "DT_QUINT8": ("uint8s", 1),
    "DT_INT8": ("int8s", 1),
    "DT_HALF": ("uint8s", 2),
    "DT_BFLOAT16": ("uint8s", 2),
}

_TWO_BYTES = ("DT_HALF", "DT_BFLOAT16")

# Arrays and the field that says how many elements MNN reads from them.
_COUNTED: Mapping[str, tuple[tuple[str, str], ...]] = {
    "PRelu": (("slope", "slopeCount"),),
    "Scale": (("scaleData", "channels"), ("biasData", "channels")),
    "BatchNorm": tuple((name, "channels") for name in ("slopeData", "meanData", "varData", "biasData")),
    "InnerProduct": (("weight", "weightSize"), ("bias", "outputCount")),
}


def check_constant(where: str, blob: Table, outside: Outside) -> Iterator[Problem]:
    """Problems of the Blob of a Const or TrainableParam; `where` is the Blob's path."""
    kind = blob.label("dataType")
    dims = blob.ints("dims")
    if kind not in _BUFFERS:
        yield error(f"{where}.dataType", f"MNN reads no constants of {kind}", f"use one of {', '.join(_BUFFERS)}")
        return
    wrong = [*_rank(where, dims), *_known(where, dims)]
    yield from wrong
    if wrong:
        return
    field, width = _BUFFERS[kind]
    count = math.prod(dims)
    if count and reads_outside(blob):
        yield from outside.sizes(where, blob, {1: count * width})
        if kind == "DT_HALF" and blob["uint8s"] is None:
            hint = "keep float16 constants inside the file, with uint8s"
            yield error(f"{where}.uint8s", "is missing: MNN refuses a float16 constant without it", hint)
        return
    elements = count * 2 if kind in _TWO_BYTES else count
    yield from _buffer(where, blob, field, elements, f"{kind} {list(dims)}")


def _rank(where: str, dims: tuple[int, ...]) -> Iterator[Problem]:
    if len(dims) > _MAX_DIMS:
        message = f"has {len(dims)} dimensions, MNN holds at most {_MAX_DIMS}"
        yield error(f"{where}.dims", message, "reshape it: MNN writes beyond its array of sizes")


def _known(where: str, dims: tuple[int, ...]) -> Iterator[Problem]:
    for place, size in enumerate(dims):
        if size < 0:
            yield error(f"{where}.dims[{place}]", f"{size} is no size", "a constant's sizes are known")


def _buffer(where: str, table: Table, field: str, count: int, what: str) -> Iterator[Problem]:
    found = table[field]
    size = 0 if found is None else len(found)
    if size < count:
        message = f"holds {size} elements where {what} needs {count}"
        yield error(f"{where}.{field}", "is missing" if found is None else message, f"give it {count} elements")
    elif size > count:
        yield warning(f"{where}.{field}", f"holds {size} elements, {what} has {count}", "MNN ignores the rest")


def check_counted(where: str, table: Table, outside: Outside) -> Iterator[Problem]:
    """Problems of arrays that a count in the same table goes with."""
    for field, counter in _COUNTED[table.type.name]:
        array, count = table[field], int(table[counter])
        if array is not None and len(array) < count:
            message = f"holds {len(array)} elements, {counter} says {count}"
            yield error(f"{where}.{field}", message, f"give it {count} elements")
    if table.type.name == "Scale":
        yield from _scale(where, table, outside)
    elif table.type.name == "PRelu" and table["slope"] is None:
        yield error(f"{where}.slope", "is missing: MNN crashes", "give it the slopes, one or one a channel")


def _scale(where: str, scale: Table, outside: Outside) -> Iterator[Problem]:
    if reads_outside(scale):
        sizes = scale.ints("external")
        yield from outside.sizes(where, scale, {2: sizes[1]} if len(sizes) > 2 else {})
        return
    data, bias = scale["scaleData"], scale["biasData"]
    if data is None:
        yield error(f"{where}.scaleData", "is missing: MNN crashes", "give it a factor for each channel")
    elif bias is not None and len(bias) < len(data):
        yield error(f"{where}.biasData", f"holds {len(bias)} elements, scaleData {len(data)}", "make them equally long")


def check_norm(where: str, norm: Table, outside: Outside) -> Iterator[Problem]:
    """Problems of gamma and beta of a LayerNorm or GroupNorm."""
    gamma, beta = norm["gamma"], norm["beta"]
    if reads_outside(norm):
        sizes = norm.ints("external")
        yield from outside.sizes(where, norm, {2: sizes[1]})
    elif (gamma is None) != (beta is None):
        lone, other = ("gamma", "beta") if beta is None else ("beta", "gamma")
        hint = f"add {other}: {'zeros' if other == 'beta' else 'ones'} change nothing"
        yield error(f"{where}.{lone}", f"is ignored: MNN reads it only together with {other}", hint)
    elif gamma is not None and len(gamma) != len(beta):
        message = f"holds {len(beta)} elements, gamma {len(gamma)}"
        yield error(f"{where}.beta", message, "MNN reads as many as gamma has: make them equally long")


def check_input(where: str, table: Table, outside: Outside) -> Iterator[Problem]:
    """Problems of the dims and the type of a declared input."""
    yield from _rank(where, table.ints("dims"))
    for place, size in enumerate(table.ints("dims")):
        if size < -1:
            yield warning(f"{where}.dims[{place}]", f"{size} is no size", "-1 stands for a size that is not known")
    kind = table.label("dtype")
    if kind in ("DT_INVALID", "DT_STRING", "DT_HALF") or kind.startswith("?"):
        yield warning(f"{where}.dtype", f"MNN has no tensors of {kind}", "use DT_FLOAT, DT_INT32 or DT_UINT8")


def check_pool(where: str, pool: Table, outside: Outside) -> Iterator[Problem]:
    """Problems of a Pool: MNN divides by its strides."""
    for field in () if pool["isGlobal"] else ("kernelX", "kernelY", "strideX", "strideY"):
        if pool[field] < 1:
            yield error(f"{where}.{field}", f"{pool[field]} is not possible", "it is 1 or more, or isGlobal is set")


def check_pool3d(where: str, pool: Table, outside: Outside) -> Iterator[Problem]:
    """Problems of a Pool3D: one size for each spatial dimension."""
    for field in () if pool["isGlobal"] else ("kernels", "strides"):
        sizes = pool.ints(field)
        if not sizes or min(sizes) < 1:
            yield error(f"{where}.{field}", f"is {list(sizes)}", "it holds a size for each dimension, from 1 up")

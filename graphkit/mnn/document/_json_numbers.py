"""Numbers of a document as JSON values and back: every bit of a float survives, every range is checked.

Floats are the shortest decimal number that reads back as the same float32. What JSON has no number for is text:
`"nan"`, `"inf"`, `"-inf"`, and the bits in hex (`"0xffc00000"`) for any other NaN.
"""

from __future__ import annotations

import re
from typing import Any

import numpy as np
import numpy.typing as npt

from graphkit.errors import ModelError
from graphkit.mnn.document.schema import EnumType, Field, Schema

Array = npt.NDArray[Any]

_NAN = 0x7FC00000  # the bits of the NaN that "nan" means
_WORDS = {"nan": np.uint32(_NAN).view(np.float32), "inf": np.float32(np.inf), "-inf": np.float32(-np.inf)}
_HEX = re.compile(r"0x[0-9a-fA-F]{8}")
_FEW = 12  # floats; below this numpy's calls cost more than a loop
_LONGEST = 10**30
_EXACT = 2**53  # above this a float64 skips whole numbers


def plain_float(value: Any) -> float | str:
    """A float32 as a JSON value; see the module."""
    number = float(value)
    if not np.isfinite(number):
        bits = int(np.float32(value).view(np.uint32))
        return str(number) if bits == _NAN or number == number else f"0x{bits:08x}"
    short = float(str(np.float32(value)))
    return short if np.float32(short) == value else number


def float_from(raw: Any, where: str) -> np.float32:
    """The float32 that a JSON value stands for. Raises ModelError for what is no number or does not fit."""
    if isinstance(raw, str):
        return _float_from_text(raw, where)
    if isinstance(raw, bool) or not isinstance(raw, int | float):
        raise wrong(where, "a number", raw)
    try:
        with np.errstate(over="ignore", under="ignore"):
            value = np.float32(raw)
    except OverflowError:
        value = np.float32(np.inf)
    if not np.isfinite(value):
        raise ModelError(f"{where}: {show(raw)} does not fit a 32-bit float", hint='infinity is written "inf"')
    if value == 0 and raw != 0:
        raise ModelError(f"{where}: {show(raw)} is too small for a 32-bit float", hint="the smallest is 1e-45")
    return value


def _float_from_text(raw: str, where: str) -> np.float32:
    if raw in _WORDS:
        return np.float32(_WORDS[raw])
    if _HEX.fullmatch(raw):
        return np.float32(np.uint32(int(raw, 16)).view(np.float32))
    raise ModelError(
        f"{where}: expected a number, got {show(raw)}",
        hint='the only text for a float is "nan", "inf", "-inf" or its 32 bits in hex such as "0x7fc00001"',
    )


def plain_integer(value: Any, field: Field, schema: Schema) -> int | bool | str:
    """An integer as a JSON value: enums and members of the union by name where the schema has one."""
    number = int(value)
    if field.kind == "enum":
        return schema.enums[field.type].names.get(number, number)
    if field.kind == "utype":
        return schema.members[number] if 0 <= number < len(schema.members) else number
    if field.type == "bool" and number in (0, 1):
        return bool(number)
    return number


def integer_from(raw: Any, field: Field, schema: Schema, where: str) -> int | bool:
    """The integer that a JSON value stands for. Raises ModelError for another type, name or range."""
    if field.kind == "enum" and isinstance(raw, str):
        return _enum_number(raw, schema.enums[field.type], where)
    if field.kind == "utype" and isinstance(raw, str):
        return _member_number(raw, schema, where)
    if field.type == "bool":
        return _bool_from(raw, where)
    if isinstance(raw, bool) or not isinstance(raw, int):
        raise wrong(where, "a whole number" if field.kind == "scalar" else f"a name of {field.type}", raw)
    assert field.dtype is not None
    limits = np.iinfo(field.dtype)
    if not limits.min <= raw <= limits.max:
        raise ModelError(
            f"{where}: {show(raw)} is outside the range of {field.type}", hint=f"from {limits.min} to {limits.max}"
        )
    return raw


def _bool_from(raw: Any, where: str) -> int | bool:
    if isinstance(raw, bool):
        return raw
    if isinstance(raw, int) and 2 <= raw <= 255:
        return raw  # a byte that is neither: some file held it
    raise wrong(where, "true or false", raw)


def _enum_number(raw: str, enum: EnumType, where: str) -> int:
    try:
        return enum.numbers[raw]
    except KeyError:
        raise ModelError(
            f"{where}: {enum.name} has no {show(raw)}{meant(raw, enum.numbers)}", hint=_names(enum.numbers)
        ) from None


def _member_number(raw: str, schema: Schema, where: str) -> int:
    if raw in schema.members:
        return schema.members.index(raw)
    raise ModelError(f"{where}: no operator has parameters {show(raw)}{meant(raw, schema.members)}")


def plain_array(array: Array, field: Field, schema: Schema) -> list[Any]:
    """A vector of numbers as a JSON list."""
    if array.dtype.kind == "f":
        return _plain_floats(array)
    if field.kind == "enum" or field.type == "bool":
        return [plain_integer(value, field, schema) for value in array.tolist()]
    return list(array.tolist())


def _plain_floats(array: Array) -> list[Any]:
    if array.size < _FEW or not np.isfinite(array).all():
        return [plain_float(value) for value in array]
    short = [float(text) for text in map(str, array)]
    back = np.array(short).astype(np.float32)
    if np.array_equal(back, array):
        return short
    return [plain_float(value) for value in array]


def array_from(raw: list[Any], field: Field, schema: Schema, where: str) -> Array:
    """The vector that a JSON list stands for: one-dimensional, little-endian, of the field's dtype."""
    assert field.dtype is not None
    quick = _quick_array(raw, field)
    if quick is not None:
        return quick
    if field.type == "float":
        floats = [float_from(item, f"{where}[{k}]") for k, item in enumerate(raw)]
        return np.array(floats, dtype=field.dtype)
    numbers = [integer_from(item, field, schema, f"{where}[{k}]") for k, item in enumerate(raw)]
    return np.array(numbers, dtype=field.dtype)


def _quick_array(raw: list[Any], field: Field) -> Array | None:
    """The vector when all is ordinary, None when each element needs a look of its own."""
    types = set(map(type, raw))
    assert field.dtype is not None
    try:
        if field.type == "float" and types <= {int, float}:
            wide = np.array(raw, dtype=np.float64)
            with np.errstate(over="ignore", under="ignore"):
                narrow = wide.astype(field.dtype)
            fits = bool(np.isfinite(narrow).all()) and not np.any((narrow == 0) & (wide != 0))
            return narrow if fits else None
        if field.type not in ("float", "bool") and types <= {int}:
            integers = np.array(raw, dtype=np.int64)
            limits = np.iinfo(field.dtype)
            fits = not integers.size or bool(integers.min() >= limits.min and integers.max() <= limits.max)
            return integers.astype(field.dtype) if fits else None
    except OverflowError:
        pass
    return None


def array_of_numbers(found: Array, field: Field, where: str) -> Array:
    """A long list of numbers, read as int64 or float64, as the vector of a field."""
    assert field.dtype is not None
    if field.type == "float":
        with np.errstate(over="ignore", under="ignore"):
            narrow = found.astype(field.dtype)
        bad = np.flatnonzero((np.isinf(narrow) & np.isfinite(found)) | ((narrow == 0) & (found != 0)))
        if bad.size:
            float_from(found[bad[0]].item(), f"{where}[{bad[0]}]")
        return narrow
    if found.dtype.kind == "f":
        bad = np.flatnonzero((found != np.trunc(found)) | (np.abs(found) > _EXACT))
        raise wrong(f"{where}[{bad[0] if bad.size else 0}]", "a whole number", found[bad[0] if bad.size else 0].item())
    limits = np.iinfo(field.dtype)
    bad = np.flatnonzero((found < limits.min) | (found > limits.max))
    if bad.size:
        raise ModelError(
            f"{where}[{bad[0]}]: {found[bad[0]]} is outside the range of {field.type}",
            hint=f"from {limits.min} to {limits.max}",
        )
    return found.astype(field.dtype)


def wrong(where: str, expected: str, raw: Any) -> ModelError:
    """The error for a JSON value of another type than the field's."""
    hint = "leave a field out to give it MNN's default" if raw is None else None
    return ModelError(f"{where}: expected {expected}, got {show(raw)}", hint=hint)


def show(raw: Any) -> str:
    """A JSON value in a message: short whatever it holds."""
    if raw is None or isinstance(raw, bool):
        return {None: "null", True: "true", False: "false"}[raw]
    if isinstance(raw, str):
        return repr(raw if len(raw) <= 60 else raw[:57] + "…")
    if isinstance(raw, list):
        return f"a list of {len(raw)}"
    if isinstance(raw, dict):
        return "an object"
    if not isinstance(raw, int | float):
        return "a long list of numbers"
    return "a number of more than 30 digits" if isinstance(raw, int) and abs(raw) > _LONGEST else str(raw)


def meant(name: str, known: Any) -> str:
    """`; did you mean 'x'?` when a known name is near."""
    from difflib import get_close_matches

    near = get_close_matches(name[:100], list(known), n=1)
    return f"; did you mean '{near[0]}'?" if near else ""


def _names(known: Any) -> str:
    names = list(known)
    more = f" … ({len(names)} in all)" if len(names) > 12 else ""
    return f"one of {', '.join(names[:12])}{more}"

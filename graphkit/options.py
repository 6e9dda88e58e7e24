"""Options of passes from text: fields of a frozen dataclass, converted and checked by their types."""

from __future__ import annotations

import dataclasses
import difflib
import math
import re
import types
import typing
from collections.abc import Iterable
from contextlib import suppress
from fractions import Fraction
from typing import Any, Literal, get_args, get_origin

from graphkit.errors import UsageError

_SIZE = re.compile(r"(\d+(?:\.\d+)?)\s*([kKmMgG]?)(i?)[bB]?")
_UNITS = {"": 0, "k": 1, "m": 2, "g": 3}
_TRUE, _FALSE = ("true", "yes", "on", "1"), ("false", "no", "off", "0")


def suggest(word: str, known: Iterable[str]) -> str:
    """`"; did you mean 'x'?"` when a known word is near, else nothing."""
    near = difflib.get_close_matches(word, list(known), n=1, cutoff=0.6)
    return f"; did you mean '{near[0]}'?" if near else ""


def option_fields(cls: type) -> dict[str, dataclasses.Field[Any]]:
    """Fields of a pass that are options, by name."""
    return {f.name: f for f in dataclasses.fields(cls) if f.init}


def free_field(cls: type) -> str | None:
    """The field that takes options of any name (a pass says so with `free_options`), or None."""
    return getattr(cls, "free_options", None)


def build(cls: type, options: Iterable[tuple[str, str]]) -> Any:
    """Make a pass from options in text form.

    Raises UsageError for unknown options, options given twice, and values that do not fit.
    """
    hints = typing.get_type_hints(cls)
    fields, free = option_fields(cls), free_field(cls)
    values: dict[str, Any] = {}
    extra: dict[str, str] = {}
    for key, text in options:
        name = key.replace("-", "_")
        if name in values or key in extra:
            raise UsageError(f"option '{key}' is given twice")
        if name in fields and name != free:
            values[name] = convert(text, hints[name], key)
        elif free is not None:
            extra[key] = text
        else:
            known = list(fields)
            listing = f" (options: {', '.join(known)})" if known else " (it has no options)"
            raise UsageError(f"unknown option '{key}'{suggest(name, known) or listing}")
    if free is not None and extra:
        values[free] = tuple(extra.items())
    missing = [name for name, f in fields.items() if name not in values and _is_required(f)]
    if missing:
        raise UsageError(f"option '{missing[0]}' is required")
    try:
        return cls(**values)
    except (TypeError, ValueError) as error:
        raise UsageError(str(error)) from error


def _is_required(field: dataclasses.Field[Any]) -> bool:
    return field.default is dataclasses.MISSING and field.default_factory is dataclasses.MISSING


def convert(text: str, kind: Any, key: str) -> Any:
    """Convert option text to the type of its field.

    Fields are int (also KB, MB, GB: powers of 1024), float, bool, str, Literal choices, tuples (parts between
    semicolons), or unions of these, where the first type that fits is taken. Raises UsageError.
    """
    if get_origin(kind) in (typing.Union, types.UnionType):
        return _convert_union(text, get_args(kind), key)
    if get_origin(kind) is Literal:
        choices = {str(choice): choice for choice in get_args(kind)}
        if text not in choices:
            listing = ", ".join(choices)
            raise UsageError(f"option '{key}' is one of {listing}, not '{text}'{suggest(text, choices)}")
        return choices[text]
    if get_origin(kind) is tuple:
        return tuple(convert(part, get_args(kind)[0], key) for part in text.split(";") if part)
    try:
        return _SCALARS[kind](text)
    except (KeyError, ValueError) as error:
        raise UsageError(f"option '{key}' needs {_WORDS.get(kind, kind)}, not '{text}'") from error


def _convert_union(text: str, kinds: tuple[Any, ...], key: str) -> Any:
    if text.lower() == "none" and type(None) in kinds:
        return None
    *others, last = [kind for kind in kinds if kind is not type(None)]
    for kind in others:
        with suppress(UsageError):
            return convert(text, kind, key)
    return convert(text, last, key)


def _int(text: str) -> int:
    found = _SIZE.fullmatch(text)
    if found is None:
        return int(text)
    number, unit, _ = found.groups()
    value = Fraction(number) * 1024 ** _UNITS[unit.lower()]
    if value.denominator != 1 and not unit:
        raise ValueError(text)
    return int(value)


def _float(text: str) -> float:
    value = float(text)
    if math.isnan(value):
        raise ValueError(text)
    return value


def _bool(text: str) -> bool:
    if text.lower() in _TRUE:
        return True
    if text.lower() in _FALSE:
        return False
    raise ValueError(text)


_SCALARS: dict[Any, Any] = {int: _int, float: _float, bool: _bool, str: str}
_WORDS = {int: "a whole number", float: "a number", bool: "true or false", str: "text"}

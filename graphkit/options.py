"""Options of passes from text: fields of a frozen dataclass, converted and checked by their types."""

from __future__ import annotations

import dataclasses
import difflib
import re
import types
import typing
from collections.abc import Iterable
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
    """The field that takes options of any name (a pass says so with `free_options`), None when there is none."""
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
    try:
        return cls(**values)
    except (TypeError, ValueError) as error:
        raise UsageError(str(error)) from error


def convert(text: str, kind: Any, key: str) -> Any:
    """Convert option text to the type of its field: int (also KB, MB, GB), float, bool, str, choices, lists."""
    if get_origin(kind) in (typing.Union, types.UnionType):
        if text.lower() == "none" and type(None) in get_args(kind):
            return None
        kind = next(arg for arg in get_args(kind) if arg is not type(None))
    if get_origin(kind) is Literal:
        choices = [str(choice) for choice in get_args(kind)]
        if text not in choices:
            raise UsageError(
                f"option '{key}' is one of {', '.join(choices)}, not '{text}'{suggest(text, choices)}"
            )
        return text
    if get_origin(kind) is tuple:
        return tuple(convert(part, get_args(kind)[0], key) for part in text.split(";") if part)
    try:
        return _SCALARS[kind](text)
    except (KeyError, ValueError) as error:
        raise UsageError(f"option '{key}' needs {_WORDS.get(kind, kind)}, not '{text}'") from error


def _int(text: str) -> int:
    found = _SIZE.fullmatch(text)
    if found is None:
        return int(text)
    number, unit, _ = found.groups()
    return int(float(number) * 1024 ** _UNITS[unit.lower()])


def _bool(text: str) -> bool:
    if text.lower() in _TRUE:
        return True
    if text.lower() in _FALSE:
        return False
    raise ValueError(text)


_SCALARS: dict[Any, Any] = {int: _int, float: float, bool: _bool, str: str}
_WORDS = {int: "a whole number", float: "a number", bool: "true or false", str: "text"}

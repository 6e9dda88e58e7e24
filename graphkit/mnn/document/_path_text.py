"""The grammar of paths into a document: `ops[conv1].main.common.strideX`, `inputs["a]b"].dims[2]`."""

from __future__ import annotations

import json
import re
from dataclasses import dataclass

from graphkit.errors import UsageError

_NAME = re.compile(r"[A-Za-z_]\w*", re.ASCII)
_INDEX = re.compile(r"-?\d{1,10}", re.ASCII)
_FORM = "paths look like ops[conv1].main.common.strideX, inputs[data].dims[2] or outputs[0]"


@dataclass(frozen=True)
class Step:
    """A field's name and what stands in brackets after it: an index, a name, or nothing (None).

    `text` is the path up to here, as it was given.
    """

    field: str
    key: int | str | None
    text: str


def parse_path(text: str) -> list[Step]:
    """The steps of a path. Raises UsageError that says where it cannot be read."""
    steps, end = _steps(text)
    if end < len(text):
        raise _unreadable(text, end)
    return steps


def split_assignment(text: str) -> tuple[str, str]:
    """`PATH=VALUE` as the path and the text of the value; an equals sign within brackets belongs to the path.

    Raises UsageError.
    """
    _, end = _steps(text)
    if end >= len(text):
        raise UsageError(f"'{text}' assigns nothing", hint="write PATH=VALUE, such as inputs[data].dims=[1,3,256,256]")
    if text[end] != "=":
        raise _unreadable(text, end)
    return text[:end], text[end + 1 :]


def quoted(name: str) -> str:
    """A name as it stands in brackets: bare where that reads back, else as a JSON string."""
    plain = name and name == name.strip() and not name.startswith('"') and not _INDEX.fullmatch(name)
    if plain and "]" not in name and "[" not in name and name.isprintable():
        return name
    return json.dumps(name, ensure_ascii=False)


def _steps(text: str) -> tuple[list[Step], int]:
    """The steps and where they end: at the end of the text or at what is no part of a path."""
    steps: list[Step] = []
    at = 0
    while True:
        found = _NAME.match(text, at)
        if found is None:
            raise _unreadable(text, at)
        key, at = _key(text, found.end())
        steps.append(Step(found.group(), key, text[:at]))
        if text[at : at + 1] != ".":
            return steps, at
        at += 1


def _key(text: str, at: int) -> tuple[int | str | None, int]:
    if text[at : at + 1] != "[":
        return None, at
    if text[at + 1 : at + 2] == '"':
        try:
            name, end = json.JSONDecoder().raw_decode(text, at + 1)
        except ValueError:
            raise _unreadable(text, at + 1) from None
        if text[end : end + 1] != "]":
            raise _unreadable(text, end)
        return str(name), end + 1
    end = text.find("]", at)
    raw = text[at + 1 : end]
    if end < 0 or not raw.strip():
        raise _unreadable(text, at)
    return (int(raw) if _INDEX.fullmatch(raw) else raw), end + 1


def _unreadable(text: str, at: int) -> UsageError:
    where = f"at '{text[at : at + 20]}'" if at < len(text) else "at its end"
    quote = '; a name with brackets in it is quoted: ops["a[0]"]' if "[" in text else ""
    return UsageError(f"cannot read the path '{text}' {where}", hint=_FORM + quote)

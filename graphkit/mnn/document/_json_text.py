"""Read the JSON text of a document with bounded work.

Long base64 texts and long lists of numbers are lifted out of the text before it is parsed, so that hundreds of
megabytes of weights do not become Python objects: a `Run` stands for each.
"""

from __future__ import annotations

import binascii
import json
import re
import secrets
import warnings
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np

from graphkit.errors import ModelError
from graphkit.mnn.document.tree import Array

_VALUES = 4_000_000  # in one file, apart from those lifted; a model of 50,000 operators has about two million
_TEXT = 128 << 20  # bytes, likewise
_NAME = re.compile(r'"name":\s*("(?:[^"\\]|\\.)*")')
_NAMED = 100_000  # characters of a line in which its name is looked for
_LONG_INTEGER = re.compile(rb"\d{19}")
_FRACTION = re.compile(rb"[.eEnN]")
_BOM = b"\xef\xbb\xbf"
# Strings are matched whole, so that nothing inside of them is taken for numbers; also one that never ends, so that
# the search does not begin again at each of its quotes.
_TOKENS = (
    rb'"base64"\s*+:\s*+(?P<base64>"[A-Za-z0-9+/=]{1024,}+")'
    rb'|"[^"\\]*+(?:\\.[^"\\]*+)*+"?'
    rb"|(?P<numbers>\[\s*+[-0-9%s][-+0-9.eE%s,\s]{1023,}+\])"
)
_STRICT = re.compile(_TOKENS % (b"", b""), re.DOTALL)
_AS_MNN = re.compile(_TOKENS % (b"ni", b"naif") + rb"|(?<=[\[:,\s])(?P<word>-?(?:nan|inf))(?=[\],}\s])", re.DOTALL)
_RAW_BYTE = re.compile(rb"\\x([89A-Fa-f][0-9A-Fa-f])|\\.", re.DOTALL)  # of a string that is not UTF-8
_WORDS = {b"nan": b'"nan"', b"-nan": b'"0xffc00000"', b"inf": b'"inf"', b"-inf": b'"-inf"'}


class Repeated(dict[str, Any]):
    """An object that holds a key twice: `key`."""

    key = ""


@dataclass(frozen=True)
class Run:
    """A long run of text where a value is expected: base64, or the inside of a list of numbers."""

    data: memoryview
    base64: bool

    def decode(self) -> bytes:
        """The bytes that base64 stands for. Raises ValueError."""
        return binascii.a2b_base64(self.data, strict_mode=True)

    def numbers(self) -> Array | None:
        """A list of numbers as int64 or float64, None when the text is no such list."""
        text = bytes(self.data)
        whole = not _FRACTION.search(text) and not _LONG_INTEGER.search(text)
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("error", DeprecationWarning)  # of text that is not read to its end
                found = np.fromstring(text, dtype=np.int64 if whole else np.float64, sep=",")
        except (ValueError, DeprecationWarning):
            return None
        if b"-nan" in text:  # numpy drops this sign, and printing it is all that MNN does for a NaN of its own
            signs = [item.strip() == b"-nan" for item in text.split(b",")]
            found[np.array(signs[: found.size], bool)] = -np.float64("nan")
        return found if found.size == text.count(b",") + 1 else None


def loads(data: bytes | memoryview, file: object, *, as_mnn: bool = False) -> Any:
    """Parse a file; long lists of numbers and texts of `base64` are `Run`s, objects with a key twice `Repeated`.

    as_mnn: take nan, inf and bytes that are no UTF-8 as MNN prints them. Raises ModelError for what is no
    JSON or would take more memory than a model does.
    """
    view = memoryview(data)
    start = len(_BOM) if view[: len(_BOM)] == _BOM else 0
    mark = f"run-{secrets.token_hex(8)}"
    runs: list[Run] = []
    pieces = list(_lifted(view[start:], _AS_MNN if as_mnn else _STRICT, mark, runs))
    if sum(map(len, pieces)) > _TEXT:
        raise ModelError(f"holds more than {_TEXT >> 20} MB besides its arrays", file=file)
    text = b"".join(pieces)
    if as_mnn and b"\\x" in text:
        text = _RAW_BYTE.sub(lambda match: rb"\udc" + match[1] if match[1] else match[0], text)
    if sum(text.count(sign) for sign in (b",", b"[", b"{")) > _VALUES:
        raise ModelError(f"holds more than {_VALUES:,} values, more than a model has", file=file)
    try:
        return json.loads(text.decode("utf-8"), object_pairs_hook=_Objects(mark, runs))
    except UnicodeDecodeError as error:
        line = text.count(b"\n", 0, error.start) + 1
        raise ModelError(f"line {line}: is not UTF-8 text", file=file, hint="save it as UTF-8") from None
    except RecursionError:
        raise ModelError("is nested too deep to be a model", file=file) from None
    except json.JSONDecodeError as error:
        raise _syntax(error, file) from None
    except ValueError:  # Python refuses to read integers of thousands of digits
        raise ModelError("holds a number of thousands of digits", file=file) from None


def _lifted(data: memoryview, tokens: re.Pattern[bytes], mark: str, runs: list[Run]) -> Iterator[bytes | memoryview]:
    """The text with a small object in the place of each long run."""
    done = 0
    for match in tokens.finditer(data):
        kind = match.lastgroup
        if kind is None:
            continue
        start, end = match.span(kind)
        yield data[done:start]
        if kind == "word":
            yield _WORDS[match[kind]]
        else:
            yield b'{"%s":%d}' % (mark.encode(), len(runs))
            runs.append(Run(data[start + 1 : end - 1], kind == "base64"))
        done = end
    yield data[done:]


class _Objects:
    """Makes objects from their pairs: the runs by their number, and a note of keys that come twice."""

    def __init__(self, mark: str, runs: list[Run]) -> None:
        self.mark = mark
        self.runs = runs

    def __call__(self, pairs: list[tuple[str, Any]]) -> Any:
        found = dict(pairs)
        if len(found) < len(pairs):
            return _repeated(pairs)
        if len(pairs) == 1 and pairs[0][0] == self.mark:
            return self.runs[pairs[0][1]]
        return found


def _repeated(pairs: list[tuple[str, Any]]) -> Repeated:
    found = Repeated()
    for key, value in pairs:
        if key in found and not found.key:
            found.key = key
        found[key] = value
    return found


def _syntax(error: json.JSONDecodeError, file: object) -> ModelError:
    start = error.doc.rfind("\n", 0, error.pos) + 1
    end = error.doc.find("\n", error.pos)
    line = error.doc[start : end if end >= 0 else len(error.doc)][:_NAMED]
    named = _NAME.search(line)
    node = named[1].strip('"') if named else None
    message = f"line {error.lineno} column {error.colno}: {error.msg[:1].lower()}{error.msg[1:]}"
    return ModelError(message, file=file, node=node)

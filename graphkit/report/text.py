"""Numbers, sizes, shapes and names as people read them."""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Sequence

from graphkit.errors import UsageError

_SIZE = re.compile(r"\s*(?P<number>\d+\.?\d*|\.\d+)\s*(?P<prefix>[kmg]?)(?P<binary>i?)b\s*", re.ASCII | re.IGNORECASE)
_SIZES = "examples: 500MB, 1GB, 1.5GiB"
_LARGEST = 10**18  # bytes; no machine has more, and int64 holds it
_CONTROL = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f]")


def clean(text: str) -> str:
    """Text from a file without control characters, which could drive the terminal."""
    return _CONTROL.sub(lambda found: f"\\x{ord(found.group()):02x}", text)


def size(count: int) -> str:
    """Bytes: `212 bytes`, `90.4 MB` (1 MB is 10⁶ bytes)."""
    if count < 1000:
        return "1 byte" if count == 1 else f"{count} bytes"
    value = float(count)
    for unit in ("kB", "MB", "GB"):
        value /= 1000
        if value < 999.5 or unit == "GB":
            return f"{value:.3g} {unit}" if value < 10 else f"{value:.1f} {unit}"
    raise AssertionError


def parse_size(text: str) -> int:
    """Bytes from what people write: `500MB`, `1.5 GiB`. Raises UsageError for anything else, 0 included."""
    found = _SIZE.fullmatch(text)
    if found is None:
        unit = ": give a unit" if text.strip().replace(".", "", 1).isdecimal() else ""
        raise UsageError(f"'{text}' is not a size{unit}", hint=_SIZES)
    number, power = float(found["number"]), " KMG".index(found["prefix"].upper() or " ")
    count: float = number * (1024 if found["binary"] else 1000) ** power
    if not 1 <= count <= _LARGEST:
        raise UsageError(f"a size goes from 1 byte to {size(_LARGEST)}, not '{text}'", hint=_SIZES)
    return round(count)


def seconds(value: float) -> str:
    """A duration: `0.02 s`, `41 s`, `2 min 5 s`."""
    if value < 10:
        return f"{value:.2f} s"
    if value < 120:
        return f"{value:.0f} s"
    return f"{int(value) // 60} min {int(value) % 60} s"


def error(value: float | None) -> str:
    """An error: `0`, `2.1e-06`, `nan`; empty when it is unknown."""
    if value is None:
        return ""
    return "0" if value == 0 else (f"{value:.2g}" if math.isfinite(value) else str(value))


def shape(dims: Iterable[object] | None) -> str:
    """A shape: `[1,3,224,224]`, `[batch,?]`; `[…]` when the rank is unknown."""
    if dims is None:
        return "[…]"
    return f"[{','.join('?' if dim is None else clean(str(dim)) for dim in dims)}]"


def count(number: int, noun: str, plural: str | None = None) -> str:
    """A number with its noun: `1 node`, `2 nodes`, `3 near misses`."""
    return f"{number:,} {noun if number == 1 else plural or noun + 's'}"


def listing(words: Sequence[str], limit: int | None = None) -> str:
    """Words joined for reading: `a`, `a and b`, `a, b and 3 more`."""
    if limit is not None and len(words) > limit:
        words = [*words[:limit], f"{len(words) - limit} more"]
    return " and ".join([", ".join(words[:-1]), words[-1]] if len(words) > 1 else words)

"""What was measured before, found again by the hash of everything it depends on.

One file of JSON lines for each model, data and metric; a damaged line is no entry, and a folder that cannot be
written only means that nothing is kept.
"""

from __future__ import annotations

import contextlib
import dataclasses
import hashlib
import json
import logging
import math
import os
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from graphkit.model import Model, tensors
from graphkit.weights import Weight

Array = npt.NDArray[Any]

_LOG = logging.getLogger(__name__)
_DIGITS = 32  # hexadecimal: 128 bits


class Cache:
    """Numbers by key, in the files of a folder; without a folder, in memory only.

    `context` is a hash that entries share and names their file. Several processes may write to one folder.
    """

    def __init__(self, folder: Path | str | None) -> None:
        self.folder = Path(folder) if folder is not None else None
        self._known: dict[str, dict[str, float]] = {}

    @classmethod
    def default(cls) -> Cache:
        """The user's cache: `$GRAPHKIT_CACHE`, else `$XDG_CACHE_HOME/graphkit`, else `~/.cache/graphkit`."""
        return cls(cache_home() / "sensitivity")

    def get(self, context: str, key: str) -> float | None:
        """A number that was put before, None otherwise."""
        return self._entries(context).get(key)

    def put(self, context: str, key: str, value: float) -> None:
        """Keep a number; infinities too."""
        self._entries(context)[key] = value
        if self.folder is None:
            return
        try:
            self.folder.mkdir(parents=True, exist_ok=True)
            _append(
                self._file(context), json.dumps({"key": key, "value": value if math.isfinite(value) else str(value)})
            )
        except OSError as error:
            _LOG.warning("nothing is cached in %s: %s", self.folder, error.strerror)
            self.folder = None

    def _entries(self, context: str) -> dict[str, float]:
        if context not in self._known:
            self._known[context] = _read(self._file(context)) if self.folder is not None else {}
        return self._known[context]

    def _file(self, context: str) -> Path:
        assert self.folder is not None
        return self.folder / f"{context}.jsonl"


def cache_home() -> Path:
    """Where graphkit keeps what it can make again."""
    if own := os.environ.get("GRAPHKIT_CACHE"):
        return Path(own)
    base = os.environ.get("XDG_CACHE_HOME")
    return (Path(base) if base else Path.home() / ".cache") / "graphkit"


def digest(*parts: Any) -> str:
    """A hash of texts, bytes, numbers and arrays, and of tuples, lists, mappings and dataclasses of them."""
    found = hashlib.sha256()
    for part in parts:
        _feed(found, part)
    return found.hexdigest()[:_DIGITS]


def model_digest(model: Model) -> str:
    """A hash of a model's graph and weights; the same for one model in memory, in a file, or with external data."""
    found = hashlib.sha256()
    skeleton = type(model.proto)()
    skeleton.CopyFrom(model.proto)
    for tensor, copy in zip(tensors(model.proto), tensors(skeleton), strict=True):
        weight = Weight(tensor, model.store)
        data: Any = model.store.read(weight.ref) if weight.ref else _own_bytes(weight)
        found.update(len(data).to_bytes(8, "little"))
        found.update(data)
        shape, data_type, name = list(tensor.dims), tensor.data_type, tensor.name
        copy.Clear()
        copy.name, copy.data_type = name, data_type
        copy.dims.extend(shape)
    found.update(skeleton.SerializeToString(deterministic=True))
    return found.hexdigest()[:_DIGITS]


def _own_bytes(weight: Weight) -> bytes:
    """Bytes of a tensor that holds its data itself, as raw data or as numbers."""
    if weight.proto.raw_data:
        return weight.proto.raw_data
    if weight.proto.string_data:
        return b"\0".join(weight.proto.string_data)
    return weight.array().tobytes()


def _feed(found: Any, part: Any) -> None:
    """Types and lengths go in too, so that ("a", "b") and ("ab",) differ."""
    if isinstance(part, np.ndarray):
        array = np.ascontiguousarray(part)
        _feed(found, f"array {array.dtype.str} {part.shape}")
        found.update(
            repr(array.tolist()).encode() if array.dtype.kind == "O" else array.reshape(-1).view(np.uint8).data
        )
    elif dataclasses.is_dataclass(part) and not isinstance(part, type):
        _feed(found, [type(part).__qualname__, [getattr(part, field.name) for field in dataclasses.fields(part)]])
    elif isinstance(part, Mapping):
        _feed(found, [item for key in sorted(part) for item in (key, part[key])])
    elif isinstance(part, Iterable) and not isinstance(part, str | bytes):
        entries = list(part)
        _feed(found, f"list {len(entries)}")
        for entry in entries:
            _feed(found, entry)
    else:
        data = part if isinstance(part, bytes) else repr(part).encode()
        found.update(f"{type(part).__name__} {len(data)}:".encode())
        found.update(data)


def _append(file: Path, line: str) -> None:
    """Add a line in one write: writers in other processes do not mix with it."""
    handle = os.open(file, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o666)
    try:
        # A line that a crash cut short must not swallow this one.
        os.write(handle, f"\n{line}\n".encode())
    finally:
        os.close(handle)


def _read(file: Path) -> dict[str, float]:
    found: dict[str, float] = {}
    try:
        text = file.read_text(encoding="utf-8", errors="replace")
    except OSError:
        return found
    for line in text.splitlines():
        with contextlib.suppress(ValueError, KeyError, TypeError):
            entry = json.loads(line)
            found[str(entry["key"])] = float(entry["value"])
    return found

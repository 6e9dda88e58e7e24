"""Atomic output: everything is written to a temporary name beside the target and renamed at the end."""

from __future__ import annotations

import errno
import os
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import BinaryIO

from graphkit._wire import Pieces, Ref, expand, external_entries, raw_data
from graphkit.errors import OutputError
from graphkit.weights import WeightStore

_CHUNK = 1 << 20  # bytes written at a time: what fits the cache of the processor is copied fastest
_ALIGN = 4096  # onnxruntime maps external tensors that start on a page


@contextmanager
def atomic(*paths: Path) -> Iterator[list[BinaryIO]]:
    """Open a temporary file for each path; rename all to their paths when the block ends well.

    Whatever goes wrong (full disk, Ctrl-C, an exception in the block), the temporary files are removed and an
    existing output stays as it was. Raises OutputError for what the operating system refuses.
    """
    files: list[BinaryIO] = []
    names: list[Path] = []
    try:
        for path in paths:
            handle, name = _temporary(path)
            names.append(name)
            files.append(os.fdopen(handle, "wb"))
        yield files
        for file in files:
            file.close()  # a full disk shows here at the latest
        for name, path in zip(names, paths, strict=True):
            name.replace(path)
    except OSError as error:
        raise _output_error(error, paths[0]) from error
    finally:
        for file in files:
            with suppress(OSError):  # the write itself has reported it
                file.close()
        for name in names:
            name.unlink(missing_ok=True)


def _temporary(path: Path) -> tuple[int, Path]:
    if path.is_dir():
        raise OutputError("is a directory; name a file", file=path)
    handle, name = tempfile.mkstemp(prefix=f".{path.name[:100]}.", suffix=".part", dir=path.parent)
    umask = os.umask(0)
    os.umask(umask)
    os.fchmod(handle, 0o666 & ~umask)  # mkstemp makes private files; an output is an ordinary one
    return handle, Path(name)


def _output_error(error: OSError, path: Path) -> OutputError:
    if error.errno == errno.ENOSPC:
        return OutputError("cannot be written: no space left on the disk; nothing was changed", file=path)
    reason = error.strerror or str(error)
    return OutputError(f"cannot be written: {reason}", file=path, hint="choose another place with -o")


def write_bytes(path: Path, data: bytes) -> None:
    """Write a small file atomically. Raises OutputError."""
    with atomic(path) as (file,):
        file.write(data)


def save(skeleton: bytes, store: WeightStore, path: Path, *, external: bool) -> int:
    """Write a model from its serialized skeleton; return the bytes written (see `Model.save`)."""
    data_path = path.with_name(path.name + ".data")
    for source in store.files():
        for target in (path, data_path) if external else (path,):
            if target.exists() and source.exists() and target.samefile(source):
                raise OutputError("would overwrite an input of this model", file=target, hint="choose another -o")
    if not external:
        with atomic(path) as (file,):
            return _write_pieces(expand(skeleton, raw_data), store, file)
    with atomic(data_path, path) as (data, file):
        layout = _Layout(data_path.name)
        pieces = expand(skeleton, layout.place)
        written = layout.write(store, data)
        return written + _write_pieces(pieces, store, file)


class _Layout:
    """Where each tensor goes in an external data file; tensors that share bytes share their place."""

    def __init__(self, location: str) -> None:
        self.location = location
        self.offsets: dict[Ref, int] = {}
        self.size = 0

    def place(self, ref: Ref) -> list[bytes | Ref]:
        """Reserve room for the data and return what the tensor says about it."""
        if ref not in self.offsets:
            start = -(-self.size // _ALIGN) * _ALIGN
            self.offsets[ref] = start
            self.size = start + ref.length
        return [external_entries(self.location, self.offsets[ref], ref.length)]

    def write(self, store: WeightStore, file: BinaryIO) -> int:
        """Write the data in the order of their places."""
        for ref, offset in self.offsets.items():
            file.write(bytes(offset - file.tell()))
            _copy(store.read(ref), file)
        return self.size


def _copy(data: memoryview, file: BinaryIO) -> None:
    for start in range(0, len(data), _CHUNK):
        file.write(data[start : start + _CHUNK])


def _write_pieces(pieces: Pieces, store: WeightStore, file: BinaryIO) -> int:
    for part in pieces.parts:
        _copy(store.read(part) if isinstance(part, Ref) else memoryview(part), file)
    return pieces.size

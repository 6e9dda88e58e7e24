"""Atomic output: everything is written to a temporary name beside the target and renamed at the end."""

from __future__ import annotations

import errno
import os
import stat
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, BinaryIO

from graphkit._wire import Pieces, Ref, expand, external_entries, raw_data
from graphkit.errors import OutputError

if TYPE_CHECKING:
    from graphkit.weights import WeightStore  # brings onnx

_CHUNK = 1 << 20  # bytes written at a time: what fits the cache of the processor is copied fastest
_ALIGN = 4096  # onnxruntime maps external tensors that start on a page


_KINDS = (
    (stat.S_ISFIFO, "a pipe"),
    (stat.S_ISSOCK, "a socket"),
    (stat.S_ISCHR, "a device"),
    (stat.S_ISBLK, "a device"),
)


@contextmanager
def atomic(*paths: Path) -> Iterator[list[BinaryIO]]:
    """Open a temporary file for each path; rename all to their paths when the block ends well.

    Whatever goes wrong (full disk, Ctrl-C, an exception in the block), the temporary files are removed and an
    existing output stays as it was. A link stays one: what it points at is written. A file that is there already
    keeps its permissions. Raises OutputError for what the operating system refuses, and for a path that is there
    and no ordinary file.
    """
    files: list[BinaryIO] = []
    names: list[Path] = []
    try:
        targets = [target_of(path) for path in paths]
        for path in targets:
            handle, name = _temporary(path)
            names.append(name)
            files.append(os.fdopen(handle, "wb"))
        yield files
        for file in files:
            file.close()  # a full disk shows here at the latest
        for name, path in zip(names, targets, strict=True):
            name.replace(path)
    except OSError as error:
        raise _output_error(error, paths[0]) from error
    finally:
        for file in files:
            with suppress(OSError):  # the write itself has reported it
                file.close()
        for name in names:
            name.unlink(missing_ok=True)


def target_of(path: Path) -> Path:
    """The file that writing to `path` changes: what a link points at, else the path itself.

    Raises OutputError for a folder, a device, a pipe or a socket (which a rename would replace by a file), and for
    links in a circle; OSError when the system does not let one look.
    """
    try:
        mode = path.stat().st_mode
    except (FileNotFoundError, NotADirectoryError):
        mode = 0
    except OSError as error:
        if error.errno != errno.ELOOP:
            raise
        raise OutputError("cannot be written: its links go in a circle", file=path) from error
    if stat.S_ISDIR(mode):
        raise OutputError("is a directory; name a file", file=path)
    if mode and not stat.S_ISREG(mode):
        kind = next((name for test, name in _KINDS if test(mode)), "no ordinary file")
        raise OutputError(f"is {kind}; outputs are files", file=path)
    return Path(os.path.realpath(path)) if path.is_symlink() else path


def _temporary(path: Path) -> tuple[int, Path]:
    handle, name = tempfile.mkstemp(prefix=f".{path.name[:100]}.", suffix=".part", dir=path.parent)
    try:
        mode = path.stat().st_mode & 0o777
    except OSError:
        umask = os.umask(0)
        os.umask(umask)
        mode = 0o666 & ~umask  # mkstemp makes private files; an output is an ordinary one
    os.fchmod(handle, mode)
    return handle, Path(name)


def _output_error(error: OSError, path: Path) -> OutputError:
    if error.errno == errno.ENOSPC:
        return OutputError("cannot be written: no space left on the disk", file=path)
    reason = error.strerror or str(error)
    return OutputError(f"cannot be written: {reason}", file=path, hint="choose another place with -o")


def write_bytes(path: Path, data: bytes) -> None:
    """Write a small file atomically. Raises OutputError."""
    with atomic(path) as (file,):
        file.write(data)


def save(skeleton: bytes, store: WeightStore, path: Path, *, external: bool) -> int:
    """Write a model from its serialized skeleton; return the bytes written (see `Model.save`)."""
    data_path = path.with_name(path.name + ".data")
    if external and path.is_symlink() and target_of(path).parent != path.parent.resolve():
        raise OutputError(
            "is a link to another folder, where a reader would not find the weights beside it",
            file=path, hint="name the file that it points at, or keep the weights inside",
        )  # fmt: skip
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

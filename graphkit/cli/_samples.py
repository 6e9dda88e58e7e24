"""Samples from `--inputs`: errors name the file, and the input where there is one."""

from __future__ import annotations

import zipfile
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from graphkit.errors import UsageError

if TYPE_CHECKING:
    from graphkit.proof import Feeds

_NUMPY = b"\x93NUMPY"


class FileFeeds(dict[str, Any]):
    """Arrays by input name; `file` is where they come from, for messages."""

    def __init__(self, arrays: Mapping[str, Any], file: Path) -> None:
        super().__init__(arrays)
        self.file = file


def samples(path: Path | None) -> list[Feeds] | None:
    """The user's own samples, None when there are none. Raises UsageError that names the file."""
    if path is None:
        return None
    from graphkit.inputs import load_inputs

    files = _files(path)
    for file in files:
        if file.is_file():
            _check_archive(file)
    return [FileFeeds(arrays, file) for file in files for arrays in load_inputs(file)]


def _files(path: Path) -> list[Path]:
    """The files that are one sample each: the file itself, the .npz of a folder, or a folder of .npy as a whole."""
    if not path.is_dir():
        if path.exists() and not path.is_file():
            raise UsageError("is not a file", file=path)
        return [path]
    from graphkit.inputs import natural_order

    archives = sorted(path.glob("*.npz"), key=natural_order)
    arrays = sorted(path.glob("*.npy"), key=natural_order)
    if archives and arrays:
        raise UsageError(
            f"holds both .npz files (a sample each) and .npy files (an input each): '{archives[0].name}' and "
            f"'{arrays[0].name}'",
            file=path,
            hint="move the ones that are not meant out of it",
        )
    return archives or [path]


def _check_archive(file: Path) -> None:
    """Find what numpy would report in its own words: another kind of file, or an array of Python objects."""
    with file.open("rb") as head:
        if head.read(len(_NUMPY)) == _NUMPY:
            return  # one array: load_inputs says so
    if not zipfile.is_zipfile(file):
        raise UsageError("is not an .npz file", file=file)
    with zipfile.ZipFile(file) as archive:
        for name in archive.namelist():
            with archive.open(name) as member:
                problem = _problem(member)
            if problem:
                raise UsageError(f"input '{name.removesuffix('.npy')}' {problem}", file=file)


def _problem(member: Any) -> str:
    from numpy.lib import format as npy

    try:
        version = npy.read_magic(member)
        read = npy.read_array_header_1_0 if version == (1, 0) else npy.read_array_header_2_0
        _, _, dtype = read(member)
    except (ValueError, OSError, EOFError, zipfile.BadZipFile):
        return "is not an array of numpy's"
    return "holds Python objects, not numbers" if dtype.hasobject else ""

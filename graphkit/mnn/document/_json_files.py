"""The files of a JSON form: where they go, that they overwrite no input, and that those beside it are its own."""

from __future__ import annotations

import hashlib
import mmap
import os
from pathlib import Path
from typing import Any, BinaryIO

from graphkit.errors import ModelError, OutputError
from graphkit.mnn.document import _json_numbers as numbers
from graphkit.mnn.document.files import Document

_CHUNK = 1 << 20


def beside(path: Path, suffix: str) -> Path:
    """`model.json` with another suffix; a name that does not end in .json gets it appended."""
    return path.with_name((path.stem if path.suffix.lower() == ".json" else path.name) + suffix)


def protect_inputs(document: Document, targets: list[Path]) -> None:
    """Raise OutputError when a file to be written is one that the document was read from."""
    for source in (document.source, document.weights):
        for target in targets:
            if source is not None and source.exists() and target.exists() and target.samefile(source):
                raise OutputError("would overwrite an input", file=target, hint="choose another -o")


def refuse_unknown(document: Document, drop: bool) -> None:
    """Raise ModelError when the document holds fields that JSON cannot carry, unless they may be dropped."""
    unknown = [] if drop else document.unknown()
    if unknown:
        more = f" and {len(unknown) - 1} more" if len(unknown) > 1 else ""
        raise ModelError(
            f"holds fields that MNN {document.schema.version} does not have: {unknown[0]}{more}",
            file=document.source, hint="JSON cannot carry them; --drop-unknown leaves them out",
        )  # fmt: skip


def map_text(path: Path) -> memoryview:
    """The bytes of a file. Raises ModelError."""
    try:
        with path.open("rb") as file:
            if not os.fstat(file.fileno()).st_size:
                raise ModelError("is empty", file=path)
            return memoryview(mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ))
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or str(error)
        raise ModelError(f"cannot be read: {reason}", file=path) from error


def copy_weights(source: Path, target: BinaryIO) -> tuple[int, str]:
    """Copy the file of weights that MNN keeps outside; its bytes and its hash. Raises ModelError."""
    found, size = hashlib.sha256(), 0
    try:
        with source.open("rb") as file:
            while block := file.read(_CHUNK):
                found.update(block)
                size += target.write(block)
    except OSError as error:
        raise ModelError(f"cannot be copied: {error.strerror}", file=source) from error
    return size, found.hexdigest()


def named_file(folder: Path, raw: Any, key: str, keys: set[str]) -> Path:
    """The file beside the JSON that its entry `key` names. Raises ModelError for one that is in another folder."""
    if not isinstance(raw, dict) or not raw.keys() <= keys:
        raise numbers.wrong(key, f"an object with {', '.join(sorted(keys))}", raw)
    name = raw.get("file")
    if not isinstance(name, str):
        raise numbers.wrong(f"{key}.file", "the name of a file", name)
    plain = name not in ("", ".", "..") and not any(sign in name for sign in "/\\:\0")
    if not plain or not _stays(folder, name):
        raise ModelError(
            f"{key}.file: {numbers.show(name)} is not in the folder of the JSON file",
            hint="only files beside it are read; put it there and name it without a folder",
        )
    return folder / name


def _stays(folder: Path, name: str) -> bool:
    try:
        return (folder / name).resolve().parent == folder.resolve()
    except (OSError, ValueError, RuntimeError):
        return False


def check_weights(path: Path, raw: dict[str, Any]) -> None:
    """Raise ModelError unless the file of outside weights is there and is the one that was written."""
    size, sha256 = raw.get("bytes"), raw.get("sha256")
    if not path.is_file():
        raise ModelError(
            f"weights: {numbers.show(path.name)} is not there",
            hint=f"put {numbers.show(path.name)} beside the JSON file",
        )
    if type(size) is not int or path.stat().st_size != size:
        raise ModelError(
            f"weights: {numbers.show(path.name)} has {path.stat().st_size} bytes, expected {numbers.show(size)}"
        )
    with path.open("rb") as file:
        found = hashlib.file_digest(file, "sha256").hexdigest()
    if sha256 is not None and found != sha256:
        raise ModelError(
            f"weights: {numbers.show(path.name)} is not the one that was written: its hash differs",
            hint='if you changed it on purpose, take "sha256" out of the JSON; else copy the file again',
        )

"""Documents: a .mnn file read, and written again.

Reading maps the file; arrays stay views of it until somebody asks for their values, so that reading costs the same
for any amount of weights. Writing goes to a temporary file that is renamed at the end.
"""

from __future__ import annotations

import gc
import mmap
import os
import stat
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import BinaryIO

from graphkit._write import atomic, target_of
from graphkit.errors import ModelError, OutputError
from graphkit.mnn.document._faults import Damaged
from graphkit.mnn.document._reader import Buffer, Reader
from graphkit.mnn.document._writer import Image, layout
from graphkit.mnn.document.schema import Schema, known_versions, schema_for
from graphkit.mnn.document.tree import Table

_CHUNK = 1 << 20


@dataclass(frozen=True)
class GraphView:
    """The main graph or a subgraph; `ops` and `tensors` are the document's own lists.

    `name` is "" for the main graph; `where` is the path of its operators ("oplists", "subgraphs[2].nodes"). A graph
    whose file holds no such list has an empty one here that is not the document's.
    """

    name: str
    table: Table
    ops: list[Table]
    tensors: list[str]
    where: str


@dataclass(frozen=True)
class Origin:
    """The mapped file of a document, as it was when it was read."""

    path: Path
    data: mmap.mmap
    stamp: tuple[int, int, int]

    def check(self) -> None:
        """Raise ModelError when the file was changed in place, so that arrays of the document are no longer its own.

        A file that was replaced by renaming another over it does no harm: the mapping keeps the old one.
        """
        try:
            cut = self.data.size() < len(self.data)
            now = self.path.stat()
        except OSError:
            return  # removed: the mapping keeps it
        changed = (now.st_dev, now.st_ino) == self.stamp[:2] and now.st_mtime_ns != self.stamp[2]
        if cut or changed:
            raise ModelError("was changed while it was open", file=self.path, hint="read it again")


@dataclass
class Document:
    """A .mnn file in memory: the table Net with all below it, and where it came from.

    `version` is what the converter wrote of itself ("" when the file names none), `schema` the format that the file
    was read by. `weights` is the file beside `source` that holds arrays kept outside, None when nothing is or when
    that file is missing. Tables and lists may be changed; arrays that came from the file are read-only views of it
    and may be replaced.
    """

    net: Table
    schema: Schema
    version: str
    source: Path | None = None
    weights: Path | None = None
    origin: Origin | None = field(default=None, repr=False, compare=False)

    def graphs(self) -> Iterator[GraphView]:
        """The main graph, then each subgraph, as live views."""
        yield GraphView("", self.net, self.net.tables("oplists"), self.net.texts("tensorName"), "oplists")
        for k, body in enumerate(self.net.tables("subgraphs")):
            name, where = body["name"] or "", f"subgraphs[{k}].nodes"
            yield GraphView(name, body, body.tables("nodes"), body.texts("tensors"), where)

    def unknown(self) -> list[str]:
        """What the file holds and the schema does not know: a line for each kind, with the first place of it."""
        places: dict[tuple[str, str], list[str]] = {}
        for where, table in self.net.walk():
            for what in _unknown(table):
                places.setdefault((table.type.name, what), []).append(where)
        return [_told(kind, what, found) for (kind, what), found in places.items()]

    def check_source(self) -> None:
        """Raise ModelError when the source was changed in place since it was read: its arrays are not to be trusted."""
        if self.origin is not None:
            self.origin.check()


def _told(kind: str, what: str, places: list[str]) -> str:
    more = f" and {len(places) - 1} more" if len(places) > 1 else ""
    return f"{places[0]}{more} ({kind}): {what}" if places[0] else f"{kind}: {what}"


def _unknown(table: Table) -> Iterator[str]:
    """What one table holds and its type does not have."""
    fields, version = table.type.by_slot, table.schema.version
    for slot in table.unknown:
        if slot < len(fields):
            name = fields[slot].name
            number = table.fields.get(f"{name}_type", 0)
            yield f"{name} is of a kind that MNN {version} does not have (number {number})"
        else:
            yield f"field {slot} (MNN {version} has {len(fields)}, the first is 0)"


def parse(data: Buffer) -> Document:
    """Read a .mnn file from memory; arrays are views of `data`. Raises ModelError for damaged bytes."""
    try:
        return _parse(data)[0]
    except Damaged as error:
        raise _damaged(error) from None


def _parse(data: Buffer) -> tuple[Document, bool]:
    """The document, and whether it keeps arrays outside."""
    schema = schema_for(known_versions()[-1])
    net, outside = _tables(data, schema)
    extra = net["extraInfo"]
    version = (extra["version"] or "") if extra is not None else ""
    if schema_for(version) is not schema:  # what both know lies in the same place, the version too
        schema = schema_for(version)
        net, outside = _tables(data, schema)
    return Document(net, schema, version), outside


def _tables(data: Buffer, schema: Schema) -> tuple[Table, bool]:
    reader = Reader(data, schema)
    collects = gc.isenabled()
    gc.disable()  # no garbage is made here, and looking for it takes twice the time of reading
    try:
        net = reader.root()
        return net, reader.outside
    finally:
        if collects:
            gc.enable()


def _damaged(error: Damaged, path: Path | None = None) -> ModelError:
    return ModelError(f"is not an MNN model, or it is damaged ({error})", file=path)


def read(path: Path | str) -> Document:
    """Read a .mnn file; its arrays are views of the mapped file.

    Raises ModelError when it is missing, no .mnn file, damaged, or without operators (which is what MNNConvert
    leaves of a model that it could not convert). A missing file of weights kept outside is no error here.
    """
    path = Path(path)
    try:
        if not stat.S_ISREG(path.stat().st_mode):  # a pipe would block
            raise ModelError("is not a file", file=path)
        with path.open("rb") as file:
            origin = _map(file, path)
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or error
        raise ModelError(f"cannot be read: {reason}", file=path) from error
    try:
        document, outside = _parse(origin.data)
    except Damaged as error:
        raise _damaged(error, path) from None
    if not document.net.tables("oplists"):
        raise ModelError("is not an MNN model, or it is damaged: it holds no operators", file=path)
    document.source, document.origin = path, origin
    document.weights = companion(path) if outside else None
    return document


def _map(file: BinaryIO, path: Path) -> Origin:
    status = os.fstat(file.fileno())
    if not status.st_size:
        raise ModelError("is not an MNN model: it is empty", file=path)
    data = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
    return Origin(path, data, (status.st_dev, status.st_ino, status.st_mtime_ns))


def companion(path: Path) -> Path | None:
    """The file where MNN looks for arrays kept outside the model, None when it is not there."""
    found = weights_name(path)
    return found if found.is_file() else None


def weights_name(path: Path) -> Path:
    """Where MNN looks for arrays that a model keeps outside."""
    return path.with_name(f"{path.name}.weight")


def dump(document: Document) -> bytes:
    """A small document as the bytes of a .mnn file. Raises ModelError as `write` does."""
    image = layout(document.net, document.schema)
    return b"".join(bytes(piece) for piece in image.pieces())


def write(document: Document, path: Path | str, *, drop_unknown: bool = False) -> int:
    """Write a document as a .mnn file and its outside weights beside it; the bytes written.

    Both files appear whole or not at all; nothing is checked beyond what the format needs (see `validate`). Raises
    ModelError for what a file cannot hold: unknown fields (unless `drop_unknown`), more than 2 GiB, values that do
    not fit their fields, a source that was changed in place meanwhile; OutputError for a path that cannot be written
    or that is an input of this document.
    """
    path = Path(path)
    document.check_source()
    image = layout(document.net, document.schema, drop_unknown=drop_unknown)
    weights = document.weights if image.outside else None
    _protect_inputs(document, path, weights, image.outside)
    try:
        return image.size + _write_files(document, image, path, weights)
    except OutputError:
        document.check_source()  # a source that was cut off fails the write that copies from it
        raise


def _write_files(document: Document, image: Image, path: Path, weights: Path | None) -> int:
    """Write all; the bytes of the outside weights."""
    if weights is None:
        with atomic(path) as (file,):
            _write_image(image, file)
            document.check_source()
        return 0
    with _open(weights) as source, atomic(weights_name(path), path) as (copy, file):
        size = _copy(source, copy)
        _write_image(image, file)
        document.check_source()
    return size


def _protect_inputs(document: Document, path: Path, weights: Path | None, outside: bool) -> None:
    beside = weights_name(path)
    for source in (document.source, document.weights):
        for target in (path, beside) if weights else (path,):
            if source is not None and source.exists() and target.exists() and target.samefile(source):
                raise OutputError("would overwrite an input", file=target, hint="choose another -o")
    if outside and weights is None and beside.exists():
        raise OutputError(
            "is there, and the model would take its weights from it: its own file of weights is missing",
            file=beside, hint="remove that file, or choose another -o",
        )  # fmt: skip
    if weights and path.is_symlink() and target_of(path).parent != path.parent.resolve():
        raise OutputError(
            "is a link to another folder, where MNN would not find the weights beside it",
            file=path, hint="name the file that it points at",
        )  # fmt: skip


def _open(path: Path) -> BinaryIO:
    try:
        return path.open("rb")
    except OSError as error:
        raise ModelError(f"cannot be read: {error.strerror}", file=path) from error


def _write_image(image: Image, file: BinaryIO) -> None:
    for piece in image.pieces():
        for start in range(0, len(piece), _CHUNK):
            file.write(piece[start : start + _CHUNK])


def _copy(source: BinaryIO, target: BinaryIO) -> int:
    size = 0
    while block := source.read(_CHUNK):
        size += target.write(block)
    return size

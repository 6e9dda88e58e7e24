"""A document as JSON that a person can read and compare in git, and back, without any loss.

A skeleton holds everything but long arrays, a line for each operator and tensor:

    {"mnn": "3.6.1", "graphkit": 1,
    "sidecar": {"file": "model.safetensors"},
    "net": {
    "oplists": [
    {"name":"conv1","type":"Convolution","main_type":"Convolution2D","inputIndexes":["0:data"], …,
     "main":{"common":{…},"weight":{"array":"ops[conv1].main.weight","dtype":"float32","length":432,"sha256":"…"}}},

Arrays of more than 64 elements are in the sidecar, a safetensors file beside it, named after their operator and
field, so that a change of one operator changes one line. Inline, they are `{"base64": …, "dtype": …}` instead.
Weights that MNN keeps outside are copied to a file beside the JSON.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO

from graphkit._write import atomic
from graphkit.errors import ModelError
from graphkit.mnn.document import _json_files as files
from graphkit.mnn.document import _json_numbers as numbers
from graphkit.mnn.document._json_arrays import ArrayDecoder, InlineEncoder, SidecarEncoder, base64_pieces
from graphkit.mnn.document._json_lines import Spool, dumps, net_lines
from graphkit.mnn.document._json_names import NamingEncoder
from graphkit.mnn.document._json_sidecar import Arrays, Sidecar
from graphkit.mnn.document._json_text import Repeated, loads
from graphkit.mnn.document.files import Document
from graphkit.mnn.document.schema import Schema, known_versions, schema_for

FORM = 1  # of the skeleton; a reader refuses those above its own
_KEYS = {"mnn", "graphkit", "sidecar", "weights", "net"}


@dataclass(frozen=True)
class JsonFiles:
    """What was written: each file with its bytes; None and 0 where there is no such file."""

    json: Path
    json_bytes: int
    sidecar: Path | None = None
    sidecar_bytes: int = 0
    weights: Path | None = None
    weights_bytes: int = 0

    def written(self) -> list[tuple[Path, int]]:
        """The files that were written, with their bytes."""
        rows = [
            (self.json, self.json_bytes), (self.sidecar, self.sidecar_bytes), (self.weights, self.weights_bytes)
        ]  # fmt: skip
        return [(path, size) for path, size in rows if path is not None]


def to_json(document: Document, path: Path | str, *, inline: bool = False, drop_unknown: bool = False) -> JsonFiles:
    """Write a document as JSON, its long arrays to `<stem>.safetensors`, outside weights to `<stem>.weight`.

    inline: keep the arrays in the JSON; weights that MNN keeps outside stay a file beside it all the same. All files
    appear whole or not at all. Raises ModelError for fields that the schema does not know (unless `drop_unknown`)
    and a source that was changed meanwhile, OutputError for a path that cannot be written or is an input.
    """
    path = Path(path)
    files.refuse_unknown(document, drop_unknown)
    document.check_source()
    arrays, spool = Arrays(), Spool(base64_pieces)
    encoder: NamingEncoder = (
        InlineEncoder(document.schema, spool) if inline else SidecarEncoder(document.schema, arrays)
    )
    lines = net_lines(document.net, encoder)
    if not inline:
        lines = iter(list(lines))  # after this the arrays are known
    sidecar = files.beside(path, ".safetensors") if arrays else None
    weights = files.beside(path, ".weight") if document.weights else None
    others = [file for file in (sidecar, weights) if file is not None]
    files.protect_inputs(document, [*others, path])
    with atomic(*others, path) as opened:
        head: dict[str, Any] = {"mnn": document.schema.version, "graphkit": FORM}
        sizes = [0, 0]
        streams = iter(opened)
        if sidecar is not None:
            sizes[0] = arrays.write(next(streams))
            head["sidecar"] = {"file": sidecar.name}
        if weights is not None and document.weights is not None:
            sizes[1], sha256 = files.copy_weights(document.weights, next(streams))
            head["weights"] = {"file": weights.name, "bytes": sizes[1], "sha256": sha256}
        size = _write(next(streams), head, lines, spool)
        document.check_source()
    return JsonFiles(path, size, sidecar, sizes[0], weights, sizes[1])


def _write(file: BinaryIO, head: dict[str, Any], lines: Iterator[str], spool: Spool) -> int:
    """Write the skeleton; the number of bytes."""
    entries = ",\n".join(f"{dumps(key)}: {dumps(value)}" for key, value in head.items())
    size = file.write(f'{{{entries},\n"net": '.encode())
    for line in lines:
        for piece in spool.pieces(line):
            size += file.write(piece.encode("utf-8"))
    return size + file.write(b"}\n")


def from_json(path: Path | str) -> Document:
    """Read what `to_json` wrote, in either form; arrays of a sidecar are views of the mapped file.

    Nothing is taken on trust: names, types and ranges of all values, that the sidecar is there and whole, and the
    hash of each array. Raises ModelError naming operator and field.
    """
    path = Path(path)
    try:
        return _read(path)
    except ModelError as error:
        error.file = error.file or str(path)
        raise


def _read(path: Path) -> Document:
    raw = loads(files.map_text(path), path)
    schema = _head(raw)
    sidecar = weights = None
    if "sidecar" in raw:
        sidecar = Sidecar(files.named_file(path.parent, raw["sidecar"], "sidecar", {"file"}))
    if "weights" in raw:
        weights = files.named_file(path.parent, raw["weights"], "weights", {"file", "bytes", "sha256"})
        files.check_weights(weights, raw["weights"])
    net = ArrayDecoder(schema, sidecar).table(raw["net"], schema.root, "")
    extra = net["extraInfo"]
    version = (extra["version"] or "") if extra is not None else ""
    return Document(net, schema, version, path, weights, sidecar.origin if sidecar else None)


def _head(raw: Any) -> Schema:
    """Check what stands around the net; the schema that it is written in. Raises ModelError."""
    if not isinstance(raw, dict):
        raise numbers.wrong("file", "an object", raw)
    if isinstance(raw, Repeated):
        raise ModelError(f"holds {numbers.show(raw.key)} twice")
    if "oplists" in raw:
        raise ModelError("is a model in MNN's own JSON", hint="read it with --compat")
    missing = next((key for key in ("mnn", "graphkit", "net") if key not in raw), None)
    if missing is not None:
        raise ModelError(f"is not the JSON form of an MNN model: it has no '{missing}'")
    unknown = next((key for key in raw if key not in _KEYS), None)
    if unknown is not None:
        raise ModelError(f"has an entry {numbers.show(unknown)} that is not known{numbers.meant(unknown, _KEYS)}")
    form, version = raw["graphkit"], raw["mnn"]
    if type(form) is not int or form != FORM:
        raise ModelError(f"graphkit: form {numbers.show(form)} is not known", hint=f"this graphkit reads form {FORM}")
    if version not in known_versions():
        raise ModelError(
            f"mnn: no table of MNN {numbers.show(version)}", hint=f"known are {', '.join(known_versions())}"
        )
    return schema_for(version)

"""JSON patches (RFC 6902) of a document, over its JSON form: `/net/oplists/3/main/common/strideX`.

Pointers go through what `graphkit mnn to-json` writes. Long arrays are there as references to the sidecar, and stay so
while a patch is applied: moving or copying a reference moves the array, and `test` compares its hash.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from graphkit.errors import ModelError, UsageError
from graphkit.mnn.document._edit_graph import Edit
from graphkit.mnn.document._json_arrays import ArrayDecoder, SidecarEncoder
from graphkit.mnn.document._json_lines import net_lines
from graphkit.mnn.document._json_numbers import meant, show
from graphkit.mnn.document._json_sidecar import Arrays, array_bytes, digest
from graphkit.mnn.document.files import Document
from graphkit.mnn.document.json_form import FORM
from graphkit.mnn.document.schema import Field, Schema
from graphkit.mnn.document.tree import Array

_MEMBERS = {
    "add": ("path", "value"),
    "remove": ("path",),
    "replace": ("path", "value"),
    "move": ("from", "path"),
    "copy": ("from", "path"),
    "test": ("path", "value"),
}
_COPIED = 4_000_000  # values that all copies together may add; a patch could double a document forty times
_ROOT = "/net"


def read_patch(path: Path | str) -> list[dict[str, Any]]:
    """The operations of a patch file. Raises UsageError when it is none."""
    path = Path(path)
    try:
        operations = json.loads(path.read_text(encoding="utf-8-sig"))
    except OSError as error:
        raise UsageError(f"cannot be read: {error.strerror or error}", file=path) from None
    except UnicodeDecodeError:
        raise UsageError("is no JSON: it is not UTF-8 text", file=path) from None
    except (ValueError, RecursionError) as error:
        raise UsageError(f"is no JSON: {str(error)[:200]}", file=path) from None
    try:
        _check(operations)
    except UsageError as error:
        error.file = str(path)
        raise
    return list(operations)


def apply_patch(doc: Document, operations: list[dict[str, Any]]) -> list[Edit]:
    """Apply the operations in order, all of them or none: when one fails the document is as it was.

    Returns what changed; a `test` changes nothing.

    The result must be a document again (fields, types, ranges, names of enums and tensors); whether MNN runs it is
    for `edits.save` to find. Raises UsageError that names the operation which is malformed, points at nothing, or
    whose `test` fails; ModelError for a result that is no document, and for a document with fields that its schema
    does not know.
    """
    _check(operations)
    if unknown := doc.unknown():
        raise ModelError(
            f"holds fields that MNN {doc.schema.version} does not know ({unknown[0]}); their JSON would lose them",
            file=doc.source,
            hint="edit it with `graphkit mnn set`, which leaves them alone",
        )
    kept = _Kept()
    net = json.loads("".join(net_lines(doc.net, SidecarEncoder(doc.schema, kept))))
    plain: Any = {"mnn": doc.schema.version, "graphkit": FORM, "net": net}
    copied = 0
    edits = []
    for number, operation in enumerate(operations, start=1):
        if operation["op"] == "copy":
            copied += _copied(plain, operation["from"])
            if copied > _COPIED:
                raise UsageError(f"operation {number} ({_label(operation)}): the copies are larger than any model")
        plain = _apply(plain, operation, number)
        if operation["op"] != "test":
            edits.append(Edit(operation["op"], operation["path"], _label(operation)))
    decoder = _Decoder(doc.schema, kept)
    patched = decoder.table(_net_of(plain), doc.schema.root, "")
    doc.net.fields = patched.fields
    return edits


def _net_of(plain: Any) -> Any:
    if not isinstance(plain, dict) or "net" not in plain:
        raise UsageError("after the patch there is no net", hint=f"pointers into the model start with {_ROOT}/")
    return plain["net"]


class _Kept(Arrays):
    """Long arrays by name, as the sidecar of the JSON form would hold them."""

    def __init__(self) -> None:
        super().__init__()
        self.arrays: dict[str, Array] = {}

    def put(self, path: str, array: Array) -> str:
        """Note an array of the field `path` and return its name."""
        name = super().put(path, array)
        self.arrays[name] = array
        return name


class _Decoder(ArrayDecoder):
    """Reads the JSON form; a reference stands for the array that had the name before the patch."""

    def __init__(self, schema: Schema, kept: _Kept) -> None:
        super().__init__(schema, None)
        self._kept = kept.arrays

    def _from_sidecar(self, raw: dict[str, Any], field: Field, where: str) -> Array:
        name = raw.get("array")
        array = self._kept.get(name) if isinstance(name, str) else None
        if array is None:
            raise ModelError(
                f"{where}: no array is named {show(name)}{meant(str(name), self._kept)}",
                hint="give the numbers as a list, or replace weights with `graphkit mnn weights`",
            )
        if array.dtype != field.dtype:
            raise ModelError(f"{where}: array '{name}' is of {array.dtype.name}, and the field holds {field.type}")
        if raw.get("length", array.size) != array.size or raw.get("sha256", "") not in ("", digest(array_bytes(array))):
            raise ModelError(
                f"{where}: describes array '{name}' as another than it is",
                hint="a patch cannot change the numbers of a long array; use `graphkit mnn weights`",
            )
        return array


def _check(operations: Any) -> None:
    if not isinstance(operations, list):
        raise UsageError(
            "a JSON patch is a list of operations", hint='such as [{"op": "remove", "path": "/net/bizCode"}]'
        )
    for number, operation in enumerate(operations, start=1):
        _check_operation(operation, number)


def _check_operation(operation: Any, number: int) -> None:
    if not isinstance(operation, dict):
        raise UsageError(f"operation {number} is no object")
    name = operation.get("op")
    if not isinstance(name, str) or name not in _MEMBERS:
        raise UsageError(
            f"operation {number}: no operation is named {show(name)}{meant(str(name), _MEMBERS)}",
            hint=f"operations are {', '.join(_MEMBERS)}",
        )
    for member in _MEMBERS[name]:
        if member not in operation:
            raise UsageError(f"operation {number} ({name}) has no '{member}'")
    for member in ("path", "from"):
        pointer = operation.get(member, "")
        if not isinstance(pointer, str) or (pointer and not pointer.startswith("/")):
            raise UsageError(
                f"operation {number} ({name}): '{member}' is no JSON pointer: {show(pointer)}",
                hint="pointers look like /net/oplists/3/name; ~1 stands for / and ~0 for ~ in a name",
            )
    pointers = [operation["path"]] + ([operation["from"]] if name == "move" else [])
    for pointer in pointers:
        if name != "test" and pointer != _ROOT and not pointer.startswith(f"{_ROOT}/"):
            raise UsageError(
                f"operation {number} ({_label(operation)}): only what is below {_ROOT} can be changed",
                hint=f"pointers into the model start with {_ROOT}/",
            )


def _label(operation: dict[str, Any]) -> str:
    source = f"{operation['from']} → " if operation["op"] in ("move", "copy") else ""
    return f"{operation['op']} {source}{operation['path']}"


def _apply(plain: Any, operation: dict[str, Any], number: int) -> Any:
    """The JSON after one operation; the one before is used up."""
    import jsonpatch

    try:
        return jsonpatch.apply_patch(plain, [operation], in_place=True)
    except jsonpatch.JsonPatchTestFailed:
        found = _resolved(plain, operation["path"])
        values = f"there is {_short(found)}, not {_short(operation['value'])}"
        raise UsageError(f"operation {number} ({_label(operation)}) fails: {values}") from None
    except (jsonpatch.JsonPatchException, jsonpatch.JsonPointerException) as error:
        raise UsageError(f"operation {number} ({_label(operation)}) fails: {error}") from None


def _copied(plain: Any, pointer: str) -> int:
    """How many values a copy adds; 0 when the pointer leads nowhere, which applying it will tell."""
    count, left = 0, [_resolved(plain, pointer)]
    while left and count <= _COPIED:
        value = left.pop()
        count += 1
        left += value.values() if isinstance(value, dict) else value if isinstance(value, list) else ()
    return count


def _resolved(plain: Any, pointer: str) -> Any:
    import jsonpatch

    try:
        return jsonpatch.JsonPointer(pointer).resolve(plain)
    except jsonpatch.JsonPointerException:
        return None


def _short(value: Any) -> str:
    text = json.dumps(value, ensure_ascii=False)
    return text if len(text) <= 80 else f"{text[:79]}…"

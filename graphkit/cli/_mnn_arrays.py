"""Arrays that `graphkit mnn weights` reads from .npy files."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from graphkit.errors import UsageError

if TYPE_CHECKING:
    from graphkit.mnn.document import Document

_MAIN, _BIAS = "--npy", "--bias"


def array_files(npy: Path | None, bias: Path | None, arrays: Iterable[str]) -> dict[str, Path]:
    """Files by the field or the option that says which field they are for. Raises UsageError."""
    found: dict[str, Path] = {}
    for text in arrays:
        name, equals, file = text.partition("=")
        if not equals or not name.strip() or not file:
            raise UsageError(f"--array takes FIELD=F.npy, not '{text}'", hint="such as --array gamma=g.npy")
        if name.strip() in found:
            raise UsageError(f"--array gives '{name.strip()}' twice")
        found[name.strip()] = Path(file)
    for option, path in ((_MAIN, npy), (_BIAS, bias)):
        if path is not None:
            found[option] = path
    if not found:
        raise UsageError("no array is given", hint="give one with --npy F.npy, --bias F.npy or --array FIELD=F.npy")
    return found


def read_arrays(doc: Document, op: str, graph: str | None, files: Mapping[str, Path]) -> dict[str, npt.NDArray[Any]]:
    """The arrays by field. Raises UsageError for files that hold none, and for operators that do not have the field."""
    from graphkit.mnn.document._edit_graph import find_op
    from graphkit.mnn.document.edits import weight_fields

    view, at = find_op(doc, op, graph)
    fields = weight_fields(view.ops[at])
    arrays = {}
    for key, path in files.items():
        name = _field(key, fields, op)
        if name in arrays:
            raise UsageError(f"{key} and --array {name}=… are the same array")
        arrays[name] = _load(path)
    return arrays


def _field(key: str, fields: tuple[str, ...], op: str) -> str:
    if not fields:
        raise UsageError(f"operator '{op}' has no weights that can be replaced")
    if key == _MAIN:
        return fields[0]
    if key == _BIAS:
        found = next((name for name in fields if name in ("bias", "biasData", "beta")), None)
        if found is None:
            raise UsageError(f"operator '{op}' has no bias", hint=f"its arrays are {', '.join(fields)}")
        return found
    return key


def _load(path: Path) -> npt.NDArray[Any]:
    try:
        with path.open("rb") as file:
            array = np.lib.format.read_array(file, allow_pickle=False)
    except OSError as error:
        raise UsageError(f"cannot be read: {error.strerror or error}", file=path) from None
    except (ValueError, EOFError, SyntaxError, TypeError) as error:
        raise UsageError(f"is no .npy file of numbers: {str(error)[:200]}", file=path) from None
    return np.asarray(array)

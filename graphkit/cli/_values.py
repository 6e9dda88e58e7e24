"""Values of options: bindings, shapes, tolerances, samples and output places."""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from graphkit.errors import OutputError, UsageError

if TYPE_CHECKING:
    from graphkit.compare import Tolerance
    from graphkit.model import Model
    from graphkit.proof import Feeds

Binding = dict[str, int | str | Sequence[int]]

_DIMS = re.compile(r"\d+(?:\s*[,x]\s*\d+)*")
_FORMS = "write NAME:1,3,224,224, NAME:[1,3,224,224] or NAME:1x3x224x224"


def bindings(binds: Iterable[str], shapes: Iterable[str], load: Callable[[], Model]) -> Binding:
    """What `--bind DIM=N` and `--input-shape NAME:DIMS` ask for, by dim or input name.

    `load` gives the model when a shape comes without a name. Raises UsageError for texts that cannot be read,
    names given twice, and a shape without a name when the model has several inputs.
    """
    found: Binding = {}
    for text in binds:
        _add(found, *_bind(text))
    for text in shapes:
        name, sizes = _input_shape(text)
        _add(found, name or _only_input(load()), sizes)
    return found


def _add(found: Binding, name: str, value: int | Sequence[int]) -> None:
    if name in found:
        raise UsageError(f"'{name}' is bound twice")
    found[name] = value


def _bind(text: str) -> tuple[str, int]:
    name, equals, size = text.rpartition("=")
    if not equals or not name.strip() or not size.strip().isdigit() or int(size) == 0:
        hint = "a dim is named as in the model, or by input and axis: batch=1, x[0]=1"
        raise UsageError(f"--bind takes DIM=N with N from 1 up, not '{text}'", hint=hint)
    return name.strip(), int(size)


def _input_shape(text: str) -> tuple[str, list[int]]:
    name, _, dims = text.rpartition(":")
    dims = dims.strip()
    if dims.startswith("[") and dims.endswith("]"):
        dims = dims[1:-1].strip()
    if _DIMS.fullmatch(dims) is None:
        raise UsageError(f"--input-shape: '{text}' is not a shape", hint=_FORMS)
    return name.strip(), [int(size) for size in re.split(r"[,x]", dims)]


def _only_input(model: Model) -> str:
    """The name of the model's only input. Raises UsageError that lists them when there are more."""
    weights = {tensor.name for tensor in model.proto.graph.initializer}
    names = [info.name for info in model.proto.graph.input if info.name not in weights]
    if len(names) != 1:
        listing = ", ".join(f"'{name}'" for name in names) or "none"
        raise UsageError(f"--input-shape needs a name: the inputs are {listing}", hint=_FORMS)
    return names[0]


def tolerance(
    default: Callable[[], Tolerance], rtol: float | None, atol: float | None, min_cosine: float | None = None
) -> Tolerance | None:
    """The tolerance with the given numbers in place of the default's; None when none is given."""
    from dataclasses import replace

    given = {"rtol": rtol, "atol": atol, "min_cosine": min_cosine}
    changes: dict[str, Any] = {key: value for key, value in given.items() if value is not None}
    return replace(default(), **changes) if changes else None


def samples(path: Path | None) -> list[Feeds] | None:
    """The user's own samples, None when there are none. Raises UsageError."""
    if path is None:
        return None
    from graphkit.inputs import load_inputs

    return list(load_inputs(path))


def check_output(path: Path, inputs: Iterable[Path | None] = ()) -> Path:
    """Return a path that can be written as far as one can tell before the work. Raises OutputError."""
    if path.is_dir():
        raise OutputError("is a directory; name a file", file=path)
    if not path.parent.is_dir():
        raise OutputError("cannot be written: its folder does not exist", file=path)
    if not os.access(path.parent, os.W_OK):
        raise OutputError("cannot be written: its folder is read-only", file=path, hint="choose another -o")
    for source in inputs:
        if source is not None and path.exists() and source.exists() and path.samefile(source):
            raise OutputError("would overwrite an input", file=path, hint="choose another name")
    return path

"""Values of options: bindings, shapes, pipelines and tolerances."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING, Any

from graphkit.errors import UsageError

if TYPE_CHECKING:
    from graphkit.compare import Tolerance
    from graphkit.model import Model

Binding = dict[str, int | str | Sequence[int]]

_DIMS = re.compile(r"[0-9]+(?:\s*[,x]\s*[0-9]+)*")
_LARGEST = 2**31 - 1  # MNN's sizes are 32-bit integers
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
    if not equals or not name.strip() or not _is_size(size.strip()):
        hint = "a dim is named as in the model, or by input and axis: batch=1, x[0]=1"
        raise UsageError(f"--bind takes DIM=N with N from 1 to {_LARGEST}, not '{text}'", hint=hint)
    return name.strip(), int(size)


def _is_size(text: str) -> bool:
    digits = text.isascii() and text.isdigit() and len(text.lstrip("0")) <= len(str(_LARGEST))
    return digits and 1 <= int(text) <= _LARGEST


def _input_shape(text: str) -> tuple[str, list[int]]:
    name, _, dims = text.rpartition(":")
    dims = dims.strip()
    if dims.startswith("[") and dims.endswith("]"):
        dims = dims[1:-1].strip()
    if _DIMS.fullmatch(dims) is None:
        raise UsageError(f"--input-shape: '{text}' is not a shape", hint=_FORMS)
    sizes = [size.strip() for size in re.split(r"[,x]", dims)]
    wrong = [size for size in sizes if not _is_size(size)]
    if wrong:
        raise UsageError(f"--input-shape: '{text}': a size goes from 1 to {_LARGEST}, not {wrong[0]}")
    return name.strip(), [int(size) for size in sizes]


def _only_input(model: Model) -> str:
    """The name of the model's only input. Raises UsageError that lists them when there are more."""
    weights = {tensor.name for tensor in model.proto.graph.initializer}
    names = [info.name for info in model.proto.graph.input if info.name not in weights]
    if len(names) != 1:
        listing = ", ".join(f"'{name}'" for name in names) or "none"
        raise UsageError(f"--input-shape needs a name: the inputs are {listing}", hint=_FORMS)
    return names[0]


def pipeline(text: str | None, other: str = "") -> str | None:
    """The text of --passes; `other` is a further way out. Raises UsageError when there is nothing in it."""
    if text is not None and not text.strip():
        raise UsageError("--passes is empty", hint=f"name passes or a preset, such as --passes minimal{other}")
    return text


def tolerance(
    default: Callable[[], Tolerance], rtol: float | None, atol: float | None, min_cosine: float | None = None
) -> Tolerance | None:
    """The tolerance with the given numbers in place of the default's; None when none is given."""
    from dataclasses import replace

    given = {"rtol": rtol, "atol": atol, "min_cosine": min_cosine}
    changes: dict[str, Any] = {key: value for key, value in given.items() if value is not None}
    return replace(default(), **changes) if changes else None

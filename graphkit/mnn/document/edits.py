"""Edits of a document, and saving it: checked, loaded and run by MNN before it is in place.

```python
doc = read("det.mnn")
set_value(doc, "inputs[x].dims", [1, 3, 640, 640])
rename(doc, "sigmoid_0", "prob")
save(doc, "det640.mnn")
```

Each edit either does what it says or raises and leaves the document as it was. Operators and tensors are given by name
or index; `graph` is the name of a subgraph.
"""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from graphkit._write import target_of
from graphkit.errors import MnnError, OutputError
from graphkit.mnn.document._edit_graph import Edit
from graphkit.mnn.document._edit_names import rename, rename_op, rename_tensor
from graphkit.mnn.document._edit_outputs import add_outputs, remove_outputs, set_outputs
from graphkit.mnn.document._edit_remove import remove_op
from graphkit.mnn.document._edit_weights import set_weights, weight_fields
from graphkit.mnn.document.files import Document, weights_name, write
from graphkit.mnn.document.paths import quoted, set_value
from graphkit.mnn.document.trial import Trial, try_document
from graphkit.mnn.document.validate import Problem, require_valid, validate

__all__ = [
    "Edit",
    "Saved",
    "add_outputs",
    "remove_op",
    "remove_outputs",
    "rename",
    "rename_op",
    "rename_tensor",
    "resize_input",
    "save",
    "set_outputs",
    "set_value",
    "set_weights",
    "weight_fields",
]


@dataclass(frozen=True)
class Saved:
    """A document in place: the file, its bytes with those kept outside, what MNN did with it, and doubts."""

    path: Path
    size: int
    trial: Trial
    warnings: tuple[Problem, ...]


def resize_input(doc: Document, name: str | int, dims: Sequence[int]) -> Edit:
    """Give an input other dims (−1 where unknown): `set_value` of its `dims`. Raises UsageError."""
    key = str(name) if isinstance(name, int) else quoted(name)
    return set_value(doc, f"inputs[{key}].dims", [int(dim) for dim in dims])


def save(doc: Document, path: Path | str, *, drop_unknown: bool = False, keep: bool = False) -> Saved:
    """Write a document where no input of it is, after proving that MNN takes it.

    The document is validated, written to a temporary place beside the target, loaded by MNN in a child and, when its
    shapes allow, run there; then it is moved into place with its outside weights. An existing file of that name
    survives a failure. keep: leave the file when MNN refuses it.

    Raises ModelError for a document that is not valid or cannot be written, OutputError for the place, MnnError when
    MNN cannot load or run it.
    """
    path = Path(path)
    _check_place(doc, path)
    problems = validate(doc)
    if any(problem.severity == "error" for problem in problems):
        require_valid(doc)
    with _private_folder(path) as folder:
        made = folder / path.name
        size = write(doc, made, drop_unknown=drop_unknown)
        try:
            trial = try_document(made)
        except MnnError as error:
            error.file = str(path)
            if keep:
                _move(made, path)
                error.hint = f"{error.hint}; kept as {path}" if error.hint else f"kept as {path}"
            raise
        _move(made, path)
    return Saved(path, size, trial, tuple(problems))


def _check_place(doc: Document, path: Path) -> None:
    target = target_of(path)
    if doc.weights is not None and target.parent.resolve() != path.parent.resolve():
        raise OutputError(
            "is a link to another folder, where MNN would not find the weights beside it",
            file=path,
            hint="name the file that it points at",
        )
    for source in (doc.source, doc.weights):
        for target in (path, weights_name(path)):
            if source is not None and source.exists() and target.exists() and target.samefile(source):
                raise OutputError("would overwrite an input", file=target, hint="choose another place with -o")


@contextmanager
def _private_folder(path: Path) -> Iterator[Path]:
    """A new folder on the target's file system, so that moving the result is one rename."""
    try:
        folder = tempfile.mkdtemp(prefix=".graphkit-", dir=path.absolute().parent)
    except OSError as error:
        raise OutputError(f"cannot be written: {error.strerror}", file=path) from error
    try:
        yield Path(folder)
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def _move(made: Path, path: Path) -> None:
    """Move the file and its weights into place; weights first, so that no model lacks them.

    Weights of an earlier file of this name go when the new one has none: MNN would load them by name.
    """
    target = target_of(path)
    weights, beside = weights_name(made), weights_name(target)
    try:
        if target.exists():
            shutil.copymode(target, made)
        if weights.exists():
            weights.replace(beside)
            made.replace(target)
        else:
            made.replace(target)
            beside.unlink(missing_ok=True)
    except OSError as error:
        raise OutputError(f"cannot be written: {error.strerror}", file=path) from error

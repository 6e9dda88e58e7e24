"""How two models of one format differ: operators, fields, values, weights.

Operators are matched by name and type, then by the values they make, then by what they read and who reads them, so
that a renamed operator is a change of name and not one gone and one new. What an operator reads is compared by which
operator makes it: a value that is only called otherwise is no rewiring. Weights are compared where they are, a piece
at a time.

What makes no difference: the order of operators, `mnn_uuid` (MNN's converter draws a new one each time), where
weights are kept, texts for people, shapes of inner values that one side alone declares, and in .mnn files whether a
field that has its default is written.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Literal

from graphkit.errors import ModelError, UsageError
from graphkit.mnn._diff_bodies import Found, compare_bodies, compare_fields
from graphkit.mnn._diff_types import (
    ABSENT,
    ArrayChange,
    ArrayFacts,
    Change,
    Difference,
    OpChange,
    Side,
    WeightChange,
)

__all__ = [
    "ABSENT",
    "ArrayChange",
    "ArrayFacts",
    "Change",
    "Difference",
    "OpChange",
    "WeightChange",
    "diff",
]

PathLike = str | os.PathLike[str]
Format = Literal["mnn", "onnx"]


def diff(a: PathLike, b: PathLike, *, uuid: bool = False) -> Difference:
    """How model `b` differs from model `a`: two .mnn files or two .onnx files.

    uuid: `mnn_uuid` counts too. Raises UsageError for files of two formats, ModelError for one that cannot be read.
    """
    old, new = Path(a), Path(b)
    kind = _format(old, new)
    read = _mnn if kind == "mnn" else _onnx
    one, other = read(old, uuid), read(new, uuid)
    found = Found((one, other), model=compare_fields(one.facts, other.facts))
    for name in one.bodies:
        if name in other.bodies:
            compare_bodies(one.bodies[name], other.bodies[name], found, name)
    for name in one.bodies.keys() ^ other.bodies.keys():
        sides = one.bodies.get(name), other.bodies.get(name)
        found.model.append(Change(name, *(f"{len(body.items)} operators" if body else ABSENT for body in sides)))
    ops = sorted(found.ops, key=lambda op: (op.kind != "changed", op.kind, op.order))
    weights = sorted(found.weights, key=lambda weight: (weight.kind != "changed", weight.kind, weight.order))
    model, notes = tuple(found.model), _notes(one, other, found)
    return Difference(old, new, kind, model, tuple(ops), tuple(weights), found.same, notes)


def _format(old: Path, new: Path) -> Format:
    kinds = ["mnn" if path.suffix.lower() == ".mnn" else "onnx" for path in (old, new)]
    for path in (old, new):
        if path.is_dir():
            raise ModelError("is a directory, not a model file", file=path, hint="name the model file inside it")
        if not path.exists():
            raise ModelError("is not there", file=path)
    if kinds[0] != kinds[1]:
        raise UsageError(
            f"{old} and {new} are of two formats: their operators are not comparable one by one",
            hint=f"graphkit verify {old} {new} compares what they compute",
        )
    return "mnn" if kinds[0] == "mnn" else "onnx"


def _onnx(path: Path, uuid: bool) -> Side:
    from graphkit.mnn._diff_onnx import side_of
    from graphkit.model import Model

    return side_of(Model.load(path))


def _mnn(path: Path, uuid: bool) -> Side:
    from graphkit.mnn._diff_mnn import side_of
    from graphkit.mnn.document.files import read

    return side_of(read(path), uuid)


def _notes(one: Side, other: Side, found: Found) -> tuple[str, ...]:
    """What differs and counts for nothing."""
    notes = [change.field for change in compare_fields(one.quiet, other.quiet)]
    if found.moved:
        notes.append(f"the order of {found.moved} operators")
    if found.quiet:
        notes.append(f"texts and metadata of {found.quiet} operators")
    if found.declared:
        notes.append(f"shapes of {found.declared} inner values that B alone declares")
    return tuple(notes)

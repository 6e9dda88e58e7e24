"""What a difference of two models is, and the form in which both formats are compared."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Literal

from graphkit.mnn.document.stored import StoredArray

Kind = Literal["added", "removed", "changed"]
MatchedBy = Literal["name", "outputs", "structure"]


class Absent:
    """What a field holds that is not there."""

    def __repr__(self) -> str:
        return "–"


ABSENT = Absent()


@dataclass(frozen=True)
class Change:
    """One fact that differs: a field of an operator by its path, an input, a setting of the model.

    `old` or `new` is `ABSENT` where a side has no such field.
    """

    field: str
    old: Any
    new: Any

    def to_dict(self) -> dict[str, Any]:
        """In JSON's types; a side without the field has no key."""
        sides = {"old": self.old, "new": self.new}
        return {"field": self.field, **{key: value for key, value in sides.items() if value is not ABSENT}}


@dataclass(frozen=True)
class ArrayFacts:
    """One side of an array: element type, shape, bytes in the file, the first 16 digits of the SHA-256 of these
    bytes, how it is quantized, and the values when there are at most eight.
    """

    dtype: str
    shape: tuple[int, ...]
    nbytes: int
    sha256: str
    quantization: str = ""
    values: tuple[Any, ...] | None = None


@dataclass(frozen=True)
class ArrayChange:
    """Two arrays that differ.

    relative: ‖a−b‖/‖a‖ over all places where both are numbers, after dequantizing; None when they cannot be
    compared value by value. largest: the largest |a−b|. changed: values that differ, of `count`. nans: places where
    one side alone is NaN. codes: codes that differ, None unless both are quantized to as many levels.
    """

    field: str
    old: ArrayFacts
    new: ArrayFacts
    relative: float | None = None
    largest: float | None = None
    changed: int | None = None
    count: int | None = None
    nans: int = 0
    codes: int | None = None

    @property
    def weight(self) -> float:
        """How much of a change it is, for ordering: the relative norm, infinite when there is none."""
        if self.relative is None or self.nans or math.isnan(self.relative):
            return math.inf
        return self.relative

    def to_dict(self) -> dict[str, Any]:
        """In JSON's types."""
        return {key: value for key, value in asdict(self).items() if value is not None}


@dataclass(frozen=True)
class OpChange:
    """One operator that is new, gone, or not as it was.

    graph: the path of its graph, empty for the main one. name, type: in B, for a removed one in A. old_name: what
    it was called in A, when that was something else. matched: how the two were found to be one. fields: all that
    differs but arrays: type, attributes, inputs, outputs, shapes. instead_of: of an added operator, the removed one
    that made its outputs.
    """

    kind: Kind
    graph: str
    name: str
    type: str
    old_name: str = ""
    matched: MatchedBy | None = None
    fields: tuple[Change, ...] = ()
    arrays: tuple[ArrayChange, ...] = ()
    outputs: tuple[str, ...] = ()
    instead_of: str = ""

    @property
    def order(self) -> tuple[float, float]:
        """Sorts the most changed first: by number of fields, then by the arrays' relative norms."""
        return -len(self.fields), -max((array.weight for array in self.arrays), default=0.0)

    def to_dict(self) -> dict[str, Any]:
        """In JSON's types, without what is empty."""
        data: dict[str, Any] = {"kind": self.kind, "graph": self.graph, "name": self.name, "type": self.type}
        more = {"old_name": self.old_name, "matched": self.matched, "instead_of": self.instead_of}
        data |= {key: value for key, value in more.items() if value}
        if self.kind == "changed":
            data["fields"] = [change.to_dict() for change in self.fields]
            data["arrays"] = [change.to_dict() for change in self.arrays]
        else:
            data["outputs"] = list(self.outputs)
        return data


@dataclass(frozen=True)
class WeightChange:
    """One initializer of an .onnx model that is new, gone, renamed, or holds other values.

    used_by: the first operators that read it, in B, for a removed one in A. array: what differs, None for one that
    is only renamed, new or gone.
    """

    kind: Kind
    graph: str
    name: str
    facts: ArrayFacts
    old_name: str = ""
    used_by: tuple[str, ...] = ()
    array: ArrayChange | None = None

    @property
    def order(self) -> float:
        """Sorts the most changed first."""
        return -self.array.weight if self.array is not None else 0.0

    def to_dict(self) -> dict[str, Any]:
        """In JSON's types, without what is empty."""
        data: dict[str, Any] = {"kind": self.kind, "graph": self.graph, "name": self.name}
        if self.old_name:
            data["old_name"] = self.old_name
        data["used_by"] = list(self.used_by)
        return data | (self.array.to_dict() if self.array is not None else asdict(self.facts))


@dataclass(frozen=True)
class Difference:
    """How model B differs from model A.

    model: the models' own facts: inputs, outputs, versions, metadata. same: operators that are as they were.
    notes: what differs and counts for nothing.
    """

    old: Path
    new: Path
    format: Literal["mnn", "onnx"]
    model: tuple[Change, ...]
    ops: tuple[OpChange, ...]
    weights: tuple[WeightChange, ...]
    same: int
    notes: tuple[str, ...] = ()

    @property
    def equal(self) -> bool:
        """True when nothing differs that counts."""
        return not (self.model or self.ops or self.weights)

    def of_kind(self, kind: Kind) -> list[OpChange]:
        """Operators that are new, gone or changed."""
        return [op for op in self.ops if op.kind == kind]

    def to_dict(self) -> dict[str, Any]:
        """In JSON's types."""
        kinds: tuple[Kind, ...] = ("added", "removed", "changed")
        return {
            "a": str(self.old),
            "b": str(self.new),
            "format": self.format,
            "equal": self.equal,
            "totals": {
                "ops": {kind: len(self.of_kind(kind)) for kind in kinds} | {"same": self.same},
                "weights": {kind: sum(weight.kind == kind for weight in self.weights) for kind in kinds},
            },
            "model": [change.to_dict() for change in self.model],
            "ops": [op.to_dict() for op in self.ops],
            "weights": [weight.to_dict() for weight in self.weights],
            "notes": list(self.notes),
        }


@dataclass(eq=False)
class Item:
    """One operator to compare.

    inputs, outputs: names of values, empty for an optional one that is left out. fields: numbers, texts and tuples
    by path. bodies: the graphs inside it by the attribute that holds them. quiet: what is compared only for a note.
    """

    name: str
    type: str
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    fields: dict[str, Any] = field(default_factory=dict)
    arrays: dict[str, StoredArray] = field(default_factory=dict)
    bodies: dict[str, Body] = field(default_factory=dict)
    quiet: Any = None


@dataclass(eq=False)
class Body:
    """One graph to compare: its operators in the file's order, its initializers, and what it declares.

    inputs: what is known of each, in order. shapes: declared types of values as text. by_place: inputs and outputs go
    by their places, as in the graphs inside of operators and in functions; what they are called is nobody's business.
    """

    items: list[Item]
    inputs: dict[str, dict[str, Any]]
    outputs: dict[str, dict[str, Any]]
    weights: dict[str, StoredArray] = field(default_factory=dict)
    shapes: dict[str, str] = field(default_factory=dict)
    by_place: bool = False


@dataclass(eq=False)
class Side:
    """One model to compare: facts of the model itself, facts that count for nothing, and its graphs by name.

    mapped: gives the mapped files that its arrays are read from.
    """

    facts: dict[str, Any]
    quiet: dict[str, Any]
    bodies: dict[str, Body]
    mapped: Callable[[], Iterable[Any]] = tuple

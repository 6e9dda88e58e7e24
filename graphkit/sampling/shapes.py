"""Choose sizes for the dynamic dimensions of a model's inputs.

Every dynamic dimension gets a key (its symbol, or one made from where it stands) and a kind (batch,
sequence, …); a profile says how large each kind is. Equal keys get equal sizes.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

from graphkit.errors import UsageError
from graphkit.graph import Graph
from graphkit.node import Dim

Kind = Literal["batch", "sequence", "past", "height", "width"]


@dataclass(frozen=True)
class Profile:
    """Sizes by kind of dimension; `integers` replaces all plain integer inputs by this value, `below` draws them
    from 0 up to it."""

    batch: int
    sequence: int
    past: int
    height: int
    width: int
    integers: int | None = None
    below: int | None = None


# The first two are what is wanted; the others are tried where a model rejects them.
PROFILES = (
    Profile(1, 16, 4, 64, 96),
    Profile(2, 23, 7, 96, 128),
    Profile(1, 32, 8, 128, 160),
    Profile(1, 64, 16, 224, 224),
    Profile(2, 96, 24, 256, 256),
    Profile(1, 128, 1, 320, 320),
    Profile(1, 512, 32, 640, 640),
    Profile(1, 1, 5, 32, 32),
    Profile(2, 1, 9, 48, 48),
    Profile(1, 400, 48, 384, 384),
    Profile(1, 1600, 64, 512, 512),
    Profile(1, 16000, 64, 1024, 1024),
    Profile(1, 16, 4, 64, 96, below=4),
    Profile(1, 16, 4, 64, 96, below=2),
    Profile(1, 16, 4, 64, 96, below=30),
    Profile(2, 23, 7, 96, 128, below=30),
    Profile(1, 16, 4, 64, 96, integers=1),
    Profile(1, 16, 16, 64, 64, integers=0),
    Profile(1, 1, 1, 64, 64, integers=1),
)

_NAMED_KINDS: tuple[tuple[str, Kind], ...] = (
    ("past", "past"),
    ("cache", "past"),
    ("batch", "batch"),
    ("height", "height"),
    ("width", "width"),
    ("seq", "sequence"),
    ("len", "sequence"),
    ("time", "sequence"),
    ("frame", "sequence"),
    ("sample", "sequence"),
    ("token", "sequence"),
)
_EXACT_KINDS: Mapping[str, Kind] = {"n": "batch", "b": "batch", "bs": "batch", "h": "height", "w": "width"}


@dataclass(frozen=True)
class Slot:
    """One input's dimension: fixed (`size`), or dynamic with a key and a kind."""

    size: int | None
    key: str = ""
    kind: Kind = "sequence"


@dataclass(frozen=True)
class ShapePlan:
    """How the dimensions of all inputs hang together."""

    slots: Mapping[str, tuple[Slot, ...]]
    bind: Mapping[str, int]

    @property
    def dynamic(self) -> tuple[str, ...]:
        """Keys of the dimensions that may vary, each once."""
        return tuple(dict.fromkeys(s.key for row in self.slots.values() for s in row if s.size is None))

    def sizes(self, profile: Profile) -> dict[str, int]:
        """The size of every dynamic dimension under a profile."""
        kinds: dict[str, Kind] = {}
        for row in self.slots.values():
            for slot in row:
                if slot.size is None:
                    kinds.setdefault(slot.key, slot.kind)
        plain = {key: int(getattr(profile, kind)) for key, kind in kinds.items()}
        known = {**plain, **self.bind}
        return {key: _evaluate(key, known, profile) for key in plain}

    def shapes(self, sizes: Mapping[str, int]) -> dict[str, tuple[int, ...]]:
        """The shape of every input under these sizes."""
        return {
            name: tuple(slot.size if slot.size is not None else sizes[slot.key] for slot in row)
            for name, row in self.slots.items()
        }


def plan_shapes(
    graph: Graph,
    names: Sequence[str],
    bind: Mapping[str, int],
    fixed: Mapping[str, Mapping[int, int]],
    floats: frozenset[str],
) -> ShapePlan:
    """Plan the shapes of the inputs `names`.

    bind: sizes by symbol, or by `name[axis]` for dimensions without one; fixed: sizes that weights demand,
    by input and axis (negative from the end); floats: names of the floating-point inputs. Raises UsageError
    for a binding that names no dimension or is not positive, and for an input without a known rank.
    """
    slots: dict[str, tuple[Slot, ...]] = {}
    used: set[str] = set()
    for name in names:
        shape = graph.shape(name)
        if shape is None:
            raise UsageError(f"input '{name}' declares no rank", hint="pass inputs with --inputs")
        row = []
        for axis, dim in enumerate(shape):
            label = f"{name}[{axis}]"
            used |= {key for key in (dim, label) if isinstance(key, str) and key in bind}
            demanded = fixed.get(name, {})
            wanted = demanded.get(axis, demanded.get(axis - len(shape)))
            row.append(_slot(shape, axis, name, bind, wanted, name in floats))
        slots[name] = tuple(row)
    plan = ShapePlan(slots, bind)
    _check_bind(bind, used, plan)
    return plan


def _slot(
    shape: Sequence[Dim], axis: int, name: str, bind: Mapping[str, int], wanted: int | None, is_float: bool
) -> Slot:
    dim, label = shape[axis], f"{name}[{axis}]"
    if isinstance(dim, int):
        return Slot(dim)
    bound = bind.get(label, bind.get(dim) if dim is not None else None)
    if bound is not None:
        return Slot(bound)
    if dim is not None and _is_sum(dim) and _names_in(dim) <= set(bind):
        return Slot(_evaluate(dim, bind, PROFILES[0]))
    if wanted is not None:
        return Slot(wanted)
    kind = _kind(shape, axis, is_float)
    return Slot(None, dim if dim is not None else _shared_key(shape, axis, kind, is_float, label), kind)


def _shared_key(shape: Sequence[Dim], axis: int, kind: Kind, is_float: bool, label: str) -> str:
    """A key for a dimension without a name: batches and token counts are shared, others stand alone."""
    if kind == "batch":
        return "batch size"
    return "token count" if kind == "sequence" and axis == 1 and not is_float and len(shape) == 2 else label


def _kind(shape: Sequence[Dim], axis: int, is_float: bool) -> Kind:
    dim, rank = shape[axis], len(shape)
    if isinstance(dim, str):
        named = _kind_of_name(dim)
        if named is not None:
            return named
    if is_float and rank == 4:
        image = _image_axes(shape)
        if axis in image:
            return "height" if axis == image[0] else "width"
    state = rank == 3 and axis == 1 and isinstance(shape[0], int) and isinstance(shape[2], int)
    if (axis == 0 and (rank > 1 or not is_float)) or (state and shape[0] in (1, 2, 4)):
        return "batch"  # recurrent states are [directions, batch, size]
    return "sequence"


def _kind_of_name(symbol: str) -> Kind | None:
    lower = symbol.lower()
    if lower in _EXACT_KINDS:
        return _EXACT_KINDS[lower]
    return next((kind for part, kind in _NAMED_KINDS if part in lower), None)


def _image_axes(shape: Sequence[Dim]) -> tuple[int, ...]:
    """Axes of height and width of a rank-4 input that looks like an image, else none."""
    if shape[3] in (1, 3, 4) and not isinstance(shape[1], int):
        return (1, 2)
    return (2, 3) if not isinstance(shape[3], int) else ()


def _check_bind(bind: Mapping[str, int], used: set[str], plan: ShapePlan) -> None:
    parts = {name for row in plan.slots.values() for slot in row for name in _names_in(slot.key)}
    for key, size in bind.items():
        if size < 0:
            raise UsageError(f"dimension '{key}' cannot be {size}")
        if key not in used and key not in parts:
            known = ", ".join(f"'{name}'" for name in plan.dynamic) or "none"
            raise UsageError(f"the model has no dimension '{key}'", hint=f"dynamic dimensions: {known}")


def _is_sum(symbol: str) -> bool:
    """True for symbols that are sums or products of others, such as 'past + sequence'."""
    return re.search(r"[-+*]", symbol) is not None and _parse(symbol) is not None


def _names_in(symbol: str) -> set[str]:
    tree = _parse(symbol)
    return {node.id for node in ast.walk(tree) if isinstance(node, ast.Name)} if tree is not None else set()


def _evaluate(key: str, sizes: Mapping[str, int], profile: Profile) -> int:
    """Size of a dimension: its own, or the value of its expression over the others."""
    if key == "total_sequence_length" and key in sizes:
        parts = [size for name, size in sizes.items() if name != key and "sequence" in name]
        return sum(parts) if parts else sizes[key]
    tree = _parse(key) if _is_sum(key) else None
    if tree is None:
        return sizes[key]
    values = {name: sizes.get(name, getattr(profile, _kind_of_name(name) or "sequence")) for name in _names_in(key)}
    return max(0, _compute(tree.body, values))


def _parse(symbol: str) -> ast.Expression | None:
    """The symbol as an arithmetic expression of names and whole numbers, None when it is not one."""
    try:
        tree = ast.parse(symbol, mode="eval")
    except (SyntaxError, ValueError):
        return None
    return tree if all(_allowed(node) for node in ast.walk(tree)) else None


def _allowed(node: ast.AST) -> bool:
    if isinstance(node, ast.Constant):
        return isinstance(node.value, int)
    plain = (ast.Expression, ast.BinOp, ast.Name, ast.Load, ast.Add, ast.Sub, ast.Mult, ast.FloorDiv)
    return isinstance(node, plain)


def _compute(node: ast.expr, values: Mapping[str, int]) -> int:
    if isinstance(node, ast.Name):
        return values[node.id]
    if isinstance(node, ast.Constant):
        return int(str(node.value))
    if not isinstance(node, ast.BinOp):
        raise UsageError(f"cannot compute the dimension '{ast.unparse(node)}'")
    left, right = _compute(node.left, values), _compute(node.right, values)
    if isinstance(node.op, ast.Add):
        return left + right
    if isinstance(node.op, ast.Sub):
        return left - right
    return left * right if isinstance(node.op, ast.Mult) else left // max(right, 1)


def differing(first: Mapping[str, int], second: Mapping[str, int]) -> Iterator[str]:
    """Keys of dimensions whose sizes differ."""
    return (key for key, size in first.items() if second[key] != size)

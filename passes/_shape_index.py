"""Index tensors as affine functions of their coordinates, and gathers by them that are plain views.

Exporters spell `mask[:, None, None, :]` as a gather by computed indices: aranges, scaled and added.
An index tensor `c + k0·i0 + k1·i1 + …` that counts through its source in order gathers the source as it is.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from graphkit.node import Dim, Node
from graphkit.symbolic.evaluate import Scope
from graphkit.symbolic.symbols import Size, Symbols

_MAX_ELEMENTS = 1 << 22


class Affine(NamedTuple):
    """The value `base + Σ steps[axis] · coordinate[axis]`; the step along an axis of size 1 is 0."""

    base: Size
    steps: tuple[Size, ...]


class Indices:
    """Finds affine forms of values of one graph; each value is looked at once."""

    def __init__(self, scope: Scope, symbols: Symbols) -> None:
        self.scope = scope
        self.symbols = symbols
        self._known: dict[str, Affine | None] = {}

    def affine(self, value: str) -> Affine | None:
        """The affine form of a value, None when it has none that we can see."""
        if value not in self._known:
            self._known[value] = None  # also ends cycles, of which there are none in a valid graph
            self._known[value] = self._find(value)
        return self._known[value]

    def _find(self, value: str) -> Affine | None:
        state = self.scope[value]
        if state.shape is None or None in state.shape:
            return None
        array = self.scope.graph.constant(value) if self.scope.graph.is_constant(value) else None
        if array is not None:
            return of_array(array)
        if state.items is not None and len(state.items) == 1 and state.items[0] is not None:
            return Affine(state.items[0], (0,) * len(state.shape))
        node = self.scope.graph.producer(value)
        rule = _RULES.get(node.op_type) if node is not None and not node.domain else None
        return rule(self, node, state.shape) if rule is not None and node is not None else None

    def range(self, node: Node, shape: tuple[Dim, ...]) -> Affine | None:
        """Range with an integer step."""
        start, step = (self.scope[node.inputs[i]].items for i in (0, 2))
        if not start or not step or start[0] is None or step[0] is None:
            return None
        return Affine(start[0], (step[0],))

    def same(self, node: Node, shape: tuple[Dim, ...]) -> Affine | None:
        """Cast between integers and Identity."""
        return self.affine(node.inputs[0]) if self.scope[node.inputs[0]].dtype in (6, 7) else None

    def reshaped(self, node: Node, shape: tuple[Dim, ...]) -> Affine | None:
        """Views that insert or drop axes of size 1."""
        source = self.affine(node.inputs[0])
        before = self.scope[node.inputs[0]].shape or ()
        if source is None or [d for d in before if d != 1] != [d for d in shape if d != 1]:
            return None
        steps = iter([step for step, dim in zip(source.steps, before, strict=True) if dim != 1])
        return Affine(source.base, tuple(0 if dim == 1 else next(steps) for dim in shape))

    def expanded(self, node: Node, shape: tuple[Dim, ...]) -> Affine | None:
        """Expand."""
        source = self.affine(node.inputs[0])
        return None if source is None else _broadcast(source, len(shape))

    def added(self, node: Node, shape: tuple[Dim, ...]) -> Affine | None:
        """Add."""
        a, b = (self.affine(value) for value in node.inputs)
        if a is None or b is None:
            return None
        a, b = _broadcast(a, len(shape)), _broadcast(b, len(shape))
        steps = tuple(self.symbols.add(x, y) for x, y in zip(a.steps, b.steps, strict=True))
        return Affine(self.symbols.add(a.base, b.base), steps)

    def scaled(self, node: Node, shape: tuple[Dim, ...]) -> Affine | None:
        """Mul by something that is the same everywhere."""
        a, b = (self.affine(value) for value in node.inputs)
        if a is None or b is None:
            return None
        a, b = (a, b) if not any(b.steps) else (b, a)
        if any(b.steps):
            return None
        steps = tuple(self.symbols.mul(step, b.base) for step in _broadcast(a, len(shape)).steps)
        return Affine(self.symbols.mul(a.base, b.base), steps)

    def counts_through(self, indices: str, size: Dim) -> bool:
        """True when the indices are 0, 1, … size − 1 in order (whatever their shape)."""
        form, shape = self.affine(indices), self.scope[indices].shape
        if form is None or shape is None or form.base != 0:
            return False
        total: Size = 1
        for step, dim in zip(reversed(form.steps), reversed(shape), strict=True):
            if dim == 1:
                continue
            if dim is None or step != total:
                return False
            total = self.symbols.mul(total, dim)
        return total == size

    def walks_axis(self, form: Affine, shape: tuple[Dim, ...], size: Dim) -> int | None:
        """The axis along which an index is 0, 1, … size − 1, the same along all others; −1 for none."""
        moving = [axis for axis, step in enumerate(form.steps) if step != 0]
        if form.base != 0 or len(moving) > 1:
            return None
        if not moving:
            return -1 if size == 1 else None
        (axis,) = moving
        return axis if form.steps[axis] == 1 and shape[axis] == size else None

    def is_view(self, node: Node) -> bool:
        """True when a Gather or GatherND only inserts axes of size 1 into, or reshapes, its source."""
        if node.op_type == "Gather":
            dims = self.scope[node.inputs[0]].shape
            return bool(dims) and node.attr("axis", 0) == 0 and self.counts_through(node.inputs[1], dims[0])  # type: ignore[index]
        return node.op_type == "GatherND" and not node.attr("batch_dims", 0) and self._is_nd_view(node)

    def _is_nd_view(self, node: Node) -> bool:
        source, indices = (self.scope[value].shape for value in node.inputs[:2])
        forms = self._components(node.inputs[1])
        if source is None or indices is None or forms is None or len(forms) > len(source):
            return False
        axes = [self.walks_axis(form, indices[:-1], dim) for form, dim in zip(forms, source, strict=False)]
        moving = [axis for axis in axes if axis is not None and axis >= 0]
        others_are_one = all(dim == 1 for axis, dim in enumerate(indices[:-1]) if axis not in moving)
        return None not in axes and others_are_one and moving == sorted(set(moving))

    def _components(self, indices: str) -> list[Affine] | None:
        """Affine forms of the entries along the last axis of an index tensor."""
        graph = self.scope.graph
        array = graph.constant(indices) if graph.is_constant(indices) else None
        if array is not None:
            forms = [of_array(array[..., i]) for i in range(array.shape[-1])] if array.ndim else []
        else:
            node, shape = graph.producer(indices), self.scope[indices].shape
            last = (-1, len(shape) - 1) if shape is not None else (-1,)
            if node is None or node.op_type != "Concat" or node.attr("axis") not in last:
                return None
            parts = node.inputs
            if any((self.scope[part].shape or (0,))[-1] != 1 for part in parts):
                return None
            forms = [None if (f := self.affine(p)) is None else Affine(f.base, f.steps[:-1]) for p in parts]
        found = [form for form in forms if form is not None]
        return found if len(found) == len(forms) and found else None


def of_array(array: np.ndarray) -> Affine | None:
    """The affine form of a constant integer tensor."""
    if array.dtype.kind not in "iu" or not 0 < array.size <= _MAX_ELEMENTS:
        return None
    origin = (0,) * array.ndim
    base = int(array[origin])
    steps = []
    form = np.full((1,) * array.ndim, base, dtype=np.int64)
    for axis, size in enumerate(array.shape):
        step = int(array[(*origin[:axis], 1, *origin[axis + 1 :])]) - base if size > 1 else 0
        steps.append(step)
        along = np.arange(size, dtype=np.int64) * step
        form = form + along.reshape([size if i == axis else 1 for i in range(array.ndim)])
    return Affine(base, tuple(steps)) if np.array_equal(form, array) else None


def _broadcast(form: Affine, rank: int) -> Affine:
    return Affine(form.base, (0,) * (rank - len(form.steps)) + form.steps)


_RULES = {
    "Range": Indices.range,
    "Cast": Indices.same,
    "Identity": Indices.same,
    "Unsqueeze": Indices.reshaped,
    "Squeeze": Indices.reshaped,
    "Reshape": Indices.reshaped,
    "Flatten": Indices.reshaped,
    "Expand": Indices.expanded,
    "Add": Indices.added,
    "Mul": Indices.scaled,
}

"""What is known about one value: element type, shape and, for small integer tensors, the elements."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from typing import Any, NamedTuple

import numpy as np
from onnx import TensorProto

from graphkit.node import Dim
from graphkit.symbolic.symbols import Size

MAX_ITEMS = 256
INT_TYPES: dict[int, tuple[int, int]] = {
    TensorProto.INT64: (-(2**63), 2**63 - 1),
    TensorProto.INT32: (-(2**31), 2**31 - 1),
}
ITEM_TYPES: tuple[int, ...] = (*INT_TYPES, TensorProto.BOOL)

Element = Size | None
Items = tuple[Element, ...]


class State(NamedTuple):
    """Element type (0 unknown), shape (None: rank unknown) and elements, in C order, of one value.

    `items` exist only for INT64, INT32 and BOOL tensors (as 0 and 1) of a known shape and at most `MAX_ITEMS`
    elements; an element is an int, a symbolic size, or None when unknown.
    """

    dtype: int
    shape: tuple[Dim, ...] | None
    items: Items | None = None

    @property
    def known(self) -> bool:
        """True when every element is a number."""
        return self.items is not None and all(isinstance(item, int) for item in self.items)

    def ints(self) -> list[int] | None:
        """The elements when all are numbers, else None."""
        return numbers(self.items)

    def sizes(self) -> list[int] | None:
        """The shape when it is all numbers, else None."""
        return numbers(self.shape)


UNKNOWN = State(0, None)


def numbers(values: Sequence[Element] | None) -> list[int] | None:
    """The values as a list when all are numbers, else None."""
    if values is None:
        return None
    found = [value for value in values if isinstance(value, int)]
    return found if len(found) == len(values) else None


def vector(items: Iterable[Element], dtype: int = TensorProto.INT64) -> State:
    """The state of a 1-D tensor with these elements."""
    items = tuple(items)
    return State(dtype, (len(items),), items if len(items) <= MAX_ITEMS else None)


def scalar(item: Element, dtype: int = TensorProto.INT64) -> State:
    """The state of a rank-0 tensor."""
    return State(dtype, (), (item,))


def to_array(state: State) -> np.ndarray | None:
    """Elements as an array of objects, None when there are none."""
    sizes = state.sizes()
    if state.items is None or sizes is None:
        return None
    array = np.empty(len(state.items), dtype=object)
    array[:] = state.items
    return array.reshape(sizes)


def aligned(*states: State) -> list[list[Element]] | None:
    """Elements of states broadcast against each other, None when some have none or the result is large."""
    arrays = [array for state in states if (array := to_array(state)) is not None]
    if len(arrays) < len(states):
        return None
    if any(array.shape != arrays[0].shape for array in arrays):
        try:
            arrays = list(np.broadcast_arrays(*arrays))
        except ValueError:
            return None
    return [array.reshape(-1).tolist() for array in arrays] if arrays[0].size <= MAX_ITEMS else None


def of_array(dtype: int, array: np.ndarray) -> State:
    """The state that holds an array of elements."""
    shape = tuple(int(dim) for dim in array.shape)
    if array.size > MAX_ITEMS or dtype not in ITEM_TYPES:
        return State(dtype, shape)
    return State(dtype, shape, tuple(array.reshape(-1).tolist()))


def of_constant(dtype: int, shape: tuple[int, ...], read: Callable[[], Any]) -> State:
    """The state of a constant; its values are read only when they are few integers."""
    if dtype not in ITEM_TYPES or math.prod(shape) > MAX_ITEMS:
        return State(dtype, shape)
    return State(dtype, shape, tuple(int(item) for item in np.asarray(read()).reshape(-1).tolist()))


def join(a: State, b: State) -> State:
    """What holds for a value that is either of two."""
    if a == b:
        return a
    dtype = a.dtype if a.dtype == b.dtype else 0
    if a.shape is None or b.shape is None or len(a.shape) != len(b.shape):
        return State(dtype, None)
    shape = tuple(x if x == y else None for x, y in zip(a.shape, b.shape, strict=True))
    if a.items is None or b.items is None or shape != a.shape or not dtype:
        return State(dtype, shape)
    return State(dtype, shape, tuple(x if x == y else None for x, y in zip(a.items, b.items, strict=True)))


def fits(dtype: int, item: Element) -> Element:
    """The element, or None when the number does not fit its type (ONNX leaves overflow open)."""
    if not isinstance(item, int) or dtype not in INT_TYPES:
        return item
    low, high = INT_TYPES[dtype]
    return item if low <= item <= high else None

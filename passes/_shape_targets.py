"""Constant targets for Reshape and Expand out of partial knowledge."""

from __future__ import annotations

from collections.abc import Sequence

from graphkit.node import Dim
from graphkit.symbolic.state import Items


def reshape_target(source: Sequence[Dim], result: Sequence[Dim], target: Items) -> tuple[int, ...] | None:
    """A constant target of Reshape (allowzero = 0) with the same meaning, None when there is none.

    Axes that keep their place and size are copied (0). One −1 may stand where the target had it already, or
    where all other sizes are numbers above 0: elsewhere a size of 0 would make it undefined.
    """
    found: list[int] = []
    gap = -1
    for index, dim in enumerate(result):
        if isinstance(dim, int) and dim > 0:
            found.append(dim)
        elif index < len(source) and dim is not None and source[index] == dim:
            found.append(0)
        elif gap < 0:
            gap = index
            found.append(-1)
        else:
            return None
    if gap >= 0:
        written = target[gap] == -1
        others = all(isinstance(dim, int) and dim > 0 for index, dim in enumerate(result) if index != gap)
        if not (written or others):
            return None
    return tuple(found)


def expand_target(source: Sequence[Dim], result: Sequence[Dim]) -> tuple[int, ...] | None:
    """A constant target of Expand: 1 where the input has the size; None when a named size must be made."""
    lead = len(result) - len(source)
    found: list[int] = []
    for index, dim in enumerate(result):
        if index >= lead and dim is not None and source[index - lead] == dim:
            found.append(1)
        elif isinstance(dim, int):
            found.append(dim)
        else:
            return None
    return tuple(found)

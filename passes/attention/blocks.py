"""Attention in blocks of queries: what is alive at a time is one block's scores, not all of them."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np

from graphkit.passes._emit import Emit
from graphkit.passes.attention import mask

if TYPE_CHECKING:
    from graphkit.passes.attention.form import Attention


def possible(form: Attention, chunk: int) -> bool:
    """True when there is more than one block, their number is known, and so is which masks are cut."""
    clear = not (form.bias and form.bias_rows is None) and not (form.keep and form.keep_rows is None)
    return clear and form.sq is not None and 0 < chunk < form.sq


def cut(build: Emit, form: Attention, chunk: int) -> Iterator[Attention]:
    """One attention for each block of queries; each reads no more keys than its positions allow."""
    assert form.sq is not None
    for start in range(0, form.sq, chunk):
        end = min(start + chunk, form.sq)
        low, high = _keys(form, start, end)
        part = replace(
            form,
            query=build.slice(form.query, 2, start, end),
            sq=end - start,
            bias=_rows(build, form.bias, form.bias_rows, start, end),
            keep=_rows(build, form.keep, form.keep_rows, start, end),
        )
        if mask.is_positional(form):
            part = replace(part, align="top-left", offset=_offset(build, form, start - low))
        if high is not None:
            key, value = (build.slice(x, 2, low, high) for x in (form.key, form.value))
            part = replace(part, key=key, value=value, sk=high - low)
        yield part


def _rows(build: Emit, x: str, rows: bool | None, start: int, end: int) -> str:
    return build.slice(x, -2, start, end) if x and rows else x


def _offset(build: Emit, form: Attention, shift: int) -> str | int:
    first = mask.known_offset(form)
    if first is not None:
        return first + shift
    return build.op("Add", mask.offset(build, form), build.const(np.int64(shift)))


def _keys(form: Attention, start: int, end: int) -> tuple[int, int | None]:
    """The keys that queries from start to end may see; (0, None): all of them.

    Masks may be of size 1 along the keys, so keys are left out only where there are none.
    """
    first = mask.known_offset(form)
    if not mask.is_positional(form) or first is None or form.sk is None or form.bias or form.keep:
        return 0, None
    left, right = mask.bounds(form)
    low = max(0, start + first - left) if left >= 0 else 0
    high = min(form.sk, end + first + right) if right >= 0 else form.sk
    low = min(low, form.sk - 1)
    high = max(high, low + 1)
    return (low, high) if high - low < form.sk else (0, None)

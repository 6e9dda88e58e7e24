"""What is wrong with a file or with tables, and where: errors that gather their path on the way up."""

from __future__ import annotations

from typing import Any, Self

import numpy as np

from graphkit.mnn.document.tree import Table

_LONGEST = 160


class Fault(Exception):
    """Something wrong at a place; `path` leads to it and grows as the error comes up through the tables."""

    def __init__(self, reason: str, hint: str | None = None) -> None:
        super().__init__(reason)
        self.reason = reason
        self.hint = hint
        self.path = ""

    def within(self, step: str) -> Self:
        """The same, as seen from one step further up."""
        dot = "." if self.path and not self.path.startswith("[") else ""
        self.path = f"{step}{dot}{self.path}"
        return self

    def __str__(self) -> str:
        half = _LONGEST // 2
        path = self.path if len(self.path) <= _LONGEST else f"{self.path[:half]} … {self.path[-half:]}"
        return f"{path}: {self.reason}" if path else self.reason


class Damaged(Fault):
    """Bytes that are no .mnn file, or a damaged one."""


class Unwritable(Fault):
    """Tables that a .mnn file cannot hold."""


def kind_of(value: Any) -> str:
    """What a value is, in a message about what should be there instead."""
    if isinstance(value, Table):
        return f"a table {value.type.name}"
    if isinstance(value, np.ndarray):
        return f"an array {value.dtype}{list(value.shape)}"
    text = repr(value)
    return text if len(text) <= 60 else f"{text[:57]}..."

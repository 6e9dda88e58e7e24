"""Errors that tell what happened, where, and what to do next.

Every error that a user can cause is a `GraphkitError`; the command line prints it as one message and
ends with its `exit_code`. Exit codes: 1 a check failed, 2 bad usage or bad input, 3 MNN refused the
model or computes it wrong, 4 a bug of ours.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar


class GraphkitError(Exception):
    """Base of all errors that graphkit raises on purpose.

    `file`, `node` and `tensor` say where; `hint` says what to do next. `str(error)` is the whole
    message without the hint.
    """

    exit_code: ClassVar[int] = 2

    def __init__(
        self,
        message: str,
        *,
        file: object = None,
        node: str | None = None,
        tensor: str | None = None,
        hint: str | None = None,
    ) -> None:
        self.message = message
        self.file = str(file) if file is not None else None
        self.node = node
        self.tensor = tensor
        self.hint = hint
        super().__init__(message)

    def __str__(self) -> str:
        where = [
            f"{kind} '{name}'"
            for kind, name in (("node", self.node), ("tensor", self.tensor))
            if name is not None and f"'{name}'" not in self.message
        ]
        prefix = f"{self.file}: " if self.file is not None and not self.message.startswith(self.file) else ""
        suffix = f" ({', '.join(where)})" if where else ""
        return f"{prefix}{self.message}{suffix}"


class UsageError(GraphkitError):
    """A wrong option, name, pipeline text or binding."""


class ModelError(GraphkitError):
    """A model file that is missing, damaged, unsafe or of an unknown version."""


class OutputError(GraphkitError):
    """An output that cannot be written (no space, no permission, would overwrite an input)."""


class PassError(GraphkitError):
    """A pass raised or left an invalid graph; `reproducer` names the folder that shows it."""

    exit_code = 4

    def __init__(self, message: str, *, reproducer: object = None, **where: str | None) -> None:
        super().__init__(message, **where)
        self.reproducer = str(reproducer) if reproducer is not None else None


class MismatchError(GraphkitError):
    """The outputs are not the original's, and there is nothing right to go on with."""

    exit_code = 1


@dataclass(frozen=True)
class NodeFault:
    """One node that MNN refused, crashed on or computes wrong, and why."""

    node: str
    op: str
    reason: str


class MnnError(GraphkitError):
    """MNN refused the model, crashed on it, timed out, or computes it wrong."""

    exit_code = 3

    def __init__(
        self,
        message: str,
        *,
        faults: tuple[NodeFault, ...] = (),
        log: str = "",
        file: object = None,
        hint: str | None = None,
    ) -> None:
        super().__init__(message, file=file, hint=hint)
        self.faults = faults
        self.log = log

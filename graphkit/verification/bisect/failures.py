"""How MNN failed: whether two failures are one, and what its log says of the reason."""

from __future__ import annotations

from graphkit.errors import MnnError

_TELLING = ("should be", "must be", "is not supported", "can't", "Can't", "failed")


def signature(error: MnnError) -> tuple[object, ...]:
    """How something failed: by which signal, in time or not, over which operators."""
    ops = getattr(error, "unsupported_ops", ())
    return getattr(error, "signal", None), getattr(error, "timed_out", False), tuple(ops)


def told(error: MnnError) -> list[str]:
    """The line of MNN's log that names a reason, if one does."""
    lines = [line.strip() for line in error.log.splitlines() if any(word in line for word in _TELLING)]
    return [f"MNN says: {lines[0]}"] if lines and lines[0] not in error.message else []


def alike(error: MnnError | None, original: MnnError) -> bool:
    return error is not None and signature(error) == signature(original)

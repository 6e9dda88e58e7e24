"""The child of `graphkit.quant.executor.Children`: runs pickled calls from stdin, writes pickled results to stdout.

What calls print to stdout goes to stderr: stdout belongs to the results.
"""

from __future__ import annotations

import os
import pickle
import sys
import traceback
from typing import Any, BinaryIO

from graphkit.errors import UsageError

_LENGTH = 8


def send(stream: BinaryIO, data: bytes) -> None:
    """Write one message: its length, then its bytes."""
    stream.write(len(data).to_bytes(_LENGTH, "little"))
    stream.write(data)
    stream.flush()


def receive(stream: BinaryIO) -> bytes:
    """Read one message. Raises EOFError when the other side is gone."""
    length = int.from_bytes(_exactly(stream, _LENGTH), "little")
    return _exactly(stream, length)


def _exactly(stream: BinaryIO, length: int) -> bytes:
    data = stream.read(length)
    if len(data) < length:
        raise EOFError
    return data


def main() -> None:
    """Serve calls until stdin ends."""
    calls = sys.stdin.buffer
    results = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)
    while True:
        try:
            message = receive(calls)
        except EOFError:
            return
        send(results, _answer(message))


def _answer(message: bytes) -> bytes:
    try:
        function, args, kwargs = _unpickle(message)
        return pickle.dumps((True, function(*args, **kwargs)), pickle.HIGHEST_PROTOCOL)
    except Exception as error:  # noqa: BLE001 -- whatever it is, the caller gets it
        return _failure(error)


def _unpickle(message: bytes) -> Any:
    try:
        return pickle.loads(message)
    except (AttributeError, ImportError) as error:
        raise UsageError(
            f"a worker process cannot find what it is to run: {error}",
            hint="define functions in a module, not in a script or notebook; or use threads",
        ) from error


def _failure(error: Exception) -> bytes:
    error.add_note("in a worker process:\n" + traceback.format_exc())
    try:
        data = pickle.dumps((False, error), pickle.HIGHEST_PROTOCOL)
        pickle.loads(data)
    except Exception:  # noqa: BLE001 -- many exceptions cannot be pickled, or cannot be read back
        text: Any = RuntimeError(f"{type(error).__name__}: {error}")
        text.add_note(error.__notes__[-1])
        return pickle.dumps((False, text), pickle.HIGHEST_PROTOCOL)
    return data


if __name__ == "__main__":
    main()

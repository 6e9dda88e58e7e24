"""Private temporary folders."""

from __future__ import annotations

import tempfile

from graphkit.errors import OutputError


def scratch(purpose: str) -> tempfile.TemporaryDirectory[str]:
    """A temporary folder, a context manager; `purpose` is part of its name.

    Raises OutputError when there is no place for one.
    """
    try:
        return tempfile.TemporaryDirectory(prefix=f"graphkit-{purpose}-", ignore_cleanup_errors=True)
    except OSError as error:
        raise OutputError(
            f"no temporary folder can be made: {error.strerror}", hint="set TMPDIR to a folder that can be written"
        ) from error

"""Private temporary folders."""

from __future__ import annotations

import shutil
import tempfile

from graphkit.errors import OutputError


class _Folder(tempfile.TemporaryDirectory[str]):
    """One that is gone even when Ctrl-C comes while it is being removed, which ends the first attempt for good."""

    def cleanup(self) -> None:
        """Remove it."""
        try:
            super().cleanup()
        except BaseException:
            shutil.rmtree(self.name, ignore_errors=True)
            raise


def scratch(purpose: str) -> tempfile.TemporaryDirectory[str]:
    """A temporary folder, a context manager; `purpose` is part of its name.

    Raises OutputError when there is no place for one.
    """
    try:
        return _Folder(prefix=f"graphkit-{purpose}-", ignore_cleanup_errors=True)
    except OSError as error:
        raise OutputError(
            f"no temporary folder can be made: {error.strerror}", hint="set TMPDIR to a folder that can be written"
        ) from error

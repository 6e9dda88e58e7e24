"""Where outputs may go: never onto an input, onto each other, or onto what is no ordinary file."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

from graphkit.errors import OutputError


@dataclass
class Places:
    """The files of one command: what it reads, and what it has been told to write so far."""

    inputs: list[Path] = field(default_factory=list)
    outputs: list[Path] = field(default_factory=list)
    folders: list[Path] = field(default_factory=list)

    def read(self, *paths: Path | None) -> None:
        """Note inputs; of a folder, every file in it; of a .mnn file, its weights too."""
        for path in paths:
            if path is not None:
                self.inputs += path.iterdir() if path.is_dir() else (path, path.with_name(f"{path.name}.weight"))

    def samples(self, path: Path | None) -> None:
        """Note what --inputs names: a file, or the samples in a folder (and nothing else that is there)."""
        if path is not None:
            self.inputs += [*path.glob("*.npz"), *path.glob("*.npy")] if path.is_dir() else [path]

    def plugins(self, names: Iterable[str]) -> None:
        """Note the files of plugins."""
        for name in names:
            self.inputs += _plugin_files(name)

    def write(self, path: Path, flag: str, companions: Iterable[str] = (), written: bool = False) -> None:
        """Check an output before the work, and note it with its companions (`.data`, `.weight`).

        flag: the option that names it, for the message. written: whether the companions are going to be written.
        Raises OutputError.
        """
        self._check(path, flag)
        beside = [path.with_name(path.name + suffix) for suffix in companions]
        for companion in beside if written else ():
            self._check(companion, flag)
        self.outputs += [path, *beside]

    def folder(self, path: Path, flag: str) -> None:
        """Check a folder that is going to be replaced, and note it: no input may lie in it. Raises OutputError."""
        whole = Path(os.path.realpath(path))
        for taken in self.inputs:
            if taken.exists() and Path(os.path.realpath(taken)).is_relative_to(whole):
                raise OutputError(
                    f"would overwrite an input, '{taken}'", file=path, hint=f"choose another place with {flag}"
                )
        self.folders.append(whole)

    def _check(self, path: Path, flag: str) -> None:
        from graphkit._write import target_of

        if path == Path("-"):
            raise OutputError("outputs are files; '-' is not taken for standard output", hint=f"name one with {flag}")
        try:
            folder = target_of(path).parent
        except OSError as error:
            raise OutputError(f"cannot be written: {error.strerror}", file=path) from error
        if not folder.is_dir():
            raise OutputError("cannot be written: its folder does not exist", file=path)
        if not os.access(folder, os.W_OK):
            raise OutputError(
                "cannot be written: its folder is read-only", file=path, hint=f"choose another place with {flag}"
            )
        for taken, what in ((self.inputs, "an input"), (self.outputs, "the other output")):
            if any(same(path, other) for other in taken):
                raise OutputError(f"would overwrite {what}", file=path, hint=f"choose another place with {flag}")
        if any(Path(os.path.realpath(path)).is_relative_to(other) for other in self.folders):
            raise OutputError(
                "would lie in a folder that is replaced", file=path, hint=f"choose another place with {flag}"
            )


def same(one: Path, other: Path) -> bool:
    """True when two paths lead to one file, there or not."""
    try:
        return one.samefile(other)
    except (OSError, ValueError):  # one of the two is not there yet
        return os.path.realpath(one) == os.path.realpath(other)


def _plugin_files(name: str) -> Iterator[Path]:
    if name.endswith(".py"):
        yield Path(name)
        return
    import sys

    for folder in sys.path:
        stem = Path(folder or ".", *name.split("."))
        yield from (path for path in (stem.with_suffix(".py"), stem / "__init__.py") if path.is_file())

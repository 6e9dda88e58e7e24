"""Repro folders: a model, its inputs, what is expected, and the one command that shows the fault.

    model.onnx  inputs.npz  expected.npz  README.md  report.txt  (and what the command needs)

The folder appears whole or not at all, and its command is run once, in a process of its own, before it does.
"""

from __future__ import annotations

import io
import os
import shutil
import subprocess
import sys
import tempfile
import zipfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import ml_dtypes
import numpy as np

from graphkit._write import write_bytes
from graphkit.errors import GraphkitError, OutputError, UsageError
from graphkit.mnn.handoff import ready, write
from graphkit.model import Model
from graphkit.proof import Feeds
from graphkit.runtime import Session
from graphkit.verification.bisect._story import (
    Story,
    file_story,
    mnn_story,
    nodes_text,
    pass_story,
    versions,
)
from graphkit.verification.bisect._values import Array
from graphkit.verification.bisect.anonymize import Anonymized
from graphkit.verification.bisect.reduction import Reduced

__all__ = [
    "Repro",
    "Story",
    "check_place",
    "expected_of",
    "file_story",
    "mnn_story",
    "pass_story",
    "rerun",
    "write_repro",
]

_TITLE = "# A fault, reduced by graphkit"
_FILES = "\nFiles of this folder\n\n"  # then a name a line: what a later repro may replace
_MADE = ("optimized.onnx", "optimized.onnx.data", "__pycache__")  # by the command, when somebody runs it
_LOG = 4000  # characters of a log in the report


@dataclass(frozen=True)
class Repro:
    """A folder that was written. reproduced: whether its command showed the fault in a process of its own, None when
    that was not tried; `said` is what it printed."""

    folder: Path
    command: tuple[str, ...]
    nodes: int
    nbytes: int
    reproduced: bool | None
    said: str = ""


def expected_of(reduced: Reduced) -> dict[str, Array]:
    """What onnxruntime computes from a reduced model, without optimizations. Raises GraphkitError when it cannot."""
    with Session(reduced.model) as session:
        return session.run(reduced.feeds)


def write_repro(
    folder: Path,
    reduced: Reduced,
    expected: Mapping[str, Array] | None,
    story: Story,
    *,
    anonymized: Anonymized | None = None,
    check: bool = True,
    timeout: float = 300.0,
) -> Repro:
    """Write a repro folder, and run its command once (`check`) to see that it shows the fault.

    expected: outputs by name, None to compute them with onnxruntime. anonymized: what stands in for the model and its
    feeds; where it does not show the fault, the folder holds it all the same and says so. Names in the story are then
    replaced as well, and the log is left out. timeout: seconds for the command. A folder of that name is replaced
    when it is empty, or an earlier repro to which nobody added anything.

    Raises OutputError when the folder cannot be written or is something else, UsageError when the story has another
    model's file, which would hold the weights that `anonymized` is to leave out.
    """
    folder = Path(folder)
    check_place(folder)
    if anonymized is not None:
        reduced, expected = Reduced(anonymized.model, anonymized.feeds, reduced.steps, reduced.complete), None
        story = _without_names(story, anonymized)
    expected = expected if expected is not None else _expected(reduced)
    try:
        made = Path(tempfile.mkdtemp(prefix=".graphkit-", dir=folder.absolute().parent))
    except OSError as error:
        raise OutputError(f"cannot be written: {error.strerror}", file=folder) from error
    try:
        _fill(made, reduced, expected, story)
        reproduced, said = rerun(made, story, timeout=timeout) if check else (None, "")
        nbytes = sum(path.stat().st_size for path in made.iterdir() if path.name.startswith("model.onnx"))
        _write_texts(made, reduced, story, anonymized, reproduced)
        _place(made, folder)
    except OSError as error:
        raise OutputError(f"cannot be written: {error.strerror or error}", file=folder) from error
    finally:
        shutil.rmtree(made, ignore_errors=True)
    return Repro(folder, story.command, reduced.nodes, nbytes, reproduced, said)


def rerun(folder: Path, story: Story, *, timeout: float = 300.0) -> tuple[bool, str]:
    """Run a folder's command in a process of its own: whether it ends as the fault makes it end, and what it prints.

    Files that it leaves are removed.
    """
    before = {path.name for path in folder.iterdir()}
    programs = {"python": [sys.executable], "graphkit": [sys.executable, "-m", "graphkit"]}
    program, *arguments = story.command
    try:
        ended = subprocess.run(
            [*programs.get(program, [program]), *arguments],
            cwd=folder, timeout=timeout, capture_output=True, text=True, errors="replace", check=False,
            stdin=subprocess.DEVNULL,
        )  # fmt: skip
    except subprocess.TimeoutExpired:
        return False, f"it did not end within {timeout:g} s"
    except OSError as error:
        return False, f"it cannot be started: {error.strerror}"
    finally:
        for path in list(folder.iterdir()):
            if path.name not in before:
                shutil.rmtree(path) if path.is_dir() else path.unlink()
    return ended.returncode == story.exit_code, (ended.stdout + ended.stderr).strip()


def _without_names(story: Story, anonymized: Anonymized) -> Story:
    """The story with the names that the anonymized model has; what a program printed may hold any, so it goes."""
    models = [name for name in story.files if Path(name).suffix in (".mnn", ".onnx", ".weight")]
    if models:
        raise UsageError(
            f"'{models[0]}' cannot be anonymized: it holds the weights", file=models[0],
            hint="leave --anonymize out, or bisect the .onnx model without a candidate",
        )  # fmt: skip
    facts = {name: anonymized.translated(text) for name, text in story.facts.items()}
    return replace(story, answer=anonymized.translated(story.answer), facts=facts, log="")


def _expected(reduced: Reduced) -> Mapping[str, Array]:
    try:
        return expected_of(reduced)
    except OutputError:
        raise
    except (
        GraphkitError
    ):  # random weights can take a model where it does not run; the folder says that it shows nothing
        return {}


def check_place(folder: Path) -> None:
    """See that a repro folder can be written there. Raises OutputError."""
    if folder.is_symlink() or (folder.exists() and not folder.is_dir()):
        raise OutputError("is there already and no folder", file=folder, hint="choose another place with -o")
    if not folder.absolute().parent.is_dir():
        raise OutputError("cannot be written: its folder does not exist", file=folder)
    if not os.access(folder.absolute().parent, os.W_OK):
        raise OutputError(
            "cannot be written: its folder is read-only", file=folder, hint="choose another place with -o"
        )
    foreign = _foreign(folder) if folder.is_dir() else []
    if foreign:
        raise OutputError(
            f"is a folder with other things in it: '{foreign[0]}'", file=folder, hint="choose another place with -o"
        )


def _foreign(folder: Path) -> list[str]:
    """Names in a folder that no repro put there, nor its command when somebody ran it."""
    try:
        title = (folder / "README.md").read_text(encoding="utf-8").startswith(_TITLE)
        listed = (folder / "report.txt").read_text(encoding="utf-8").partition(_FILES)[2] if title else ""
    except (OSError, UnicodeDecodeError):
        listed = ""
    own = {*listed.partition("\n\n")[0].splitlines(), *(_MADE if listed else ())}
    return sorted({path.name for path in folder.iterdir()} - own)


def _fill(folder: Path, reduced: Reduced, expected: Mapping[str, Array], story: Story) -> None:
    write(ready(reduced.model), folder / "model.onnx")
    write_bytes(folder / "inputs.npz", _npz(reduced.feeds))
    write_bytes(folder / "expected.npz", _npz(expected))
    for name, content in story.files.items():
        if isinstance(content, Model):
            content.save(folder / name)
        elif isinstance(content, Path):
            shutil.copyfile(content, folder / name)
        else:
            (folder / name).write_text(content, encoding="utf-8")


def _npz(arrays: Feeds) -> bytes:
    """An .npz file; unlike numpy's own writer it takes an array called 'file'."""
    data = io.BytesIO()
    with zipfile.ZipFile(data, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, array in arrays.items():
            array = np.asarray(array)
            if array.dtype == ml_dtypes.bfloat16:  # numpy's files do not know it, and readers cast it back
                array = array.astype(np.float32)
            with archive.open(f"{name}.npy", "w", force_zip64=True) as member:
                np.lib.format.write_array(member, array, allow_pickle=False)
    return data.getvalue()


def _place(made: Path, folder: Path) -> None:
    """Put the folder in place of an earlier one."""
    made.chmod(0o755)
    if folder.exists():
        old = Path(tempfile.mkdtemp(prefix=".graphkit-", dir=folder.absolute().parent))
        folder.replace(old / "old")
        try:
            made.replace(folder)
        except OSError:
            (old / "old").replace(folder)
            raise
        finally:
            shutil.rmtree(old, ignore_errors=True)
        return
    made.replace(folder)


def _write_texts(
    folder: Path, reduced: Reduced, story: Story, anonymized: Anonymized | None, reproduced: bool | None
) -> None:
    doubt = "" if reproduced is not False else _NOT_SHOWN.format(code=story.exit_code)
    whose = anonymized.note if anonymized is not None else _YOURS
    readme = _README.format(
        title=_TITLE, answer=story.answer, line=story.line, code=story.exit_code, needs=story.needs,
        nodes=_count(reduced.nodes), whose=f"{whose[0].upper()}{whose[1:]}.", doubt=doubt,
    )  # fmt: skip
    (folder / "README.md").write_text(readme, encoding="utf-8")
    files = sorted({path.name for path in folder.iterdir()} | {"report.txt"})
    (folder / "report.txt").write_text(_report(reduced, story, doubt, files), encoding="utf-8")


def _count(nodes: int) -> str:
    return "1 node" if nodes == 1 else f"{nodes} nodes"


def _report(reduced: Reduced, story: Story, doubt: str, files: Sequence[str]) -> str:
    facts = "\n".join(f"{name}: {text}" for name, text in story.facts.items())
    inputs = "\n".join(f"{name}: {array.dtype}{list(array.shape)}" for name, array in reduced.feeds.items())
    parts = [
        story.answer,
        f"To reproduce, in this folder, with {story.needs}:\n\n    {story.line}",
        f"It ends with exit code {story.exit_code} while the fault is there.",
        doubt.strip(),
        _FILES.lstrip() + "\n".join(files),
        facts and f"What was seen\n\n{facts}",
        "Nodes\n\n" + "\n".join(nodes_text(reduced.model, reduced.feeds)),
        f"Inputs (inputs.npz)\n\n{inputs or 'none'}",
        "Versions\n\n" + "\n".join(f"{name} {number}" for name, number in versions().items()),
        story.log.strip() and f"Log\n\n{story.log.strip()[-_LOG:]}",
    ]
    return "\n\n".join(part for part in parts if part) + "\n"


_YOURS = "the model may contain weights and inputs of yours: look before you share it"
_NOT_SHOWN = "\nWhen this folder was written, the command did **not** end with {code}: it does not show the fault.\n"
_README = """{title}

{answer}

`model.onnx` ({nodes}) shows it on `inputs.npz`; `expected.npz` holds the right outputs: those of
onnxruntime without optimizations, unless `report.txt` says otherwise. Run it in this folder with

    {line}

which needs {needs} and ends with exit code {code} while the fault is there.
{doubt}
`report.txt` is the text for a bug report. {whose}
"""

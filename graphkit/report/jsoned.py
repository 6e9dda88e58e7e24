"""Print what `mnn to-json` and `mnn from-json` wrote."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from graphkit.report import edited, text
from graphkit.report.console import Report

if TYPE_CHECKING:
    from graphkit.mnn.document.edits import Saved
    from graphkit.mnn.document.json_form import JsonFiles


def show_written(report: Report, files: JsonFiles) -> None:
    """Print one line: each file and its size."""
    names = (f"{text.clean(str(path))}  {text.size(size)}" for path, size in files.written())
    report.say(f"wrote {',  '.join(names)}")


def written_to_dict(model: Path, files: JsonFiles) -> dict[str, object]:
    """The JSON object of `mnn to-json`."""
    rows = [{"path": str(path), "bytes": size} for path, size in files.written()]
    return {"command": "mnn to-json", "model": str(model), "exit_code": 0, "ok": True, "files": rows}


def show_made(report: Report, saved: Saved) -> None:
    """Print one line: the model, its size, and what was found of it."""
    found = edited.outcome(saved) if saved.trial.loads else "valid, not run by MNN"
    report.say(f"wrote {text.clean(str(saved.path))}  {text.size(saved.size)}  {found}")
    for problem in saved.warnings if report.verbose else ():
        report.say(f"warning: {text.clean(problem.where)}: {text.clean(problem.message)}")


def made_to_dict(source: Path, saved: Saved) -> dict[str, object]:
    """The JSON object of `mnn from-json`."""
    found = edited.to_dict("from-json", source, (), saved)
    del found["edits"]
    return found

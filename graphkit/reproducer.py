"""A folder that shows a crash of a pass again: the model as it stood and the pipeline from that point."""

from __future__ import annotations

import tempfile
import traceback
from pathlib import Path

from graphkit.model import Model
from graphkit.version import __version__


def write(parent: Path, model: Model, pipeline: str, error: BaseException) -> Path:
    """Write a reproducer folder under `parent` and return it. Raises OutputError when it cannot be written."""
    parent.mkdir(parents=True, exist_ok=True)
    folder = Path(tempfile.mkdtemp(prefix="graphkit-crash-", dir=parent))
    model.save(folder / "model.onnx")
    (folder / "pipeline.txt").write_text(pipeline + "\n")
    (folder / "traceback.txt").write_text("".join(traceback.format_exception(error)))
    (folder / "README.md").write_text(
        f"graphkit {__version__} failed on `model.onnx`. Run it again in this folder with\n\n"
        f"    graphkit optimize model.onnx --passes '{pipeline}' --verify none\n\n"
        "`traceback.txt` holds what was raised. The model contains your weights: look before you share it.\n"
    )
    return folder

"""A folder that shows a crash of a pass again: the model as it stood and the pipeline from that point."""

from __future__ import annotations

import shlex
import shutil
import tempfile
import traceback
from collections.abc import Sequence
from pathlib import Path

from graphkit.model import Model
from graphkit.version import __version__


def write(parent: Path, model: Model, pipeline: str, error: BaseException, plugins: Sequence[str] = ()) -> Path:
    """Write a reproducer folder under `parent` and return it. Plugin files are copied into it.

    Raises OutputError or OSError when it cannot be written.
    """
    parent.mkdir(parents=True, exist_ok=True)
    folder = Path(tempfile.mkdtemp(prefix="graphkit-crash-", dir=parent))
    model.save(folder / "model.onnx")
    (folder / "pipeline.txt").write_text(pipeline + "\n")
    (folder / "traceback.txt").write_text("".join(traceback.format_exception(error)))
    command = ["graphkit", "optimize", "model.onnx", "--passes", pipeline, "--verify", "none"]
    for plugin in plugins:
        command += ["--plugin", _take_along(plugin, folder)]
    (folder / "README.md").write_text(
        f"graphkit {__version__} failed on `model.onnx`. Run it again in this folder with\n\n"
        f"    {shlex.join(command)}\n\n"
        "`traceback.txt` holds what was raised. The model contains your weights: look before you share it.\n"
    )
    return folder


def _take_along(plugin: str, folder: Path) -> str:
    """What `--plugin` is given in the folder: a copy of a file, a module's name as it is."""
    path = Path(plugin)
    if path.suffix != ".py":
        return plugin
    target = folder / path.name
    if target.exists():  # two plugin files of one name
        target = folder / f"{path.stem}_{len(list(folder.glob('*.py')))}.py"
    shutil.copyfile(path, target)
    return target.name

"""The demo of the README: a real model from the package index, from ONNX to a proven MNN file.

Fetches magika (Google's file type detector, trained weights, 3 MB), takes it down the plain road and ours, and asks the
MNN file what some bytes are. Run it with `make demo`.
"""

from __future__ import annotations

import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

import numpy as np

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from fixtures.fetch import fetch
from fixtures.naturals import natural
from graphkit.errors import GraphkitError, MnnError
from graphkit.mnn import worker
from graphkit.mnn.options import ConverterOptions
from graphkit.mnn.road import convert

PLAIN = ConverterOptions.of(useGeluApproximation=1)  # what MNNConvert does when nobody asks


def run(folder: Path, *args: str) -> None:
    """Show and run a graphkit command in a folder; ends the demo when it fails."""
    print(f"\n$ graphkit {' '.join(args)}", flush=True)
    command = [sys.executable, "-m", "graphkit", *args]
    code = subprocess.run(command, cwd=folder, check=False).returncode
    if code:
        sys.exit(code)


def plain_road(model: Path, folder: Path) -> str:
    """What MNNConvert alone makes of the model, in words."""
    try:
        result = convert(model, folder / "plain.mnn", passes=None, options=PLAIN, inputs=natural("magika"))
    except MnnError as error:
        return error.message
    return f"max error {result.proof.max_error:.1e}, {result.ops} MNN operators"


def labels(folder: Path) -> list[str]:
    """Index of the likeliest file type of each sample, by MNN."""
    scores = [worker.run(folder / "magika.mnn", feeds).outputs for feeds in natural("magika")]
    return [f"{int(row.argmax())} ({row.max():.0%})" for out in scores for row in next(iter(out.values()))]


def demo() -> None:
    """Fetch, convert, verify, and use."""
    print("fetching magika 1.0.3 (Apache-2.0) from the package index …", flush=True)
    model = fetch("magika")
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        inputs = folder / "inputs"
        inputs.mkdir()
        for number, feeds in enumerate(natural("magika")):
            np.savez(inputs / f"{number}.npz", **feeds)  # type: ignore[arg-type]  # keys are input names
        shutil.copyfile(model, folder / "magika.onnx")
        print(f"MNNConvert alone: {plain_road(model, folder)}", flush=True)
        run(folder, "convert", "magika.onnx", "--inputs", "inputs")
        run(folder, "verify", "magika.onnx", "magika.mnn", "--inputs", "inputs")
        print(f"\nfile types by MNN (python source, a csv table, a web page): {', '.join(labels(folder))}")


if __name__ == "__main__":
    try:
        demo()
    except GraphkitError as error:
        sys.exit(f"error: {error}")

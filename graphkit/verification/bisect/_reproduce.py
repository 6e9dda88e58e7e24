"""Shows a fault of MNN: converts model.onnx, runs it on inputs.npz, compares with expected.npz.

Usage: python reproduce.py
Needs numpy and MNN (pip install MNN), nothing else. Exit code 1: the fault is there; 0: it is not; 2: neither can be
told. The converter and the runtime run in processes of their own, for they may crash.
"""

import os
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

FLAGS: list[str] = []  # for MNN's converter
TOLERANCE = 1e-3  # largest error over the largest expected value
SECONDS = 120
HERE = Path(__file__).resolve().parent


def main() -> int:
    """Convert, run, compare; print what happened."""
    with tempfile.TemporaryDirectory() as folder:
        for task, doing in (("convert", "MNN's converter"), ("run", "MNN running the model")):
            told = child(task, folder, doing)
            if told:
                print(told)
                return 2 if "not installed" in told else 1
        return compare(Path(folder))


def child(task: str, folder: str, doing: str) -> str:
    """Do one step in a process of its own; returns what went wrong, or nothing."""
    command = [sys.executable, str(HERE / "reproduce.py"), task]
    try:
        ended = subprocess.run(
            command, cwd=folder, timeout=SECONDS, capture_output=True, text=True, errors="replace", check=False
        )
    except subprocess.TimeoutExpired:
        return f"{doing} does not end within {SECONDS} s"
    log = ended.stdout + ended.stderr
    if ended.returncode < 0:
        return f"{doing} crashes (signal {-ended.returncode})\n{log[-2000:]}"
    if "ModuleNotFoundError" in log:
        return f"something is not installed here: {log.strip().splitlines()[-1]}"
    made = Path(folder, "model.mnn" if task == "convert" else "outputs.npz")
    refused = [line for line in log.splitlines() if "NOT_SUPPORTED_OP" in line or "Not Support" in line]
    if refused or ended.returncode or not made.exists():
        return f"{doing} fails\n{chr(10).join(refused) or log[-2000:]}"
    return ""


def convert() -> None:
    """In the child: make model.mnn."""
    import _tools

    source = ["--modelFile", str(HERE / "model.onnx"), "--MNNModel", str(Path("model.mnn").resolve())]
    _tools.mnnconvert(["MNNConvert", "-f", "ONNX", *source, *FLAGS])


def run() -> None:
    """In the child: run model.mnn and write outputs.npz."""
    import MNN.expr as F
    import MNN.nn as nn
    import numpy as np

    expected, feeds = read("expected.npz"), read("inputs.npz")
    runtime = nn.create_runtime_manager(({"backend": 0, "numThread": 1, "precision": 1},))
    module = nn.load_module_from_file("model.mnn", list(feeds), list(expected), runtime_manager=runtime)
    variables = []
    for array, declared in zip(feeds.values(), module.get_info()["inputs"]):  # noqa: B905
        kind = "uint8" if str(declared.dtype).endswith("uint8") else "float32" if array.dtype.kind == "f" else "int32"
        dtype = {"float32": F.float, "int32": F.int, "uint8": F.uint8}[kind]
        made = np.ascontiguousarray(array.astype(kind)).reshape(array.shape)
        variable = F.const(made, list(array.shape), F.NHWC if declared.data_format == F.NHWC else F.NCHW, dtype)
        variables.append(F.convert(variable, F.NC4HW4) if declared.data_format == F.NC4HW4 else variable)
    results = module.forward(variables)
    results = list(results) if isinstance(results, (list, tuple)) else [results]
    if len(results) != len(expected):
        sys.exit(f"MNN returned {len(results)} outputs where {len(expected)} were asked for")
    arrays = []
    for variable in results:
        plain = F.convert(variable, F.NCHW) if variable.data_format == F.NC4HW4 else variable
        arrays.append(np.array(plain.read()).reshape(plain.shape))
    np.savez("part.npz", *arrays)
    Path("part.npz").replace("outputs.npz")
    sys.stdout.flush()
    os._exit(0)  # what crashes while MNN is unloaded is not what this is about


def compare(folder: Path) -> int:
    """Print the error of every output."""
    import numpy as np

    with np.load(folder / "outputs.npz") as stored:
        actual = [stored[f"arr_{number}"] for number in range(len(stored.files))]
    wrong = 0
    for (name, want), got in zip(read("expected.npz").items(), actual):  # noqa: B905
        if got.size != want.size or [n for n in got.shape if n != 1] != [n for n in want.shape if n != 1]:
            print(f"{name}: shape {list(got.shape)} where {list(want.shape)} is expected: wrong")
            wrong += 1
            continue
        left, right = got.reshape(want.shape).astype(np.float64), want.astype(np.float64)
        same_nan = bool((np.isnan(left) == np.isnan(right)).all())
        with np.errstate(invalid="ignore"):
            error = np.abs(np.where(left == right, 0, left - right))
        finite = np.abs(right[np.isfinite(right)])
        most, largest = float(np.nan_to_num(error, nan=0, posinf=np.inf).max(initial=0)), float(finite.max(initial=0))
        exact = want.dtype.kind in "iub"
        bad = not same_nan or most > (0 if exact else max(TOLERANCE * largest, 1e-6))
        print(f"{name}: max error {most:.6g} of max {largest:.6g}{'' if same_nan else ', NaN differ'}:", end=" ")
        print("wrong" if bad else "right")
        wrong += bad
    return 1 if wrong else 0


def read(name: str) -> dict[str, Any]:
    """Arrays of a file beside this script, in the model's order."""
    import numpy as np

    with np.load(HERE / name) as stored:
        return {key: stored[key] for key in stored.files}


if __name__ == "__main__":
    if sys.argv[1:] == ["convert"]:
        convert()
    elif sys.argv[1:] == ["run"]:
        run()
    else:
        sys.exit(main())

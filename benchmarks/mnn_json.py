"""A .mnn file as JSON and back: our commands and MNN's own converter, in one run.

    python benchmarks/mnn_json.py [--quick] [-o FOLDER]

Each road is measured as a user runs it, as whole commands in processes of their own: `graphkit mnn to-json` and
`from-json`, the latter with and without the run in MNN that proves the result; MNNConvert with `--JsonFile` and with
`-f JSON`. A full run takes a MiniLM of 90 MB and a stack of matrices of 500 MB, and ten minutes, nearly all of them
MNN's; it writes `mnn_json.md`. `--quick` takes 8 MB and judges no bars. Exits with 1 when an output of ours is not
identical or a bar is missed.
"""

from __future__ import annotations

import argparse
import datetime
import os
import re
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

if __package__ in (None, ""):
    sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from benchmarks._bench import say
from benchmarks._report import Bar, Section, Table, machine, seconds
from fixtures import exports
from graphkit.mnn import worker
from graphkit.mnn.convert import run_converter
from graphkit.mnn.fileinfo import read_file_info

RESULTS = Path(__file__).with_name("results")
TIMEOUT = 900.0
MB = 1e6
_GRAPHKIT = [sys.executable, "-m", "graphkit", "mnn"]
_CONVERT = "import sys, _tools; _tools.mnnconvert(['MNNConvert', *sys.argv[1:]])"


@dataclass(frozen=True)
class Cost:
    """What a command took: CPU seconds with its children, the largest resident memory, the largest anonymous one.

    Memory is that of the command's own process, looked at every two milliseconds; pages of mapped files are
    resident, not anonymous. failure: a signal (SIGKILL after the time limit) or a status.
    """

    cpu: float
    resident: int
    anonymous: int
    failure: str = ""


def measure(argv: Sequence[str], folder: Path) -> Cost:
    """Run a command in a folder and watch it."""
    process = subprocess.Popen(argv, cwd=folder, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL)
    end, resident, anonymous = time.monotonic() + TIMEOUT, 0, 0
    while True:
        pid, status, usage = os.wait4(process.pid, os.WNOHANG)
        if pid:
            break
        resident = max(resident, memory(process.pid, "VmHWM"))
        anonymous = max(anonymous, memory(process.pid, "RssAnon"))
        if time.monotonic() > end:
            process.kill()
        time.sleep(0.002)
    code = os.waitstatus_to_exitcode(status)
    process.returncode = code
    failure = signal.Signals(-code).name if code < 0 else f"status {code}" if code else ""
    return Cost(usage.ru_utime + usage.ru_stime, resident, anonymous, failure)


def memory(pid: int, entry: str) -> int:
    """An entry of what Linux tells of a process's memory, in bytes; 0 where it tells nothing."""
    try:
        status = Path(f"/proc/{pid}/status").read_text(encoding="ascii")
    except OSError:
        return 0
    found = re.search(rf"^{entry}:\s+(\d+) kB$", status, re.MULTILINE)
    return int(found[1]) * 1024 if found else 0


@dataclass(frozen=True)
class Road:
    """A way to JSON and back: two commands for a model, the JSON and the model made of it; `ours` is judged."""

    name: str
    there: Callable[[Path, Path], Sequence[str]]
    back: Callable[[Path, Path], Sequence[str]]
    ours: bool = True


def _ours(flags: Sequence[str], back_flags: Sequence[str]) -> tuple[Callable[..., Any], Callable[..., Any]]:
    return (
        lambda model, text: [*_GRAPHKIT, "to-json", str(model), "-o", str(text), *flags],
        lambda text, model: [*_GRAPHKIT, "from-json", str(text), "-o", str(model), *back_flags],
    )


def _mnn(*flags: str) -> list[str]:
    return [sys.executable, "-c", _CONVERT, *flags]


ROADS = (
    Road("graphkit, not run", *_ours([], ["--no-run"])),
    Road("graphkit, run in MNN", *_ours([], [])),
    Road("graphkit --inline, not run", *_ours(["--inline"], ["--no-run"])),
    Road("graphkit --compat, not run", *_ours(["--compat"], ["--compat", "--no-run"])),
    Road(
        "MNNConvert",
        lambda model, text: _mnn("-f", "MNN", "--modelFile", str(model), "--JsonFile", str(text)),
        lambda text, model: _mnn("-f", "JSON", "--modelFile", str(text), "--MNNModel", str(model)),
        ours=False,
    ),
)


@dataclass(frozen=True)
class Result:
    """One road of one model; error: the largest difference of an output, None when there are none to compare."""

    road: Road
    there: Cost
    back: Cost
    json_bytes: int
    beside_bytes: int
    error: float | None
    identical: bool

    @property
    def cpu(self) -> float:
        """Both commands."""
        return self.there.cpu + self.back.cpu

    @property
    def failure(self) -> str:
        """Why a command did not do its work, or nothing."""
        return self.there.failure or self.back.failure or ("" if self.error is not None else "its result does not run")


def stack(folder: Path, layers: int, width: int = 2048) -> Path:
    """A stack of matrix products, 16 MB of weights for each layer of 2048."""
    rng, nodes, weights, name = np.random.default_rng(0), [], [], "x"
    for k in range(layers):
        matrix = (rng.standard_normal((width, width)) / np.sqrt(width)).astype(np.float32)
        weights.append(numpy_helper.from_array(matrix, f"w{k}"))
        nodes += [
            helper.make_node("MatMul", [name, f"w{k}"], [f"m{k}"]),
            helper.make_node("Tanh", [f"m{k}"], [f"t{k}"]),
        ]
        name = f"t{k}"
    ends = [helper.make_tensor_value_info(end, TensorProto.FLOAT, [4, width]) for end in ("x", name)]
    graph = helper.make_graph(nodes, "stack", [ends[0]], [ends[1]], weights)
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    onnx.save(model, folder / "stack.onnx")
    return folder / "stack.onnx"


def feeds(model: Path) -> dict[str, np.ndarray[Any, Any]]:
    """Inputs of a model; open dimensions are 8, integers are flags."""
    rng, found = np.random.default_rng(1), {}
    for spec in read_file_info(model).inputs:
        shape = [8 if dim < 0 else dim for dim in spec.shape]
        number = spec.dtype.startswith("float")
        found[spec.name] = rng.standard_normal(shape).astype("f4") if number else rng.integers(0, 2, shape).astype("i4")
    return found


def compare(model: Path, made: Path) -> tuple[float | None, bool]:
    """The largest difference of the outputs of two models, and whether all are the same bytes."""
    given = feeds(model)
    before = worker.run(model, given).outputs
    try:
        after = worker.run(made, given).outputs
    except Exception:  # noqa: BLE001 - a file that does not run is a cell of the table
        return None, False
    error = max(float(np.abs(after[name].astype(np.float64) - before[name]).max()) for name in before)
    return error, all(after[name].tobytes() == before[name].tobytes() for name in before)


def travel(road: Road, model: Path, folder: Path) -> Result:
    """Measure one road of one model."""
    with tempfile.TemporaryDirectory(dir=folder) as name:
        private = Path(name)
        text, made = private / "model.json", private / "made.mnn"
        there = measure(road.there(model, text), private)
        back = measure(road.back(text, made), private) if text.exists() else Cost(0, 0, 0, "no JSON")
        size = text.stat().st_size if text.exists() else 0
        beside = sum(path.stat().st_size for path in private.glob("*.safetensors"))
        error, identical = compare(model, made) if made.exists() else (None, False)
    return Result(road, there, back, size, beside, error, identical)


def section(name: str, title: str, model: Path, folder: Path, limits: Mapping[str, float]) -> Section:
    """All roads of one model; `limits` are bars: CPU seconds, JSON bytes, memory as a multiple of the file."""
    results = []
    for road in ROADS:
        say(f"{title}: {road.name} …")
        results.append(travel(road, model, folder))
    size = model.stat().st_size
    rows = [_row(result, size) for result in results]
    head = ("road", "there CPU s", "back CPU s", "JSON MB", "beside MB", "peak memory MB", "anonymous MB", "max error")
    faults = [
        f"{result.road.name}: {result.failure or 'outputs are not identical'}"
        for result in results
        if result.road.ours and not result.identical
    ]
    text = f"A file of {size / MB:.0f} MB."
    data = {"rows": rows, "bytes": size}
    return Section(name, title, text, [Table(head, rows)], bars(results[:2], size, limits), faults, data)


def _row(result: Result, size: int) -> list[str]:
    peak = [max(getattr(result.there, kind), getattr(result.back, kind)) for kind in ("resident", "anonymous")]
    error = result.failure if result.error is None else "identical" if result.identical else f"{result.error:.1e}"
    sizes = [f"{value / MB:.1f}" for value in (result.json_bytes, result.beside_bytes)]
    memory = [f"{value / MB:.0f}" for value in peak]
    return [result.road.name, seconds(result.there.cpu), seconds(result.back.cpu), *sizes, *memory, error]


def bars(results: Sequence[Result], size: int, limits: Mapping[str, float]) -> list[Bar]:
    """The bars of the default form, judged by the road that does not run MNN; the one that does is told beside it."""
    if not limits:
        return []
    plain, proved = results
    peak = max(plain.there.resident, plain.back.resident)
    judged = [
        Bar(
            f"there and back within {limits['cpu']:g} CPU s",
            f"{plain.cpu:.2f}; {proved.cpu:.2f} with the run in MNN",
            plain.cpu <= limits["cpu"],
        ),
        Bar(
            f"memory within {limits['memory']:g} times the file", f"{peak / size:.1f}", peak <= limits["memory"] * size
        ),
    ]
    if "json" in limits:
        met = plain.json_bytes < limits["json"]
        judged.append(Bar(f"JSON under {limits['json'] / MB:g} MB", f"{plain.json_bytes / MB:.2f} MB", met))
    return judged


def sections(folder: Path, quick: bool) -> list[Section]:
    """Convert the models and measure."""
    if quick:
        run_converter(stack(folder, 8, 512), folder / "small.mnn")
        return [section("small", "A small stack", folder / "small.mnn", folder, {})]
    run_converter(exports.export("minilm_eager_ts"), folder / "minilm.mnn")
    run_converter(stack(folder, 30), folder / "stack.mnn")
    limits = {"cpu": 2.0, "json": MB, "memory": 3.0}
    return [
        section("minilm", "MiniLM", folder / "minilm.mnn", folder, limits),
        section("stack", "Thirty matrices of 2048", folder / "stack.mnn", folder, {"cpu": 5.0, "memory": 3.0}),
    ]


def page(found: Sequence[Section]) -> str:
    """The tables in Markdown."""
    facts, today = machine(), datetime.datetime.now(tz=datetime.UTC).date()
    mnn = facts["packages"].get("MNN", "?")
    head = (
        f"# A .mnn file as JSON and back\n\n{today}, `python benchmarks/mnn_json.py`; {facts['processor']}, "
        f"{facts['cores']} cores; MNN {mnn}.\n\nWhole commands, start of Python included. CPU s: user and system "
        "seconds with children. Memory: of the command's process; peak counts pages of mapped files, which the system "
        "takes back whenever it wants, anonymous does not. Max error: outputs of the file that came back against "
        "those of the original, both in MNN."
    )
    return "\n\n".join([head, *(part.markdown() for part in found)]) + "\n"


def main(arguments: Sequence[str] | None = None) -> int:
    """Measure, print and write; returns the exit code."""
    parser = argparse.ArgumentParser(description="A .mnn file as JSON and back, ours and MNN's own.")
    parser.add_argument("--quick", action="store_true", help="one small model, bars not judged, nothing written")
    parser.add_argument("-o", "--output", type=Path, help="folder for mnn_json.md")
    options = parser.parse_args(arguments)
    with tempfile.TemporaryDirectory(prefix="graphkit-bench-") as folder:
        found = sections(Path(folder), options.quick)
    text = page(found)
    sys.stdout.write(text)
    output = options.output or (None if options.quick else RESULTS)
    if output is not None:
        output.mkdir(parents=True, exist_ok=True)
        (output / "mnn_json.md").write_text(text, encoding="utf-8")
    return int(any(part.faults or not all(bar.met for bar in part.bars) for part in found))


if __name__ == "__main__":
    sys.exit(main())

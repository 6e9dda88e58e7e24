"""Quantized .mnn files by our road and by MNN's own quantizer, and how both are run."""

from __future__ import annotations

import datetime
import resource
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from benchmarks._report import machine
from graphkit.mnn import worker
from graphkit.mnn.options import ConverterOptions
from graphkit.mnn.road import convert
from graphkit.quant.budget import parse_budget
from graphkit.quant.options import QuantizeOptions
from graphkit.quant.search import BITS, Search
from graphkit.quant.setting import Setting
from graphkit.quantizing import Data, Job, Quantized, quantize

RESULTS = Path(__file__).parent / "results"
Array = npt.NDArray[Any]
Feeds = Mapping[str, Array]


@dataclass(frozen=True)
class Made:
    """A .mnn file: its bytes, those of its quantized weights (0 when not known), CPU seconds of all processes,
    the largest relative error against the quantized ONNX model in onnxruntime (None when there is none), a note."""

    path: Path
    size: int
    weights: int = 0
    cpu: float = 0.0
    proof: float | None = None
    note: str = ""


Maker = Callable[[Path, Path, Path], Made]  # source, calibration data, output


def ours(
    bits: int = 8,
    *,
    block: int = 0,
    method: str = "rtn",
    budget: str = "",
    tried: tuple[int, ...] = BITS,
    samples: int = 8,
) -> Maker:
    """What `graphkit quantize` makes: equal bits everywhere, or what a search finds of those `tried` for a budget."""

    def make(source: Path, data: Path, output: Path) -> Made:
        options = QuantizeOptions(bits=bits, block=block, method=method)  # type: ignore[arg-type]
        finder = Search(budget=parse_budget(budget), samples=samples, bits=tried) if budget else None
        begin = _cpu()
        job = Job(options, search=finder, data=Data(data) if budget or method == "gptq" else None)
        done = quantize(source, job, passes="mnn", verify="none")
        result = convert(done.model, output)
        cpu = _cpu() - begin
        left = "; ".join(f"float in MNN: {entry.node} ({entry.reason})" for entry in result.carriage.left)
        note = ", ".join(filter(None, [chosen(done) if budget else "", left]))
        return Made(output, result.size, done.result.nbytes, cpu, result.proof.max_error, note)

    return make


def theirs(bits: int = 8, **flags: Any) -> Maker:
    """What MNNConvert's own quantizer makes of the same file."""

    def make(source: Path, data: Path, output: Path) -> Made:
        begin = _cpu()
        result = convert(
            source, output, passes=None, verify="none",
            options=ConverterOptions.of(weightQuantBits=bits, **flags),
        )  # fmt: skip
        return Made(output, result.size, cpu=_cpu() - begin)

    return make


def plain(source: Path, data: Path, output: Path) -> Made:
    """Floats, for comparison."""
    begin = _cpu()
    result = convert(source, output)
    return Made(output, result.size, cpu=_cpu() - begin, proof=result.proof.max_error)


def chosen(done: Quantized) -> str:
    """How many layers a search gave which setting."""
    counts: dict[Setting, int] = {}
    for entry in done.result.plan.layers:
        counts[entry.setting] = counts.get(entry.setting, 0) + 1
    return ", ".join(f"{count} × {setting}" for setting, count in sorted(counts.items(), key=lambda i: str(i[0])))


def save(samples: Sequence[Feeds], folder: Path) -> Path:
    """Calibration data as users have them: a folder of .npz."""
    folder.mkdir(parents=True, exist_ok=True)
    for number, feeds in enumerate(samples):
        np.savez(folder / f"{number:04d}.npz", **feeds)  # type: ignore[arg-type]
    return folder


def outputs(path: Path, samples: Sequence[Feeds]) -> list[dict[str, Array]]:
    """What MNN computes from the file that would be shipped."""
    return [run.outputs for run in worker.run_all(path, samples, timeout=1200)]


def cosine(one: Array, two: Array) -> float:
    """The cosine of the angle between two arrays of one size, as vectors."""
    a, b = one.reshape(-1).astype(np.float64), two.reshape(-1).astype(np.float64)
    return float(a @ b / np.maximum(np.linalg.norm(a) * np.linalg.norm(b), 1e-30))


def table(header: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """Markdown; the first column is text."""
    lines = [header, [":--", *["--:"] * (len(header) - 1)], *rows]
    return "\n".join(f"| {' | '.join(cell.replace('|', '/') for cell in line)} |" for line in lines)


def head(title: str, command: str, peers: Sequence[str] = ()) -> str:
    """Title, date, command and machine."""
    today = datetime.datetime.now(tz=datetime.UTC).date()
    facts = machine()
    packages = ", ".join(
        f"{name} {facts['packages'][name]}" for name in ("MNN", "onnxruntime") if name in facts["packages"]
    )
    return f"# {title}\n\n{today}, `{command}`; {facts['processor']}, {facts['cores']} cores; {packages}.\n"


def _cpu() -> float:
    """User and system seconds of this process and of its children that have ended."""
    found = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    return sum(usage.ru_utime + usage.ru_stime for usage in found)

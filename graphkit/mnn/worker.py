"""Run and describe .mnn files, in a child process that may crash or hang.

Uses MNN's Module API (`MNN.nn.load_module_from_file`, `forward`) on the CPU. MNN has no 64-bit integers,
no booleans and no float64: inputs are converted on the way in and results come back as float32, int32,
uint8 or int8.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np
import numpy.typing as npt

from graphkit._scratch import scratch
from graphkit.errors import MnnError, UsageError
from graphkit.mnn.fileinfo import FileInfo, FileInput, read_file_info
from graphkit.mnn.process import Ending, run_child, shorten

Array = npt.NDArray[Any]
Precision = Literal["normal", "high", "low", "low_bf16"]

# MNN reads these only as numbers (BackendConfig::PrecisionMode); text is ignored without a word.
PRECISIONS: Mapping[str, int] = {"normal": 0, "high": 1, "low": 2, "low_bf16": 3}

_SHAPE_ERROR = re.compile(r"Compute Shape Error for (\S+)")


@dataclass(frozen=True)
class MnnRun:
    """Named results of one run.

    `seconds` is the time of forward and of reading the results; `log` is what MNN printed meanwhile.
    """

    outputs: dict[str, Array]
    seconds: float
    log: str = ""


@dataclass(frozen=True)
class MnnInfo:
    """A .mnn file that MNN loads: what it takes and gives.

    op_counts counts every operator in the file by type, Input and Const included (see fileinfo); `ops` is
    their sum; `version` is the converter's.
    """

    inputs: tuple[FileInput, ...]
    outputs: tuple[str, ...]
    op_counts: dict[str, int]
    version: str

    @property
    def ops(self) -> int:
        """All operators."""
        return sum(self.op_counts.values())


class RunError(MnnError):
    """MNN could not load or run a model.

    `signal` and `timed_out` tell how it ended, `sample` at which of the samples; `mnn_op` is the MNN operator
    whose shape it could not compute, when it said so (named after the first ONNX tensor the operator stands for).
    """

    def __init__(
        self,
        message: str,
        *,
        file: object,
        log: str = "",
        signal: str | None = None,
        timed_out: bool = False,
        sample: int = 0,
    ) -> None:
        super().__init__(message, file=file, log=shorten(log))
        self.signal = signal
        self.timed_out = timed_out
        self.sample = sample
        found = _SHAPE_ERROR.search(log)
        self.mnn_op = found.group(1) if found else None


def run(
    mnn_path: Path | str,
    feeds: Mapping[str, Array],
    outputs: Sequence[str] | None = None,
    *,
    memory: int = 0,
    precision: Precision = "high",
    threads: int = 2,
    winograd: int | None = None,
    timeout: float = 300.0,
) -> MnnRun:
    """Run a .mnn file once on named inputs and return its outputs by name.

    As `run_all` with one sample.
    """
    return run_all(
        mnn_path, [feeds], outputs, memory=memory, precision=precision, threads=threads, winograd=winograd,
        timeout=timeout,
    )[0]  # fmt: skip


def run_all(
    mnn_path: Path | str,
    samples: Sequence[Mapping[str, Array]],
    outputs: Sequence[str] | None = None,
    *,
    memory: int = 0,
    precision: Precision = "high",
    threads: int = 2,
    winograd: int | None = None,
    timeout: float = 300.0,
) -> list[MnnRun]:
    """Run a .mnn file on each sample, all in one child, loaded anew for each; the outputs by name.

    Feeds may be of the source model's types: int64, int16, uint32 … go in as int32 (values must fit), bool
    as int32, float16, bfloat16 and float64 as float32. `outputs` are tensor names, default the model's own.
    memory: 0 normal, 1 high, 2 low (weights stay quantized). winograd: MNN's WINOGRAD_MEMORY_LEVEL, 0 (small
    tiles, exact) to 3 (its default, large tiles, fast). timeout: seconds for all of them. Raises ModelError for
    a file that is no MNN model, UsageError for wrong input names or values, OutputError when the temporary
    folder cannot be written, RunError when MNN refuses, crashes, hangs, or returns not all outputs.
    """
    path = Path(mnn_path)
    file = read_file_info(path)
    wanted = list(outputs if outputs is not None else file.outputs)
    arrays = [prepare(file, feeds, path) for feeds in samples]
    request = _request("run", file, path, memory, precision, threads)
    request |= {"outputs": wanted, "samples": len(arrays), "winograd": winograd}
    with scratch("run") as name:
        folder = Path(name)
        _store(folder, arrays)
        ending = run_child(request, folder, timeout)
        check_ending(ending, path, timeout, len(list(folder.glob("outputs-*.npz"))))
        log = shorten(ending.log)
        return [
            MnnRun(_results(folder / f"outputs-{number}.npz", wanted), float(seconds), log)
            for number, seconds in enumerate(ending.result["seconds"])
        ]


def _results(file: Path, wanted: Sequence[str]) -> dict[str, Array]:
    with np.load(file, allow_pickle=False) as stored:
        return {name: stored[f"o{k}"] for k, name in enumerate(wanted)}


def latency(
    mnn_path: Path | str,
    feeds: Mapping[str, Array],
    *,
    repeat: int = 20,
    warmup: int = 3,
    memory: int = 0,
    precision: Precision = "high",
    threads: int = 2,
    timeout: float = 300.0,
) -> list[float]:
    """Wall seconds of `repeat` runs on one sample in one child, results read, after `warmup` runs.

    Other arguments and errors as in `run_all`.
    """
    path = Path(mnn_path)
    file = read_file_info(path)
    request = _request("time", file, path, memory, precision, threads) | {"repeat": repeat, "warmup": warmup}
    with scratch("time") as name:
        _store(Path(name), [prepare(file, feeds, path)])
        ending = run_child(request, Path(name), timeout)
        check_ending(ending, path, timeout)
    return [float(value) for value in ending.result["seconds"]]


def _request(task: str, file: FileInfo, path: Path, memory: int, precision: Precision, threads: int) -> dict[str, Any]:
    """What the child is asked for, the same for every way to run a model."""
    return {
        "task": task,
        "model": str(path.absolute()),
        "inputs": [spec.name for spec in file.inputs],
        "outputs": list(file.outputs),
        "memory": memory,
        "precision": PRECISIONS[precision],
        "threads": threads,
    }


def _store(folder: Path, samples: Sequence[Mapping[str, Array]]) -> None:
    """Write samples where the child reads them; arrays go by number, names may hold anything."""
    for number, sample in enumerate(samples):
        numbered: dict[str, Any] = {f"i{k}": array for k, array in enumerate(sample.values())}
        np.savez(folder / f"inputs-{number}.npz", **numbered)


def info(mnn_path: Path | str, *, timeout: float = 300.0) -> MnnInfo:
    """Describe a .mnn file and prove that MNN loads it.

    Raises ModelError for a file that is no MNN model, RunError when MNN cannot load it.
    """
    path = Path(mnn_path)
    file = read_file_info(path)
    request = {
        "task": "info",
        "model": str(path.absolute()),
        "inputs": [spec.name for spec in file.inputs],
        "outputs": list(file.outputs),
    }
    with scratch("info") as name:
        check_ending(run_child(request, Path(name), timeout), path, timeout)
    return MnnInfo(file.inputs, file.outputs, file.op_counts, file.version)


def to_mnn(array: Array, dtype: str, name: str) -> Array:
    """Convert one input to what MNN takes for a declared dtype; C-contiguous.

    Declared uint8 stays uint8, other integers and bool become int32, floats become float32. Raises
    UsageError when a value does not survive.
    """
    source = np.asarray(array)
    target = {"uint8": "uint8", "float32": "float32", "float16": "float32"}.get(dtype, "int32")
    result = np.ascontiguousarray(source.astype(target)).reshape(source.shape)
    to_float = target == "float32" and source.dtype.kind not in "iub"
    if not to_float and not np.array_equal(result.astype(np.float64), source.astype(np.float64)):
        raise UsageError(
            f"input '{name}': MNN takes {target} here, and some {source.dtype} values do not fit", tensor=name
        )
    return result


def prepare(file: FileInfo, feeds: Mapping[str, Array], path: Path) -> dict[str, Array]:
    """Inputs in the model's order and MNN's types.

    Feeds the model does not have are left out: the converter drops inputs that nothing reads.
    """
    missing = [spec.name for spec in file.inputs if spec.name not in feeds]
    if missing:
        known = ", ".join(f"'{name}'" for name in feeds) or "none"
        raise UsageError(
            f"no value for input '{missing[0]}' of the MNN model", file=path, tensor=missing[0], hint=f"given: {known}"
        )
    return {spec.name: to_mnn(feeds[spec.name], spec.dtype, spec.name) for spec in file.inputs}


def check_ending(ending: Ending, path: Path, timeout: float, sample: int = 0) -> None:
    """Raise RunError unless the child did its task; `sample` is the one it was at."""
    if ending.timed_out:
        raise RunError(
            f"MNN did not finish within {timeout:g} s", file=path, log=ending.log, timed_out=True, sample=sample
        )
    if ending.signal is not None:
        raise RunError(
            f"MNN crashed running the model ({ending.signal})",
            file=path,
            log=ending.log,
            signal=ending.signal,
            sample=sample,
        )
    reason = ending.result.get("error")
    if reason is None and ending.code == 0 and ending.result:
        return
    lines = ending.log.strip().splitlines() or ["no output"]
    if reason is None and lines[-1].startswith(("ModuleNotFoundError", "ImportError")):
        raise MnnError(f"MNN is not installed here: {lines[-1]}", log=ending.log, hint="pip install MNN")
    if reason is None:
        reason = f"MNN's child ended with status {ending.code}: {lines[-1]}"
    detail = _telling_line(lines)
    told = f" (MNN says: {detail})" if detail and detail not in reason else ""
    raise RunError(f"{reason}{told}", file=path, log=ending.log, sample=sample)


def _telling_line(lines: Sequence[str]) -> str:
    """The log line that says most about a failure."""
    for word in ("Compute Shape Error", "Can't find", "is input but not found", "Can't open", "rror"):
        for line in lines:
            if word in line and "Traceback" not in line:
                return line.strip()
    return ""

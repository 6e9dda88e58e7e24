"""Is a model still the original? Both run in onnxruntime, its own optimizations off, on seeded inputs."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

_PREFIX = re.compile(r"^\[ONNXRuntimeError\] : \d+ : \w+ : (?:Load model from .*? failed:)?")

Array = npt.NDArray[Any]
Shapes = Mapping[str, Sequence[int]]


def judge(original: Path, candidate: Path, samples: Sequence[Shapes], tolerance: float) -> dict[str, Any]:
    """Compare two model files on inputs of the given shapes.

    Returns `error`, the largest absolute error over the original's largest absolute value (worst output and
    sample), and `fault`: empty when that is at most `tolerance`, else what is wrong in a few words.
    """
    reference = session(original)
    expected = [run(reference, inputs(reference, shapes, seed)) for seed, shapes in enumerate(samples)]
    worst = 0.0
    try:
        subject = session(candidate)
    except Exception as error:  # noqa: BLE001 - onnxruntime's exceptions have no base class of their own
        return {"error": None, "fault": f"invalid: {first_line(error)}"}
    for seed, shapes in enumerate(samples):
        try:
            actual = run(subject, inputs(reference, shapes, seed))
        except Exception as error:  # noqa: BLE001 - as above
            return {"error": None, "fault": f"broken: {first_line(error)}"}
        fault, error_ = compare(expected[seed], actual)
        worst = max(worst, error_)
        if fault or error_ > tolerance:
            return {"error": error_, "fault": fault or f"wrong: error {error_:.1e}"}
    return {"error": worst, "fault": ""}


def compare(expected: Mapping[str, Array], actual: Mapping[str, Array]) -> tuple[str, float]:
    """Fault in a few words (names, shapes, NaN), and the largest relative error of the outputs."""
    worst = 0.0
    for name, right in expected.items():
        if name not in actual:
            return f"output '{name}' is gone", float("inf")
        value = actual[name]
        if value.shape != right.shape or value.dtype != right.dtype:
            return f"'{name}' is {value.dtype}{list(value.shape)}, not {right.dtype}{list(right.shape)}", 0.0
        worst = max(worst, relative_error(right, value))
    return "", worst


def relative_error(right: Array, value: Array) -> float:
    """Largest absolute error over the largest absolute value of `right`; infinite where NaNs differ."""
    right, value = right.astype(np.float64), value.astype(np.float64)
    if not np.array_equal(np.isnan(right), np.isnan(value)):
        return float("inf")
    scale = np.nanmax(np.abs(right), initial=0.0)
    return float(np.nanmax(np.abs(right - value), initial=0.0) / max(scale, 1e-6))


def session(path: Path) -> Any:
    """An onnxruntime session that computes what the file says."""
    import onnxruntime as ort

    settings = ort.SessionOptions()
    settings.graph_optimization_level = ort.GraphOptimizationLevel.ORT_DISABLE_ALL
    settings.log_severity_level = 4
    return ort.InferenceSession(path, settings, providers=["CPUExecutionProvider"])


def run(model: Any, feeds: Mapping[str, Array]) -> dict[str, Array]:
    """All outputs by name; feeds that the model does not take any more are left out."""
    names = [output.name for output in model.get_outputs()]
    taken = {value.name for value in model.get_inputs()}
    return dict(zip(names, model.run(names, {k: v for k, v in feeds.items() if k in taken}), strict=True))


def inputs(model: Any, shapes: Shapes, seed: int) -> dict[str, Array]:
    """Seeded inputs: noise, token ids below 1000, masks that hide the end of the last row."""
    random = np.random.default_rng(seed)
    feeds: dict[str, Array] = {}
    for value in model.get_inputs():
        shape = tuple(shapes[value.name])
        if value.type == "tensor(float)":
            feeds[value.name] = random.standard_normal(shape, dtype=np.float32)
        elif "mask" in value.name:
            feeds[value.name] = np.ones(shape, np.int64)
            feeds[value.name][-1, shape[1] * 2 // 3 :] = 0
        else:
            feeds[value.name] = random.integers(0, 2 if "type" in value.name else 1000, shape)
    return feeds


def first_line(error: Exception) -> str:
    """The reason an exception gives, shortened for a table: onnxruntime puts codes and the file before it."""
    text = (str(error).strip().splitlines() or [type(error).__name__])[0]
    return _PREFIX.sub("", text.rsplit("Status Message: ", 1)[-1])[:120]

"""Run small models in MNN from tests: what a lowering claims is measured."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from graphkit.graph import Graph
from graphkit.mnn import worker
from graphkit.mnn.convert import run_converter
from graphkit.model import Model
from graphkit.optimizer import optimize
from graphkit.testing import parse, random_feeds, run

Feeds = Mapping[str, npt.NDArray[Any]]


def in_mnn(model: Model, feeds: Feeds, folder: Path) -> dict[str, npt.NDArray[Any]]:
    """What MNN computes from a model as it is, without any pass."""
    source, made = folder / "in_mnn.onnx", folder / "in_mnn.mnn"
    model.save(source)
    run_converter(source, made)
    return worker.run(made, feeds, list(Graph.of(model).outputs)).outputs


def assert_right_in_mnn(
    model: Model | str,
    folder: Path,
    *,
    feeds: Feeds | None = None,
    expected: Feeds | None = None,
    passes: str = "mnn",
    opset: int = 18,
    rtol: float = 1e-4,
    **header: Any,
) -> None:
    """Assert that after `passes` MNN computes what onnxruntime computes from the model before (or `expected`)."""
    before = parse(model, opset=opset, **header) if isinstance(model, str) else model
    feeds = random_feeds(before) if feeds is None else feeds
    expected = run(before, feeds) if expected is None else expected
    actual = in_mnn(optimize(before, passes, verify="none").model, feeds, folder)
    for name, want in expected.items():
        got = np.asarray(actual[name])
        assert got.size == want.size, f"{name}: shape {got.shape} instead of {want.shape}"
        want64 = want.astype(np.float64)
        scale = max(float(np.abs(want64[np.isfinite(want64)]).max(initial=0)), 1e-6)
        np.testing.assert_allclose(
            got.reshape(want.shape).astype(np.float64), want64, rtol=0, atol=rtol * scale, err_msg=name
        )

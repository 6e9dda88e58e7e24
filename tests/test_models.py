"""Real models from end to end: ONNX → passes → MNNConvert → MNN, compared with onnxruntime on natural inputs."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest

from fixtures import naturals
from graphkit.mnn.road import ConvertResult, convert
from graphkit.optimizer import Bindings, optimize

Find = Callable[[str], Path]


@dataclass(frozen=True)
class Case:
    """A model, what must be bound, and how far MNN and the passes may be from the reference (of its largest value)."""

    id: str
    bar: float = 1e-4
    optimized: float = 1e-5
    bind: Bindings | None = None


# The OCR models amplify float noise: inputs perturbed by 1e-7 move ppocr4_det's output by 1.4e-5 in onnxruntime
# itself, and 1e-6 move that of ppocr4_rec by 4e-5.
FETCHED = [
    Case("silero_seq", bind={"input": (16, 576)}),
    Case("silero_vad"),
    Case("ppocr4_det", bar=2e-3, optimized=5e-5),
    Case("ppocr4_rec", bar=1e-3, optimized=5e-5),
    Case("magika"),
    Case("centerface"),
    Case("dtln1"),
    Case("orientation"),
]
EXPORTS = ["minilm_eager_ts", "minilm_eager_dyn"]


def samples(case: Case) -> list[naturals.Feeds]:
    found = naturals.natural(case.id)
    if case.bind:
        found = [feeds for feeds in found if feeds["input"].shape == case.bind["input"]]
    return found


@pytest.mark.parametrize("case", FETCHED, ids=lambda case: case.id)
def test_model_arrives_right(case: Case, model_path: Find, tmp_path: Path) -> None:
    output = tmp_path / "model.mnn"
    result = convert(model_path(case.id), output, bind=case.bind, inputs=samples(case))
    assert result.proof.kind == "equal"
    assert result.proof.max_error <= case.bar
    assert output.stat().st_size == result.size


@pytest.mark.parametrize("case", FETCHED, ids=lambda case: case.id)
def test_model_arrives_right_on_random_inputs(case: Case, model_path: Find, tmp_path: Path) -> None:
    result = convert(model_path(case.id), tmp_path / "model.mnn", bind=case.bind)
    assert result.proof.kind == "equal"


@pytest.mark.parametrize("kind", EXPORTS)
def test_minilm_arrives_right(kind: str, export_path: Find, tmp_path: Path) -> None:
    result = convert(export_path(kind), tmp_path / "model.mnn", inputs=naturals.natural("minilm"))
    assert result.proof.kind == "equal"
    assert result.proof.max_error <= 1e-4


def converted_shapes(result: ConvertResult) -> list[list[tuple[int, ...]]]:
    return [list(check.shapes.values()) for check in result.proof.checks]


def test_dynamic_models_are_proven_at_two_shapes(model_path: Find, tmp_path: Path) -> None:
    result = convert(model_path("magika"), tmp_path / "model.mnn")
    first, second = converted_shapes(result)
    assert first != second


@pytest.mark.parametrize("case", FETCHED, ids=lambda case: case.id)
def test_optimizing_keeps_outputs_equal(case: Case, model_path: Find) -> None:
    result = optimize(model_path(case.id), "default", verify="each", inputs=naturals.natural(case.id))
    assert result.ok
    assert result.proof.kind == "equal"
    assert not result.report.rolled_back
    assert result.proof.max_error <= case.optimized
    assert np.isfinite(result.proof.max_error)

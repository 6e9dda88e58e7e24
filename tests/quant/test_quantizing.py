"""Quantizing with calibration data: what the reported accuracy is measured on."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from graphkit.model import Model
from graphkit.quant.calibration import Calibration
from graphkit.quant.codes import Array
from graphkit.quant.options import QuantizeOptions
from graphkit.quantizing import Data, Job, Quantized, quantize
from graphkit.report.quantized import accuracy_line
from graphkit.testing import parse

Samples = list[dict[str, Array]]


def model() -> Model:
    weights = ",".join(f"{value:.4f}" for value in np.random.default_rng(0).standard_normal(32 * 16))
    return parse(f"g (float[n,32] x) => (float[n,16] y) <float[32,16] w = {{{weights}}}> {{ y = MatMul(x, w) }}")


def drawn(count: int) -> Samples:
    rng = np.random.default_rng(1)
    mix = rng.standard_normal((32, 32))
    return [{"x": (rng.standard_normal((20, 32)) @ mix).astype(np.float32)} for _ in range(count)]


def made(samples: Samples, folder: Path) -> Quantized:
    np.savez(folder / "calib.npz", x=np.stack([sample["x"] for sample in samples]))
    return quantize(model(), Job(QuantizeOptions(3, method="gptq"), data=Data(folder / "calib.npz")), passes=None)


@pytest.mark.parametrize(("count", "held"), [(4, 1), (20, 3), (60, 9), (300, 32)])
def test_no_code_is_made_from_what_outputs_are_compared_on(count: int, held: int, tmp_path: Path) -> None:
    samples = drawn(count)
    done = made(samples, tmp_path)
    assert (done.accuracy.samples, done.accuracy.source) == (held, "held-back samples")
    back = {id(sample) for sample in Calibration(samples).split(min(0.15, 32 / count))[1].samples}
    other = [{"x": sample["x"] * -3} if id(sample) in back else sample for sample in samples]
    again = made(other, tmp_path)
    assert {w.name: w.array().tobytes() for w in again.model.weights()} == {
        w.name: w.array().tobytes() for w in done.model.weights()
    }
    assert len(back) == held
    assert made([{"x": sample["x"][::-1] ** 3} for sample in samples], tmp_path).accuracy != done.accuracy


def test_few_samples_are_called_what_they_are(tmp_path: Path) -> None:
    lines = [accuracy_line(made(drawn(count), tmp_path)) for count in (1, 3, 4, 20)]
    assert [line.rsplit(" on ", 1)[1] for line in lines] == [
        "1 calibration sample",
        "3 calibration samples",
        "1 held-back sample",
        "3 held-back samples",
    ]

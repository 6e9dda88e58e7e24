"""Search on the sentence encoder: soon enough, forecasts that hold, and better than one width at the same bytes."""

from __future__ import annotations

import codecs
import contextlib
import io
import resource
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
import pytest
from searched_models import Sample

from fixtures.fetch import fetch
from fixtures.naturals import SENTENCES
from graphkit.graph import Graph
from graphkit.model import Model
from graphkit.quant.budget import Budget
from graphkit.quant.calibration import Calibration
from graphkit.quant.engine import plan_of, quantize
from graphkit.quant.metric import Metric
from graphkit.quant.options import QuantizeOptions
from graphkit.quant.search import Search
from graphkit.quant.sensitivity import measure
from graphkit.quant.setting import Setting
from graphkit.runtime import Session

pytestmark = pytest.mark.model


def _zen() -> list[str]:
    """Twenty short sentences that come with Python."""
    with contextlib.redirect_stdout(io.StringIO()):
        import this
    return [line for line in codecs.decode(this.s, "rot13").splitlines() if line]


def _samples(texts: Sequence[str]) -> list[Sample]:
    tokenizers = pytest.importorskip("tokenizers")
    tokenizer = tokenizers.Tokenizer.from_file(str(fetch("minilm") / "tokenizer.json"))
    rows = [tokenizer.encode(text) for text in texts]
    return [
        {
            name: np.array([getattr(row, field)], np.int64)
            for name, field in (
                ("input_ids", "ids"),
                ("attention_mask", "attention_mask"),
                ("token_type_ids", "type_ids"),
            )
        }
        for row in rows
    ]


@pytest.fixture
def encoder(export_path: Callable[[str], Path]) -> Model:
    return Model.load(export_path("minilm_eager_ts"))


def _cpu_seconds() -> float:
    own, children = resource.getrusage(resource.RUSAGE_SELF), resource.getrusage(resource.RUSAGE_CHILDREN)
    return own.ru_utime + own.ru_stime + children.ru_utime + children.ru_stime


def test_every_layer_at_four_widths_in_two_minutes_of_two_cpus(encoder: Model) -> None:
    plan = plan_of(Graph.of(encoder), QuantizeOptions(bits=4, block=32, embeddings=False))
    layers = [entry.layer for entry in plan.layers if not entry.setting.is_float]
    assert len(layers) == 36
    begin = _cpu_seconds()
    widths = [Setting(bits, 32) for bits in (3, 4, 5, 6)]
    found = measure(encoder, layers, _samples(_zen()[:16]), widths, method="mse", executor="processes:2")
    assert found.trials == 144
    assert _cpu_seconds() - begin < 2 * 120
    # One layer may be better off with fewer bits by chance, not all of them.
    sums = [sum(of[setting] ** 2 for of in found.errors.values()) for setting in widths]
    assert sums == sorted(sums, reverse=True)
    assert sums[0] > 20 * sums[-1] > 0


def test_mixed_bits_and_blocks_beat_one_width_on_fresh_sentences(encoder: Model) -> None:
    plan = plan_of(Graph.of(encoder), QuantizeOptions(bits=4, block=32, method="mse", embeddings=False))
    data = Calibration(_samples(_zen()))
    uniform = quantize(encoder, plan)
    rest = sum(weight.nbytes for weight in encoder.weights()) - sum(r.float_bytes for r in uniform.records)
    found = Search(budget=Budget(rest + uniform.nbytes), bits=(4, 5), executor="processes:2").find(encoder, plan, data)
    assert found.bytes <= rest + uniform.nbytes
    assert found.forecast == pytest.approx(found.measured, rel=0.1)
    assert found.uniform is not None
    assert found.uniform[0] == Setting(4, 32)
    assert found.measured < found.uniform[1] * 0.8
    mixed = quantize(encoder, found.plan)
    fresh = _samples(SENTENCES)
    with Session(encoder) as session:
        expected = [session.run(sample) for sample in fresh]
    errors = []
    for model in (mixed.model, uniform.model):
        with Session(model) as session:
            errors.append(Metric().distance(expected, [session.run(sample) for sample in fresh]))
    assert errors[0] < errors[1] * 0.85

"""smart_turn, an INT8 transformer with Q/DQ pairs on which MNN's converter aborts, arrives on both roads.

`strip-activation-qdq` gives the float model, which MNN computes as onnxruntime does. The exact road keeps all 78
pairs; there one step of a grid may fall to the other side with any other order of summation: in onnxruntime itself
by 2e-3 of the result between its optimized and its plain run.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np

from graphkit.graph import Graph
from graphkit.mnn.road import convert
from graphkit.model import Model
from graphkit.optimizer import optimize
from graphkit.runtime import Session
from tests.in_mnn import in_mnn

Find = Callable[[str], Path]
STRIP = "dequantize-weights,strip-activation-qdq,mnn"
ONE_STEP = 5e-3


def test_the_stripped_model_arrives_right(model_path: Find, tmp_path: Path) -> None:
    result = convert(model_path("smart_turn"), tmp_path / "model.mnn", passes=STRIP)
    assert result.proof.kind == "equal"
    assert result.proof.max_error <= 1e-4


def test_every_range_and_every_weight_is_noted(model_path: Find) -> None:
    result = optimize(model_path("smart_turn"), "dequantize-weights,strip-activation-qdq", verify="none")
    weights, ranges = result.report.records
    assert dict(weights.counters) == {"int8": 31, "int32": 5}
    assert len(weights.notes) == 36
    assert dict(ranges.counters) == {"stripped": 78}
    assert "'linear_27': uint8, range -1.21525 … 5.24075" in ranges.notes
    assert not any("Linear" in node.op for node in Graph.of(result.model).nodes)


def test_the_exact_road_stays_on_the_grid(model_path: Find, tmp_path: Path) -> None:
    source = Model.load(model_path("smart_turn"))
    lowered = optimize(source, "mnn", verify="none").model
    assert not any("QuantizeLinear" in node.op or node.op == "Cast" for node in Graph.of(lowered).nodes)
    feeds = {"input_features": np.random.default_rng(0).standard_normal((2, 80, 800)).astype(np.float32)}
    with Session(source) as plain:
        want = plain.run(feeds)["logits"]
    got = in_mnn(lowered, feeds, tmp_path)["logits"].reshape(want.shape)
    assert float(np.abs(got - want).max() / np.abs(want).max()) <= ONE_STEP

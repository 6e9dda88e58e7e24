"""BERT as onnxruntime's own optimizer writes it: every attention is split, alone and with all else that MNN needs."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import numpy as np
import pytest

from fixtures import exports
from graphkit.graph import Graph
from graphkit.model import Model
from graphkit.optimizer import optimize
from graphkit.testing import assert_equal_outputs
from tests.in_mnn import assert_right_in_mnn

pytestmark = pytest.mark.torch


@pytest.fixture(scope="module")
def fused() -> Model:
    """Two layers, with Attention, SkipLayerNormalization and BiasGelu."""
    return Model.load(exports.fused("bert2_eager_ts", heads=4, hidden=64))


def feeds() -> dict[str, np.ndarray]:
    """Two sentences, one of them shorter."""
    rng = np.random.default_rng(0)
    mask = np.ones((2, 7), np.int64)
    mask[1, 5:] = 0
    ids, kinds = rng.integers(0, 50, (2, 7)), rng.integers(0, 2, (2, 7))
    return {"input_ids": ids, "attention_mask": mask, "token_type_ids": kinds}


def test_all_is_split(fused: Model) -> None:
    assert Counter(node.op for node in Graph.of(fused).nodes)["com.microsoft::Attention"] == 2
    after = optimize(fused, "mnn", verify="none").model
    assert {node.domain for node in Graph.of(after).nodes} == {""}
    assert_equal_outputs(fused, after, inputs=feeds())


def test_in_mnn(fused: Model, tmp_path: Path) -> None:
    assert_right_in_mnn(fused, tmp_path, feeds=feeds())

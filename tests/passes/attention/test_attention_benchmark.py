"""The models of benchmarks/attention.py: both encoders are the same function. No timing is asserted."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path

import numpy as np
import pytest

from benchmarks import attention
from graphkit.mnn.convert import run_converter
from graphkit.model import Model
from graphkit.optimizer import optimize
from graphkit.testing import random_feeds, run


def test_the_encoders_compute_the_same_with_the_same_operators() -> None:
    eager, flash = (Model.from_proto(attention.encoder(eager=kind)) for kind in (True, False))
    split = optimize(flash, "split-attention,mnn", verify="none").model
    exported = optimize(eager, "mnn", verify="none").model
    feeds = random_feeds(eager)
    want, got = next(iter(run(eager, feeds).values())), next(iter(run(split, feeds).values()))
    np.testing.assert_allclose(got, want, rtol=0, atol=1e-5 * np.abs(want).max())
    ops, others = (Counter(node.op_type for node in model.proto.graph.node) for model in (split, exported))
    assert sum(ops.values()) <= sum(others.values())


def test_one_measurement(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    model = Model.from_proto(attention.attention(16, causal=True))
    optimize(model, "split-attention{chunk=8}", verify="none").model.save(tmp_path / "a.onnx")
    run_converter(tmp_path / "a.onnx", tmp_path / "a.mnn")
    np.savez(tmp_path / "feeds.npz", **random_feeds(model))
    attention.once(str(tmp_path / "a.mnn"), str(tmp_path / "feeds.npz"), 2)
    milliseconds, megabytes = json.loads(capsys.readouterr().out)
    assert milliseconds > 0
    assert megabytes > 1

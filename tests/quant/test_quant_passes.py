"""The passes `quantize` and `quantize-embeddings` in pipelines: options, numbering, proof, and reasons."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from graphkit.errors import UsageError
from graphkit.graph import Graph
from graphkit.model import Model
from graphkit.optimizer import optimize
from graphkit.quant.pass_quantize import Quantize, QuantizeEmbeddings
from graphkit.registry import PassInfo, Registry
from graphkit.testing import assert_unchanged, parse, run

WEIGHTS = np.random.default_rng(0).standard_normal((3, 32, 32)).astype(np.float32)


def registry() -> Registry:
    """The registry with both passes, whether they are listed yet or not."""
    found = Registry()
    known = {info.name for info in found}
    for cls in (Quantize, QuantizeEmbeddings):
        if cls.name not in known:
            found.add(PassInfo(cls.name, "graphkit", cls))
    return found


def network() -> Model:
    """A table of 32 rows, then two products."""
    model = parse("""g (int64[n] ids) => (float[n,32] y) <float[1] t = {0}, float[1] w = {0}, float[1] v = {0}> {
        rows = Gather(t, ids)
        h = MatMul(rows, w)
        r = Relu(h)
        y = MatMul(r, v)
    }""")
    graph = Graph.of(model)
    for name, array in zip("twv", WEIGHTS, strict=True):
        graph.set_initializer(name, array)
    return graph.to_model()


def test_a_pipeline_quantizes_and_is_proven_against_what_it_made() -> None:
    model = network()
    result = optimize(model, "default,quantize{bits=4,block=16,method=mse}", registry=registry())
    assert result.ok
    assert "as quantize{bits=4,block=16,method=mse} left it" in result.proof.note
    record = next(r for r in result.report.records if r.name == "quantize")
    assert record.counters == {"Embedding": 1, "MatMul": 2}
    assert record.rewrites == 3
    assert any(note.startswith("MatMul: 2 layers, 8,192 → ") for note in record.notes)
    ids = np.arange(32)
    moved = run(model, {"ids": ids})["y"] - run(result.model, {"ids": ids})["y"]
    assert 0.01 < np.linalg.norm(moved) / np.linalg.norm(run(model, {"ids": ids})["y"]) < 0.25


def test_every_layer_is_a_numbered_rewrite() -> None:
    for stop in range(4):
        result = optimize(network(), "quantize", stop_after=stop, registry=registry())
        graph = Graph.of(result.model)
        assert sum(name in graph.initializers for name in "twv") == 3 - stop
        assert result.report.rewrites == stop


def test_all_options_come_from_text(tmp_path: Path) -> None:
    np.savez(tmp_path / "c.npz", ids=np.arange(32).reshape(4, 8))
    text = (
        f'quantize{{bits=4,block=16,method=gptq,scales=float16,layers="w=6:rtn",skip=t,calib={tmp_path / "c.npz"},'
        "damping=0.1,act_order=true}"
    )
    result = optimize(network(), text, registry=registry())
    record = next(r for r in result.report.records if r.name == "quantize")
    described = {change.node: change.what for change in record.changes}
    assert "6b16 by rtn" in described["h"]
    assert "4b16 by gptq" in described["y"]
    assert "t" in Graph.of(result.model).initializers


def test_a_plan_file_is_an_option(tmp_path: Path) -> None:
    (tmp_path / "p.json").write_text('{"layers": [{"name": "y", "bits": 3}]}')
    result = Quantize(plan=str(tmp_path / "p.json")).run(graph := Graph.of(network()))
    assert [change.node for change in result.changes] == ["y"]
    assert len(graph.by_op("DequantizeLinear")) == 1


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("quantize{bits=9}", "2 to 8"),
        ("quantize{bits=1}", "2 to 8"),
        ("quantize{block=24}", "multiple of 16"),
        ("quantize{method=awq}", "'method' is one of rtn, mse, gptq, not 'awq'"),
        ('quantize{layers="z=4"}', "no layer is called 'z'"),
        ("quantize{layers=z}", "is not a layer's pattern and a setting"),
        ("quantize{skip=z}", "no layer is called 'z'"),
        ("quantize{method=gptq}", "gptq needs calibration data"),
        ("quantize{bit=4}", "unknown option 'bit'; did you mean 'bits'?"),
        ("quantize{plan=nowhere.json}", "cannot be read"),
        ("quantize{calib=nowhere.npz}", "is not there"),
        ("quantize-embeddings{skip=z}", "no layer is called 'z'"),
    ],
)
def test_bad_options_are_the_users_to_know(text: str, problem: str) -> None:
    with pytest.raises(UsageError) as caught:
        optimize(network(), text, registry=registry())
    assert problem in str(caught.value)


def test_embeddings_alone_then_the_rest() -> None:
    result = optimize(network(), "quantize-embeddings,quantize{bits=4}", registry=registry())
    counters = [record.counters for record in result.report.records]
    assert counters == [{"Embedding": 1}, {"MatMul": 2}]
    assert result.ok


def test_what_is_quantized_is_not_quantized_again() -> None:
    once = optimize(network(), "quantize", registry=registry()).model
    graph = Graph.of(once)
    result = Quantize().run(graph)
    assert not result.modified


def test_what_stays_float_is_named_with_the_reason() -> None:
    values = ",".join(["0.5"] * 1024)
    text = f"""g (float[2,4,16] x) => (float[2,4,32] y) <float[2,16,32] w = {{{values}}}> {{ y = MatMul(x, w) }}"""
    result = assert_unchanged(Quantize(), text, refuses="stack of matrices")
    assert "4,096 bytes" in result.refusals[0].reason


def test_both_say_that_they_change_values() -> None:
    assert Quantize.changes_values
    assert QuantizeEmbeddings.changes_values

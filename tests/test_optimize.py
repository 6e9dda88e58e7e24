"""`optimize`: the run, the proof, the second run when the first one was wrong."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from passes_for_tests import registry

from graphkit.compare import Tolerance
from graphkit.errors import ModelError, OutputError, PassError, UsageError
from graphkit.graph import Graph
from graphkit.manager import PassRecord
from graphkit.model import Model
from graphkit.optimizer import OptimizeResult, optimize
from graphkit.testing import assert_equal_outputs, parse

TEXT = """
    g (float[N,4] x) => (float[N,4] y) {
        a = Identity(x)
        b = Relu(a)
        c = Identity(b)
        d = Sigmoid(c)
        y = Add(d, b)
    }
"""


def run(text: str, passes: str, **options: object) -> OptimizeResult:
    return optimize(parse(text), passes, registry=registry(), **options)  # type: ignore[arg-type]


def statuses(result: OptimizeResult) -> dict[str, str]:
    return {record.name: record.status for record in result.report.records}


def test_the_end_is_proven() -> None:
    result = run(TEXT, "drop-identity")
    assert result.ok
    assert result.proof.kind == "equal"
    assert result.proof.max_error == 0
    assert result.pipeline == "drop-identity"
    assert result.report.records[0].max_error is None
    assert [node.op_type for node in result.model.proto.graph.node] == ["Relu", "Sigmoid", "Add"]


def test_the_given_model_is_not_changed() -> None:
    model = parse(TEXT)
    before = model.proto.SerializeToString(deterministic=True)
    optimize(model, "drop-identity,scale-output", registry=registry())
    assert model.proto.SerializeToString(deterministic=True) == before


def test_a_path_will_do(tmp_path: Path) -> None:
    parse(TEXT).save(tmp_path / "m.onnx")
    assert optimize(tmp_path / "m.onnx", "minimal").report.nodes_after == 3
    with pytest.raises(ModelError):
        optimize(tmp_path / "absent.onnx", "minimal")


def test_each_records_an_error_for_every_change() -> None:
    result = run(TEXT, "drop-identity,replace{op=Erf},drop-identity", verify="each")
    assert [record.max_error for record in result.report.records] == [0, None, None]


@pytest.mark.parametrize("verify", ["each", "end"])
def test_a_wrong_pass_is_named_undone_and_the_rest_done(verify: str) -> None:
    result = run(TEXT, "drop-identity,scale-output,replace{op=Neg},drop-identity", verify=verify)
    assert not result.ok
    assert result.proof.kind == "equal"
    assert statuses(result)["scale-output"] == "rolled back"
    assert [record.name for record in result.report.rolled_back] == ["scale-output"]
    assert result.report.rolled_back[0].max_error == pytest.approx(1)
    assert_equal_outputs(parse(TEXT), result.model)


def test_on_mismatch_stop() -> None:
    result = run(TEXT, "scale-output,drop-identity", on_mismatch="stop")
    assert statuses(result) == {"scale-output": "rolled back"}
    assert result.report.halted
    assert result.proof.kind == "equal"


def test_small_errors_that_add_up_are_found() -> None:
    passes = ",".join(["scale-output{by=1.00006}"] * 3)
    result = run(TEXT, passes, tolerance=Tolerance(rtol=1e-4))
    assert [record.status for record in result.report.records] == ["changed", "rolled back", "rolled back"]
    assert result.proof.kind == "equal"


def test_a_looser_tolerance_lets_it_pass() -> None:
    assert run(TEXT, "scale-output{by=1.01}", tolerance=Tolerance(rtol=0.02)).ok


def test_verify_none_says_so() -> None:
    result = run(TEXT, "scale-output", verify="none")
    assert result.ok
    assert (result.proof.kind, result.proof.note) == ("none", "not asked for")
    assert result.evidence is None


def test_a_random_model_is_not_judged() -> None:
    text = "g (float[N,4] x) => (float[N,4] y) { a = RandomNormalLike(x) b = Identity(a) y = Add(b, x) }"
    for verify in ("end", "each"):
        result = run(text, "drop-identity", verify=verify)
        assert result.ok
        assert result.proof.kind == "none"
        assert "random or in training mode" in result.proof.note
        assert result.report.records[0].max_error is None


def test_an_original_that_does_not_run_is_not_verified() -> None:
    text = "g (float[N,4] x) => (float[N,4] y) { a = Unheard(x) b = Identity(a) y = Relu(b) }"
    for verify in ("end", "each"):
        result = run(text, "drop-identity", verify=verify)
        assert result.ok
        assert result.proof.kind == "none"
        assert result.proof.note.startswith("the original does not run in onnxruntime: ")
        assert result.report.rewrites == 1


def test_inputs_of_the_user_are_the_samples() -> None:
    samples = [{"x": np.full((2, 4), -1, np.float32)}]
    text = "g (float[N,4] x) => (float[N,4] y) { y = Relu(x) }"
    blind = run(text, "scale-output{by=5}", inputs=samples)
    assert blind.ok  # zeros stay zeros: a proof is only as good as its samples
    assert not run(text, "scale-output{by=5}").ok
    with pytest.raises(UsageError):
        run(text, "scale-output", inputs=[{"wrong": samples[0]["x"]}])


def test_stop_after_and_watch() -> None:
    seen: list[str] = []

    def watch(record: PassRecord, graph: Graph) -> None:
        seen.append(f"{record.name} {record.rewrites} {len(graph)}")

    result = run(TEXT, "drop-identity,replace", stop_after=1, watch=watch)
    assert seen == ["drop-identity 1 4"]
    assert result.report.stopped
    assert result.proof.kind == "equal"


def test_bindings_come_first_and_are_part_of_the_pipeline() -> None:
    result = run(TEXT, "drop-identity", bind={"N": 7})
    assert result.pipeline.startswith("static-shapes{")
    assert result.pipeline.endswith("},drop-identity")
    shape = Graph.of(result.model).shape("x")
    assert shape == (7, 4)
    assert {check.shapes["x"] for check in result.proof.checks} == {(7, 4)}
    again = run(TEXT, result.pipeline)
    assert again.ok
    assert again.model.proto.graph.input == result.model.proto.graph.input
    with pytest.raises(UsageError):
        run(TEXT, "drop-identity", bind={"M": 7})


def test_as_json() -> None:
    result = run(TEXT, "drop-identity,scale-output", verify="each")
    data = result.to_dict()
    assert json.loads(json.dumps(data)) == data
    assert data["rewrites"] == 3
    assert data["nodes"] == {"before": 5, "after": 3}
    assert [item["status"] for item in data["passes"]] == ["changed", "rolled back"]
    assert data["passes"][0]["numbers"] == [[1, 2]]
    assert data["proof"]["kind"] == "equal"


@pytest.mark.parametrize("passes", ["no-such-pass", "replace{", "replace{limit=x}"])
def test_bad_pipelines_fail_before_anything_runs(passes: str) -> None:
    with pytest.raises(UsageError):
        run(TEXT, passes)


@pytest.mark.parametrize(
    ("argument", "value"),
    [("verify", "sometimes"), ("on_mismatch", "x"), ("stop_after", -1), ("inputs", []), ("inputs", {"x": 1})],
)
def test_wrong_arguments_are_usage_errors(argument: str, value: object) -> None:
    model = parse("g (float[N, 4] x) => (float[N, 4] y) { y = Relu(x) }")
    with pytest.raises(UsageError):
        optimize(model, **{argument: value})  # type: ignore[arg-type]


def test_sizes_with_which_the_model_does_not_run_are_refused() -> None:
    model = parse(
        """
        g (float[N, 4] x) => (float[N, 2, 2] y) { s = Constant<value_ints=[-1, 2, 2]>() r = Relu(x)
            w = Constant<value_floats=[1.0, 2.0, 3.0, 4.0]>() m = Mul(r, w) y = Reshape(m, s) }
        """
    )
    with pytest.raises(UsageError, match=r"does not run with x\[1\]=7"):
        optimize(model, bind={"x[1]": 7})


def test_an_invalid_node_is_a_model_error() -> None:
    model = parse("g (float[N, 4] x) => (float[N, 4] y) { y = Conv(x) }")
    with pytest.raises(ModelError, match=r"not valid ONNX: node 'y' \(Conv\)"):
        optimize(model)


def test_a_full_disk_is_not_a_missing_reference(monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*args: object, **kwargs: object) -> int:
        raise OutputError("no space left")

    model = parse("g (float[N, 4] x) => (float[N, 4] y) { y = Relu(x) }")
    monkeypatch.setattr(Model, "save", full)
    with pytest.raises(OutputError):
        optimize(model)


@pytest.mark.parametrize("verify", ["none", "end"])
def test_a_pass_that_raises_is_our_bug_unless_nothing_runs_the_model(verify: str) -> None:
    with pytest.raises(PassError, match="pass 'crash' raised IndexError"):
        run(TEXT, "crash", verify=verify)
    misfit = "g (float[3,4] x) => (float[3,4] y) <float[5] w = {1, 1, 1, 1, 1}> { d = Sigmoid(x) y = Add(d, w) }"
    with pytest.raises(ModelError, match=r"pass 'crash' raised IndexError.*; and the original does not run") as caught:
        run(misfit, "crash", verify=verify)
    assert caught.value.exit_code == 2
    lacking = "g (float[3,4] x) => (float[3,4] y) { d = Sigmoid(x) y = nowhere.Unheard(d) }"
    with pytest.raises(PassError):
        run(lacking, "crash", verify=verify)

"""The benchmark's own machinery: children that crash or hang, equality, tables. No timing is asserted."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper

from benchmarks import _bench, _calls, _chain, _child, _exports, _judge, _report, _runner, _weights, optimize
from benchmarks._bench import Bench, Sizes
from benchmarks._report import Bar, Section, Table
from benchmarks._runner import Job, Runner
from fixtures import chains

TINY = Sizes(chain=34, scaling=(33, 66), megabytes=30, rounds=1, judged=True)
SAMPLES = [{"x": [1, 4, 8]}]


@pytest.fixture
def model(tmp_path: Path) -> Path:
    path = tmp_path / "model.onnx"
    onnx.save(chains.chain(33), path)
    return path


def scaled(path: Path, factor: float) -> Path:
    """A copy of a chain whose last bias is multiplied."""
    proto = onnx.load(path)
    tensor = proto.graph.initializer[-1]
    array = onnx.numpy_helper.to_array(tensor) * factor
    tensor.CopyFrom(onnx.numpy_helper.from_array(array.astype("float32"), tensor.name))
    target = path.with_name("scaled.onnx")
    onnx.save(proto, target)
    return target


def test_children_survive_what_tools_do(model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    child = tmp_path / "child.py"
    source = Path(_child.__file__).read_text(encoding="utf-8")
    root = repr(str(Path(_child.__file__).resolve().parent.parent))
    source = source.replace("Path(__file__).resolve().parent.parent", f"Path({root})")
    tools = (
        "import os, time\n"
        "TOOLS['crash'] = lambda *a: os.abort()\n"
        "TOOLS['hang'] = lambda *a: time.sleep(60)\n"
        "TOOLS['exit'] = lambda *a: sys.exit(3)\n"
        "TOOLS['leave'] = lambda *a: os._exit(3)\n"
        "TOOLS['raise'] = lambda *a: [][0]\n"
    )
    child.write_text(source.replace('if __name__ == "__main__":', f'{tools}\nif __name__ == "__main__":'))
    monkeypatch.setattr(_runner, "CHILD", child)
    names = ["exit", "crash", "raise", "hang", "leave", "onnx copy"]
    jobs = [Job(name, str(model), str(tmp_path / "out.onnx")) for name in names]
    outcomes = Runner(tmp_path, timeout=4).run(jobs)
    failures = [outcome.failure for outcome in outcomes]
    assert failures == [
        *("exits with status 3", "crash, SIGABRT", "IndexError: list index out of range"),
        *("timeout, 4 s", "status 3: no output", ""),
    ]
    assert outcomes[-1].cpu > 0
    assert (tmp_path / "out.onnx").is_file()


def test_memory_is_watched(model: Path, tmp_path: Path) -> None:
    outcome = Runner(tmp_path, model).one(Job("onnx copy", str(model), str(tmp_path / "out.onnx")), watch=True)
    assert not outcome.failure
    if _child.anonymous_bytes() is None:
        assert outcome.anon_peak == 0
    else:
        assert outcome.anon_peak is not None
        assert outcome.anon_before is not None
        assert outcome.anon_peak >= outcome.anon_before > 1 << 20


def test_judge(model: Path, tmp_path: Path) -> None:
    assert _judge.judge(model, model, SAMPLES, 1e-5) == {"error": 0.0, "fault": ""}
    found = _judge.judge(model, scaled(model, 1.5), SAMPLES, 1e-5)
    assert found["fault"].startswith("wrong: error ")
    broken = tmp_path / "broken.onnx"
    broken.write_bytes(b"no model")
    assert _judge.judge(model, broken, SAMPLES, 1e-5)["fault"].startswith("invalid: ")


def test_judge_sees_a_dim_that_became_fixed(tmp_path: Path) -> None:
    dynamic, static = tmp_path / "dynamic.onnx", tmp_path / "static.onnx"
    onnx.save(chains.chain(33, dynamic=True), dynamic)
    onnx.save(chains.chain(33), static)
    samples = [{"x": [1, 4, 8]}, {"x": [2, 4, 8]}]
    assert _judge.judge(dynamic, static, samples[:1], 1e-5)["fault"] == ""
    assert _judge.judge(dynamic, static, samples, 1e-5)["fault"].startswith("broken: ")


def test_relative_error_and_names() -> None:
    right = np.array([1.0, np.nan, -4.0])
    assert _judge.relative_error(right, np.array([1.0, np.nan, -3.0])) == 0.25
    assert math.isinf(_judge.relative_error(right, np.array([1.0, 2.0, -4.0])))
    assert _judge.compare({"y": right}, {"z": right})[0] == "output 'y' is gone"
    assert "float32[3], not float64[3]" in _judge.compare({"y": right}, {"y": right.astype(np.float32)})[0]


def test_nodes_of_subgraphs_and_functions_count(tmp_path: Path) -> None:
    branch = helper.make_graph(
        [helper.make_node("Identity", ["x"], ["b"])],
        "branch",
        [],
        [helper.make_tensor_value_info("b", TensorProto.FLOAT, None)],
    )
    constant = helper.make_node("Constant", [], ["c"], value=helper.make_tensor("c", TensorProto.BOOL, [], [1]))
    nodes = [constant, helper.make_node("If", ["c"], ["y"], then_branch=branch, else_branch=branch)]
    value = [helper.make_tensor_value_info(name, TensorProto.FLOAT, [1]) for name in "xy"]
    graph = helper.make_graph(nodes, "g", value[:1], value[1:])
    opset = [helper.make_opsetid("", 17)]
    function = helper.make_function("f", "twice", ["a"], ["b"], [helper.make_node("Abs", ["a"], ["b"])], opset)
    path = tmp_path / "m.onnx"
    onnx.save(helper.make_model(graph, functions=[function], opset_imports=opset), path)
    assert _bench.count_nodes(path) == (5, 4)
    assert _bench.count_nodes(tmp_path / "missing.onnx") == (0, 0)


def test_fixed_dims(tmp_path: Path) -> None:
    value = [helper.make_tensor_value_info(name, TensorProto.INT64, ["batch", "seq"]) for name in "xy"]
    graph = helper.make_graph([helper.make_node("Identity", ["x"], ["y"])], "g", value[:1], value[1:])
    source, target = tmp_path / "m.onnx", tmp_path / "fixed.onnx"
    onnx.save(helper.make_model(graph), source)
    _exports.fix_dims(source, target)
    dims = onnx.load(target).graph.input[0].type.tensor_type.shape.dim
    assert [dim.dim_value for dim in dims] == [1, 16]
    assert _exports.samples(source, "static") == [{"x": [1, 16]}] * 2
    assert _exports.samples(source, "dynamic") == [{"x": [2, 7]}, {"x": [1, 12]}]


def test_exponent() -> None:
    assert _chain.exponent([1, 10, 100], [2, 20, 200]) == pytest.approx(1)
    assert _chain.exponent([1, 10, 100], [2, 200, 20000]) == pytest.approx(2)
    assert math.isnan(_chain.exponent([1, 10], [1, math.nan]))


def test_growth_is_measured(tmp_path: Path) -> None:
    section = _chain.scaling(Bench(tmp_path, TINY))
    assert not section.faults
    assert [row[0] for row in section.tables[0].rows] == ["33", "66"]
    assert "power 1.1" in section.bars[0].claim


def test_weights_are_hashed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_weights, "TOOLS", {"embedded": ("graphkit copy", "onnx copy")})
    section = _weights.weights(Bench(tmp_path, TINY))
    assert not section.faults
    assert [row[-1] for row in section.tables[0].rows] == ["equal", "equal"]
    assert not list(tmp_path.glob("embedded*"))
    assert not (tmp_path / "copy").exists()


def test_digest_sees_one_changed_weight(model: Path) -> None:
    assert _calls.digest(model, model, {}) == _calls.digest(model, model, {})
    assert _calls.digest(model, model, {}) != _calls.digest(scaled(model, 1.5), model, {})


def test_markdown() -> None:
    table = Table(["", "a|b"], [["x", "1"]], "Caption:")
    assert table.markdown() == "Caption:\n\n|  | a\\|b |\n|:--|--:|\n| x | 1 |"
    section = Section("s", "Title", "Text.", [table], [Bar("fast", "2×", False)], ["x: gone"])
    text = section.markdown()
    assert "- **MISSED**: fast. Measured: 2×." in text
    assert "- **WRONG**: x: gone" in text
    assert [_report.seconds(v) for v in (0.123, 12.34, math.nan)] == ["0.12", "12.3", "–"]
    assert [_report.times(v) for v in (1.23, 123.4, math.nan)] == ["1.2×", "123×", "–"]


def test_command_line(tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    found: list[Any] = []

    def section(bench: Bench) -> Section:
        found.append(bench.sizes)
        return Section("chain", "One long chain", "Text.", [], [Bar("fast", "2×", True)], data={"nodes": 1})

    monkeypatch.setitem(optimize.SECTIONS, "chain", section)
    assert optimize.main(["--quick", "--only", "chain", "-o", str(tmp_path)]) == 0
    assert found == [_bench.QUICK]
    text = (tmp_path / "optimize.md").read_text(encoding="utf-8")
    assert text == capsys.readouterr().out
    assert "`python benchmarks/optimize.py --quick --only chain`" in text
    document = json.loads((tmp_path / "optimize.json").read_text(encoding="utf-8"))
    assert document["sections"]["chain"]["nodes"] == 1
    assert document["machine"]["packages"]["onnx"] == onnx.__version__


def test_a_missed_bar_is_the_exit_code(monkeypatch: pytest.MonkeyPatch) -> None:
    bars = [Bar("fast", "1×", False)]
    monkeypatch.setitem(optimize.SECTIONS, "chain", lambda bench: Section("chain", "T", "", [], bars))
    assert optimize.main(["--quick", "--only", "chain"]) == 1

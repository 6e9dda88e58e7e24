"""`graphkit diff`."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest

from graphkit.mnn.convert import run_converter
from graphkit.mnn.document import read, write
from graphkit.testing import parse


def mnn(name: str) -> str:
    run_converter(Path("chain.onnx"), Path(name))
    return name


def test_equal_models(run: Any) -> None:
    result = run("diff", "two.onnx", "two.onnx")
    assert (result.exit_code, result.stdout) == (0, "two.onnx and two.onnx are equal: 1 node\n")
    data = json.loads(run("diff", "two.onnx", "two.onnx", "--json").stdout)
    assert (data["ok"], data["equal"], data["totals"]["ops"]) == (
        True, True, {"added": 0, "removed": 0, "changed": 0, "same": 1},
    )  # fmt: skip


def test_models_that_differ(run: Any) -> None:
    result = run("diff", "two.onnx", "sub.onnx")
    assert result.exit_code == 1
    assert result.stderr == ""
    assert result.stdout.splitlines()[0] == (
        "two.onnx and sub.onnx differ: 1 node added, 1 node removed; 0 nodes the same"
    )
    assert "makes y, which (y) made" in result.stdout
    data = json.loads(run("diff", "two.onnx", "sub.onnx", "--json").stdout)
    assert (data["command"], data["exit_code"], data["ok"], data["equal"]) == ("diff", 1, False, False)
    assert data["ops"][0] == {
        "kind": "added", "graph": "", "name": "(y)", "type": "Sub", "instead_of": "(y)", "outputs": ["y"],
    }  # fmt: skip


def test_weights_and_attributes_in_words(run: Any) -> None:
    proto = onnx.load("chain.onnx")
    proto.graph.initializer[0].CopyFrom(onnx.numpy_helper.from_array(np.array([1, 2, 3, 5], np.float32), "w"))
    proto.graph.node[3].op_type = "LeakyRelu"
    proto.graph.node[3].name = "last"
    onnx.save(proto, "changed.onnx")
    text = " ".join(run("diff", "chain.onnx", "changed.onnx").stdout.split())
    assert "[1.0,2.0,3.0,4.0] → [1.0,2.0,3.0,5.0], ‖Δ‖/‖a‖ 0.18, max 1, 1 of 4 values, SHA-256 " in text
    assert "LeakyRelu" in text


def test_two_conversions_are_equal(run: Any) -> None:
    result = run("diff", mnn("a.mnn"), mnn("b.mnn"))
    assert result.exit_code == 0
    assert result.stdout.splitlines()[1] == "not counted: mnn_uuid"
    result = run("diff", "a.mnn", "b.mnn", "--uuid")
    assert result.exit_code == 1
    assert "model: mnn_uuid" in result.stdout


def test_mnn_fields_by_path(run: Any) -> None:
    doc = read(mnn("a.mnn"))
    doc.net.fields["bizCode"] = "mine"
    last = doc.net.tables("oplists")[-1]
    name = last["name"]
    last.fields["name"] = "relu\x1b[31m"
    write(doc, "b.mnn")
    result = run("diff", "a.mnn", "b.mnn")
    assert result.exit_code == 1
    assert "model: bizCode" in result.stdout
    assert f"was called {name}" in result.stdout
    assert "\x1b[31m" not in result.stdout


def test_long_tables_are_cut(run: Any) -> None:
    names = [f"a{number}" for number in range(60)]
    for name, operator in (("one", "Neg"), ("other", "Abs")):
        body = " ".join(f"{value} = {operator}(x)" for value in names)
        outputs = ", ".join(f"float[2] {value}" for value in names)
        parse(f"g (float[2] x) => ({outputs}) {{ {body} }}").save(f"{name}.onnx")
    lines = run("diff", "one.onnx", "other.onnx").stdout.splitlines()
    assert len([line for line in lines if line.startswith(("+", "−"))]) == 40
    assert lines[-1].strip() == "… 80 more (-v shows all)"
    assert lines[1:3] == ["added: 60 Abs", "removed: 60 Neg"]
    assert len(run("diff", "one.onnx", "other.onnx", "-v").stdout.splitlines()) == 124


def test_quiet_and_report(run: Any) -> None:
    result = run("diff", "two.onnx", "sub.onnx", "-q", "--report", "r.json")
    assert (result.exit_code, result.stdout, result.stderr) == (1, "", "")
    assert json.loads(Path("r.json").read_text())["exit_code"] == 1
    assert run("diff", "two.onnx", "sub.onnx", "--report", "sub.onnx").exit_code == 2
    onnx.load("sub.onnx")


def test_two_formats(run: Any) -> None:
    result = run("diff", "chain.onnx", mnn("a.mnn"))
    assert (result.exit_code, result.stdout) == (2, "")
    assert "graphkit verify chain.onnx a.mnn" in result.stderr


@pytest.mark.parametrize("name", [".", "none.onnx", "none.mnn", "plugin.py", "cut.mnn"])
def test_bad_files(run: Any, name: str) -> None:
    Path("cut.mnn").write_bytes(Path(mnn("a.mnn")).read_bytes()[:200])
    for pair in ((name, "two.onnx"), ("two.onnx", name), (name, "a.mnn"), (name, name)):
        result = run("diff", *pair)
        assert (result.exit_code, result.stdout) == (2, ""), pair
        assert result.stderr.startswith("error: ")
        assert json.loads(run("diff", *pair, "--json").stdout)["exit_code"] == 2

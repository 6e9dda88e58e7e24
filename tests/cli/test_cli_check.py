"""`graphkit check`."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from graphkit.knowledge import table
from graphkit.testing import parse


def save(name: str, text: str, **header: Any) -> None:
    """Save a model in the current folder."""
    parse(f"g {text}", **header).save(name)


def test_a_clear_model(run: Any) -> None:
    result = run("check", "two.onnx")
    assert (result.exit_code, result.stderr) == (0, "")
    assert "takes every node as it is" in result.stdout
    assert result.stdout.count("\n") == 1


def test_what_the_preset_fixes_ends_0(run: Any) -> None:
    save("pool.onnx", "(float[1, 2, 4, 4] x) => (float[1, 2, 3, 3] y) { y = MaxPool<kernel_shape = [2, 2]>(x) }")
    result = run("check", "pool.onnx")
    assert result.exit_code == 0
    lines = result.stdout.splitlines()
    assert lines[0] == f"1 node MNN {table().mnn} would refuse or get wrong; it is fixed by the mnn preset"
    assert lines[1].split() == ["node", "op", "why", "fixed", "by"]
    assert lines[2].split()[:2] == ["y", "MaxPool"]
    assert lines[2].split()[-1] == "canonicalize"


def test_what_is_left_ends_1(run: Any) -> None:
    result = run("check", "flash.onnx", "--passes", "cleanup")
    assert result.exit_code == 1
    lines = result.stdout.splitlines()
    assert "2 nodes MNN" in lines[0]
    assert "2 nodes left after the pipeline" in lines[0]
    assert [line.split()[:2] for line in lines[2:4]] == [
        ["a", "flash.attn::FlashAttention"],
        ["b", "flash.attn::FlashAttention"],
    ]


def test_a_plugin_fixes(run: Any) -> None:
    result = run("check", "two.onnx", "--plugin", "plugin.py", "--passes", "break-add", "--json")
    assert result.exit_code == 0
    assert json.loads(result.stdout)["pipeline"] == "break-add"


def test_json(run: Any) -> None:
    result = run("check", "flash.onnx", "--passes", "cleanup", "--json", "--report", "r.json")
    data = json.loads(result.stdout)
    assert (data["command"], data["exit_code"], data["ok"]) == ("check", 1, False)
    assert [item["node"] for item in data["left"]] == ["a", "b"]
    assert set(data["found"][0]) == {"node", "op", "effect", "why", "fixed_by"}
    assert json.loads(Path("r.json").read_text()) == data


def test_many_nodes_of_a_kind_are_one_row(run: Any) -> None:
    names = ["x", *(f"v{i}" for i in range(40))]
    nodes = " ".join(f"{b} = odd.Op(x)" for b in names[1:])
    save("many.onnx", f"(float[2] x) => (float[2] v39) {{ {nodes} }}", imports={"odd": 1})
    result = run("check", "many.onnx", "--passes", "infer-shapes")
    lines = result.stdout.splitlines()
    assert lines[0].startswith("40 nodes")
    assert lines[-1].startswith("… and 37 more")
    assert len(lines) == 6
    assert len(run("check", "many.onnx", "--passes", "infer-shapes", "-v").stdout.splitlines()) == 43


def test_bound_dims(run: Any) -> None:
    result = run("check", "chain.onnx", "--bind", "batch=2", "--json")
    assert json.loads(result.stdout)["pipeline"].startswith("static-shapes")


@pytest.mark.parametrize(
    ("args", "message"),
    [
        (["none.onnx"], "none.onnx: cannot be opened"),
        (["broken.onnx"], "broken.onnx: is not an ONNX model"),
        (["two.onnx", "--passes", "nope"], "unknown pass 'nope'"),
        (["two.onnx", "--passes", ""], "--passes is empty"),
        (["two.onnx", "--bind", "q=1"], "q"),
        (["two.onnx", "--report", "two.onnx"], "two.onnx"),
    ],
)
def test_bad_input_ends_2(run: Any, args: list[str], message: str) -> None:
    Path("broken.onnx").write_bytes(b"no model at all")
    result = run("check", *args)
    assert result.exit_code == 2
    assert message in result.stderr


def test_quiet(run: Any) -> None:
    result = run("check", "flash.onnx", "--passes", "cleanup", "-q")
    assert (result.exit_code, result.stdout) == (1, "")

"""`quantize` and `convert --bits` are as strict about their passes as `optimize`, and take no option in vain."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest

from graphkit.mnn.document import read
from graphkit.mnn.document.summary import summarize

Run = Callable[..., Any]
RNG = np.random.default_rng(0)
PASSES = '''
from dataclasses import dataclass
from typing import ClassVar
from onnx import helper
from graphkit.rewrite import PassResult, Rewrite, Rule, apply_rules

def wrong(graph, node):
    return Rewrite("swap", {node.outputs[0]: "new"}, (helper.make_node("Sigmoid", list(node.inputs), ["new"]),))

@dataclass(frozen=True)
class Sly:
    """Relu becomes Sigmoid behind graphkit's back."""
    name: ClassVar[str] = "sly"
    summary: ClassVar[str] = "wrong"
    def run(self, graph):
        for node in graph.by_op("Relu"):
            node.proto.op_type = "Sigmoid"
        return PassResult(())

@dataclass(frozen=True)
class Open:
    """Relu becomes Sigmoid."""
    name: ClassVar[str] = "open"
    summary: ClassVar[str] = "wrong"
    def run(self, graph):
        return apply_rules(graph, [Rule("swap", ("Relu",), wrong)])

PASSES = [Sly, Open]
'''


@pytest.fixture(autouse=True)
def files(run: Run) -> None:
    """A product and a Relu, and passes that break it."""
    save("g (float[n,64] x) => (float[n,64] y) { a = MatMul(x, w) b = Relu(a) y = Neg(b) }", w=(64, 64))
    Path("passes.py").write_text(PASSES)


def save(text: str, opset: int = 18, name: str = "m.onnx", **shapes: tuple[int, ...]) -> None:
    proto = onnx.parser.parse_model(f'<ir_version: 8, opset_import: ["" : {opset}]> {text}')
    for graph in [proto.graph, *(a.g for node in proto.graph.node for a in node.attribute if a.HasField("g"))]:
        reads = {value for node in graph.node for value in node.input}
        for key, shape in shapes.items():
            if key in reads:
                array = RNG.standard_normal(shape).astype(np.float32)
                graph.initializer.append(onnx.numpy_helper.from_array(array, key))
    Path(name).write_bytes(proto.SerializeToString())


COMMANDS = [
    ("quantize", "m.onnx", "-o", "out.onnx"),
    ("quantize", "m.onnx", "-o", "out.mnn"),
    ("convert", "m.onnx", "-o", "out.mnn", "--bits", "8"),
]


@pytest.mark.parametrize("command", COMMANDS, ids=" ".join)
def test_passes_that_change_outputs_end_it(run: Run, command: tuple[str, ...]) -> None:
    result = run(*command, "--plugin", "passes.py", "--passes", "sly")
    assert result.exit_code == 1
    assert "the outputs differ after the passes" in result.stderr
    assert not Path(command[3]).exists()


@pytest.mark.parametrize("command", COMMANDS, ids=" ".join)
def test_a_pass_that_was_undone_is_said(run: Run, command: tuple[str, ...]) -> None:
    args = (*command, "--plugin", "passes.py", "--passes", "open")
    result = run(*args)
    assert (result.exit_code, result.stderr[:26]) == (1, "error: rolled back 'open':")
    assert json.loads(run(*args, "--json").stdout)["ok"] is False
    assert Path(command[3]).exists()


@pytest.mark.parametrize("command", COMMANDS, ids=" ".join)
def test_inputs_that_a_model_needs_are_used(run: Run, command: tuple[str, ...]) -> None:
    save("g (float[k] x, int64[2] s) => (float[a,b] y) { r = Reshape(x, s) y = MatMul(r, w) }", w=(64, 16))
    assert run(*command).exit_code == 2
    np.savez("need.npz", x=RNG.standard_normal(128).astype(np.float32), s=np.array([2, 64]))
    result = run(*command, "--inputs", "need.npz")
    assert result.exit_code == 0, result.stderr
    assert "on 1 given sample" in result.stdout


def test_the_passes_are_shown_when_asked_for(run: Run) -> None:
    assert "nothing to do" not in run("quantize", "m.onnx").stdout
    assert "nothing to do" in run("quantize", "m.onnx", "-v").stdout


@pytest.mark.parametrize(
    ("args", "company"),
    [
        *(
            (("convert", flag), "--bits")
            for flag in ("--half-scales", "--asymmetric", "--no-embeddings", "--act-order")
        ),
        *((("convert", flag, "x"), "--calib") for flag in ("--tokenizer", "--images")),
        *((("quantize", flag, "x"), "--calib") for flag in ("--tokenizer", "--images")),
        (("quantize", "--calib-limit", "3"), "--calib"),
        *((("quantize", flag, "x"), "--budget") for flag in ("--metric", "--choose", "--executor")),
        (("quantize", "--no-cache"), "--budget"),
    ],
)
def test_options_that_would_do_nothing_are_refused(run: Run, args: tuple[str, ...], company: str) -> None:
    result = run(args[0], "m.onnx", *args[1:])
    assert result.exit_code == 2
    assert result.stderr.startswith(f"error: {args[1]} works with {company}")


BRANCHES = """g (bool c, float[n,64] x) => (float[n,64] y) {
    y = If(c) <then_branch = t () => (p) { p = MatMul(x, u) }, else_branch = e () => (q) { q = MatMul(x, v) }> }"""


@pytest.mark.parametrize(
    ("text", "opset", "shapes", "count"),
    [
        ("g (float[n,64] x) => (float[n,64] y) { y = MatMul(x, w) }", 11, {"w": (64, 64)}, 1),
        (BRANCHES, 18, {"u": (64, 64), "v": (64, 64)}, 2),
    ],
    ids=["opset 11", "branches"],
)
def test_the_late_pass_is_carried_everywhere(
    run: Run, text: str, opset: int, shapes: dict[str, tuple[int, ...]], count: int
) -> None:
    save(text, opset, **shapes)
    result = run("convert", "m.onnx", "--passes", "mnn,quantize{bits=8}")
    assert result.exit_code == 0, result.stderr
    assert f"carried {count} quantized layer" in result.stdout
    assert len(summarize(read("m.mnn")).quantized) == count

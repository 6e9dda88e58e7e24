"""Small models, a plugin, and two ways to run the command: in this process and in a child."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from graphkit.cli._group import cli
from graphkit.testing import parse

MODELS = {
    "chain": "g (float[batch,4] x) => (float[batch,4] y) <float[4] w = {1.0, 2.0, 3.0, 4.0}>"
    " { a = Identity(x) b = Mul(a, w) c = Identity(b) y = Relu(c) }",
    "two": "g (float[2,3] x, float[2,3] x2) => (float[2,3] y) { y = Add(x, x2) }",
    "sub": "g (float[2,3] x, float[2,3] x2) => (float[2,3] y) { y = Sub(x, x2) }",
    "random": "g (float[2] x) => (float[2] y) { r = RandomNormalLike(x) y = Add(x, r) }",
    "flash": "g (float[1,2,8,16] q) => (float[1,2,8,16] y)"
    " { a = flash.attn.FlashAttention(q, q, q) b = flash.attn.FlashAttention(a, q, q) y = Relu(b) }",
}

PLUGIN = '''
from __future__ import annotations
import os, sys, time
from dataclasses import dataclass, field
from typing import ClassVar, Literal
from onnx import helper
from graphkit.rewrite import PassResult, Refusal, Rewrite, Rule, apply_rules

print("noise at import")

@dataclass(frozen=True)
class Break:
    """Turn Add into Sub.

    Refuses nothing.
    """
    name: ClassVar[str] = "break-add"
    summary: ClassVar[str] = "make the numbers wrong"
    how: Literal["quietly", "loudly"] = field(default="quietly", metadata={"help": "how to break"})
    count: int = 1

    def run(self, graph):
        print("noise while it runs")
        os.write(1, b"noise from C\\n")
        def match(graph, node):
            new = helper.make_node("Sub", list(node.inputs), ["new"])
            return Rewrite("swap", {node.outputs[0]: "new"}, (new,))
        return apply_rules(graph, [Rule("swap", ("Add",), match)])

@dataclass(frozen=True)
class Boom:
    name: ClassVar[str] = "boom"
    summary: ClassVar[str] = "raise"
    def run(self, graph):
        raise ValueError("boom")

@dataclass(frozen=True)
class Fussy:
    name: ClassVar[str] = "fussy"
    summary: ClassVar[str] = "refuse everything and say so"
    def run(self, graph):
        refusals = tuple(Refusal("fussy", f"node{i}", f"'a{i}' is not to my taste") for i in range(5))
        return PassResult(refusals=refusals, notes=("nothing was good enough \\x1b[31m",))

@dataclass(frozen=True)
class Slow:
    name: ClassVar[str] = "slow"
    summary: ClassVar[str] = "take half a minute"
    def run(self, graph):
        sys.stderr.write("sleeping\\n")
        sys.stderr.flush()
        time.sleep(30)
        return PassResult()
'''

Run = Callable[..., Result]
Child = Callable[..., "subprocess.CompletedProcess[str]"]


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The current folder, with the models and the plugin in it."""
    monkeypatch.chdir(tmp_path)
    for name, text in MODELS.items():
        parse(text, imports={"flash.attn": 1} if name == "flash" else None).save(f"{name}.onnx")
    Path("plugin.py").write_text(PLUGIN)
    return tmp_path


@pytest.fixture
def run(folder: Path) -> Run:
    """`run("optimize", "m.onnx")`: the command in this process."""

    def call(*args: str) -> Result:
        return CliRunner().invoke(cli, list(args), prog_name="graphkit")

    return call


@pytest.fixture
def child(folder: Path) -> Child:
    """`child("optimize", "m.onnx")`: the command in a process of its own."""

    def call(*args: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [sys.executable, "-m", "graphkit", *args],
            check=False,
            capture_output=True,
            text=True,
            env={**os.environ, "OMP_NUM_THREADS": "2"},
            timeout=60,
        )

    return call

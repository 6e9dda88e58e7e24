"""`graphkit bisect`, and `graphkit verify --layers`."""

from __future__ import annotations

import csv
import json
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import onnx
import pytest

import graphkit as gk
from graphkit.mnn.document import read, write
from graphkit.testing import parse

Run = Callable[..., Any]
TEXT = """g (float[N, 4] x) => (float[N, 4] y)
    <float[4, 4] w = {1, 2, 3, 4, 5, 6, 7, 8, 9, 1, 2, 3, 4, 5, 6, 7}, float[4] b = {1, 2, 3, 4}> {
    m = MatMul(x, w) s = Sigmoid(m) t = Mul(s, b) y = Softmax<axis = 1>(t) }"""


@pytest.fixture
def net(run: Run) -> None:
    """A model and its .mnn file in the current folder."""
    parse(TEXT).save("net.onnx")
    gk.convert("net.onnx", "net.mnn")


def damaged() -> None:
    """bad.mnn: net.mnn with one weight of its product changed."""
    document = read("net.mnn")
    (product,) = (op for op in document.net.tables("oplists") if "weight" in (op["main"] or ()))
    weights = np.array(product["main"]["weight"])
    weights[5] += 3
    product["main"].fields["weight"] = weights
    write(document, "bad.mnn")


@pytest.mark.usefixtures("net")
def test_nothing_wrong(run: Run) -> None:
    for args in (("net.onnx",), ("net.onnx", "net.mnn")):
        result = run("bisect", *args)
        assert (result.exit_code, result.stderr) == (0, "")
        assert result.stdout.startswith("no mismatch: ")
    assert not Path("net.bisect").exists()


@pytest.mark.usefixtures("net")
def test_a_changed_weight_is_named_and_reproduced(run: Run) -> None:
    damaged()
    result = run("bisect", "net.onnx", "bad.mnn", "--json")
    assert result.exit_code == 1, result.stderr
    data = json.loads(result.stdout)
    assert [(fault["op"], fault["kind"]) for fault in data["faults"]] == [("MatMul", "file")]
    assert data["answer"].startswith("first mismatch: node 'm' (MatMul)")
    assert data["repro"]["reproduced"] is True
    readme = Path("net.bisect/README.md").read_text()
    command = next(line.strip() for line in readme.splitlines() if line.startswith("    "))
    words = command.replace("graphkit", f"{sys.executable} -m graphkit", 1).split()
    assert subprocess.run(words, cwd="net.bisect", capture_output=True, check=False).returncode == 1


def test_a_fault_of_mnn_is_reduced(run: Run) -> None:
    parse(
        """g (float[3, 4, 2] x, float[2, 2] u) => (float[3, 4, 2] y) <int64[2, 2] i = {0, 1, 2, 3}> {
        a = Abs(x) s = ScatterND(a, i, u) r = Neg(s) y = Neg(r) }"""
    ).save("scatter.onnx")
    result = run("bisect", "scatter.onnx", "--no-optimize", "-o", "fault", "--json")
    assert result.exit_code == 1
    data = json.loads(result.stdout)
    assert data["faults"][0]["op"] == "ScatterND"
    assert data["faults"][0]["kind"] == "operator"
    assert data["repro"]["nodes"] == 1
    assert {file.name for file in Path("fault").iterdir()} >= {"model.onnx", "inputs.npz", "expected.npz", "report.txt"}
    assert (
        subprocess.run([sys.executable, "reproduce.py"], cwd="fault", capture_output=True, check=False).returncode == 1
    )
    assert run("bisect", "scatter.onnx").exit_code == 0  # the passes avoid it


def test_a_bad_pass_is_named(run: Run) -> None:
    result = run("bisect", "two.onnx", "--plugin", "plugin.py", "--passes", "cleanup,break-add", "-v")
    assert result.exit_code == 1
    assert result.stdout.startswith("first bad: rewrite 1 of 1, pass 'break-add'")
    assert Path("two.bisect/README.md").exists()
    assert run("bisect", "two.onnx", "--passes", "cleanup").exit_code == 0


def test_a_command_decides(run: Run) -> None:
    Path("check.py").write_text(
        "import onnx, sys\nops = [n.op_type for n in onnx.load(sys.argv[1]).graph.node]\nsys.exit('Sub' in ops)\n"
    )
    args = ("bisect", "two.onnx", "--plugin", "plugin.py", "--passes", "break-add", "--no-repro")
    result = run(*args, "--check", f"{sys.executable} check.py")
    assert result.exit_code == 1
    assert "pass 'break-add'" in result.stdout
    result = run(*args, "--check", "no-such-program-anywhere")
    assert result.exit_code == 2
    assert "no-such-program-anywhere" in result.stderr


@pytest.mark.usefixtures("net")
def test_the_table_of_layers(run: Run) -> None:
    damaged()
    result = run("verify", "net.onnx", "bad.mnn", "--layers", "--csv", "l.csv", "--sort", "ratio")
    assert result.exit_code == 1
    lines = result.stdout.splitlines()
    assert lines[0].split()[:2] == ["layer", "op"]
    assert lines[1].split()[:2] == ["m", "MatMul"]
    assert lines[1].split()[-1] == "suspect"
    with Path("l.csv").open(newline="") as file:
        rows = list(csv.DictReader(file))
    ratios = [float(row["ratio"]) for row in rows]
    assert ratios == sorted(ratios, reverse=True)
    assert {row["node"] for row in rows if row["verdict"] == "suspect"} == {"m"}
    result = run("verify", "net.onnx", "net.mnn", "--layers", "--json")
    assert json.loads(result.stdout)["layers"]["suspects"] == []


SCATTER = """g (float[3, 4, 2] x, float[2, 2] u) => (float[3, 4, 2] y) <int64[2, 2] i = {0, 1, 2, 3}> {
    a = Abs(x) s = ScatterND(a, i, u) y = Neg(s) }"""


def test_a_folder_with_an_input_in_it_is_not_replaced(run: Run) -> None:
    parse(SCATTER).save("scatter.onnx")
    assert run("bisect", "scatter.onnx", "--no-optimize", "-o", "fault", "-q").exit_code == 1
    for place in ("fault", "./link/../fault"):
        result = run("bisect", "fault/model.onnx", "--no-optimize", "-o", place)
        assert (result.exit_code, result.stdout) == (2, "")
        assert "would overwrite an input, 'fault/model.onnx'" in result.stderr
    result = run("bisect", "scatter.onnx", "--no-optimize", "-o", "fault", "--report", "fault/r.json")
    assert result.exit_code == 2
    assert "would lie in a folder that is replaced" in result.stderr
    assert Path("fault/model.onnx").exists()


def test_a_folder_with_something_of_the_users_in_it_is_not_replaced(run: Run) -> None:
    parse(SCATTER).save("scatter.onnx")
    args = ("bisect", "scatter.onnx", "--no-optimize", "--no-suggestions")
    assert run(*args, "-q").exit_code == 1
    assert run(*args, "-q").exit_code == 1  # nobody added anything
    Path("scatter.bisect/notes.txt").write_text("mine")
    result = run(*args, "-o", "scatter.bisect")
    assert (result.exit_code, result.stdout) == (2, "")
    assert "is a folder with other things in it: 'notes.txt'" in result.stderr
    result = run(*args)
    assert result.exit_code == 1
    assert result.stdout.startswith("first mismatch: node 's' (ScatterND)")
    assert "note: there is no folder, for scatter.bisect: is a folder with other things in it" in result.stdout
    assert Path("scatter.bisect/notes.txt").read_text() == "mine"


@pytest.mark.parametrize(
    "args", [("scatter.onnx", "--no-optimize"), ("two.onnx", "--plugin", "plugin.py", "--passes", "break-add")]
)
def test_the_answer_is_there_when_the_folder_cannot_be_written(
    run: Run, monkeypatch: pytest.MonkeyPatch, args: tuple[str, ...]
) -> None:
    from graphkit.errors import OutputError

    def full(*args: Any, **options: Any) -> None:
        raise OutputError("cannot be written: no space left on the disk", file=args[0])

    monkeypatch.setattr("graphkit.verification.bisect.folder.write_repro", full)
    parse(SCATTER).save("scatter.onnx")
    result = run("bisect", *args)
    assert result.exit_code == 1
    assert result.stdout.startswith("first ")
    assert "note: there is no folder, for " in result.stdout
    assert "no space left on the disk" in result.stdout


def test_beside_a_model_that_nobody_may_write_to_there_is_an_answer(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    parse(SCATTER).save("scatter.onnx")
    nobody = SimpleNamespace(access=lambda *args: False, W_OK=2)
    monkeypatch.setattr("graphkit.verification.bisect.repro.os", nobody)
    args = ("bisect", "scatter.onnx", "--no-optimize", "--no-suggestions")
    result = run(*args)
    assert result.exit_code == 1
    assert result.stdout.startswith("first mismatch: node 's' (ScatterND)")
    assert "note: there is no folder, for scatter.bisect: cannot be written: its folder is read-only" in result.stdout
    result = run(*args, "-o", "fault")
    assert (result.exit_code, result.stdout) == (2, "")
    assert "fault: cannot be written: its folder is read-only" in result.stderr


def test_seconds_bound_all_of_it(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    from graphkit.verification.bisect import folder

    def no(*args: Any, **options: Any) -> Any:
        raise AssertionError("the time is up")

    parse(SCATTER).save("scatter.onnx")
    monkeypatch.setattr(folder.Effort, "spend", no)
    result = run("bisect", "scatter.onnx", "--no-optimize", "--anonymize", "--seconds", "0.001", "--json")
    assert result.exit_code == 1, result.stderr
    data = json.loads(result.stdout)
    assert data["answer"].startswith("first mismatch: node 's' (ScatterND)")
    assert data["conversions"] == {"whole": 1, "small": 0}
    assert "the budget for experiments is used up" in data["note"]
    assert "the time was up" in data["repro_note"]


def test_seconds_end_a_check_that_runs(run: Run) -> None:
    Path("check.py").write_text(
        "import onnx, sys, time\nops = [n.op_type for n in onnx.load(sys.argv[1]).graph.node]\n"
        "time.sleep(60)\nsys.exit('Sub' in ops)\n"
    )
    args = ("bisect", "two.onnx", "--plugin", "plugin.py", "--passes", "break-add", "--no-repro")
    start = time.monotonic()
    result = run(*args, "--check", f"{sys.executable} check.py", "--seconds", "3")
    assert time.monotonic() - start < 20
    assert result.exit_code == 2
    assert "the time was up before the search could begin" in result.stderr


def test_a_check_that_a_signal_without_a_name_ends(run: Run) -> None:
    args = ("bisect", "two.onnx", "--plugin", "plugin.py", "--passes", "break-add", "--no-repro")
    result = run(*args, "--check", "sh -c 'kill -40 $$'")
    assert result.exit_code == 2
    assert "the check was ended by signal 40" in result.stderr


def test_a_candidate_with_its_weights_outside(run: Run) -> None:
    parse(TEXT).save("net.onnx")
    other = parse(TEXT.replace("{1, 2, 3, 4, 5", "{1, 2, 3, 4, 9")).proto
    onnx.save(other, "other.onnx", save_as_external_data=True, location="w.bin", size_threshold=0)
    result = run("bisect", "net.onnx", "other.onnx", "-o", "fault", "--json")
    assert result.exit_code == 1, result.stderr
    data = json.loads(result.stdout)
    assert [fault["node"] for fault in data["faults"]] == ["m"]
    assert data["repro"]["reproduced"] is True


@pytest.mark.usefixtures("net")
@pytest.mark.parametrize(
    ("args", "message"),
    [
        (("bisect", "missing.onnx"), "missing.onnx"),
        (("bisect", "net.onnx", "missing.mnn"), "missing.mnn"),
        (("bisect", "net.onnx", "net.mnn", "--passes", "cleanup"), "candidate"),
        (("bisect", "net.onnx", "--check", "true"), "--passes"),
        (("bisect", "net.onnx", "--passes", "clenup"), "cleanup"),
        (("bisect", "net.onnx", "--memory", "60%"), "--memory: '60%' is not a size"),
        (("bisect", "net.onnx", "--memory", "5"), "--memory: '5' is not a size: give a unit"),
        (("bisect", "net.onnx", "--memory", "9" * 400 + "MB"), "--memory: a size goes from 1 byte to "),
        (("bisect", "net.onnx", "--inputs", "missing.npz"), "missing.npz"),
        (("verify", "net.onnx", "net.mnn", "--sort", "ratio"), "--layers"),
        (("verify", "net.onnx", "net.mnn", "--layers", "--sort", "rato"), "ratio"),
        (("verify", "net.mnn", "net.mnn", "--layers"), "reference"),
    ],
)
def test_bad_arguments(run: Run, args: tuple[str, ...], message: str) -> None:
    result = run(*args)
    assert result.exit_code == 2
    assert message in result.stderr
    assert not Path("net.bisect").exists()


@pytest.mark.usefixtures("net")
@pytest.mark.parametrize(
    ("args", "message"),
    [
        (("bisect", "net.onnx", "--check", ""), "--passes"),
        (("bisect", "net.onnx", "--passes", ""), "--passes is empty"),
        (("bisect", "net.onnx", "--passes", "cleanup", "--check", ""), "check command is empty"),
    ],
)
def test_empty_texts_are_no_missing_ones(run: Run, args: tuple[str, ...], message: str) -> None:
    result = run(*args)
    assert result.exit_code == 2
    assert message in result.stderr


@pytest.mark.usefixtures("net")
def test_the_candidate_with_another_input_is_named(run: Run) -> None:
    parse("g (float[N, 4] x, float[4] q) => (float[N, 4] y) { m = Add(x, q) y = Neg(m) }").save("other.onnx")
    result = run("bisect", "net.onnx", "other.onnx")
    assert result.exit_code == 2
    assert "other.onnx: it has an input 'q' that net.onnx has not" in result.stderr


NAMED = """g (float[3,4,2] x, float[2,2] u) => (float[3,4,2] y) <int64[2,2] i = {0, 1, 2, 3}> {
    [NAME] a = Relu(x) [NAME] s = ScatterND(a, i, u) [other] y = Neg(s) }"""


def renamed(names: list[str]) -> gk.Model:
    """The model with these names of its nodes."""
    model = parse(NAMED.replace("[NAME]", ""))
    for node, name in zip(model.proto.graph.node, names, strict=True):
        node.name = name
    return model


def test_nodes_of_one_name_are_told_apart(run: Run) -> None:
    renamed(["n", "n", "n"]).save("dup.onnx")
    gk.convert(parse(NAMED.replace("[NAME]", "")), "dup.mnn")
    result = run("verify", "dup.onnx", "dup.mnn", "--layers")
    assert result.exit_code == 0, result.stderr
    result = run("bisect", "dup.onnx", "--no-optimize", "--no-repro", "--no-suggestions")
    assert result.stdout.startswith("first mismatch: node 'n#2' (ScatterND)"), result.stdout


def test_a_name_with_a_line_break_keeps_the_answer_on_one_line(run: Run) -> None:
    renamed(["a", "n\n2\x1b[31m", "c"]).save("lines.onnx")
    result = run("bisect", "lines.onnx", "--no-optimize", "--no-repro", "--no-suggestions")
    assert result.stdout.splitlines()[0].startswith("first mismatch: node 'n\\n2\\x1b[31m' (ScatterND): max error")

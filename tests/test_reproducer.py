"""Reproducer folders: what is in them, and that they reproduce."""

from __future__ import annotations

import re
import shlex
from pathlib import Path

import pytest
from passes_for_tests import registry

from graphkit import reproducer
from graphkit.errors import PassError
from graphkit.model import Model
from graphkit.optimizer import optimize
from graphkit.testing import canonical, graph_of, parse

TEXT = """
    g (float[N,4] x) => (float[N,4] y) {
        a = Identity(x)
        b = Relu(a)
        c = Sigmoid(b)
        y = Add(c, b)
    }
"""
# Needs the type that infer-shapes finds, so that a reproducer without it would not crash.
PLUGIN = '''
from dataclasses import dataclass
from typing import ClassVar

@dataclass(frozen=True)
class Explode:
    """Raises."""
    name: ClassVar[str] = "explode"
    summary: ClassVar[str] = "raises where the rank is known"
    word: str = "boom"

    def run(self, graph):
        from graphkit.rewrite import PassResult
        if graph.rank("b") == 2:
            raise RuntimeError(self.word)
        return PassResult()
'''


def command_of(folder: Path) -> list[str]:
    found = re.search(r"^    (graphkit optimize .*)$", (folder / "README.md").read_text(), re.MULTILINE)
    assert found is not None
    return shlex.split(found[1])


def test_what_is_in_the_folder(tmp_path: Path) -> None:
    try:
        raise ValueError("a message")
    except ValueError as error:
        folder = reproducer.write(tmp_path / "new", parse(TEXT), 'a{b="it\'s"},c', error, ["some.module"])
    assert folder.parent == tmp_path / "new"
    assert (folder / "pipeline.txt").read_text() == 'a{b="it\'s"},c\n'
    assert "ValueError: a message" in (folder / "traceback.txt").read_text()
    assert canonical(graph_of(TEXT)) == canonical(graph_of(TEXT).of(Model.load(folder / "model.onnx")))
    assert command_of(folder) == [
        *("graphkit", "optimize", "model.onnx", "--passes", 'a{b="it\'s"},c'),
        *("--verify", "none", "--plugin", "some.module"),
    ]


def test_each_crash_has_its_own_folder(tmp_path: Path) -> None:
    folders = {reproducer.write(tmp_path, parse(TEXT), "a", ValueError()) for _ in range(3)}
    assert len(folders) == 3


def test_plugin_files_of_one_name_are_both_taken_along(tmp_path: Path) -> None:
    files = [tmp_path / "a" / "x.py", tmp_path / "b" / "x.py"]
    for file in files:
        file.parent.mkdir()
        file.write_text(str(file))
    folder = reproducer.write(tmp_path, parse(TEXT), "p", ValueError(), [str(file) for file in files])
    command = command_of(folder)
    copies = [command[i + 1] for i, word in enumerate(command) if word == "--plugin"]
    assert [(folder / copy).read_text() for copy in copies] == [str(file) for file in files]


def test_a_crash_reproduces_by_its_own_command(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    plugin = tmp_path / "explode.py"
    plugin.write_text(PLUGIN)
    with pytest.raises(PassError, match=r"pass 'explode\{word=bang\}' raised RuntimeError: bang") as caught:
        optimize(
            parse(TEXT),
            "minimal,infer-shapes,explode{word=bang},cse",
            verify="none",
            plugins=[str(plugin)],
            crash_dir=tmp_path / "crashes",
        )
    folder = Path(caught.value.reproducer or "")
    assert (folder / "pipeline.txt").read_text() == "infer-shapes,explode{word=bang},cse\n"
    plugin.unlink()
    monkeypatch.chdir(folder)
    program, verb, model, _, passes, _, verify, _, again = command_of(folder)
    assert (program, verb) == ("graphkit", "optimize")
    with pytest.raises(PassError) as second:
        optimize(model, passes, verify=verify, plugins=[again])  # type: ignore[arg-type]
    assert str(second.value) == str(caught.value)


def test_the_model_is_as_it_stood(tmp_path: Path) -> None:
    with pytest.raises(PassError) as caught:
        optimize(
            parse(TEXT),
            "drop-identity,fixpoint(replace{by=Tanh},crash)",
            verify="none",
            registry=registry(),
            crash_dir=tmp_path,
        )
    folder = Path(caught.value.reproducer or "")
    model = Model.load(folder / "model.onnx")
    assert [node.op_type for node in model.proto.graph.node] == ["Tanh", "Sigmoid", "Add"]
    text = (folder / "pipeline.txt").read_text().strip()
    assert text == "crash,fixpoint(replace{by=Tanh},crash){max=10}"
    with pytest.raises(PassError) as second:
        optimize(model, text, verify="none", registry=registry())
    assert str(second.value) == str(caught.value)

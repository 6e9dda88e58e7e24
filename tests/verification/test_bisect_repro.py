"""Repro folders: what is in them, that they show the fault in a fresh process, and that they appear whole."""

from __future__ import annotations

import os
import re
import shlex
import subprocess
import sys
import sysconfig
from pathlib import Path

import numpy as np
import pytest
from bisect_faults import REFUSED, Feeds, confuses, scatter

from graphkit.errors import OutputError, UsageError
from graphkit.inputs import load_inputs
from graphkit.model import Model
from graphkit.testing import parse, run
from graphkit.verification.bisect._effort import Effort
from graphkit.verification.bisect._story import Story
from graphkit.verification.bisect.anonymize import Anonymized, anonymize
from graphkit.verification.bisect.mnn_faults import observe, same_fault
from graphkit.verification.bisect.passes import alone, bisect_passes, breaks
from graphkit.verification.bisect.reduction import Reduced, reduce_model
from graphkit.verification.bisect.repro import (
    file_story,
    mnn_story,
    pass_story,
    write_repro,
)

PLUGIN = '''
from dataclasses import dataclass
from typing import ClassVar

from graphkit.rewrite import Builder, PassResult, apply_rules, rule


@rule("Relu")
def relu(graph, node):
    if "wrong" not in node.name:
        return None
    build = Builder(graph, node)
    return build.rewrite({node.outputs[0]: build.op("Abs", *node.inputs)}, "Relu to Abs")


@dataclass(frozen=True)
class Wrong:
    """Wrong on purpose."""

    name: ClassVar[str] = "wrong-relu"
    summary: ClassVar[str] = "Relu to Abs"

    def run(self, graph):
        return apply_rules(graph, [relu])
'''
MODEL = """
    g (float[N,4] x) => (float[N,4] y) {
        [a] a = Identity(x)  [b] b = Sin(a)  [c] c = Identity(b)  [wrong] d = Relu(c)  [e] y = Sqrt(d)
    }
"""
FEEDS = {"x": np.linspace(-3, 3, 12, dtype=np.float32).reshape(3, 4)}
OWN = Story("a fault", (sys.executable, "-c", "raise SystemExit(7)"), 7)


def run_readme(folder: Path) -> subprocess.CompletedProcess[str]:
    """Run the one command of a folder's README as a user does: in the folder, with a new shell and interpreter."""
    found = re.findall(r"^    (\S.*)$", (folder / "README.md").read_text(), re.MULTILINE)
    assert len(found) == 1
    scripts = [str(Path(sys.executable).parent), sysconfig.get_path("scripts"), os.environ["PATH"]]
    environment = {**os.environ, "PATH": os.pathsep.join(scripts)}
    environment.pop("PYTHONPATH", None)
    return subprocess.run(
        ["sh", "-c", found[0]], cwd=folder, env=environment, capture_output=True, text=True, check=False
    )


def reduced_sin() -> Reduced:
    return reduce_model(parse(MODEL), FEEDS, confuses("Sin", "Cos"))


# -- faults of MNN ----------------------------------------------------------------------------------------


def test_a_wrong_value_of_mnn_reproduces_from_its_readme(tmp_path: Path) -> None:
    model, feeds = scatter()
    predicate = same_fault(observe(model, feeds))
    reduced = reduce_model(model, feeds, predicate, effort=Effort(probes=60))
    found = observe(reduced.model, reduced.feeds)
    repro = write_repro(tmp_path / "repro", reduced, None, mnn_story(found, reduced.model))
    assert (repro.reproduced, repro.nodes) == (True, 1)
    assert {path.name for path in repro.folder.iterdir()} == {
        *("model.onnx", "inputs.npz", "expected.npz", "README.md", "report.txt", "reproduce.py")
    }
    ended = run_readme(repro.folder)
    assert ended.returncode == 1, ended.stderr
    assert "wrong" in ended.stdout
    report = (repro.folder / "report.txt").read_text()
    for part in ("ScatterND 'scatter'", "MNN 3", "float32[", "onnxruntime ", "python reproduce.py", "error: "):
        assert part in report
    stored = load_inputs(repro.folder / "expected.npz")[0]
    again = run(Model.load(repro.folder / "model.onnx"), load_inputs(repro.folder / "inputs.npz")[0])
    for name, array in again.items():
        np.testing.assert_array_equal(stored[name], array)


def test_the_script_says_right_when_mnn_is_right(tmp_path: Path) -> None:
    feeds = {"x": FEEDS["x"], "/odd name/file": np.array([[1, 2, 3, 4]], np.int64), "flag": np.array([[True] * 4])}
    model = parse(
        """g (float[3,4] x, int64[1,4] "/odd name/file", bool[1,4] flag)
            => (float[3,4] "file", int64[1,4] "i", bool[1,4] not) {
            "file" = Mul(x, x)  "i" = Mul("/odd name/file", "/odd name/file")  not = Not(flag)
        }"""
    )
    found = observe(model, feeds)
    assert found.kind == "right"
    repro = write_repro(tmp_path / "repro", Reduced(model, feeds), None, mnn_story(found, model))
    assert repro.reproduced is False
    assert repro.said.count("right") == 3, repro.said
    assert run_readme(repro.folder).returncode == 0
    for text in ("README.md", "report.txt"):
        assert "does not show the fault" in (repro.folder / text).read_text()


def test_a_refusal_of_mnn_reproduces_from_its_readme(tmp_path: Path) -> None:
    model = parse(REFUSED)
    found = observe(model, FEEDS)
    repro = write_repro(tmp_path / "repro", Reduced(model, FEEDS), None, mnn_story(found, model))
    assert repro.reproduced
    ended = run_readme(repro.folder)
    assert ended.returncode == 1
    assert "IsNaN" in ended.stdout


def test_a_crash_of_mnn_reproduces_from_its_readme(tmp_path: Path) -> None:
    model = parse(
        """g (float[1,3,8,8] x) => (float[1,3,H,W] y) {
            [a] a = Relu(x)  [pool] y = AveragePool<kernel_shape=[2,2]>(a)
        }"""
    )
    feeds = {"x": np.ones((1, 3, 8, 8), np.float32)}
    found = observe(model, feeds)
    repro = write_repro(tmp_path / "repro", Reduced(model, feeds), None, mnn_story(found, model))
    assert repro.reproduced
    ended = run_readme(repro.folder)
    assert ended.returncode == 1
    assert "MNN running the model crashes (signal 8)" in ended.stdout


def test_the_converter_options_are_those_that_showed_it(tmp_path: Path) -> None:
    from graphkit.mnn.options import ConverterOptions

    model, feeds = scatter()
    options = ConverterOptions.of(fp16=True)
    story = mnn_story(observe(model, feeds, options=options), model, options=options, answer="said by us")
    script = story.files["reproduce.py"]
    assert isinstance(script, str)
    assert "'--fp16'" in script
    assert "TOLERANCE = 0.02" in script
    assert story.answer == "said by us"


# -- wrong passes and given candidates --------------------------------------------------------------------


def test_a_wrong_pass_reproduces_from_its_readme(tmp_path: Path) -> None:
    plugin = tmp_path / "wrong.py"
    plugin.write_text(PLUGIN)
    result = bisect_passes(parse(MODEL), "cleanup,wrong-relu,cse", inputs=[FEEDS], plugins=[str(plugin)])
    text = alone(result)
    assert text == "wrong-relu"
    assert result.before is not None
    assert result.feeds is not None
    reduced = reduce_model(result.before, result.feeds, breaks(text, plugins=[str(plugin)]))
    assert reduced.labels == ("wrong",)
    story = pass_story(result.answer, text, (str(plugin),))
    repro = write_repro(tmp_path / "repro", reduced, None, story)
    assert repro.reproduced, repro.said
    plugin.unlink()
    ended = run_readme(repro.folder)
    assert ended.returncode == 1
    assert "wrong-relu" in ended.stderr + ended.stdout
    assert "pipeline: wrong-relu" in (repro.folder / "report.txt").read_text()


def test_a_given_candidate_reproduces_from_its_readme(tmp_path: Path) -> None:
    candidate = tmp_path / "changed.onnx"
    parse(MODEL.replace("Sin", "Cos")).save(candidate)
    feeds = {"x": np.abs(FEEDS["x"]) / 4}
    story = file_story("Cos for Sin", candidate)
    repro = write_repro(tmp_path / "repro", Reduced(parse(MODEL), feeds), None, story)
    assert repro.reproduced, repro.said
    assert run_readme(repro.folder).returncode == 1
    assert (repro.folder / "candidate.onnx").read_bytes() == candidate.read_bytes()


def test_plugins_of_one_name_are_both_taken_along(tmp_path: Path) -> None:
    files = [tmp_path / name / "x.py" for name in ("a", "b")]
    story = pass_story("it", "p", (*map(str, files), "some.module"))
    words = list(story.command)
    named = [words[i + 1] for i, word in enumerate(words) if word == "--plugin"]
    assert named == ["x.py", "x_1.py", "some.module"]
    assert [story.files[name] for name in named[:2]] == files


# -- the folder -------------------------------------------------------------------------------------------


def test_a_command_that_does_not_show_it_is_said(tmp_path: Path) -> None:
    story = Story("a fault", (sys.executable, "-c", "print('all is well')"), 7)
    repro = write_repro(tmp_path / "repro", reduced_sin(), None, story)
    assert (repro.reproduced, repro.said) == (False, "all is well")
    assert "did **not** end with 7" in (repro.folder / "README.md").read_text()
    assert write_repro(tmp_path / "repro", reduced_sin(), None, OWN).reproduced
    assert "**not**" not in (tmp_path / "repro" / "README.md").read_text()


@pytest.mark.parametrize(
    ("command", "said"),
    [
        ((sys.executable, "-c", "import time; time.sleep(30)"), "did not end within 0.5 s"),
        (("no-such",), "cannot be started"),
    ],
)
def test_a_command_that_gives_no_answer(command: tuple[str, ...], said: str, tmp_path: Path) -> None:
    repro = write_repro(tmp_path / "repro", reduced_sin(), None, Story("it", command), timeout=0.5)
    assert repro.reproduced is False
    assert said in repro.said


def test_without_a_check_nothing_is_run(tmp_path: Path) -> None:
    repro = write_repro(tmp_path / "repro", reduced_sin(), None, Story("it", ("no-such",)), check=False)
    assert repro.reproduced is None


def test_what_the_command_leaves_is_removed(tmp_path: Path) -> None:
    command = ("sh", "-c", "touch left; mkdir -p more/of; exit 1")
    repro = write_repro(tmp_path / "repro", reduced_sin(), None, Story("it", command))
    assert {path.name for path in repro.folder.iterdir()} == {
        *("model.onnx", "inputs.npz", "expected.npz", "README.md", "report.txt")
    }


def test_an_earlier_repro_is_replaced_and_nothing_else(tmp_path: Path) -> None:
    folder = tmp_path / "repro"
    folder.mkdir()
    write_repro(folder, reduced_sin(), None, Story("first", OWN.command, 7, files={"first.txt": "1"}))
    write_repro(folder, reduced_sin(), None, Story("second", OWN.command, 7))
    assert "second" in (folder / "README.md").read_text()
    assert not (folder / "first.txt").exists()
    other = tmp_path / "other"
    other.mkdir()
    (other / "README.md").write_text("mine")
    with pytest.raises(OutputError, match="is a folder with other things in it"):
        write_repro(other, reduced_sin(), None, OWN)
    assert (other / "README.md").read_text() == "mine"
    with pytest.raises(OutputError, match="its folder does not exist"):
        write_repro(tmp_path / "no" / "repro", reduced_sin(), None, OWN)
    file = tmp_path / "file"
    file.touch()
    with pytest.raises(OutputError, match="is there already and no folder"):
        write_repro(file, reduced_sin(), None, OWN)


def test_a_failure_leaves_nothing_and_keeps_what_was_there(tmp_path: Path) -> None:
    folder = tmp_path / "repro"
    write_repro(folder, reduced_sin(), None, OWN)
    gone = Story("it", OWN.command, 7, files={"plugin.py": tmp_path / "gone.py"})
    with pytest.raises(OutputError, match="cannot be written"):
        write_repro(folder, reduced_sin(), None, gone)
    assert [path.name for path in tmp_path.iterdir()] == ["repro"]
    assert (folder / "model.onnx").exists()


def test_files_of_a_story_have_plain_names_of_their_own() -> None:
    for name in ("model.onnx", "../x", "a/b"):
        with pytest.raises(UsageError, match="cannot be a file of a repro folder"):
            Story("it", ("true",), files={name: ""})


def test_expected_values_may_be_given(tmp_path: Path) -> None:
    given = {"file": np.ones(3, np.float32), "b": np.array(2, np.int64)}
    folder = write_repro(tmp_path / "repro", reduced_sin(), given, OWN).folder
    stored = load_inputs(folder / "expected.npz")[0]
    assert list(stored) == ["file", "b"]
    assert stored["b"].shape == ()


# -- anonymized -------------------------------------------------------------------------------------------


def secret() -> tuple[Reduced, Feeds]:
    model = parse(
        """secret_graph (float[secret_n,4] secret_x) => (float[secret_n,4] secret_y)
        <float[4] secret_w = {11.0, 12.5, 13.0, 14.0}> {
            [secret_mul] secret_m = Mul(secret_x, secret_w)
            [secret_sin] secret_y = Sin(secret_m)
        }"""
    )
    feeds = {"secret_x": FEEDS["x"]}
    return Reduced(model, feeds), feeds


def contents(folder: Path) -> bytes:
    return b"".join(path.read_bytes() for path in folder.iterdir())


def test_an_anonymized_folder_holds_no_name_and_no_weight(tmp_path: Path) -> None:
    reduced, feeds = secret()
    made = anonymize(reduced.model, feeds, confuses("Sin", "Cos"))
    story = Story(
        "first mismatch: node 'secret_sin' (Sin): wrong",
        OWN.command,
        7,
        facts={"output": "'secret_y'"},
        log="secret.py",
    )
    repro = write_repro(tmp_path / "repro", reduced, None, story, anonymized=made)
    assert repro.reproduced
    stored = contents(repro.folder)
    assert b"secret" not in stored
    assert np.float32(12.5).tobytes() not in stored
    readme = (repro.folder / "README.md").read_text()
    assert "Weights and inputs are random and names are replaced." in readme
    assert re.search(r"first mismatch: node 'Sin_t\d' \(Sin\): wrong", readme)
    open_folder = write_repro(tmp_path / "open", reduced, None, story).folder
    assert b"secret" in contents(open_folder)
    assert "look before you share it" in (open_folder / "README.md").read_text()


def test_an_anonymized_folder_that_does_not_show_it_says_so(tmp_path: Path) -> None:
    reduced, feeds = secret()
    made = anonymize(reduced.model, feeds, lambda model, feeds: False)
    repro = write_repro(tmp_path / "repro", reduced, None, OWN, anonymized=made)
    assert "With random weights and inputs the fault does not show" in (repro.folder / "README.md").read_text()
    assert b"secret" not in contents(repro.folder)


def test_a_candidate_file_cannot_be_anonymized(tmp_path: Path) -> None:
    reduced, feeds = secret()
    candidate = tmp_path / "c.onnx"
    reduced.model.save(candidate)
    with pytest.raises(UsageError, match="cannot be anonymized: it holds the weights"):
        write_repro(
            tmp_path / "repro",
            reduced,
            None,
            file_story("it", candidate),
            anonymized=Anonymized(reduced.model, dict(feeds), True),
        )
    assert not (tmp_path / "repro").exists()


def test_an_anonymized_fault_of_mnn_reproduces_from_its_readme(tmp_path: Path) -> None:
    model, feeds = scatter()
    predicate = same_fault(observe(model, feeds))
    made = anonymize(model, feeds, predicate)
    assert made.shows
    story = mnn_story(observe(made.model, made.feeds), made.model, answer="MNN: node 'scatter' (ScatterND) is wrong")
    repro = write_repro(tmp_path / "repro", Reduced(model, feeds), None, story, anonymized=made)
    assert repro.reproduced, repro.said
    ended = run_readme(repro.folder)
    assert ended.returncode == 1
    assert "scatter" not in (repro.folder / "report.txt").read_text()
    assert shlex.split("python reproduce.py") == list(repro.command)

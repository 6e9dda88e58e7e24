"""Plugins as their authors ship them: an installed package, a file, a module; broken ones and duplicates.

Everything runs in child processes, whose import path holds the installed example package.
"""

from __future__ import annotations

import importlib.util
import json
import os
import re
import shlex
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from graphkit.testing import parse

EXAMPLES = Path(__file__).resolve().parent.parent / "examples"
PACKAGE = EXAMPLES / "graphkit-example-passes"
FILE = EXAMPLES / "single_file_pass.py"
TEXT = """
    g (float[N,4] x) => (float[N,12] y)
    <float lo = {-0.5}, float hi = {0.5}, float top = {6.0}> {
        a = Relu(x)
        b = Clip(a, lo, top)
        c = Clip(b, , hi)
        d = HardSwish(c)
        e = Concat<axis = 1>(d, x)
        y = Concat<axis = 1>(e, x)
    }
"""
PASSES = "infer-shapes,merge-clips,flatten-concats"


@pytest.fixture(scope="module")
def installed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the example package as pip installs it, entry points and all."""
    folder = tmp_path_factory.mktemp("installed")
    source = shutil.copytree(PACKAGE, folder / "source")  # building leaves files beside the source
    command = [sys.executable, "-m", "pip", "install", "--quiet", "--no-deps", "--disable-pip-version-check"]
    if importlib.util.find_spec("setuptools") is not None:
        command += ["--no-build-isolation"]  # otherwise pip fetches it
    subprocess.run([*command, "--target", str(folder / "site"), str(source)], check=True, timeout=300)
    return folder / "site"


@pytest.fixture
def model(tmp_path: Path) -> Path:
    """A model that both example passes and the single-file pass have something to do in."""
    parse(TEXT).save(tmp_path / "model.onnx")
    return tmp_path / "model.onnx"


def child(*arguments: str, site: Path | None = None, cwd: Path | None = None) -> subprocess.CompletedProcess[str]:
    """Run Python in a child with `site` on its path."""
    path = os.pathsep.join([*([str(site)] if site else []), str(EXAMPLES.parent)])
    return subprocess.run(
        [sys.executable, *arguments],
        check=False,
        capture_output=True,
        text=True,
        cwd=cwd,
        timeout=120,
        env={**os.environ, "PYTHONPATH": path, "PYTHONDONTWRITEBYTECODE": "1", "OMP_NUM_THREADS": "1"},
    )


def graphkit(*arguments: str, site: Path | None = None, cwd: Path | None = None) -> tuple[int, Any, str]:
    """Run the command line with --json; exit code, the JSON object and what was said to people."""
    done = child("-m", "graphkit", *arguments, "--json", site=site, cwd=cwd)
    return done.returncode, json.loads(done.stdout or "null"), done.stderr


def fake_dist(site: Path, name: str, entry_points: dict[str, str], code: str) -> None:
    """Install a package of one module by hand."""
    site.mkdir(exist_ok=True)
    module = name.replace("-", "_")
    (site / f"{module}.py").write_text(code)
    info = site / f"{module}-0.1.dist-info"
    info.mkdir()
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: 0.1\n")
    lines = [f"{key} = {value}" for key, value in entry_points.items()]
    (info / "entry_points.txt").write_text("\n".join(["[graphkit.passes]", *lines, ""]))


def join(site: Path, other: Path) -> Path:
    """Both folders as one import path."""
    return Path(f"{site}{os.pathsep}{other}")


# -- an installed package ---------------------------------------------------------------------------------


def test_passes_of_a_package_are_listed_with_their_source(installed: Path) -> None:
    code, data, _ = graphkit("passes", site=installed)
    assert code == 0
    assert "merge-clips" in json.dumps(data)
    listed = {item["name"]: item for item in data["passes"]}
    assert listed["merge-clips"]["source"] == "graphkit-example-passes 1.0.0"
    assert listed["merge-clips"]["summary"] == "Clip after Clip or Relu becomes one Clip"
    assert listed["flatten-concats"]["source"] == "graphkit-example-passes 1.0.0"


def test_a_pass_of_a_package_is_documented(installed: Path) -> None:
    code, data, _ = graphkit("passes", "merge-clips", site=installed)
    assert code == 0
    text = json.dumps(data)
    for part in ("relu", "merge with a Relu in front too", "Refuses when the value in between"):
        assert part in text


def test_they_run_verified_with_numbers(installed: Path, model: Path) -> None:
    code, data, _ = graphkit(
        "optimize",
        str(model),
        "--passes",
        PASSES,
        "--verify",
        "each",
        "-o",
        "out.onnx",
        site=installed,
        cwd=model.parent,
    )
    assert code == 0
    records = {item["pass"]: item for item in data["passes"]}
    clips, concats = records["merge-clips"], records["flatten-concats"]
    assert clips["status"] == concats["status"] == "changed"
    assert (clips["rewrites"], concats["rewrites"]) == (2, 1)
    assert clips["max_error"] == concats["max_error"] == 0
    assert clips["counters"] == {"merge-clips": 2}
    assert concats["nodes"] == {"before": 4, "after": 3}
    assert data["proof"]["kind"] == "equal"


def test_options_are_part_of_the_pipeline(installed: Path, model: Path) -> None:
    passes = PASSES.replace("merge-clips", "merge-clips{relu=no}")
    code, data, _ = graphkit("optimize", str(model), "--passes", passes, site=installed, cwd=model.parent)
    assert code == 0
    assert data["pipeline"] == passes
    assert [item["rewrites"] for item in data["passes"]][1:] == [1, 1]
    code, _, said = graphkit(
        "optimize", str(model), "--passes", "merge-clips{rellu=no}", site=installed, cwd=model.parent
    )
    assert code == 2
    assert "unknown option 'rellu'; did you mean 'relu'?" in said


def test_stop_after_counts_their_rewrites(installed: Path, model: Path) -> None:
    script = f"""
import json, sys
from graphkit.optimizer import optimize
found = []
for limit in range(6):
    result = optimize({str(model)!r}, {PASSES!r}, stop_after=limit, verify="each")
    found.append([result.report.rewrites, result.report.nodes_after, result.proof.kind, result.ok])
print(json.dumps(found))
"""
    done = child("-c", script, site=installed)
    assert done.stderr == ""
    nodes = [6, 6, 5, 4, 3, 3]
    assert json.loads(done.stdout) == [[min(i, 4), n, "equal", True] for i, n in enumerate(nodes)]


def test_their_own_tests_pass(installed: Path) -> None:
    done = child(
        *("-m", "pytest", "-q", "-p", "no:cacheprovider", str(PACKAGE / "tests"), "--rootdir", str(PACKAGE)),
        site=installed,
    )
    assert done.returncode == 0, done.stdout
    assert "passed" in done.stdout


# -- broken and duplicate ones ----------------------------------------------------------------------------


def test_a_broken_plugin_fails_only_when_it_is_asked_for(installed: Path, model: Path, tmp_path: Path) -> None:
    fake_dist(tmp_path / "site", "broken-passes", {"smash": "broken_passes:Smash"}, "import not_installed\n")
    site = join(installed, tmp_path / "site")
    code, data, _ = graphkit("optimize", str(model), "--passes", PASSES, site=site, cwd=model.parent)
    assert code == 0
    assert data["proof"]["kind"] == "equal"
    code, data, _ = graphkit("passes", site=site)
    assert code == 0
    assert "No module named 'not_installed'" in json.dumps(data)
    code, _, said = graphkit("optimize", str(model), "--passes", "smash", site=site, cwd=model.parent)
    assert code == 2
    assert "pass 'smash' from broken-passes 0.1 cannot be loaded" in " ".join(said.split())


def test_a_duplicate_name_raises_with_both_sources(installed: Path, model: Path, tmp_path: Path) -> None:
    fake_dist(tmp_path / "site", "other-passes", {"merge-clips": "other_passes:X"}, "")
    site = join(installed, tmp_path / "site")
    code, _, said = graphkit("optimize", str(model), "--passes", "cleanup", site=site, cwd=model.parent)
    assert code == 2
    said = " ".join(said.split())
    assert "pass 'merge-clips' is offered twice: by " in said
    assert "graphkit-example-passes 1.0.0" in said
    assert "other-passes 0.1" in said


# -- files and modules ------------------------------------------------------------------------------------


def test_a_file_is_a_plugin(model: Path) -> None:
    arguments = ("--plugin", str(FILE), "--passes", "infer-shapes,plain-activations", "--verify", "each")
    code, data, _ = graphkit("optimize", str(model), *arguments, cwd=model.parent)
    assert code == 0
    assert data["passes"][1]["counters"] == {"plain-activation": 1}
    assert data["proof"]["kind"] == "equal"
    code, data, _ = graphkit("passes", "plain-activations", "--plugin", str(FILE))
    assert code == 0
    assert "Refuses where the element type is not known" in json.dumps(data)


def test_a_file_says_what_it_refuses(model: Path) -> None:
    arguments = ("--plugin", str(FILE), "--passes", "plain-activations")
    code, data, _ = graphkit("optimize", str(model), *arguments, cwd=model.parent)
    assert code == 0
    (refusal,) = data["passes"][0]["refusals"]
    assert refusal == {
        "rule": "plain-activation",
        "node": "d",
        "reason": "the element type of 'c' is not known",
    }


def test_a_module_is_a_plugin(model: Path, tmp_path: Path) -> None:
    shutil.copy(FILE, tmp_path / "some_module.py")
    arguments = ("--plugin", "some_module", "--passes", "infer-shapes,plain-activations")
    code, data, _ = graphkit("optimize", str(model), *arguments, site=tmp_path, cwd=model.parent)
    assert code == 0
    assert data["passes"][1]["status"] == "changed"


def test_a_file_that_fails(model: Path, tmp_path: Path) -> None:
    (tmp_path / "bad.py").write_text("1 / 0\n")
    code, _, said = graphkit("passes", "--plugin", str(tmp_path / "bad.py"))
    assert code == 2
    assert "ZeroDivisionError" in said


CRASH = '''
from dataclasses import dataclass
from typing import ClassVar

@dataclass(frozen=True)
class Crash:
    """Raises where it knows a rank."""
    name: ClassVar[str] = "crash"
    summary: ClassVar[str] = "raises"

    def run(self, graph):
        raise IndexError(f"rank {graph.rank('c')}")
'''


def test_a_file_that_crashes_leaves_a_folder_that_shows_it(model: Path, tmp_path: Path) -> None:
    plugin = tmp_path / "crash.py"
    plugin.write_text(CRASH)
    arguments = ("--plugin", str(plugin), "--passes", "infer-shapes,crash,cleanup", "-o", "out.onnx")
    code, _, said = graphkit("optimize", str(model), *arguments, cwd=tmp_path)
    assert code == 4
    assert "pass 'crash' raised IndexError: rank 2" in " ".join(said.split())
    assert not (tmp_path / "out.onnx").exists()
    (folder,) = tmp_path.glob("graphkit-crash-*")
    plugin.unlink()
    command = re.search(r"^    graphkit (optimize .*)$", (folder / "README.md").read_text(), re.MULTILINE)
    assert command is not None
    code, _, said = graphkit(*shlex.split(command[1]), cwd=folder)
    assert code == 4
    assert "pass 'crash' raised IndexError: rank 2" in " ".join(said.split())

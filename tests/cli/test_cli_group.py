"""The group: help, start-up, unknown names, exit codes, and what nobody foresaw."""

from __future__ import annotations

import errno
import json
import re
import resource
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from graphkit.cli._group import COMMANDS
from graphkit.version import __version__

HEAVY = ("onnx", "numpy", "onnxruntime", "MNN", "torch", "rich", "networkx", "importlib.metadata")
MAIN = "import sys; sys.argv = ['graphkit', *{args}]\nfrom graphkit.cli import main\n"


def modules_of(*args: str) -> set[str]:
    """Modules that a child has imported when the command ends."""
    code = MAIN.format(args=list(args)) + (
        "try:\n    main()\nexcept SystemExit as end:\n    assert not end.code, end.code\nprint('MODULES', *sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    return set(done.stdout.split("MODULES", 1)[1].split())


def cpu(*command: str) -> float:
    """User and system seconds of a child, the least of five runs."""
    times = []
    for _ in range(5):
        before = resource.getrusage(resource.RUSAGE_CHILDREN)
        subprocess.run([sys.executable, *command], stdout=subprocess.DEVNULL, check=True)
        after = resource.getrusage(resource.RUSAGE_CHILDREN)
        times.append(after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime)
    return min(times)


def test_help_imports_nothing_heavy() -> None:
    modules = modules_of("--help")
    assert modules.isdisjoint(HEAVY)
    assert not any(f"graphkit.cli.{name}" in modules for name in COMMANDS)


@pytest.mark.parametrize("args", [["--version"], ["optimize", "--help"], ["convert", "--help"]])
def test_other_help_imports_nothing_heavy(args: list[str]) -> None:
    assert modules_of(*args).isdisjoint(HEAVY)


def test_start_up_ratio_is_known(record_property: Any) -> None:
    bare, ours = cpu("-c", ""), cpu("-m", "graphkit", "--help")
    record_property("startup_ratio", round(ours / bare, 2))
    print(f"bare {bare * 1000:.0f} ms, graphkit --help {ours * 1000:.0f} ms, ratio {ours / bare:.1f}")
    assert bare > 0


@pytest.mark.parametrize("flag", ["-h", "--help"])
def test_help_lists_every_command(run: Any, flag: str) -> None:
    result = run(flag)
    assert result.exit_code == 0
    assert all(f"  {name} " in result.stdout for name in COMMANDS)


@pytest.mark.parametrize("name", COMMANDS)
def test_each_command_has_help_with_examples(run: Any, name: str) -> None:
    result = run(name, "-h")
    assert result.exit_code == 0
    assert "Examples:" in result.stdout
    assert "graphkit " + name in result.stdout.split("Examples:")[1]


def test_version(run: Any) -> None:
    assert run("--version").stdout == f"graphkit {__version__}\n"


def test_no_command_shows_help_and_is_bad_usage(run: Any) -> None:
    result = run()
    assert (result.exit_code, result.stdout) == (2, "")
    assert "Commands:" in result.stderr


def test_misspelt_command(run: Any) -> None:
    result = run("optimise", "m.onnx")
    assert (result.exit_code, result.stdout) == (2, "")
    assert result.stderr == "error: no such command 'optimise'; did you mean 'optimize'?\n"


def test_unlike_any_command(run: Any) -> None:
    result = run("zzz")
    assert result.exit_code == 2
    assert "help: the commands are optimize, convert" in result.stderr


def test_misspelt_option(run: Any) -> None:
    result = run("optimize", "two.onnx", "--pases", "cleanup")
    assert result.exit_code == 2
    assert result.stderr == (
        "error: no such option '--pases'; did you mean '--passes'?\nhelp: see `graphkit optimize --help`\n"
    )


@pytest.mark.parametrize(
    ("args", "message"),
    [
        (["optimize"], "missing argument 'MODEL'"),
        (["optimize", "two.onnx", "--seed", "many"], "'many' is not a valid integer"),
        (["optimize", "two.onnx", "--verify", "twice"], "'twice' is not one of"),
        (["optimize", "two.onnx", "--rtol", "-1"], "-1"),
        (["optimize", "two.onnx", "--rtol", "nan"], "nan is not a finite number"),
        (["optimize", "two.onnx", "--atol", "inf"], "inf is not a finite number"),
        (["optimize", "two.onnx", "--atol", "1e999"], "inf is not a finite number"),
        (["verify", "two.onnx", "two.onnx", "--min-cosine", "nan"], "nan is not a finite number"),
        (["verify", "two.onnx", "two.onnx", "--min-cosine", "-0.5"], "-0.5"),
        (["optimize", "two.onnx", "--seed", "-1"], "-1"),
        (["--nonsense"], "no such option '--nonsense'"),
        (["completion", "ksh"], "'ksh' is not one of"),
    ],
)
def test_bad_usage_in_our_words(run: Any, args: list[str], message: str) -> None:
    result = run(*args)
    first, *rest = result.stderr.splitlines()
    assert result.exit_code == 2
    assert first.startswith("error: ")
    assert message in first
    assert rest[-1].startswith("help: see `graphkit")


def test_flags_of_the_commands_before_the_command(run: Any) -> None:
    result = run("--json", "optimize", "two.onnx")
    assert result.exit_code == json.loads(result.stdout)["exit_code"] == 2
    assert "help: put --json after the command: graphkit COMMAND --json" in result.stderr


@pytest.mark.parametrize("args", [["-q", "-v"], ["-v", "-q"], ["-qvv"]])
def test_quiet_and_verbose_exclude_each_other(run: Any, args: list[str]) -> None:
    result = run("inspect", "two.onnx", *args)
    assert (result.exit_code, result.stderr) == (2, "error: -q and -v exclude each other\n")


def test_very_verbose_logs_steps_and_times(run: Any) -> None:
    result = run("inspect", "two.onnx", "-vv")
    assert result.exit_code == 0
    first, last = result.stderr.splitlines()
    assert first.endswith(" ms  reading two.onnx")
    assert re.search(r" ms  reading two.onnx: \d+\.\d\d s$", last)
    assert run("inspect", "two.onnx", "-v").stderr == ""


def test_out_of_memory_is_no_bug_of_ours(run: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(path: Path) -> dict[str, Any]:
        raise MemoryError("Unable to allocate 1 PiB")

    monkeypatch.setattr("graphkit.report.inspection.inspect", fail)
    result = run("inspect", "two.onnx")
    assert (result.exit_code, result.stderr) == (2, "error: out of memory: Unable to allocate 1 PiB\n")


def test_errors_are_json_too(run: Any) -> None:
    result = run("optimize", "none.onnx", "--json")
    data = json.loads(result.stdout)
    assert result.exit_code == data["exit_code"] == 2
    assert set(data) == {
        "command", "exit_code", "ok", "error", "hint", "faults", "file", "node", "tensor", "reproducer", "written",
    }  # fmt: skip
    assert (data["command"], data["ok"]) == ("optimize", False)
    assert data["error"] in result.stderr
    assert json.loads(run("optimize", "--json", "--nope").stdout)["exit_code"] == 2


def test_the_unforeseen_leaves_a_folder_and_no_traceback(run: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(path: Path) -> dict[str, Any]:
        raise ZeroDivisionError("nobody\nforesaw this")

    monkeypatch.setattr("graphkit.report.inspection.inspect", fail)
    result = run("inspect", "two.onnx")
    assert result.exit_code == 4
    assert "Traceback" not in result.stderr
    assert "ZeroDivisionError: nobody foresaw this" in result.stderr.splitlines()[0]
    (folder,) = Path().glob("graphkit-crash-*")
    assert str(folder) in result.stderr
    assert "Traceback" in (folder / "traceback.txt").read_text()
    assert "Traceback" in run("inspect", "two.onnx", "-v").stderr


def test_the_unforeseen_in_a_read_only_folder(run: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(path: Path) -> dict[str, Any]:
        raise ZeroDivisionError

    def refuse(**settings: Any) -> str:
        raise PermissionError(errno.EACCES, "Permission denied")

    monkeypatch.setattr("graphkit.report.inspection.inspect", fail)
    monkeypatch.setattr("tempfile.mkdtemp", refuse)
    result = run("inspect", "two.onnx")
    assert result.exit_code == 4
    assert "help: run it again with -v" in result.stderr


def test_a_full_disk_is_no_bug_of_ours(run: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(path: Path) -> dict[str, Any]:
        raise OSError(errno.ENOSPC, "No space left on device", "somewhere")

    monkeypatch.setattr("graphkit.report.inspection.inspect", fail)
    result = run("inspect", "two.onnx")
    assert (result.exit_code, result.stderr) == (2, "error: No space left on device: somewhere\n")


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_completion_scripts(run: Any, shell: str) -> None:
    result = run("completion", shell)
    assert result.exit_code == 0
    assert "_GRAPHKIT_COMPLETE" in result.stdout


def test_a_reader_that_goes_away_is_no_error(folder: Path) -> None:
    command = f"{sys.executable} -m graphkit passes | head -1; echo ${{PIPESTATUS[0]}}"
    done = subprocess.run(["bash", "-c", command], capture_output=True, text=True, check=True)
    assert done.stderr == ""
    assert done.stdout.splitlines()[-1] in ("141", "0")  # 0 when all was written before head went away


@pytest.mark.parametrize("columns", ["20", "40", "60", "80"])
@pytest.mark.parametrize(
    "args",
    [
        ["verify", "two.onnx", "two.onnx"],
        ["inspect", "chain.onnx"],
        ["passes"],
        ["passes", "fold-constants"],
        ["optimize", "chain.onnx", "--passes", "cleanup", "--verify", "each"],
    ],
)
def test_narrow_terminals_break_no_words(
    columns: str, args: list[str], run: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", columns)
    result = run(*args)
    assert result.exit_code == 0
    whole = {"verify": "equal", "inspect": "Identity", "passes": "fold-constants", "optimize": "cleanup"}
    assert whole[args[0]] in result.stdout.split()


@pytest.mark.parametrize("args", [["inspect", "two.onnx"], ["passes"], ["verify", "two.onnx", "two.onnx"]])
def test_every_json_object_names_its_command_and_outcome(run: Any, args: list[str]) -> None:
    data = json.loads(run(*args, "--json").stdout)
    assert (data["command"], data["exit_code"], data["ok"]) == (args[0], 0, True)

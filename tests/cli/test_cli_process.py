"""Closed and broken standard streams, and signals: one line, the right exit code, no traceback."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

COMMAND = f"{sys.executable} -m graphkit"
OPTIMIZE = "optimize two.onnx --passes cleanup -o h.onnx"


def shell(line: str) -> subprocess.CompletedProcess[str]:
    """Run a command line of graphkit's with the shell's redirections."""
    return subprocess.run(["bash", "-c", f"{COMMAND} {line}"], capture_output=True, text=True, check=False)


def names() -> set[str]:
    """What is in the current folder, but for what Python leaves there."""
    return {path.name for path in Path().iterdir()} - {"__pycache__"}


def residue() -> list[str]:
    """What a run must not leave."""
    return [path.name for path in Path().iterdir() if "crash" in path.name or path.suffix == ".part"]


@pytest.mark.parametrize("flags", ["", "--json -q", "--json"])
def test_a_full_stdout(folder: Path, flags: str) -> None:
    done = shell(f"{OPTIMIZE} {flags} >/dev/full")
    assert done.returncode == 2
    message = "error: standard output cannot be written: No space left on device; h.onnx was written before"
    assert done.stderr.splitlines()[-1] == message
    assert "Traceback" not in done.stderr
    assert Path("h.onnx").is_file()
    assert not residue()


def test_help_on_a_full_stdout(folder: Path) -> None:
    done = shell("--help >/dev/full")
    assert done.returncode == 2
    assert done.stderr.startswith("error: ")
    assert len(done.stderr.splitlines()) == 1


@pytest.mark.parametrize("line", ["inspect two.onnx", "inspect two.onnx --json", OPTIMIZE, "--help"])
@pytest.mark.parametrize("streams", [">&-", "<&- >&-", "2>&-", "<&- >&- 2>&-", "2>/dev/full"])
def test_closed_streams_do_not_matter(folder: Path, line: str, streams: str) -> None:
    done = shell(f"{line} {streams}")
    assert done.returncode == 0
    if "--json" not in line:  # with it, people's text goes to stderr
        assert done.stderr == ""
    assert not residue()


@pytest.mark.parametrize("streams", ["2>&-", ">&- 2>&-", "2>/dev/full"])
def test_exit_codes_do_not_depend_on_stderr(folder: Path, streams: str) -> None:
    assert shell(f"inspect none.onnx {streams}").returncode == 2
    assert shell(f"inspect none.onnx --json {streams}").returncode == 2
    assert shell(f"verify two.onnx sub.onnx {streams}").returncode == 1
    assert shell(f"optimize two.onnx --pases x {streams}").returncode == 2
    assert not residue()


ENDS = [(signal.SIGINT, 130, "interrupted"), (signal.SIGTERM, 143, "terminated"), (signal.SIGHUP, 129, "hung up")]


@pytest.mark.parametrize("json_flag", [[], ["--json"]])
@pytest.mark.parametrize(("number", "code", "word"), ENDS)
def test_signals_while_a_pass_runs(folder: Path, number: int, code: int, word: str, json_flag: list[str]) -> None:
    before = names()
    command = [*COMMAND.split(), "convert", "two.onnx", "--plugin", "plugin.py", "--passes", "slow", *json_flag]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        assert process.stderr is not None
        assert process.stdout is not None
        for line in process.stderr:
            if line == "sleeping\n":
                break
        process.send_signal(number)
        assert process.stderr.read() == f"{word}; nothing was written\n"
        out = process.stdout.read()
    assert process.returncode == code
    if json_flag:
        data = json.loads(out)
        assert (data["command"], data["ok"], data["exit_code"]) == ("convert", False, code)
    else:
        assert out == ""
    assert names() == before


EARLY = """
import os, signal, sys, threading, time
sys.argv = ["graphkit", "inspect", "two.onnx"]
class Finder:
    def find_spec(self, name, path=None, target=None):
        if name == "{module}":
            os.kill(os.getpid(), signal.{name})
            time.sleep(5)
sys.meta_path.insert(0, Finder())
from graphkit.cli import main
main()
"""


@pytest.mark.parametrize(("number", "code", "word"), ENDS)
@pytest.mark.parametrize("module", ["click", "graphkit.report.console", "numpy"])
def test_signals_while_we_start(folder: Path, module: str, number: int, code: int, word: str) -> None:
    script = EARLY.format(module=module, name=signal.Signals(number).name)
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (code, f"{word}; nothing was written\n")


STUBBORN = """
import os, signal
try:
    os.kill(os.getpid(), signal.SIGINT)
    sum(range(10000))
except BaseException as error:
    raise ImportError("initialization failed") from error
"""


def test_a_signal_is_not_lost_in_an_import(folder: Path) -> None:
    plugin = Path("plugin.py")
    plugin.write_text(plugin.read_text() + STUBBORN)
    start = time.monotonic()
    done = shell("optimize two.onnx --plugin plugin.py --passes slow")
    assert (done.returncode, done.stderr.splitlines()[-1]) == (130, "interrupted; nothing was written")
    assert time.monotonic() - start < 20


NOHUP = """
import os, signal
signal.signal(signal.SIGHUP, signal.SIG_IGN)
from graphkit.cli import _process
_process.settle()
_process.arm()
os.kill(os.getpid(), signal.SIGHUP)
print("alive")
"""


def test_nohup_is_respected() -> None:
    done = subprocess.run([sys.executable, "-c", NOHUP], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout) == (0, "alive\n")


def test_a_plugin_that_exits_is_no_signal(run: Any) -> None:
    Path("quits.py").write_text("raise SystemExit(3)")
    result = run("optimize", "two.onnx", "--plugin", "quits.py")
    assert result.exit_code == 2
    assert "SystemExit" in result.stderr

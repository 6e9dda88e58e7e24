"""The child process: killed on time-outs and interrupts, its end and its log reported."""

from __future__ import annotations

import os
import time
from pathlib import Path

import pytest

from graphkit.mnn import process


def script(folder: Path, monkeypatch: pytest.MonkeyPatch, text: str) -> None:
    """Let the child run `text` in place of its real task."""
    path = folder / "child.py"
    path.write_text(text)
    monkeypatch.setattr(process, "CHILD", path)


def alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True


SLEEP = "import os, time, pathlib\npathlib.Path('pid').write_text(str(os.getpid()))\ntime.sleep(60)"


def test_output_and_result_come_back(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    script(
        tmp_path,
        monkeypatch,
        "import sys, json, pathlib\n"
        "task = json.loads(pathlib.Path(sys.argv[1]).read_text())['task']\n"
        "pathlib.Path('result.json').write_text(json.dumps({'did': task}))\n"
        "print('one', flush=True); print('two', file=sys.stderr)",
    )
    ending = process.run_child({"task": "t"}, tmp_path, 30)
    assert (ending.code, ending.signal, ending.timed_out) == (0, None, False)
    assert ending.log.split() == ["one", "two"]
    assert ending.result == {"did": "t"}


def test_signals_are_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    script(tmp_path, monkeypatch, "import os, signal; os.kill(os.getpid(), signal.SIGABRT)")
    ending = process.run_child({}, tmp_path, 30)
    assert (ending.code, ending.signal, ending.result) == (None, "SIGABRT", {})


def test_a_hanging_child_is_killed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    script(tmp_path, monkeypatch, SLEEP)
    start = time.perf_counter()
    ending = process.run_child({}, tmp_path, 1.0)
    assert ending.timed_out
    assert ending.signal is None
    assert time.perf_counter() - start < 20
    assert not alive(int((tmp_path / "pid").read_text()))


def test_an_interrupt_kills_the_child(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    script(tmp_path, monkeypatch, SLEEP)
    pid = tmp_path / "pid"

    def interrupted(*_: object) -> bool:
        while not pid.exists() or not pid.read_text():
            time.sleep(0.01)
        raise KeyboardInterrupt

    monkeypatch.setattr(process, "_wait", interrupted)
    with pytest.raises(KeyboardInterrupt):
        process.run_child({}, tmp_path, 30)
    assert not alive(int(pid.read_text()))


def test_damaged_results_and_binary_logs_do_no_harm(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    script(
        tmp_path,
        monkeypatch,
        "import sys, pathlib\npathlib.Path('result.json').write_text('[1')\nsys.stdout.buffer.write(b'\\xff!')",
    )
    ending = process.run_child({}, tmp_path, 30)
    assert ending.result == {}
    assert ending.log == "\ufffd!"


def test_long_logs_keep_both_ends() -> None:
    log = "".join(f"line {k}\n" for k in range(5000))
    short = process.shorten(log, 400)
    assert short.startswith("line 0\n")
    assert short.endswith("line 4999\n")
    assert "characters left out" in short
    assert len(short) < 500
    assert process.shorten("short") == "short"

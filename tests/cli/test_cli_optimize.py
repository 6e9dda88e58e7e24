"""`graphkit optimize`: what it writes, what it refuses, what it says."""

from __future__ import annotations

import dataclasses
import errno
import importlib
import json
import os
import pty
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest

from graphkit.compare import Tolerance
from graphkit.model import Model
from graphkit.optimizer import OptimizeResult
from graphkit.testing import parse

PLUGIN = ("--plugin", "plugin.py")


def files() -> set[str]:
    return {path.name for path in Path().iterdir()}


def test_writes_beside_the_model_and_tells(run: Any) -> None:
    result = run("optimize", "chain.onnx", "--passes", "cleanup")
    assert (result.exit_code, result.stderr) == (0, "")
    lines = result.stdout.splitlines()
    assert lines[0].startswith("chain.onnx  opset 18  4 nodes  ")
    assert lines[0].endswith("inputs x[batch,4]")
    assert lines[2].split()[:5] == ["cleanup", "2", "4", "→", "2"]
    assert lines[-1].startswith("wrote chain.opt.onnx  2 nodes  ")
    assert "outputs equal at [1,4] and [2,4] (max error 0 of " in lines[-1]
    assert [node.op_type for node in onnx.load("chain.opt.onnx").graph.node] == ["Mul", "Relu"]


def test_output_in_the_models_folder(run: Any, folder: Path) -> None:
    (folder / "deep").mkdir()
    (folder / "two.onnx").rename(folder / "deep" / "two.onnx")
    assert run("optimize", "deep/two.onnx", "--passes", "cleanup").exit_code == 0
    assert (folder / "deep" / "two.opt.onnx").is_file()


def test_several_idle_passes_are_one_line(run: Any) -> None:
    args = ("optimize", "two.onnx", "--passes", "cleanup,fuse-gelu")
    assert "nothing to do: cleanup, fuse-gelu" in run(*args).stdout
    assert run(*args, "-v").stdout.count("–  nothing to do") == 2


def test_quiet_prints_nothing(run: Any) -> None:
    result = run("optimize", "two.onnx", "--passes", "cleanup", "-q")
    assert (result.exit_code, result.output) == (0, "")


def test_json_is_alone_on_stdout(run: Any) -> None:
    result = run("optimize", "chain.onnx", "--passes", "cleanup", "--json", "--report", "r.json")
    data = json.loads(result.stdout)
    assert set(data) == {
        "command", "model", "output", "bytes", "exit_code", "ok",
        "pipeline", "nodes", "rewrites", "passes", "proof",
    }  # fmt: skip
    assert (data["output"], data["exit_code"], data["ok"]) == ("chain.opt.onnx", 0, True)
    assert data["bytes"] == Path("chain.opt.onnx").stat().st_size
    assert data["proof"]["kind"] == "equal"
    assert "wrote chain.opt.onnx" in result.stderr
    assert json.loads(Path("r.json").read_text()) == data


def test_noise_of_a_plugin_stays_off_stdout(child: Any) -> None:
    done = child("optimize", "two.onnx", *PLUGIN, "--passes", "break-add", "--json")
    assert json.loads(done.stdout)["exit_code"] == done.returncode == 1
    assert "noise from C" in done.stderr
    assert "noise at import" in done.stderr


def test_a_pass_that_breaks_the_numbers_is_named(run: Any) -> None:
    result = run("optimize", "two.onnx", *PLUGIN, "--passes", "break-add", "--verify", "each")
    assert result.exit_code == 1
    assert "rolled back" in result.stdout
    assert "error: rolled back 'break-add': output 'y': error" in result.stderr
    assert "wrote two.opt.onnx" in result.stdout
    assert [node.op_type for node in onnx.load("two.opt.onnx").graph.node] == ["Add"]


def test_stop_on_mismatch(run: Any) -> None:
    result = run(
        "optimize", "two.onnx", *PLUGIN, "--passes", "break-add,fussy",
        "--verify", "each", "--on-mismatch", "stop",
    )  # fmt: skip
    assert result.exit_code == 1
    assert "fussy" not in result.stdout


def test_different_outputs_are_not_written(run: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    # Rollback makes this impossible from outside, so the proof is exchanged for that of another model.
    module = importlib.import_module("graphkit.optimizer")
    real = module.optimize

    def wrong(*args: Any, **settings: Any) -> OptimizeResult:
        result: OptimizeResult = real(*args, **settings)
        assert result.evidence is not None
        proof = result.evidence.judge_model(Model.load("sub.onnx"), Tolerance())
        return dataclasses.replace(result, proof=proof)

    monkeypatch.setattr(module, "optimize", wrong)
    result = run("optimize", "two.onnx", "--passes", "cleanup")
    assert result.exit_code == 1
    assert "nothing was written" in result.stderr
    assert "wrote" not in result.stdout
    assert not Path("two.opt.onnx").exists()


def test_what_cannot_be_verified_is_said(run: Any) -> None:
    result = run("optimize", "random.onnx", "--passes", "cleanup")
    assert result.exit_code == 0
    assert "not verified: the reference differs from itself" in result.stdout
    assert (
        "not verified: not asked for" in run("optimize", "two.onnx", "--passes", "cleanup", "--verify", "none").stdout
    )


def test_notes_and_near_misses(run: Any) -> None:
    args = ("optimize", "two.onnx", *PLUGIN, "--passes", "fussy")
    result = run(*args)
    assert "note: fussy: nothing was good enough \\x1b[31m" in result.stdout
    assert "5 near misses (-v shows all):" in result.stdout
    assert "fussy refused node 'node0' and 4 like it: 'a0' is not to my taste" in result.stdout
    assert result.stdout.count("refused node") == 1
    assert run(*args, "-v").stdout.count("refused node") == 5


def test_a_pass_that_raises_leaves_a_reproducer(run: Any) -> None:
    result = run("optimize", "two.onnx", *PLUGIN, "--passes", "boom", "--json")
    data = json.loads(result.stdout)
    assert result.exit_code == data["exit_code"] == 4
    assert "error: pass 'boom' raised ValueError: boom" in result.stderr
    assert (Path(data["reproducer"]) / "model.onnx").is_file()
    assert not Path("two.opt.onnx").exists()


def test_print_after(run: Any) -> None:
    result = run("optimize", "chain.onnx", "--passes", "cleanup", "--print-after", "cleanup", "-q")
    assert result.exit_code == 0
    assert "-- after cleanup --" in result.stderr
    assert "Mul" in result.stderr
    assert "Identity" not in result.stderr


def test_print_after_leaves_large_values_out(run: Any) -> None:
    weights = ", ".join(map(str, range(17)))
    text = f"g (float[17] x) => (float[17] y) <float[17] w = {{{weights}}}> {{ a = Mul(x, w) y = Add(a, w) }}"
    parse(text).save("many.onnx")
    result = run("optimize", "many.onnx", "--passes", "cleanup", "--print-after", "cleanup", "-q")
    assert "float[17] w = {…}" in result.stderr
    few = run("optimize", "chain.onnx", "--passes", "cleanup", "--print-after", "cleanup", "-q")
    assert "{1,2,3,4}" in few.stderr
    assert onnx.load("many.opt.onnx").graph.initializer[0].dims == [17]


def test_print_after_a_pass_that_does_not_run(run: Any) -> None:
    result = run("optimize", "two.onnx", "--passes", "cleanup", "--print-after", "cleenup")
    assert result.exit_code == 2
    assert "'cleenup' is not in the pipeline; did you mean 'cleanup'?" in result.stderr


def test_stop_after(run: Any) -> None:
    result = run("optimize", "chain.onnx", "--passes", "cleanup", "--stop-after", "1")
    assert result.exit_code == 0
    assert "stopped after 1 rewrite, as asked for" in result.stdout
    assert len(onnx.load("chain.opt.onnx").graph.node) == 3


def test_misspelt_pass_has_a_caret(run: Any) -> None:
    result = run("optimize", "two.onnx", "--passes", "fuse-gleu,cleanup")
    assert result.exit_code == 2
    assert result.stderr.splitlines()[:3] == [
        "error: unknown pass 'fuse-gleu'; did you mean 'fuse-gelu'?",
        "  fuse-gleu,cleanup",
        "  ^~~~~~~~~",
    ]


def test_passes_and_for_exclude_each_other(run: Any) -> None:
    result = run("optimize", "two.onnx", "--passes", "cleanup", "--for", "mnn")
    assert result.exit_code == 2
    assert "--passes and --for exclude each other" in result.stderr


def test_inputs_of_the_user(run: Any) -> None:
    np.savez("s.npz", x=np.ones((2, 3), np.float32), x2=np.ones((2, 3), np.float32))
    result = run("optimize", "two.onnx", "--passes", "cleanup", "--inputs", "s.npz")
    assert result.exit_code == 0
    assert "of 2)" in result.stdout
    np.savez("bad.npz", z=np.ones(3))
    result = run("optimize", "two.onnx", "--passes", "cleanup", "--inputs", "bad.npz")
    assert result.exit_code == 2
    assert "no input 'z'" in result.stderr
    assert "x: float32[2,3]" in result.stderr


def test_tolerance(run: Any) -> None:
    args = ("optimize", "two.onnx", *PLUGIN, "--passes", "break-add", "--verify", "each", "--rtol", "1000")
    assert run(*args).exit_code == 0


def test_stale_external_data_go_with_the_model_that_referred_to_them(run: Any) -> None:
    args = ("optimize", "chain.onnx", "--passes", "cleanup", "-o", "z.onnx", "-q")
    proto = parse("g (float[2048] x, float[2048] w) => (float[2048] y) { y = Add(x, w) }").proto
    proto.graph.initializer.append(onnx.numpy_helper.from_array(np.ones(2048, np.float32), "w"))
    Model.from_proto(proto).save("z.onnx", external=True)
    assert run(*args, "--external-data").exit_code == 0
    assert Path("z.onnx.data").is_file()
    Model.from_proto(proto).save("z.onnx", external=True)
    assert run(*args, "--no-external-data").exit_code == 0
    assert not Path("z.onnx.data").exists()
    Path("z.onnx.data").write_bytes(b"of somebody else")
    assert run(*args, "--no-external-data").exit_code == 0
    assert Path("z.onnx.data").read_bytes() == b"of somebody else"
    Path("z.onnx").write_bytes(b"no model")
    assert run(*args).exit_code == 0
    assert Path("z.onnx.data").is_file()


def test_external_data(run: Any) -> None:
    assert run("optimize", "chain.onnx", "--passes", "cleanup", "--external-data").exit_code == 0
    assert Path("chain.opt.onnx.data").is_file()


@pytest.mark.parametrize(
    ("args", "message"),
    [
        (["none.onnx"], "none.onnx: cannot be opened: No such file"),
        (["."], "is a directory, not a model file"),
        (["empty.onnx"], "empty.onnx: is empty"),
        (["plugin.py"], "plugin.py: is not an ONNX model"),
        (["two.onnx", "-o", "no/such/folder/m.onnx"], "its folder does not exist"),
        (["two.onnx", "-o", "."], "is a directory; name a file"),
        (["two.onnx", "-o", "two.onnx"], "would overwrite an input"),
        (["two.onnx", "-o", "two.mnn"], "optimize writes ONNX"),
        (["two.onnx", "-o", "weird.MNN"], "optimize writes ONNX"),
        (["two.onnx", "--passes", ""], "--passes is empty"),
        (["two.onnx", "--external-data", "--no-external-data"], "exclude each other"),
        (["two.onnx", "--plugin", "README.md"], "a plugin is a .py file or a module name"),
        (["two.onnx", "--plugin", "some/folder"], "a plugin is a .py file or a module name"),
        (["two.onnx", "--passes", "default,-fuse-glu"], "did you mean 'fuse-gelu'?"),
        (["two.onnx", "--bind", "x[0]=²"], "N from 1 to 2147483647"),
        (["two.onnx", "--bind", "x[0]=" + "9" * 5000], "N from 1 to 2147483647"),
        (["two.onnx", "--input-shape", "x:9223372036854775808,2048"], "a size goes from 1 to 2147483647"),
        (["two.onnx", "--input-shape", "x:2,0"], "a size goes from 1 to 2147483647, not 0"),
        (["two.onnx", "-o", "/proc/m.onnx", "--passes", "cleanup"], "/proc/m.onnx: cannot be written"),
        (["two.onnx", "--report", "two.onnx"], "would overwrite an input"),
        (["two.onnx", "--plugin", "none.py"], "plugin 'none.py' cannot be loaded"),
        (["two.onnx", "--inputs", "none.npz", "--passes", "cleanup"], "none.npz: is not there"),
        (["two.onnx", "--bind", "batch"], "--bind takes DIM=N"),
        (["two.onnx", "--bind", "batch=0"], "--bind takes DIM=N"),
        (["two.onnx", "--bind", "b=1", "--bind", "b=2"], "'b' is bound twice"),
        (["two.onnx", "--input-shape", "1,2"], "the inputs are 'x', 'x2'"),
        (["two.onnx", "--input-shape", "x:big"], "'x:big' is not a shape"),
    ],
)
def test_bad_arguments(run: Any, args: list[str], message: str) -> None:
    Path("empty.onnx").touch()
    Path("README.md").touch()
    before = files()
    result = run("optimize", *args)
    assert (result.exit_code, result.stdout) == (2, "")
    assert result.stderr.startswith("error: ")
    assert message in result.stderr
    assert files() == before


def test_a_full_disk_leaves_nothing_behind(run: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*args: Any) -> int:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr("graphkit._write._write_pieces", full)
    before = files()
    result = run("optimize", "two.onnx", "--passes", "cleanup")
    assert result.exit_code == 2
    assert "no space left on the disk" in result.stderr
    assert files() == before


@pytest.mark.parametrize("json_flag", [[], ["--json"]])
def test_ctrl_c(folder: Path, json_flag: list[str]) -> None:
    before = files()
    command = [sys.executable, "-m", "graphkit", "optimize", "two.onnx", *PLUGIN, "--passes", "slow"]
    with subprocess.Popen([*command, *json_flag], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        assert process.stderr is not None
        assert process.stdout is not None
        for line in process.stderr:
            if line == "sleeping\n":
                break
        process.send_signal(signal.SIGINT)
        assert process.stderr.read() == "interrupted; nothing was written\n"
        out = process.stdout.read()
    assert process.returncode == 130
    assert json.loads(out)["exit_code"] == 130 if json_flag else out == ""
    assert files() - {"__pycache__"} == before


def test_terminal_shows_progress_and_colour(folder: Path) -> None:
    pid, terminal = pty.fork()
    if pid == 0:  # the child: its stdin, stdout and stderr are the terminal
        os.environ.update(TERM="xterm", NO_COLOR="")
        args = ["optimize", "two.onnx", *PLUGIN, "--passes", "break-add,slow", "--verify", "none"]
        os.execv(sys.executable, [sys.executable, "-m", "graphkit", *args])
    seen = b""
    deadline = time.monotonic() + 30
    while b"break-add done" not in seen and time.monotonic() < deadline:
        seen += os.read(terminal, 1024)
    os.kill(pid, signal.SIGINT)
    _, status = os.waitpid(pid, 0)
    os.close(terminal)
    assert b"optimizing  break-add done, 1 node" in seen
    assert os.waitstatus_to_exitcode(status) == 130


def test_old_data_that_are_an_input_stay(run: Any, folder: Path) -> None:
    proto = parse("g (float[2048] x, float[2048] w) => (float[2048] y) { y = Add(x, w) }").proto
    proto.graph.initializer.append(onnx.numpy_helper.from_array(np.ones(2048, np.float32), "w"))
    Model.from_proto(proto).save("z.onnx", external=True)
    (folder / "m.onnx").write_bytes((folder / "z.onnx").read_bytes().replace(b"z.onnx.data", b"././//z.dat"))
    (folder / "z.dat").symlink_to("z.onnx.data")
    assert run("optimize", "m.onnx", "-o", "z.onnx", "--no-external-data", "-q").exit_code == 0
    assert (folder / "z.onnx.data").is_file()

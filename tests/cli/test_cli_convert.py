"""`graphkit convert`, `verify`, `inspect` and `passes`."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest

from graphkit.mnn.options import OPTIONS


def converted(run: Any, name: str = "two") -> str:
    """Convert a model and return the output's name."""
    assert run("convert", f"{name}.onnx", "--passes", "cleanup", "-q").exit_code == 0
    return f"{name}.mnn"


def test_convert_proves(run: Any) -> None:
    result = run("convert", "chain.onnx", "--passes", "cleanup", "-o", "c.mnn", "--report", "r.json")
    assert (result.exit_code, result.stderr) == (0, "")
    lines = result.stdout.splitlines()
    assert lines[2].split()[0] == "cleanup"
    assert lines[-2].startswith("wrote c.mnn  ")
    assert " MNN ops  " in lines[-2]
    assert lines[-1].startswith("proof: outputs equal at [1,4] and [2,4]")
    assert Path("c.mnn").is_file()
    assert json.loads(Path("r.json").read_text())["proof"]["kind"] == "equal"


def test_convert_json(run: Any) -> None:
    result = run("convert", "two.onnx", "--no-optimize", "--json")
    data = json.loads(result.stdout)
    assert (data["command"], data["exit_code"], data["ok"], data["optimize"]) == ("convert", 0, True, None)
    assert data["output"] == "two.mnn"
    assert {"ops", "bytes", "seconds", "warnings", "proof", "model"} <= set(data)


def test_refused_nodes_are_named(child: Any) -> None:
    done = child("convert", "flash.onnx", "--no-optimize", "--json")
    assert done.returncode == 3
    data = json.loads(done.stdout)
    assert [(fault["node"], fault["op"]) for fault in data["faults"]] == [
        ("a", "flash.attn::FlashAttention"),
        ("b", "flash.attn::FlashAttention"),
    ]
    lines = done.stderr.splitlines()
    assert lines[0].startswith("error: ")
    assert lines[1].startswith("  'a' (flash.attn::FlashAttention)  no such operator")
    assert lines[-1].startswith("help: run without --no-optimize")
    assert not Path("flash.mnn").exists()


def test_verbose_shows_mnns_log(run: Any) -> None:
    assert "MNN's log:" in run("convert", "flash.onnx", "--no-optimize", "-v").stderr


def test_converter_options_go_through(run: Any) -> None:
    result = run("convert", "two.onnx", "--passes", "cleanup", "--fp16", "--keepInputFormat", "1", "-q")
    assert (result.exit_code, result.output) == (0, "")


def test_every_converter_option_is_in_the_help(run: Any) -> None:
    text = run("convert", "--help").stdout
    section = text.split("MNNConvert's options:")[1].split("Options:")[0]
    assert all(f"--{name}" in section for name in OPTIONS)


@pytest.mark.parametrize(
    ("args", "message"),
    [
        (["two.onnx", "--weightQuantBits", "9"], "--weightQuantBits 9 is out of range"),
        (["two.onnx", "--weightQuantBit", "4"], "did you mean '--weightQuantBits'?"),
        (["two.onnx", "--weightQuantBlock", "32"], "does nothing without --weightQuantBits"),
        (["two.onnx", "--keepInputFormat", "2"], "--keepInputFormat is 0 or 1"),
        (["two.onnx", "--no-optimize", "--passes", "cleanup"], "exclude each other"),
        (["plugin.py"], "cannot tell the framework"),
        (["none.tflite"], "none.tflite: is not there"),
        (["net.tflite", "--passes", "cleanup"], "--passes works for ONNX models"),
        (["net.tflite", "--framework", "torch"], "'torch' is not one of"),
        (["none.onnx"], "none.onnx: cannot be opened"),
        (["two.onnx", "-o", "foo.onnx"], "convert writes MNN, and 'foo.onnx' is not named so"),
        (["two.onnx", "-o", "plugin.py", "--plugin", "plugin.py"], "plugin.py: would overwrite an input"),
        (["two.onnx", "--timeout", "inf"], "is not a finite number"),
        (["two.onnx", "--batch", "inf"], "--batch takes a whole number"),
        (["two.onnx", "--batch", "2147483648"], "--batch 2147483648 is out of range"),
        (["two.onnx", "--passes", " "], "--passes is empty"),
        (["text.mnn", "-o", "z.mnn"], "text.mnn: is not an MNN model"),
        (["two.onnx", "--framework", "TFLITE", "-o", "z.mnn"], "is not a TFLite model"),
        (["two.onnx", "-o", "no/where.mnn"], "its folder does not exist"),
        (["two.onnx", "--print-after", "cleenup", "--passes", "cleanup"], "did you mean 'cleanup'?"),
    ],
)
def test_bad_arguments(run: Any, args: list[str], message: str) -> None:
    Path("text.mnn").write_text("no model at all")
    result = run("convert", *args)
    assert (result.exit_code, result.stdout) == (2, "")
    assert message in result.stderr


def test_not_asked_to_verify(run: Any) -> None:
    result = run("convert", "two.onnx", "--passes", "cleanup", "--no-verify")
    assert result.exit_code == 0
    assert "not verified: not asked for" in result.stdout


def test_an_mnn_file_is_a_source_too(run: Any) -> None:
    result = run("convert", converted(run), "-o", "again.mnn")
    assert result.exit_code == 0
    assert "not verified: there is no reference for MNN models" in result.stdout


def test_a_rolled_back_pass_is_exit_code_1(run: Any) -> None:
    result = run("convert", "two.onnx", "--plugin", "plugin.py", "--passes", "break-add")
    assert result.exit_code == 1
    assert "error: rolled back 'break-add'" in result.stderr
    assert Path("two.mnn").is_file()


def test_terminating_leaves_nothing(folder: Path) -> None:
    command = [sys.executable, "-m", "graphkit", "convert", "two.onnx", "--plugin", "plugin.py"]
    with subprocess.Popen([*command, "--passes", "slow"], stderr=subprocess.PIPE, text=True) as process:
        assert process.stderr is not None
        for line in process.stderr:
            if line == "sleeping\n":
                break
        started = time.monotonic()
        process.terminate()
        process.wait()
        assert process.stderr.read() == "terminated; nothing was written\n"
    assert process.returncode == 143
    assert time.monotonic() - started < 20
    assert not Path("two.mnn").exists()


def test_verify_equal(run: Any) -> None:
    result = run("verify", "two.onnx", converted(run), "--min-cosine", "0.99")
    assert (result.exit_code, result.stderr) == (0, "")
    lines = result.stdout.splitlines()
    titles = "inputs  samples  output  shape  relative error  rel L2  cosine  verdict"
    assert lines[0].split() == titles.split()
    assert [lines[1].split()[k] for k in (0, 2, 3)] == ["[2,3]", "y", "[2,3]"]
    assert lines[1].endswith("equal")
    assert lines[-1].endswith("tolerance 0.001 of the largest value, cosine 0.99")


def test_verify_different(run: Any) -> None:
    result = run("verify", "two.onnx", "sub.onnx", "--json")
    data = json.loads(result.stdout)
    assert result.exit_code == data["exit_code"] == 1
    assert (data["ok"], data["kind"]) == (False, "different")
    assert "error: the outputs differ: output 'y': error" in result.stderr


def test_verify_nothing_comparable(run: Any) -> None:
    result = run("verify", "random.onnx", "random.onnx")
    assert result.exit_code == 1
    assert "error: nothing could be compared: the reference differs from itself" in result.stderr


def test_verify_mnn_with_inputs_and_memory(run: Any) -> None:
    name = converted(run)
    assert run("verify", name, name).exit_code == 2
    np.savez("s.npz", x=np.ones((2, 3), np.float32), x2=np.ones((2, 3), np.float32))
    assert run("verify", name, name, "--inputs", "s.npz", "--memory", "low").exit_code == 0


def test_verify_a_file_that_mnn_cannot_run(run: Any) -> None:
    Path("bad.mnn").write_bytes(b"\0" * 64)
    result = run("verify", "two.onnx", "bad.mnn")
    assert result.exit_code == 2
    assert "bad.mnn: is not an MNN model" in result.stderr


def test_verify_candidate_without_the_operators(run: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    assert run("convert", "flash.onnx", "--no-optimize", "--allowCustomOp", "--no-verify", "-q").exit_code in (0, 3)
    name = converted(run)
    from graphkit.mnn import worker

    def crash(*args: Any, **settings: Any) -> None:
        raise worker.RunError("MNN crashed running the model (SIGSEGV)", file=name, signal="SIGSEGV")

    monkeypatch.setattr(worker, "run_all", crash)
    result = run("verify", "two.onnx", name)
    assert result.exit_code == 3
    assert result.stderr == "error: two.mnn: MNN crashed running the model (SIGSEGV)\n"


def test_inspect_onnx(run: Any) -> None:
    result = run("inspect", "chain.onnx")
    assert result.exit_code == 0
    assert result.stdout.startswith("chain.onnx  ONNX IR 8  opset 18  4 nodes  ")
    data = json.loads(run("inspect", "chain.onnx", "--json").stdout)
    assert data["inputs"] == [{"name": "x", "dtype": "float", "shape": ["batch", 4]}]
    assert data["ops"] == {"Identity": 2, "Mul": 1, "Relu": 1}
    assert data["weights"]["by_dtype"] == {"float": {"tensors": 1, "bytes": 16}}
    assert data["weights"]["by_operator"] == {"Mul": {"tensors": 1, "bytes": 16}}


def test_inspect_external_data(run: Any) -> None:
    run("optimize", "chain.onnx", "--passes", "cleanup", "--external-data", "-q")
    data = json.loads(run("inspect", "chain.opt.onnx", "--json").stdout)
    assert data["format"] == "onnx"
    assert [item["file"] for item in data["external"]] in ([], ["chain.opt.onnx.data"])


def test_inspect_names_external_data_as_the_model_does(run: Any, folder: Path) -> None:
    (folder / "deep" / "sub").mkdir(parents=True)
    proto = onnx.load("chain.onnx")
    weight = proto.graph.initializer.add(name="big", data_type=1, dims=[4])
    weight.data_location = weight.EXTERNAL
    weight.external_data.add(key="location", value="sub/d.bin")
    (folder / "deep" / "sub" / "d.bin").write_bytes(bytes(16))
    (folder / "deep" / "m.onnx").write_bytes(proto.SerializeToString())
    data = json.loads(run("inspect", "deep/m.onnx", "--json").stdout)
    assert data["external"] == [{"file": "sub/d.bin", "bytes": 16}]
    assert "external data: sub/d.bin  16 bytes" in run("inspect", "deep/m.onnx").stdout


def test_inspect_mnn(run: Any) -> None:
    name = converted(run)
    result = run("inspect", name)
    assert result.exit_code == 0
    assert result.stdout.startswith("two.mnn  MNN 3.")
    data = json.loads(run("inspect", name, "--json").stdout)
    assert data["inputs"][0] == {"name": "x", "dtype": "float32", "shape": [2, 3], "layout": "NCHW"}
    assert data["outputs"] == [{"name": "y"}]
    assert data["nodes"] == sum(data["ops"].values())


@pytest.mark.parametrize("name", [".", "none.onnx", "none.mnn", "plugin.py"])
def test_inspect_bad_files(run: Any, name: str) -> None:
    result = run("inspect", name)
    assert (result.exit_code, result.stdout) == (2, "")
    assert result.stderr.startswith("error: ")


def test_passes_lists_all(run: Any) -> None:
    result = run("passes", "--plugin", "plugin.py")
    assert result.exit_code == 0
    assert "break-add" in result.stdout
    assert "make the numbers wrong" in result.stdout
    assert "preset mnn: " in result.stdout
    data = json.loads(run("passes", "--json").stdout)
    assert {"cleanup", "fuse-gelu"} <= {item["name"] for item in data["passes"]}
    assert all(item["source"] == "graphkit" for item in data["passes"])
    assert "mnn" in data["presets"]


def test_passes_documents_one(run: Any) -> None:
    result = run("passes", "break-add", "--plugin", "plugin.py")
    assert result.exit_code == 0
    for part in (
        "Turn Add into Sub.",
        "Refuses nothing.",
        "quietly, loudly",
        "how to break",
        "from plugin.py",
    ):
        assert part in result.stdout
    assert "--plugin plugin.py --passes 'break-add{how=loudly}'" in result.stdout
    assert "no options" in run("passes", "boom", "--plugin", "plugin.py").stdout


def test_passes_prints_a_preset(run: Any) -> None:
    result = run("passes", "minimal")
    assert (result.exit_code, result.stdout) == (0, "inline-functions,cleanup\n")


def test_passes_unknown_name(run: Any) -> None:
    result = run("passes", "cleenup")
    assert (result.exit_code, result.stdout) == (2, "")
    assert result.stderr.startswith("error: unknown pass 'cleenup'; did you mean 'cleanup'?\n")

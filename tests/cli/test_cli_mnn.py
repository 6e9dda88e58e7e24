"""`graphkit mnn`: get, set, rename, outputs, remove, weights, patch."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from click.testing import Result

from graphkit.mnn import worker
from graphkit.mnn.convert import run_converter
from graphkit.mnn.document import read
from graphkit.mnn.options import ConverterOptions
from graphkit.testing import parse

Run = Callable[..., Result]

CNN = """g (float[1, 3, 8, 8] x) => (float[1, 4, 4, 4] y)
    <float[4, 3, 1, 1] w = {1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12}, float two = {2}> {
    c = Conv(x, w)
    t = Tanh(c)
    m = Mul(t, two)
    p = MaxPool<kernel_shape = [2, 2], strides = [2, 2]>(m)
    y = Sigmoid(p)
}"""
RESHAPED = """g (float[1, 3, 4, 4] x) => (float[1, 48] y) <int64[2] s = {1, 48}> { t = Tanh(x) y = Reshape(t, s) }"""
IMAGE = np.random.default_rng(0).standard_normal((1, 3, 8, 8)).astype(np.float32) / 8


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with converted models: cnn, outside (weights in a file of their own), quantized, reshaped."""
    folder = tmp_path_factory.mktemp("made")
    for name, text, options in (
        ("cnn", CNN, {}),
        ("outside", CNN, {"saveExternalData": 1}),
        ("quantized", CNN, {"weightQuantBits": 8}),
        ("reshaped", RESHAPED, {}),
    ):
        parse(text).save(folder / f"{name}.onnx")
        run_converter(folder / f"{name}.onnx", folder / f"{name}.mnn", ConverterOptions.of("ONNX", options))
    return folder


@pytest.fixture
def mnn(run: Run, made: Path) -> Run:
    """`mnn("get", "cnn.mnn", "inputs")` in a folder with the models."""
    for path in made.glob("*.mnn*"):
        shutil.copy(path, path.name)
    return lambda *args: run("mnn", *args)


def computed(name: str, image: Any = IMAGE) -> dict[str, Any]:
    return worker.run(Path(name), {"x": image}).outputs


def test_get_one_value(mnn: Run) -> None:
    assert mnn("get", "cnn.mnn", "inputs[x].dims").stdout == "[1, 3, 8, 8]\n"
    assert mnn("get", "cnn.mnn", "ops[c].type").stdout == "Convolution\n"
    assert mnn("get", "cnn.mnn", "ops[c].main.quanParameter").stdout == "null\n"


def test_get_several_values(mnn: Run) -> None:
    result = mnn("get", "cnn.mnn", "outputs", "ops[1]")
    assert result.stdout.splitlines()[:3] == ['outputs: ["y"]', "ops[1]: {", '  "name": "x___tr4c",']


def test_get_as_json(mnn: Run) -> None:
    data = json.loads(mnn("get", "cnn.mnn", "outputs", "inputs", "ops[c].main.bias", "--json").stdout)
    assert (data["command"], data["exit_code"], data["ok"]) == ("mnn get", 0, True)
    assert data["values"]["outputs"] == ["y"]
    assert data["values"]["ops[c].main.bias"] == [0, 0, 0, 0]


def test_set(mnn: Run) -> None:
    before = Path("cnn.mnn").read_bytes()
    result = mnn("set", "cnn.mnn", "inputs[x].dims=[1,3,16,12]", "ops[c].name=first", "-o", "new.mnn")
    assert (result.exit_code, result.stdout, result.stderr) == (
        0,
        "2 edits, valid, loads, runs at [1,3,16,12]\n",
        "",
    )
    assert Path("cnn.mnn").read_bytes() == before
    assert computed("new.mnn", np.zeros((1, 3, 16, 12)))["y"].shape == (1, 4, 8, 6)
    assert read("new.mnn").net["oplists"][2]["name"] == "first"
    assert sorted(path.name for path in Path().iterdir() if path.name.startswith(".")) == []


def test_what_was_set_is_told_with_v(mnn: Run) -> None:
    result = mnn("set", "cnn.mnn", "ops[c].main.common.relu=true", "-o", "new.mnn", "-v")
    lines = result.stdout.splitlines()
    assert lines[0] == "  ops[c].main.common.relu: false → true"
    assert lines[-1].startswith("wrote new.mnn  ")


def test_rename(mnn: Run) -> None:
    result = mnn("rename", "cnn.mnn", "y", "prob", "-o", "new.mnn")
    assert result.stdout.splitlines() == [
        "  tensor 'y' is 'prob'",
        "  operator 'y' is 'prob'",
        "2 edits, valid, loads, runs at [1,3,8,8]",
    ]
    np.testing.assert_array_equal(computed("new.mnn")["prob"], computed("cnn.mnn")["y"])
    assert mnn("rename", "cnn.mnn", "y", "prob", "--only", "op", "-o", "new.mnn").exit_code == 0
    assert list(computed("new.mnn")) == ["y"]
    assert mnn("rename", "cnn.mnn", "c", "d", "--only", "tensor", "-o", "new.mnn").exit_code == 0
    assert read("new.mnn").net["tensorName"][2] == "d"


def test_outputs(mnn: Run) -> None:
    result = mnn("outputs", "add", "cnn.mnn", "m", "3", "-o", "more.mnn")
    assert result.stdout.splitlines()[0] == "  'm' is an output"
    assert list(computed("more.mnn")) == ["y", "m", "t"]
    assert mnn("outputs", "remove", "more.mnn", "y", "-o", "less.mnn").exit_code == 0
    assert list(computed("less.mnn")) == ["m", "t"]
    result = mnn("outputs", "set", "more.mnn", "t", "y", "-o", "set.mnn", "--json")
    assert json.loads(result.stdout)["command"] == "mnn outputs set"
    assert list(computed("set.mnn")) == ["t", "y"]


def test_remove(mnn: Run) -> None:
    result = mnn("remove", "cnn.mnn", "m", "t", "-o", "new.mnn")
    assert result.stdout.splitlines() == [
        "  removed 'm' (BinaryOp); 'p' now reads 't'; constants that only it read went too: 'two'",
        "  removed 't' (UnaryOp); 'p' now reads 'c'",
        "2 edits, valid, loads, runs at [1,3,8,8]",
    ]
    found = worker.run(Path("new.mnn"), {"x": IMAGE}, ["c", "p"]).outputs
    np.testing.assert_array_equal(found["p"], found["c"].reshape(1, 4, 4, 2, 4, 2).max(axis=(3, 5)))


def test_weights(mnn: Run) -> None:
    weight = np.random.default_rng(1).standard_normal((4, 3, 1, 1))
    np.save("w.npy", weight)
    np.save("b.npy", np.arange(4))
    result = mnn("weights", "cnn.mnn", "c", "--npy", "w.npy", "--bias", "b.npy", "-o", "new.mnn")
    assert result.stdout.splitlines()[0] == "  ops[c].main.weight: 12 numbers replaced (float32)"
    found = worker.run(Path("new.mnn"), {"x": IMAGE}, ["c"]).outputs["c"]
    expected = np.einsum("oi,nihw->nohw", weight[:, :, 0, 0], IMAGE) + np.arange(4).reshape(4, 1, 1)
    np.testing.assert_allclose(found, expected, atol=1e-5)
    assert mnn("weights", "cnn.mnn", "2", "--array", "bias=b.npy", "-o", "new.mnn").exit_code == 0
    assert read("new.mnn").net["oplists"][2]["main"]["bias"].tolist() == [0, 1, 2, 3]


def test_quantized_weights(mnn: Run) -> None:
    np.save("w.npy", np.zeros(12))
    result = mnn("weights", "quantized.mnn", "c", "--npy", "w.npy", "-o", "new.mnn")
    if "quanParameter" not in read("quantized.mnn").net["oplists"][2]["main"]:
        pytest.fail("the converter did not quantize the layer that this test is about")
    assert result.exit_code == 2
    assert "is quantized (8-bit codes)" in result.stderr
    assert "--dequantize" in result.stderr
    assert not Path("new.mnn").exists()
    assert mnn("weights", "quantized.mnn", "c", "--npy", "w.npy", "-o", "new.mnn", "--dequantize").exit_code == 0
    assert (computed("new.mnn")["y"] == 0.5).all()


def test_patch(mnn: Run) -> None:
    Path("p.json").write_text(json.dumps([{"op": "add", "path": "/net/outputName/0", "value": "m"}]))
    result = mnn("patch", "cnn.mnn", "p.json", "-o", "new.mnn")
    assert result.stdout.splitlines() == ["  add /net/outputName/0", "1 edit, valid, loads, runs at [1,3,8,8]"]
    assert list(computed("new.mnn")) == ["m", "y"]


def test_outside_weights_are_carried_along(mnn: Run) -> None:
    assert mnn("rename", "outside.mnn", "y", "z", "-o", "new.mnn").exit_code == 0
    assert Path("new.mnn.weight").read_bytes() == Path("outside.mnn.weight").read_bytes()
    np.testing.assert_array_equal(computed("new.mnn")["z"], computed("outside.mnn")["y"])
    np.save("b.npy", np.ones(4))
    assert mnn("weights", "outside.mnn", "c", "--bias", "b.npy", "-o", "new.mnn").exit_code == 0
    assert not Path("new.mnn.weight").exists()
    assert Path("outside.mnn.weight").exists()


def test_json_and_report(mnn: Run) -> None:
    result = mnn("rename", "cnn.mnn", "y", "z", "-o", "new.mnn", "--json", "--report", "r.json")
    data = json.loads(result.stdout)
    assert json.loads(Path("r.json").read_text()) == data
    assert (data["command"], data["ok"], data["loads"], data["runs"]) == ("mnn rename", True, True, True)
    assert data["shapes"] == {"x": [1, 3, 8, 8]}
    assert data["edits"][0] == {"action": "rename", "where": "tensors[8]", "detail": "tensor 'y' is 'z'"}
    assert data["bytes"] == Path("new.mnn").stat().st_size


@pytest.mark.parametrize("extra", [(), ("--keep",)])
def test_a_model_that_mnn_cannot_run_ends_3(mnn: Run, extra: tuple[str, ...]) -> None:
    """The new size does not fit the sizes that the model reshapes to."""
    Path("new.mnn").write_bytes(b"an older output")
    result = mnn("set", "reshaped.mnn", "inputs[x].dims=[1,3,5,5]", "-o", "new.mnn", *extra)
    assert result.exit_code == 3
    assert result.stderr.startswith("error: new.mnn: ")
    if extra:
        assert read("new.mnn").net["oplists"][0]["main"].ints("dims") == (1, 3, 5, 5)
        assert "kept as new.mnn" in result.stderr
    else:
        assert Path("new.mnn").read_bytes() == b"an older output"
        assert "help: nothing was written; --keep leaves the file" in result.stderr
    assert not list(Path().glob(".graphkit*"))


@pytest.mark.parametrize(
    ("args", "message"),
    [
        (["get"], "missing argument 'MODEL'"),
        (["get", "cnn.mnn"], "missing argument 'PATH...'"),
        (["get", "no.mnn", "ops"], "no.mnn: cannot be read"),
        (["get", "chain.onnx", "ops"], "chain.onnx: is not an MNN model"),
        (["get", "cnn.mnn", "ops[d].name"], "no operator is named 'd'"),
        (["gett", "cnn.mnn", "ops"], "no such command 'mnn gett'; did you mean 'mnn get'?"),
        (["outputs", "ad", "cnn.mnn"], "no such command 'mnn outputs ad'; did you mean 'mnn outputs add'?"),
        (["set", "cnn.mnn", "outputs=[\"y\"]"], "missing option '-o'"),
        (["set", "cnn.mnn", "outputs", "-o", "n.mnn"], "'outputs' assigns nothing"),
        (["set", "cnn.mnn", "ops[c].type=Convolutoin", "-o", "n.mnn"], "did you mean 'Convolution'?"),
        (["set", "cnn.mnn", "ops[c].nam=a", "-o", "n.mnn"], "did you mean 'name'?"),
        (["set", "cnn.mnn", "ops[c].name=a", "-o", "cnn.mnn"], "cnn.mnn: would overwrite an input"),
        (["set", "cnn.mnn", "ops[c].name=a", "-o", "./n/../cnn.mnn"], "its folder does not exist"),
        (["set", "outside.mnn", "mnn_uuid=a", "-o", "n.mnn", "--report", "outside.mnn.weight"], "overwrite an input"),
        (["set", "cnn.mnn", "ops[c].name=a", "-o", "n.json"], "writes MNN, and 'n.json' is not named so"),
        (["set", "cnn.mnn", "ops[c].name=a", "-o", "none/n.mnn"], "its folder does not exist"),
        (["set", "cnn.mnn", "ops[c].inputIndexes=[77]", "-o", "n.mnn"], "77"),
        (["rename", "cnn.mnn", "d", "e", "-o", "n.mnn"], "no operator or tensor is named 'd'"),
        (["rename", "cnn.mnn", "c", "d", "--graph", "g", "-o", "n.mnn"], "no subgraph is named 'g'"),
        (["outputs", "add", "cnn.mnn", "q", "-o", "n.mnn"], "no tensor is named 'q'"),
        (["outputs", "remove", "cnn.mnn", "y", "-o", "n.mnn"], "a model without outputs computes nothing"),
        (["remove", "cnn.mnn", "x", "-o", "n.mnn"], "is an input of the model, and its result is in use"),
        (["weights", "cnn.mnn", "c", "-o", "n.mnn"], "no array is given"),
        (["weights", "cnn.mnn", "c", "--npy", "no.npy", "-o", "n.mnn"], "no.npy: cannot be read"),
        (["weights", "cnn.mnn", "c", "--npy", "cnn.mnn", "-o", "n.mnn"], "cnn.mnn: is no .npy file of numbers"),
        (["weights", "cnn.mnn", "c", "--npy", "objects.npy", "-o", "n.mnn"], "is no .npy file of numbers"),
        (["weights", "cnn.mnn", "c", "--npy", "one.npy", "-o", "n.mnn"], "has the shape [4,3,1,1] (12 numbers)"),
        (["weights", "cnn.mnn", "c", "--npy", "one.npy", "-o", "one.npy"], "'one.npy' is not named so"),
        (["weights", "cnn.mnn", "two", "--bias", "one.npy", "-o", "n.mnn"], "operator 'two' has no bias"),
        (["weights", "cnn.mnn", "t", "--npy", "one.npy", "-o", "n.mnn"], "has no weights that can be replaced"),
        (["weights", "cnn.mnn", "c", "--array", "one.npy", "-o", "n.mnn"], "--array takes FIELD=F.npy"),
        (["weights", "cnn.mnn", "c", "--array", "a=one.npy", "--array", "a=b", "-o", "n.mnn"], "gives 'a' twice"),
        (["weights", "cnn.mnn", "c", "--npy", "one.npy", "--array", "weight=one.npy", "-o", "n.mnn"], "the same array"),
        (["patch", "cnn.mnn", "no.json", "-o", "n.mnn"], "no.json: cannot be read"),
        (["patch", "cnn.mnn", "cnn.mnn", "-o", "n.mnn"], "is no JSON"),
    ],
)  # fmt: skip
def test_bad_usage_ends_2_and_writes_nothing(mnn: Run, args: list[str], message: str) -> None:
    np.save("one.npy", np.ones(1))
    np.save("objects.npy", np.array([{}], object), allow_pickle=True)
    before = {path: path.read_bytes() for path in Path().iterdir()}
    result = mnn(*args)
    assert (result.exit_code, result.stdout) == (2, "")
    assert message in result.stderr
    assert "Traceback" not in result.stderr
    assert {path: path.read_bytes() for path in Path().iterdir()} == before


def test_help(mnn: Run) -> None:
    result = mnn("--help")
    assert result.exit_code == 0
    for name in ("to-json", "from-json", "get", "set", "rename", "outputs", "remove", "weights", "patch"):
        assert f"  {name} " in result.stdout
        assert "Examples:" in mnn(name, "--help").stdout
    assert (mnn().exit_code, mnn("outputs").exit_code) == (2, 2)
    for name in ("add", "remove", "set"):
        assert f"graphkit mnn outputs {name}" in mnn("outputs", name, "-h").stdout

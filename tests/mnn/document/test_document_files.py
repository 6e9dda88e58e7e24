"""Files: real models through reading and writing, weights kept outside, and what must never happen to a file."""

from __future__ import annotations

import os
import stat
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from documents import SCHEMA, op, small, table

from graphkit.errors import ModelError, OutputError
from graphkit.mnn.convert import run_converter
from graphkit.mnn.document import Document, files, parse, read, write
from graphkit.mnn.document.tree import first_difference
from graphkit.mnn.fileinfo import read_file_info
from graphkit.mnn.options import ConverterOptions
from graphkit.mnn.worker import run

FLAVOURS: dict[str, dict[str, Any]] = {
    "float": {},
    "fp16": {"fp16": True},
    "w8": {"weightQuantBits": 8},
    "w4b32": {"weightQuantBits": 4, "weightQuantBlock": 32},
    "external": {"saveExternalData": True},
}
SHAPES = {
    "magika": {},
    "orientation": {},
    "dtln1": {},
    "silero_vad": {"input": (1, 512), "state": (2, 1, 128)},
}
WHILE = """<ir_version: 9, opset_import: ["" : 17]>
g (float[1,4] x) => (float[1,4] y)
<int64 n = {3}, bool go = {1}>
{ y = Loop (n, go, x) <body = b (int64 i, bool c, float[1,4] s) => (bool d, float[1,4] t)
  { d = Identity(c) e = Sin(s) f = Exp(e) t = Add(f, s) }> }"""
IF = """<ir_version: 9, opset_import: ["" : 17]>
g (float[1,4] x, bool[1] c) => (float[1,4] y)
{ y = If (c) <then_branch = t () => (float[1,4] a) { a = Sin(x) },
              else_branch = e () => (float[1,4] b) { m = Exp(x) b = Sqrt(m) }> }"""


@pytest.fixture(scope="module")
def outside(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A converted model that keeps its weights in a second file."""
    folder = tmp_path_factory.mktemp("outside")
    weight = np.random.default_rng(0).standard_normal((32, 16, 3, 3)).astype(np.float32)
    text = '<ir_version: 9, opset_import: ["" : 17]> g (float[1,16,6,6] x) => (float[1,32,4,4] y) { y = Conv(x, w) }'
    model = onnx.parser.parse_model(text)
    model.graph.initializer.append(onnx.numpy_helper.from_array(weight, "w"))
    onnx.save(model, folder / "m.onnx")
    run_converter(folder / "m.onnx", folder / "m.mnn", ConverterOptions.of(saveExternalData=True))
    return folder / "m.mnn"


def names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


def feeds(path: Path, shapes: dict[str, tuple[int, ...]]) -> dict[str, Any]:
    random = np.random.default_rng(0)
    made = {}
    for value in read_file_info(path).inputs:
        shape = shapes.get(value.name, tuple(size if size > 0 else 1 for size in value.shape))
        whole = np.full(shape, 16000 if value.name == "sr" else 1, np.int32)
        made[value.name] = random.random(shape, np.float32) if value.dtype == "float32" else whole
    return made


def assert_survives(path: Path, shapes: dict[str, tuple[int, ...]]) -> Document:
    """Written again, the document is identical and MNN's outputs are the same to the bit; the document."""
    made = read(path)
    again = path.with_name("again.mnn")
    assert write(made, again) == sum(p.stat().st_size for p in (again, files.weights_name(again)) if p.exists())
    assert made.unknown() == []
    assert first_difference(made.net, read(again).net) is None
    values = feeds(path, shapes)
    before, after = run(path, values).outputs, run(again, values).outputs
    assert before.keys() == after.keys()
    assert all(before[name].tobytes() == after[name].tobytes() for name in before)
    return made


@pytest.mark.parametrize("flavour", FLAVOURS)
@pytest.mark.parametrize("name", SHAPES)
def test_real_models_come_back_to_the_bit(
    model_path: Callable[[str], Path], tmp_path: Path, name: str, flavour: str
) -> None:
    run_converter(model_path(name), tmp_path / "m.mnn", ConverterOptions.of(**FLAVOURS[flavour]))
    made = assert_survives(tmp_path / "m.mnn", SHAPES[name])
    assert (made.weights is not None) == (flavour == "external")
    assert made.version == SCHEMA.version


@pytest.mark.parametrize(("text", "bodies"), [(WHILE, 1), (IF, 2)], ids=["while", "if"])
def test_subgraphs_come_back_to_the_bit(tmp_path: Path, text: str, bodies: int) -> None:
    onnx.save(onnx.parser.parse_model(text), tmp_path / "m.onnx")
    run_converter(tmp_path / "m.onnx", tmp_path / "m.mnn")
    made = assert_survives(tmp_path / "m.mnn", {})
    assert len(list(made.graphs())) == 1 + bodies


def test_weights_kept_outside_go_along(outside: Path, tmp_path: Path) -> None:
    made = read(outside)
    assert made.weights == outside.with_name("m.mnn.weight")
    size = write(made, tmp_path / "n.mnn")
    copied = tmp_path / "n.mnn.weight"
    assert copied.read_bytes() == made.weights.read_bytes()
    assert size == copied.stat().st_size + (tmp_path / "n.mnn").stat().st_size
    assert read(tmp_path / "n.mnn").weights == copied


def test_missing_outside_weights_are_no_error_of_reading(outside: Path, tmp_path: Path) -> None:
    (tmp_path / "m.mnn").write_bytes(outside.read_bytes())
    made = read(tmp_path / "m.mnn")
    assert made.weights is None
    write(made, tmp_path / "n.mnn")
    assert not (tmp_path / "n.mnn.weight").exists()
    (tmp_path / "o.mnn.weight").write_bytes(b"another model's")
    with pytest.raises(OutputError, match=r"o\.mnn\.weight: is there, and the model would take its weights from it"):
        write(made, tmp_path / "o.mnn")
    assert not (tmp_path / "o.mnn").exists()


def test_outside_weights_that_vanish_before_writing(outside: Path, tmp_path: Path) -> None:
    for name in ("m.mnn", "m.mnn.weight"):
        (tmp_path / name).write_bytes(outside.with_name(name).read_bytes())
    made = read(tmp_path / "m.mnn")
    (tmp_path / "m.mnn.weight").unlink()
    with pytest.raises(ModelError, match=r"m\.mnn\.weight: cannot be read"):
        write(made, tmp_path / "n.mnn")
    assert names(tmp_path) == ["m.mnn"]


def saved(path: Path) -> Document:
    write(small(), path)
    return read(path)


def test_inputs_are_never_overwritten(outside: Path, tmp_path: Path) -> None:
    made = saved(tmp_path / "m.mnn")
    before = (tmp_path / "m.mnn").read_bytes()
    (tmp_path / "link.mnn").symlink_to("m.mnn")
    os.link(tmp_path / "m.mnn", tmp_path / "same.mnn")
    for name in ("m.mnn", "link.mnn", "same.mnn"):
        with pytest.raises(OutputError, match=f"{name}: would overwrite an input"):
            write(made, tmp_path / name)
    assert (tmp_path / "m.mnn").read_bytes() == before
    apart = read(outside)
    for target in (apart.weights, tmp_path / "n.mnn"):
        if target == tmp_path / "n.mnn":
            (tmp_path / "n.mnn.weight").symlink_to(apart.weights)
        with pytest.raises(OutputError, match="would overwrite an input"):
            write(apart, target)


def test_a_link_to_another_folder_cannot_have_weights_beside_it(outside: Path, tmp_path: Path) -> None:
    (tmp_path / "there").mkdir()
    (tmp_path / "link.mnn").symlink_to("there/n.mnn")
    with pytest.raises(OutputError, match="would not find the weights"):
        write(read(outside), tmp_path / "link.mnn")
    write(small(), tmp_path / "link.mnn")
    assert (tmp_path / "link.mnn").is_symlink()
    assert read(tmp_path / "there" / "n.mnn").net["tensorName"] == ["x", "c", "y"]


def test_an_output_that_fails_leaves_the_old_one(tmp_path: Path) -> None:
    path = tmp_path / "m.mnn"
    path.write_bytes(b"old")
    made = small()
    made.net["oplists"][0].fields["name"] = 3
    with pytest.raises(ModelError, match="cannot be written as"):
        write(made, path)
    assert (path.read_bytes(), names(tmp_path)) == (b"old", ["m.mnn"])
    with pytest.raises(OutputError, match="cannot be written: No such file"):
        write(small(), tmp_path / "none" / "m.mnn")
    with pytest.raises(OutputError, match="is a directory"):
        write(small(), tmp_path)


def test_a_source_that_was_replaced_still_reads(tmp_path: Path) -> None:
    path = tmp_path / "m.mnn"
    made = saved(path)
    (tmp_path / "new").write_bytes(b"something else")
    (tmp_path / "new").replace(path)
    write(made, tmp_path / "n.mnn")
    assert first_difference(small().net, read(tmp_path / "n.mnn").net) is None


@pytest.mark.parametrize("change", ["cut", "write"])
def test_a_source_that_was_changed_in_place_is_told(tmp_path: Path, change: str) -> None:
    path = tmp_path / "m.mnn"
    made = saved(path)
    os.utime(path, ns=(0, 0))
    made = read(path)
    if change == "cut":
        os.truncate(path, 100)
    else:
        with path.open("r+b") as file:
            file.write(b"\0\0\0\0")
    with pytest.raises(ModelError, match=r"m\.mnn: was changed while it was open"):
        write(made, tmp_path / "n.mnn")
    with pytest.raises(ModelError, match="was changed"):
        made.check_source()
    assert names(tmp_path) == ["m.mnn"]


def test_a_source_that_changes_while_it_is_copied_leaves_no_output(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "m.mnn"
    made = saved(path)
    copy = files._write_image

    def cut(*arguments: Any) -> None:
        copy(*arguments)
        os.truncate(path, 100)

    monkeypatch.setattr(files, "_write_image", cut)
    with pytest.raises(ModelError, match="was changed"):
        write(made, tmp_path / "n.mnn")
    assert names(tmp_path) == ["m.mnn"]


def test_a_source_that_is_cut_off_in_the_middle_is_no_crash(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    made = small()
    made.net["oplists"][1]["main"].fields["weight"] = np.zeros(1 << 20, "<f4")
    write(made, tmp_path / "m.mnn")
    made = read(tmp_path / "m.mnn")
    lay_out = files.layout

    def cut(*arguments: Any, **options: Any) -> Any:
        image = lay_out(*arguments, **options)
        os.truncate(tmp_path / "m.mnn", 1 << 16)
        return image

    monkeypatch.setattr(files, "layout", cut)
    with pytest.raises(ModelError, match="was changed"):
        write(made, tmp_path / "n.mnn")
    assert names(tmp_path) == ["m.mnn"]


def test_unknown_fields_are_dropped_only_when_asked(tmp_path: Path) -> None:
    made = small()
    convolution = made.net["oplists"][1]
    convolution.unknown = (9, 2)
    del convolution.fields["main"]
    convolution.fields["main_type"] = 200
    with pytest.raises(ModelError, match=r"oplists\[1\]: Op holds fields that the format .* \(number 9, 2\)"):
        write(made, tmp_path / "m.mnn")
    write(made, tmp_path / "m.mnn", drop_unknown=True)
    back = read(tmp_path / "m.mnn")
    assert back.unknown() == []
    assert list(back.net["oplists"][1].fields) == ["inputIndexes", "name", "outputIndexes", "type"]


def test_what_is_no_file_of_a_model(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    for path in (tmp_path, tmp_path / "pipe", Path("/dev/zero")):
        with pytest.raises(ModelError, match="is not a file"):
            read(path)
    with pytest.raises(ModelError, match="cannot be read: No such file"):
        read(tmp_path / "none.mnn")


def test_a_model_without_operators_is_refused_by_read_but_not_by_parse(tmp_path: Path) -> None:
    data = files.dump(Document(table("Net", tensorName=["x"]), SCHEMA, ""))
    (tmp_path / "m.mnn").write_bytes(data)
    assert parse(data).net["tensorName"] == ["x"]
    with pytest.raises(ModelError, match="holds no operators"):
        read(tmp_path / "m.mnn")


def test_changed_documents_are_written_as_changed(tmp_path: Path) -> None:
    made = saved(tmp_path / "m.mnn")
    made.net["tensorName"].append("z")
    made.net["oplists"].append(op("UnaryOp", "z", (2,), (3,), table("UnaryOp", opType=10, T=1)))
    write(made, tmp_path / "n.mnn")
    back = read(tmp_path / "n.mnn")
    assert first_difference(made.net, back.net) is None
    assert first_difference(made.net, read(tmp_path / "m.mnn").net) == "oplists"


def test_outputs_are_ordinary_files(tmp_path: Path) -> None:
    old = os.umask(0o027)
    try:
        write(small(), tmp_path / "m.mnn")
    finally:
        os.umask(old)
    assert stat.S_IMODE((tmp_path / "m.mnn").stat().st_mode) == 0o640


def test_five_hundred_megabytes_are_not_copied_in_memory(tmp_path: Path) -> None:
    made = small()
    made.net["oplists"][1]["main"].fields["weight"] = np.broadcast_to(np.float32(1), (2**26,))
    code = """
import re, sys, time
from pathlib import Path
from graphkit.mnn.document import read, write
made = read(sys.argv[1]); seconds = time.process_time(); made = read(sys.argv[1])
print(time.process_time() - seconds)
write(made, sys.argv[1] + ".out")
print(*re.findall(r"RssAnon:\\s+(\\d+)", Path("/proc/self/status").read_text()))
"""
    write(made, tmp_path / "m.mnn")
    done = subprocess.run(
        [sys.executable, "-c", code, str(tmp_path / "m.mnn")], capture_output=True, text=True, check=True
    )
    seconds, kilobytes = done.stdout.split()
    assert float(seconds) < 0.1
    assert int(kilobytes) < 100_000
    for path in tmp_path.iterdir():
        path.unlink()

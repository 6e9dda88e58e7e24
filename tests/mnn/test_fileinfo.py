"""Reading .mnn files without MNN; damaged files give an error and nothing worse."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from pathlib import Path

import numpy as np
import onnx
import pytest
from documents import small as small_document
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from graphkit.errors import ModelError
from graphkit.mnn.convert import run_converter
from graphkit.mnn.document import write
from graphkit.mnn.document.schema import schema_for
from graphkit.mnn.fileinfo import read_file_info

TEXT = """<ir_version: 9, opset_import: ["" : 17]>
g (uint8[2,3] u, float[1,3,N,N] x) => (float[2,3] f, float[1,3,N,N] y)
{ f = Cast<to=1>(u) a = Exp(x) y = Sin(a) }"""


@pytest.fixture(scope="module")
def small(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("small")
    onnx.save(onnx.parser.parse_model(TEXT), folder / "m.onnx")
    return run_converter(folder / "m.onnx", folder / "m.mnn").output


def test_reads_inputs_outputs_and_operators(small: Path) -> None:
    info = read_file_info(small)
    assert [(i.name, i.dtype, i.layout) for i in info.inputs] == [
        ("u", "uint8", "NCHW"),
        ("x", "float32", "NCHW"),
    ]
    assert info.inputs[0].shape == (2, 3)
    assert info.outputs == ("f", "y")
    assert info.op_counts == {"Input": 2, "UnaryOp": 2, "Cast": 1}
    assert info.op_total == 5
    unary = [op for op in info.ops if op.type == "UnaryOp"]
    assert (unary[0].inputs, unary[0].outputs, unary[1].outputs) == (("x",), ("a",), ("y",))
    assert info.version.startswith("3.")


def test_operator_numbers_are_those_of_the_schema() -> None:
    known = {
        7: "BinaryOp",
        12: "Convolution",
        34: "Input",
        129: "ConvertTensor",
        512: "Extra",
        604: "GridSample",
    }
    names = schema_for("").enums["OpType"].names
    assert {number: names[number] for number in known} == known


@pytest.mark.parametrize("content", [b"", b"x", b"not a model at all", b"\xff" * 64, b"\0" * 64])
def test_other_files_are_refused(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "m.mnn"
    path.write_bytes(content)
    with pytest.raises(ModelError, match="not an MNN model"):
        read_file_info(path)


def test_tensors_that_the_graph_does_not_have(tmp_path: Path) -> None:
    made = small_document()
    for indexes in (np.array([3], "<i4"), np.array([-1], "<i4")):
        made.net["oplists"][1].fields["inputIndexes"] = indexes
        write(made, tmp_path / "m.mnn")
        with pytest.raises(ModelError, match=r"m\.mnn: is not an MNN model.*'c' uses a tensor that is none of the 3"):
            read_file_info(tmp_path / "m.mnn")
    del made.net.fields["tensorName"]
    write(made, tmp_path / "m.mnn")
    with pytest.raises(ModelError, match="it names no tensors"):
        read_file_info(tmp_path / "m.mnn")


def test_names_can_be_printed_and_unknown_operators_have_their_number(tmp_path: Path) -> None:
    made = small_document()
    made.net["oplists"][1].fields |= {"name": "caf\udce9", "type": 12345}
    made.net["tensorName"][1] = "日本"
    write(made, tmp_path / "m.mnn")
    found = read_file_info(tmp_path / "m.mnn").ops[1]
    assert (found.name, found.type, found.outputs) == ("caf\ufffd", "op 12345", ("日本",))


def test_missing_file(tmp_path: Path) -> None:
    with pytest.raises(ModelError, match="cannot be read"):
        read_file_info(tmp_path / "none.mnn")


@given(st.data())
@settings(deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=200)
def test_damaged_files_never_raise_anything_else(small: Path, tmp_path: Path, data: st.DataObject) -> None:
    content = bytearray(small.read_bytes())
    for _ in range(data.draw(st.integers(1, 4))):
        at = data.draw(st.integers(0, len(content) - 1))
        content[at] = data.draw(st.integers(0, 255))
    path = tmp_path / "bad.mnn"
    path.write_bytes(content[: data.draw(st.integers(1, len(content)))])
    with contextlib.suppress(ModelError):
        read_file_info(path)


def test_counts_of_a_real_model(export_path: Callable[[str], Path], tmp_path: Path) -> None:
    output = run_converter(export_path("mbv3_ts"), tmp_path / "m.mnn").output
    assert read_file_info(output).op_total == 173

"""Loading and saving: lazy, exact, atomic, and one clear line for every file that is not a model."""

from __future__ import annotations

import random
import subprocess
import sys
from pathlib import Path

import ml_dtypes
import numpy as np
import onnx
import pytest
from onnx import ModelProto, TensorProto, helper, numpy_helper

from graphkit import model as model_module
from graphkit._wire import varint
from graphkit.errors import ModelError, OutputError
from graphkit.model import Model, load, save
from graphkit.testing import parse, run

BIG = np.arange(2048, dtype=np.float32)  # 8 KiB: over the threshold of lazy weights
HEADER = '<ir_version: 10, opset_import: ["": 21, "local": 1]>\n'


def big(name: str, scale: float = 1.0) -> TensorProto:
    return numpy_helper.from_array(BIG * np.float32(scale), name)


def everywhere() -> ModelProto:
    """A model with large tensors as initializer, in a Constant, in both branches of an If, in a function."""
    proto = onnx.parser.parse_model(
        HEADER
        + """g (float[2048] x, bool c) => (float[2048] y) {
            k = Constant <value = float {0}> ()
            a = Add(x, w)
            b = Add(a, k)
            d = local.F(b)
            y = If (c) <then_branch = t () => (float[2048] p) { s = Constant <value = float {0}> ()
                                                                   p = Add(d, s) },
                        else_branch = e () => (float[2048] q) { q = Mul(d, v) }>
        }
        <domain: "local", opset_import: ["": 21]> F (i) => (o) {
            f = Constant <value = float {0}> ()
            o = Add(i, f)
        }"""
    )
    proto.graph.initializer.append(big("w"))
    proto.graph.node[0].attribute[0].t.CopyFrom(big("", 2))
    branches = {a.name: a.g for a in proto.graph.node[4].attribute}
    branches["then_branch"].node[0].attribute[0].t.CopyFrom(big("", 3))
    branches["else_branch"].initializer.append(big("v", 4))
    proto.functions[0].node[0].attribute[0].t.CopyFrom(big("", 5))
    return proto


def with_initializers(*tensors: TensorProto) -> ModelProto:
    """A model of one Relu that carries these initializers."""
    proto = onnx.parser.parse_model(HEADER + "g (float[2] x) => (float[2] y) { y = Relu(x) }")
    proto.graph.initializer.extend(tensors)
    return proto


def write(path: Path, proto: ModelProto) -> Path:
    path.write_bytes(proto.SerializeToString())
    return path


def read(path: Path) -> ModelProto:
    """What onnx itself reads; it leaves a trace in tensors that were external."""
    proto = onnx.load(path)
    for tensor in model_module.tensors(proto):
        tensor.ClearField("data_location")
    return proto


def one_line(error: ModelError) -> str:
    text = str(error)
    assert text
    assert "\n" not in text
    return text


# -- what is loaded ---------------------------------------------------------------------------------------


def test_large_tensors_stay_in_the_file_wherever_they_stand(tmp_path: Path) -> None:
    proto = everywhere()
    model = load(write(tmp_path / "m.onnx", proto))
    assert len(model.proto.SerializeToString()) < 3000
    lazy = [weight for weight in model.weights() if weight.ref is not None]
    assert sorted(weight.array()[1] for weight in lazy) == [1, 2, 3, 4, 5]
    assert model.nbytes == len(proto.SerializeToString())
    assert not model.external
    assert model.materialized() == proto


@pytest.mark.parametrize("external", [False, True])
def test_save_and_load_give_the_same_model(tmp_path: Path, external: bool) -> None:
    proto = everywhere()
    source = write(tmp_path / "in.onnx", proto)
    written = save(load(source), tmp_path / "out.onnx", external=external)
    files = [tmp_path / "out.onnx", *([tmp_path / "out.onnx.data"] if external else [])]
    assert written == sum(file.stat().st_size for file in files)
    assert sorted(p.name for p in tmp_path.iterdir()) == sorted(["in.onnx", *(f.name for f in files)])
    again = load(tmp_path / "out.onnx")
    assert again.external is external
    assert again.materialized() == proto
    assert read(tmp_path / "out.onnx") == proto
    onnx.checker.check_model(tmp_path / "out.onnx")
    feeds = {"x": BIG, "c": np.array(True)}
    np.testing.assert_array_equal(run(again, feeds)["y"], run(load(source), feeds)["y"])


def test_a_model_with_external_data_is_saved_with_external_data(tmp_path: Path) -> None:
    save(load(write(tmp_path / "a.onnx", everywhere())), tmp_path / "b.onnx", external=True)
    save(load(tmp_path / "b.onnx"), tmp_path / "c.onnx")
    assert (tmp_path / "c.onnx.data").exists()
    save(load(tmp_path / "b.onnx"), tmp_path / "d.onnx", external=False)
    assert not (tmp_path / "d.onnx.data").exists()
    assert read(tmp_path / "d.onnx") == everywhere()


def test_from_proto_leaves_the_message_alone_and_reads_external_data(tmp_path: Path) -> None:
    proto = everywhere()
    before = proto.SerializeToString()
    assert Model.from_proto(proto).materialized() == proto
    assert proto.SerializeToString() == before
    save(Model.from_proto(proto), tmp_path / "m.onnx", external=True)
    outside = onnx.load(tmp_path / "m.onnx", load_external_data=False)
    model = Model.from_proto(outside, tmp_path)
    assert model.external
    assert model.materialized() == proto
    with pytest.raises(ModelError, match="needs a folder"):
        Model.from_proto(outside)


def test_from_proto_refuses_the_skeleton_of_another_model() -> None:
    with pytest.raises(ModelError, match="another model"):
        Model.from_proto(Model.from_proto(everywhere()).proto)


TYPES: list[TensorProto] = [
    helper.make_tensor("packed", TensorProto.FLOAT, [2048], BIG.tolist()),
    helper.make_tensor("packed_small", TensorProto.FLOAT, [3], [1.0, 2.0, 3.0]),
    helper.make_tensor("packed_double", TensorProto.DOUBLE, [2048], BIG.tolist()),
    helper.make_tensor("packed_int64", TensorProto.INT64, [2048], range(2048)),
    helper.make_tensor("strings", TensorProto.STRING, [1000], [b"graph kit"] * 1000),
    numpy_helper.from_array(np.arange(6001, dtype=np.int8) % 2 == 0, "bools"),
    numpy_helper.from_array(BIG.astype(np.float16), "half"),
    numpy_helper.from_array(BIG.astype(ml_dtypes.bfloat16), "brain"),
    numpy_helper.from_array((np.arange(9001) % 16 - 8).astype(ml_dtypes.int4), "int4_odd"),
    numpy_helper.from_array((np.arange(5) % 16).astype(ml_dtypes.uint4), "uint4_small"),
    numpy_helper.from_array(BIG.astype(np.complex64), "complex"),
    numpy_helper.from_array(np.float32(3.5).reshape(()), "zero_dim"),
    numpy_helper.from_array(np.zeros((0, 4), np.float32), "empty"),
]


@pytest.mark.parametrize("external", [False, True])
@pytest.mark.parametrize("tensor", TYPES, ids=lambda tensor: tensor.name)
def test_every_type_survives(tmp_path: Path, tensor: TensorProto, external: bool) -> None:
    want = numpy_helper.to_array(tensor)
    model = load(write(tmp_path / "a.onnx", with_initializers(tensor)))
    save(model, tmp_path / "b.onnx", external=external)
    for one in (model, load(tmp_path / "b.onnx")):
        weight = next(one.weights())
        got = weight.array()
        assert (weight.name, weight.data_type, weight.dims) == (tensor.name, tensor.data_type, want.shape)
        assert got.dtype == want.dtype
        assert got.shape == want.shape
        assert (got == want).all()
        assert not got.flags.writeable
        if tensor.data_type != TensorProto.STRING:
            assert weight.nbytes == len(numpy_helper.from_array(want).raw_data)
    theirs = numpy_helper.to_array(onnx.load(tmp_path / "b.onnx").graph.initializer[0])
    assert (theirs == want).all()


# -- external data ----------------------------------------------------------------------------------------


def external(name: str, location: str, **entries: int | str) -> TensorProto:
    tensor = TensorProto(name=name, data_type=TensorProto.FLOAT, dims=[4])
    tensor.data_location = TensorProto.EXTERNAL
    for key, value in {"location": location, **entries}.items():
        tensor.external_data.add(key=key, value=str(value))
    return tensor


def test_tensors_that_share_bytes_are_written_once(tmp_path: Path) -> None:
    (tmp_path / "w.bin").write_bytes(np.arange(4, dtype=np.float32).tobytes())
    proto = with_initializers(external("a", "w.bin"), external("b", "w.bin", offset=0, length=16))
    model = load(write(tmp_path / "m.onnx", proto))
    save(model, tmp_path / "n.onnx")
    assert (tmp_path / "n.onnx.data").stat().st_size == 16
    assert [w.array().tolist() for w in load(tmp_path / "n.onnx").weights()] == [[0, 1, 2, 3]] * 2


def test_an_empty_external_file_holds_an_empty_tensor(tmp_path: Path) -> None:
    (tmp_path / "w.bin").touch()
    tensor = external("a", "w.bin")
    tensor.dims[0] = 0
    model = load(write(tmp_path / "m.onnx", with_initializers(tensor)))
    assert next(model.weights()).array().shape == (0,)
    save(model, tmp_path / "n.onnx")
    assert next(load(tmp_path / "n.onnx").weights()).array().shape == (0,)


def test_folders_inside_the_models_folder_are_fine(tmp_path: Path) -> None:
    (tmp_path / "data").mkdir()
    (tmp_path / "data" / "w.bin").write_bytes(bytes(16))
    for location in ("data/w.bin", "./data/../data/w.bin"):
        model = load(write(tmp_path / "m.onnx", with_initializers(external("a", location))))
        assert next(model.weights()).array().tolist() == [0, 0, 0, 0]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A model's folder with a file to steal outside of it, and links that lead there."""
    folder = tmp_path / "folder"
    folder.mkdir()
    (tmp_path / "secret").write_bytes(bytes(16))
    (folder / "link").symlink_to(tmp_path / "secret")
    (folder / "up").symlink_to(tmp_path)
    (folder / "round").symlink_to("round")
    return folder


LEAVING = ["../secret", "link", "up/secret", "", "x\0y", "folder/../../secret"]


@pytest.mark.parametrize("location", LEAVING, ids=lambda text: text[:20].replace("\0", "NUL"))
def test_paths_that_leave_the_folder_are_refused(folder: Path, location: str) -> None:
    path = write(folder / "m.onnx", with_initializers(external("stolen", location)))
    with pytest.raises(ModelError, match="leaves the model's folder") as caught:
        load(path)
    assert "stolen" in one_line(caught.value)


def test_a_link_to_itself_is_an_error(folder: Path) -> None:
    """Python 3.13 finds it missing, older ones cannot resolve it."""
    path = write(folder / "m.onnx", with_initializers(external("stolen", "round")))
    with pytest.raises(ModelError, match=r"is missing|leaves the model's folder") as caught:
        load(path)
    assert "stolen" in one_line(caught.value)


def test_absolute_paths_are_refused_even_inside_the_folder(folder: Path) -> None:
    (folder / "w.bin").write_bytes(bytes(16))
    path = write(folder / "m.onnx", with_initializers(external("w", str(folder / "w.bin"))))
    with pytest.raises(ModelError, match="leaves the model's folder"):
        load(path)


@pytest.mark.parametrize(
    ("entries", "problem"),
    [
        ({"location": "gone.bin"}, "is missing"),
        ({"location": "w.bin", "offset": 8}, r"too short: tensor 'w' needs bytes 8 to 24, the file has 16"),
        ({"location": "w.bin", "offset": -8}, "too short"),
        ({"location": "w.bin", "length": 17}, "too short"),
        ({"location": "w.bin", "length": 8}, r"8 bytes of data where its shape \[4\] needs 16"),
        ({"location": "w.bin", "length": "many"}, "damaged external-data entry"),
        ({"location": "graphkit:buffer:x"}, "damaged external-data entry"),
        ({"location": "graphkit:buffer:0", "offset": 0, "length": 10**9}, "outside the file"),
        ({"location": "graphkit:buffer:7", "offset": 0, "length": 16}, "outside the file"),
        ({"location": "."}, "is missing"),
        ({"location": "a" * 300}, "is missing"),
    ],
)
def test_damaged_external_data_name_the_tensor(tmp_path: Path, entries: dict[str, int | str], problem: str) -> None:
    (tmp_path / "w.bin").write_bytes(bytes(16))
    path = write(tmp_path / "m.onnx", with_initializers(external("w", **entries)))  # type: ignore[arg-type]
    with pytest.raises(ModelError, match=problem) as caught:
        load(path)
    assert "'w'" in one_line(caught.value)
    assert str(path) in one_line(caught.value)


def test_a_file_that_shrinks_after_loading_is_an_error(tmp_path: Path) -> None:
    (tmp_path / "w.bin").write_bytes(bytes(16))
    model = load(write(tmp_path / "m.onnx", with_initializers(external("w", "w.bin"))))
    (tmp_path / "w.bin").write_bytes(bytes(8))
    with pytest.raises(ModelError, match="end before"):
        next(model.weights()).array()


# -- files that are not models ----------------------------------------------------------------------------


def test_truncated_files_are_model_errors(tmp_path: Path) -> None:
    data = everywhere().SerializeToString()
    path = tmp_path / "m.onnx"
    for size in range(0, len(data), 97):
        path.write_bytes(data[:size])
        with pytest.raises(ModelError) as caught:
            load(path)
        assert str(path) in one_line(caught.value)


def test_random_bytes_and_text_are_model_errors(tmp_path: Path) -> None:
    path = tmp_path / "m.onnx"
    rng = random.Random(0)
    for data in (b"not a model\n" * 99, b"\0" * 5000, b"{}", *(rng.randbytes(3000) for _ in range(100))):
        path.write_bytes(data)
        with pytest.raises(ModelError) as caught:
            load(path)
        one_line(caught.value)


def test_missing_empty_directory_and_future_files(tmp_path: Path) -> None:
    future = everywhere()
    future.ir_version = 999
    (tmp_path / "empty.onnx").touch()
    cases = {
        tmp_path / "gone.onnx": "cannot be opened: No such file",
        tmp_path: "is a directory",
        tmp_path / "empty.onnx": "is empty",
        write(tmp_path / "future.onnx", future): "IR version 999; onnx",
        write(tmp_path / "headless.onnx", ModelProto(ir_version=8)): "has no graph",
    }
    for path, problem in cases.items():
        with pytest.raises(ModelError, match=problem) as caught:
            load(path)
        assert str(path) in one_line(caught.value)


def test_nesting_without_end_is_a_model_error(tmp_path: Path) -> None:
    graph = onnx.GraphProto(doc_string="x" * 5000).SerializeToString()
    for _ in range(60):
        attribute = b"\x0a\x01b\xa0\x01\x05" + b"\x32" + varint(len(graph)) + graph
        node = b"\x22\x02If\x2a" + varint(len(attribute)) + attribute
        graph = b"\x0a" + varint(len(node)) + node
    (tmp_path / "m.onnx").write_bytes(b"\x08\x08\x3a" + varint(len(graph)) + graph)
    with pytest.raises(ModelError, match="nested too deeply"):
        load(tmp_path / "m.onnx")


def test_mutated_files_raise_nothing_but_model_errors(tmp_path: Path) -> None:
    from graphkit.graph import Graph

    data = everywhere().SerializeToString()
    rng = random.Random(1)
    path = tmp_path / "m.onnx"
    for _ in range(400):
        mutated = bytearray(data)
        for _ in range(rng.randint(1, 4)):
            mutated[rng.randrange(len(data)) if rng.random() < 0.3 else rng.randrange(300)] = rng.randrange(256)
        path.write_bytes(mutated)
        try:
            Graph.of(load(path))
        except ModelError as error:
            one_line(error)


# -- the limit of 2 GB ------------------------------------------------------------------------------------


def test_what_exceeds_the_limit_is_saved_outside(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    model = load(write(tmp_path / "a.onnx", everywhere()))
    monkeypatch.setattr(model_module, "MAX_MESSAGE", 20_000)
    with pytest.raises(ModelError, match="do not fit into one message"):
        model.materialized()
    with pytest.raises(ModelError, match="use external data"):
        model.save(tmp_path / "b.onnx", external=False)
    with pytest.raises(ModelError, match="over 2 GB"):
        Model.from_proto(everywhere())
    model.save(tmp_path / "b.onnx")
    assert (tmp_path / "b.onnx").stat().st_size < 4000
    assert read(tmp_path / "b.onnx") == everywhere()


def test_three_gigabytes_load_at_once_and_are_read_in_slices(tmp_path: Path) -> None:
    with (tmp_path / "w.bin").open("wb") as file:
        file.truncate(3 << 30)  # a hole, not bytes
    tensor = external("w", "w.bin")
    tensor.dims[0] = 3 << 28
    small = external("s", "w.bin", offset=(3 << 30) - 16, length=16)
    model = load(write(tmp_path / "m.onnx", with_initializers(tensor, small)))
    assert model.nbytes > 3 << 30
    weight, last = model.weights()
    assert weight.array()[-1] == 0
    assert last.array().tolist() == [0] * 4
    with pytest.raises(ModelError, match="do not fit"):
        model.materialized()


MEASURE = """
import sys, gc
from pathlib import Path
from graphkit.graph import Graph
from graphkit.model import load
def anonymous():
    gc.collect()
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith("RssAnon")) / 1024
before = anonymous()
model = load(sys.argv[1])
graph = Graph.of(model)
total = sum(float(weight.array()[::1024].sum()) for weight in model.weights())
graph.to_model().save(sys.argv[2])
graph.to_model().save(sys.argv[3], external=True)
print(anonymous() - before)
"""


def test_weights_of_300_megabytes_take_no_memory(tmp_path: Path) -> None:
    weight = np.zeros(25 << 20, np.float32)
    proto = with_initializers(*(numpy_helper.from_array(weight, f"w{i}") for i in range(3)))
    path = write(tmp_path / "m.onnx", proto)
    outputs = [str(tmp_path / name) for name in ("n.onnx", "o.onnx")]
    command = [sys.executable, "-c", MEASURE, str(path), *outputs]
    done = subprocess.run(command, capture_output=True, text=True, check=True, timeout=120)
    assert float(done.stdout) < 30, f"{done.stdout} MB of anonymous memory"
    for file in tmp_path.iterdir():
        file.unlink()  # the runner keeps the folders of some runs


# -- the input is not touched -----------------------------------------------------------------------------


def test_the_input_keeps_its_bytes_and_its_time(tmp_path: Path) -> None:
    source = write(tmp_path / "m.onnx", everywhere())
    before = source.read_bytes(), source.stat().st_mtime_ns
    model = load(source)
    for weight in model.weights():
        with pytest.raises(ValueError, match="read-only"):
            weight.array().reshape(-1)[0] = 7
    for external_data in (False, True):
        model.save(tmp_path / "n.onnx", external=external_data)
    assert (source.read_bytes(), source.stat().st_mtime_ns) == before


def test_saving_onto_an_input_is_refused_by_any_name(tmp_path: Path) -> None:
    source = write(tmp_path / "m.onnx", everywhere())
    (tmp_path / "soft").symlink_to(source)
    (tmp_path / "hard").hardlink_to(source)
    model = load(source)
    for name in ("m.onnx", "soft", "hard", "../" + tmp_path.name + "/m.onnx"):
        with pytest.raises(OutputError, match="would overwrite an input"):
            model.save(tmp_path / name)
    model.save(tmp_path / "e.onnx", external=True)
    (tmp_path / "e2.onnx.data").hardlink_to(tmp_path / "e.onnx.data")
    with pytest.raises(OutputError, match="would overwrite an input"):
        load(tmp_path / "e.onnx").save(tmp_path / "e2.onnx")
    assert onnx.load(source) == everywhere()


@pytest.mark.parametrize(
    ("opsets", "problem"),
    [([("", 99)], "imports opset 99"), ([("", 0)], "imports opset 0"), ([], "imports no operator set")],
)
def test_an_unknown_operator_set_is_an_error(opsets: list[tuple[str, int]], problem: str, tmp_path: Path) -> None:
    proto = parse("g (float[N] x) => (float[N] y) { y = Relu(x) }").proto
    del proto.opset_import[:]
    proto.opset_import.extend(onnx.helper.make_opsetid(domain, version) for domain, version in opsets)
    (tmp_path / "m.onnx").write_bytes(proto.SerializeToString())
    with pytest.raises(ModelError, match=problem):
        Model.load(tmp_path / "m.onnx")


def test_a_model_without_outputs_is_an_error(tmp_path: Path) -> None:
    proto = parse("g (float[N] x) => (float[N] y) { y = Relu(x) }").proto
    del proto.graph.output[:]
    (tmp_path / "m.onnx").write_bytes(proto.SerializeToString())
    with pytest.raises(ModelError, match="has no outputs"):
        Model.load(tmp_path / "m.onnx")

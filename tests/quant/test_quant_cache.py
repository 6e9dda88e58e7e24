"""The cache: what was put is found, in other processes too, and by nothing but its content."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import numpy as np
import onnx
import pytest

from graphkit.model import Model
from graphkit.quant.cache import Cache, cache_home, digest, model_digest

TEXT = """<ir_version: 10, opset_import: ["" : 21]>
g (float[2,3] x) => (float[2,2] y) <float[3,2] w = {1,2,3,4,5,6}> { y = MatMul(x, w) }"""


def _model(width: int = 40, change: float = 0.0) -> onnx.ModelProto:
    model = onnx.parser.parse_model(TEXT)
    weight = np.arange(width * width, dtype=np.float32).reshape(width, width)
    weight[3, 3] += change
    model.graph.initializer.append(onnx.numpy_helper.from_array(weight, "large"))
    return model


def test_found_again(tmp_path: Path) -> None:
    cache = Cache(tmp_path / "deep" / "er")
    assert cache.get("c", "k") is None
    cache.put("c", "k", 0.1)
    cache.put("c", "bad", float("inf"))
    cache.put("d", "k", 2.0)
    again = Cache(tmp_path / "deep" / "er")
    assert (again.get("c", "k"), again.get("c", "bad"), again.get("d", "k")) == (0.1, float("inf"), 2.0)
    assert again.get("c", "other") is None


def test_the_last_one_counts(tmp_path: Path) -> None:
    Cache(tmp_path).put("c", "k", 1.0)
    Cache(tmp_path).put("c", "k", 2.0)
    assert Cache(tmp_path).get("c", "k") == 2.0


def test_damage_costs_one_entry(tmp_path: Path) -> None:
    cache = Cache(tmp_path)
    cache.put("c", "one", 1.0)
    with (tmp_path / "c.jsonl").open("ab") as file:
        file.write(b'\xff\x00 {"key": "torn", "va')
    Cache(tmp_path).put("c", "two", 2.0)
    with (tmp_path / "c.jsonl").open("ab") as file:
        file.write(b'[]\n{"key": 1}\n{"key": "k", "value": "many"}\nnull\n')
    again = Cache(tmp_path)
    assert (again.get("c", "one"), again.get("c", "two")) == (1.0, 2.0)
    assert again.get("c", "torn") is again.get("c", "k") is None


def test_a_folder_that_cannot_be(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    tmp_path.joinpath("file").write_text("")
    cache = Cache(tmp_path / "file")
    cache.put("c", "k", 1.0)
    cache.put("c", "l", 1.0)
    assert cache.get("c", "k") == 1.0
    assert len(caplog.records) == 1
    assert "nothing is cached" in caplog.text


def test_many_writers(tmp_path: Path) -> None:
    script = (
        "import sys; from graphkit.quant.cache import Cache\n"
        "for i in range(200): Cache(sys.argv[1]).put('c', f'{sys.argv[2]}-{i}', float(i))"
    )
    writers = [subprocess.Popen([sys.executable, "-c", script, str(tmp_path), str(n)]) for n in range(2)]
    assert [writer.wait() for writer in writers] == [0, 0]
    cache = Cache(tmp_path)
    assert all(cache.get("c", f"{n}-{i}") == i for n in range(2) for i in range(200))


def test_home(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.delenv("GRAPHKIT_CACHE", raising=False)
    assert cache_home() == tmp_path / "graphkit"
    monkeypatch.delenv("XDG_CACHE_HOME")
    assert cache_home() == Path.home() / ".cache" / "graphkit"
    monkeypatch.setenv("GRAPHKIT_CACHE", str(tmp_path / "own"))
    assert Cache.default().folder == tmp_path / "own" / "sensitivity"


def test_digests_tell_apart() -> None:
    array = np.arange(6, dtype=np.float32)
    different = [
        ("ab",), ("a", "b"), (["a", "b"],), (["ab"],), (1,), (1.0,), ("1",), (b"1",), (True,), (None,),
        (array,), (array.reshape(2, 3),), (array.astype(np.float64),), (array.view(np.int32),), (array + 1,),
        ({"a": array},), ({"b": array},), ({"a": array, "b": 1},), ([],), ({"a": []},), ([[], []],), ([[[]]],),
        (np.array(["a", "b"], object),), (np.array(["ab"], object),),
    ]  # fmt: skip
    assert len({digest(*parts) for parts in different}) == len(different)


def test_digests_do_not_see_layout_or_order() -> None:
    array = np.arange(6, dtype=np.float32).reshape(2, 3)
    assert digest(array.T) == digest(np.ascontiguousarray(array.T)) != digest(array)
    assert digest({"a": 1, "b": 2}) == digest({"b": 2, "a": 1})


def test_a_model_has_one_digest_wherever_it_is(tmp_path: Path) -> None:
    proto = _model()
    expected = model_digest(Model.from_proto(proto))
    onnx.save(proto, tmp_path / "m.onnx")
    onnx.save(proto, tmp_path / "e.onnx", save_as_external_data=True, size_threshold=0)
    inline = Model.load(tmp_path / "m.onnx")
    assert model_digest(inline) == expected
    assert model_digest(Model.load(tmp_path / "e.onnx")) == expected
    inline.save(tmp_path / "n.onnx", external=True)
    assert model_digest(Model.load(tmp_path / "n.onnx")) == expected
    assert model_digest(inline) == expected  # the model itself is as before


def test_every_weight_and_node_counts() -> None:
    plain = model_digest(Model.from_proto(_model()))
    small, node = _model(), _model()
    small.graph.initializer[0].CopyFrom(onnx.numpy_helper.from_array(np.ones((3, 2), np.float32), "w"))
    node.graph.node[0].name = "other"
    others = [Model.from_proto(model) for model in (_model(change=1.0), _model(41), small, node)]
    assert len({plain, *map(model_digest, others)}) == 5

"""What validation calls an error is one to MNN: it crashes, refuses the file, or computes something else.

Each case changes one thing in a converted model, sees what MNN does with it in a child, and what validation says.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from converted import CNN, LOOP, cnn_weights, convert, random
from documents import table

from graphkit.mnn.document import Document, read, write
from graphkit.mnn.document.tree import Table
from graphkit.mnn.document.validate import Problem, validate
from graphkit.mnn.process import run_child
from graphkit.mnn.worker import run

Array = np.ndarray[Any, Any]
Change = Callable[[Document], object]

CONV = "g (float[1, 32, 8, 8] x) => (float[1, 64, 6, 6] y) { c = Conv(x, w, b) y = Sigmoid(c) }"
NORM = "g (float[2, 64] x) => (float[2, 64] y) { n = LayerNormalization(x, w, b) y = Mul(n, q) }"
IF = """g (float[2] x, float[2] z, int32 c) => (float[2] y) {
    k = Cast<to = 9>(c)
    w = Exp(z)
    y = If(k) <then_branch = t () => (float[2] a) { a = Mul(x, w) }, else_branch = e () => (float[2] b) { b = Abs(w) }>
}"""
BOTH: dict[str, Any] = {"weightQuantBits": 4, "weightQuantBlock": 16, "weightQuantAsymmetric": True}
SPARSE: dict[str, Any] = {"detectSparseSpeedUp": True}
EIGHT: dict[str, Any] = {"weightQuantBits": 8}
OUTSIDE: dict[str, Any] = {"saveExternalData": True}

_KEPT: dict[str, tuple[Path, dict[str, Array], dict[str, Array]]] = {}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("models")


def weights_of(text: str, sparse: bool) -> dict[str, Array]:
    if text == CONV:
        weights = random(64, 32, 3, 3)
        weights[np.abs(weights) < (2.2 if sparse else 0)] = 0
        return {"w": weights, "b": random(64)}
    if text == NORM:
        return {"w": random(64), "b": random(64), "q": random(2, 64)}
    return cnn_weights() if text == CNN else {}


def base(folder: Path, text: str, options: dict[str, Any]) -> tuple[Path, dict[str, Array], dict[str, Array]]:
    """A converted model, inputs for it, and what MNN computes from them."""
    key = f"{text}{options}"
    if key not in _KEPT:
        weights = weights_of(text, options == SPARSE)
        path = convert(folder / f"m{len(_KEPT)}.mnn", text, weights, **options)
        assert validate(read(path)) == []
        shapes = {CONV: (1, 32, 8, 8), NORM: (2, 64), CNN: (1, 3, 8, 8), LOOP: (2, 3), IF: (2,)}
        feeds: dict[str, Array] = {"x": random(*shapes[text])}
        feeds |= {IF: {"z": random(2), "c": np.int32(1)}, LOOP: {"n": np.int32(3)}}.get(text, {})
        _KEPT[key] = (path, feeds, run(path, feeds).outputs)
    return _KEPT[key]


def find(doc: Document, kind: str) -> Table:
    return next(op for view in doc.graphs() for op in view.ops if op.label("type") == kind)


def main(kind: str, *path: str, **fields: Any) -> Change:
    """Set fields of an operator's parameters, or of a table below; None removes one, a function maps the value."""

    def apply(doc: Document) -> None:
        found = find(doc, kind)["main"]
        for name in path:
            found = found[name]
        put(found, fields)

    return apply


def operator(kind: str, **fields: Any) -> Change:
    return lambda doc: put(find(doc, kind), fields)


def net(**fields: Any) -> Change:
    return lambda doc: put(doc.net, fields)


def body(**fields: Any) -> Change:
    return lambda doc: put(doc.net["subgraphs"][0], fields)


def put(found: Table, fields: dict[str, Any]) -> None:
    for name, value in fields.items():
        if value is None:
            del found.fields[name]
        else:
            found.fields[name] = value(found.fields[name]) if callable(value) else value


def first(count: int) -> Callable[[Any], Any]:
    return lambda values: values[:count]


def at(place: int, value: int) -> Callable[[Array], Array]:
    def change(array: Array) -> Array:
        changed = array.copy()
        changed[place] = value
        return changed

    return change


def indexes(*values: int) -> Array:
    return np.array(values, "<i4")


DESCRIBED = [table("TensorDescribe", index=10**8, quantInfo=table("TensorQuantInfo", scale=np.float32(1)))]

CASES: list[tuple[str, dict[str, Any], Change, str]] = [
    (CONV, {}, operator("Convolution", inputIndexes=indexes(9000)), "there is no tensor 9000"),
    (CONV, {}, operator("Convolution", inputIndexes=indexes(-1)), "there is no tensor -1"),
    (CONV, {}, operator("Convolution", outputIndexes=indexes(90000)), "there is no tensor 90000"),
    (CONV, {}, operator("Convolution", inputIndexes=indexes()), "reads at least 1"),
    (CONV, {}, operator("Convolution", outputIndexes=None), "MNN refuses"),
    (CONV, {}, operator("Input", outputIndexes=None), "MNN refuses"),
    (CONV, {}, lambda doc: doc.net["oplists"].reverse(), "is read before"),
    (CONV, {}, net(tensorName=first(2)), "there is no tensor"),
    (CONV, {}, net(outputName=["z"]), "there is no tensor 'z'"),
    (CONV, {}, net(outputName=[]), "computes nothing"),
    (CONV, {}, lambda doc: doc.net["tensorName"].append("y"), "by name"),
    (CONV, {}, net(usage=2), "INFERENCE_STATIC"),
    (CONV, {}, net(extraTensorDescribe=DESCRIBED), "there is no tensor 100000000"),
    (CONV, {}, operator("Convolution", main=None), "MNN crashes"),
    (CONV, {}, operator("Convolution", type=47), "a Pooling has Pool"),
    (CONV, {}, operator("Convolution", type=9999), "no operator of type"),
    (CONV, {}, operator("Input", main=None, main_type=None), "MNN crashes"),
    (CONV, {}, main("Convolution", common=None), "MNN crashes"),
    (CONV, {}, main("Convolution", "common", strideX=0), "0 is not possible"),
    (CONV, {}, main("Convolution", "common", kernelX=5), "common asks for 30720"),
    (CONV, {}, main("Convolution", "common", outputCount=128), "common asks for"),
    (CONV, {}, main("Convolution", "common", pads=indexes(1)), "has 1 numbers"),
    (CONV, {}, main("Convolution", weight=None), "is missing"),
    (CONV, {}, main("Convolution", weight=first(100)), "holds 100 elements"),
    (CONV, {}, main("Convolution", bias=None), "is missing"),
    (CONV, {}, main("Convolution", bias=first(9)), "holds 9 elements"),
    (CONV, EIGHT, main("Convolution", "quanParameter", buffer=first(-90)), "codes of 8 bits take"),
    (CONV, EIGHT, main("Convolution", "quanParameter", buffer=first(2)), "does not begin"),
    (CONV, EIGHT, main("Convolution", "quanParameter", buffer=None), "is missing"),
    (CONV, EIGHT, main("Convolution", "quanParameter", alpha=None), "is missing"),
    (CONV, EIGHT, main("Convolution", "quanParameter", alpha=first(5)), "holds 5 scales"),
    (CONV, EIGHT, main("Convolution", "quanParameter", scaleStorage=1), "alphaFp16"),
    (CONV, EIGHT, main("Convolution", "quanParameter", shapeInt32=True), "common asks for"),
    (CONV, EIGHT, main("Convolution", "quanParameter", type=2), "does not begin"),
    (CONV, EIGHT, main("Convolution", "quanParameter", type=5), "no weights of type 5"),
    (CONV, EIGHT, main("Convolution", "common", kernelX=1), "common asks for 6144"),
    (CONV, BOTH, main("Convolution", "quanParameter", readType=0), "holds 256 scales"),
    (CONV, BOTH, main("Convolution", "quanParameter", alpha=first(128)), "buffer has 128 rows"),
    (CONV, {"fp16": True}, main("Convolution", "quanParameter", buffer=first(-100)), "(float16)"),
    (CONV, SPARSE, main("Convolution", "quanParameter", alpha=first(-3)), "places for"),
    (CONV, SPARSE, main("Convolution", "quanParameter", index=at(0, 2**30)), "names place 1073741824"),
    (CONV, SPARSE, main("Convolution", "sparseParameter", args=first(2)), "has no 'sparseBlockOC'"),
    (CONV, SPARSE, main("Convolution", "sparseParameter", args=lambda args: args[::-1]), "is not sorted"),
    (CONV, OUTSIDE, main("Convolution", external=at(0, 10**9)), "reads up to byte"),
    (CONV, OUTSIDE, main("Convolution", external=at(1, 400)), "says 400 bytes"),
    (CONV, OUTSIDE, main("Convolution", external=at(2, 8)), "says 8 bytes"),
    (CONV, OUTSIDE, main("Convolution", external=first(2)), "has 2 numbers"),
    (NORM, {}, main("Const", float32s=None), "is missing"),
    (NORM, {}, main("Const", float32s=first(5)), "holds 5 elements"),
    (NORM, {}, main("Const", dims=indexes(1000, 64)), "holds 128 elements"),
    (NORM, {}, main("Const", dims=indexes(-1, 64)), "-1 is no size"),
    (NORM, {}, main("Const", dims=indexes(*[1] * 60, 2, 64)), "at most 9"),
    (NORM, {}, main("Const", dataType=9), "no constants of DT_INT64"),
    (NORM, {"fp16": True}, main("Const", uint8s=first(11)), "holds 11 elements"),
    (NORM, {}, main("LayerNorm", beta=None), "is ignored"),
    (NORM, {}, main("LayerNorm", beta=first(3)), "holds 3 elements, gamma 64"),
    (CNN, {}, main("Pooling", strideX=0), "0 is not possible"),
    (CNN, {}, main("BinaryOp", opType=3), "use REALDIV"),
    (CNN, {}, main("BinaryOp", opType=-1), "BinaryOpOperation has no number -1"),
    (CNN, {}, main("UnaryOp", opType=77), "UnaryOpOperation has no number 77"),
    (CONV, EIGHT, main("Convolution", "common", group=100), "does not divide outputCount"),
    (CNN, {}, operator("BinaryOp", inputIndexes=first(1)), "at least 2"),
    (IF, {}, main("If", then_graph="then"), "there is no subgraph 'then'"),
    (IF, {}, main("If", else_graph=None), "is missing"),
    (IF, {}, main("If", aliases_inputs=None), "is missing"),
    (IF, {}, main("If", aliases_inputs=first(-1)), "no input is passed to"),
    (IF, {}, main("If", aliases_outputs=[table("StringVec", data=["q", "b"])]), "'q' is no output of then_graph"),
    (IF, {}, main("If", aliases_outputs=[table("StringVec", data=["a"])]), "has 1 names"),
    (IF, {}, main("If", aliases_outputs=[]), "has 0 entries"),
    (IF, {}, net(subgraphs=None), "there is no subgraph"),
    (IF, {}, body(name=None), "without a name"),
    (IF, {}, body(outputs=None), "MNN crashes"),
    (IF, {}, body(outputs=indexes(5000)), "there is no tensor 5000"),
    (IF, {}, body(inputs=None), "is not listed"),
    (LOOP, {}, main("While", body_graph="loop"), "there is no subgraph 'loop'"),
    (LOOP, {}, operator("While", inputIndexes=first(-1)), "takes 3 inputs"),
    (LOOP, {}, body(outputs=first(1)), "returns 1 tensors"),
    (LOOP, {}, main("While", cond_graph="b"), "is missing"),
]


@pytest.mark.parametrize(("text", "options", "apply", "message"), CASES, ids=range(len(CASES)))
def test_errors_are_errors_to_mnn(
    text: str, options: dict[str, Any], apply: Change, message: str, folder: Path, tmp_path: Path
) -> None:
    path, feeds, wanted = base(folder, text, options)
    doc = read(path)
    apply(doc)
    changed = tmp_path / "changed.mnn"
    write(doc, changed)
    found = [str(problem) for problem in errors(changed)]
    assert any(message in problem for problem in found), found
    assert went_wrong(changed, feeds, wanted)


def errors(path: Path) -> list[Problem]:
    return [problem for problem in validate(read(path)) if problem.severity == "error"]


def went_wrong(path: Path, feeds: dict[str, Array], wanted: dict[str, Array]) -> bool:
    """Whether MNN crashes, refuses, or computes something else.

    Asks the child itself: graphkit's own reader would refuse some of these files before MNN sees them.
    """
    outputs = read(path).net.texts("outputName")
    folder = path.parent / "child"
    folder.mkdir()
    np.savez(folder / "inputs-0.npz", **{f"i{k}": array for k, array in enumerate(feeds.values())})
    request = {"task": "run", "model": str(path), "inputs": list(feeds), "outputs": outputs, "samples": 1}
    ending = run_child(request, folder, 30)
    if ending.code != 0 or ending.result.get("error"):
        return True
    with np.load(folder / "outputs-0.npz") as stored:
        return any(not np.array_equal(stored[f"o{k}"], wanted[name]) for k, name in enumerate(outputs))


@pytest.mark.parametrize("cut", [None, 100], ids=["missing", "cut off"])
def test_the_file_of_weights_must_be_there_and_whole(cut: int | None, folder: Path, tmp_path: Path) -> None:
    path, feeds, wanted = base(folder, CONV, OUTSIDE)
    changed = tmp_path / "changed.mnn"
    write(read(path), changed)
    weights = changed.with_name("changed.mnn.weight")
    if cut is None:
        weights.unlink()
    else:
        weights.write_bytes(weights.read_bytes()[:cut])
    (problem,) = errors(changed)
    assert "changed.mnn.weight" in problem.message
    assert went_wrong(changed, feeds, wanted)

"""Validation of tables that MNN's converter writes seldom, in documents made by hand."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from documents import NAMES, SCHEMA, ints, op, random_document, small, table

from graphkit.mnn.document import Document
from graphkit.mnn.document._valid_table import NEEDS
from graphkit.mnn.document.tree import Table
from graphkit.mnn.document.validate import validate


def floats(count: int) -> np.ndarray[Any, Any]:
    return np.zeros(count, "<f4")


def codes(dims: tuple[int, ...], bits: int, *, cut: int = 0) -> np.ndarray[Any, Any]:
    """A buffer of type 1."""
    samples = bytes(k % 256 for k in range(-(1 << bits - 1), 1 << bits - 1))
    head = bytes((len(dims),)) + b"".join(size.to_bytes(2, "little") for size in dims) + bytes((len(samples) % 256,))
    body = bytes(-(-int(np.prod(dims)) * bits // 8))
    data = (head + samples + body)[: -cut or None]
    return np.frombuffer(data, "i1")


def of(kind: str, main: Table, reads: int = 1, writes: int = 1) -> Document:
    """A document whose last operator has these parameters."""
    doc = small()
    del doc.net["oplists"][1:]
    doc.net.fields.pop("extraTensorDescribe")
    doc.net.fields |= {"tensorName": ["x", "y", "z"], "outputName": ["y"]}
    doc.net["oplists"].append(op(kind, "t", (0,) * reads, tuple(range(1, writes + 1)), main))
    return doc


def found(doc: Document) -> list[tuple[str, str, str]]:
    return [(problem.severity, problem.where, problem.message) for problem in validate(doc)]


def conv(quan: dict[str, Any] | None = None, **more: Any) -> Table:
    """A convolution of 4 to 8 channels with a 3 × 1 kernel."""
    common = table("Convolution2DCommon", kernelX=3, kernelY=1, outputCount=8, inputCount=4)
    fields: dict[str, Any] = {"common": common, "bias": floats(8)}
    fields |= {"weight": floats(96)} if quan is None else {"quanParameter": table("IDSTQuan", **quan)}
    return table("Convolution2D", **(fields | more))


CODED = {"type": 1, "alpha": floats(8), "buffer": codes((8, 12), 4), "aMaxOrBits": 4}
VALID: list[tuple[str, Table, int]] = [
    ("Convolution", conv(), 1),
    ("Convolution", table("Convolution2D", common=table("Convolution2DCommon")), 2),
    ("Convolution", conv(CODED), 1),
    ("Convolution", conv(CODED | {"buffer": codes((8, 1, 4, 3), 4)}), 1),
    ("Convolution", conv(CODED | {"buffer": codes((32, 3), 4), "alpha": floats(32)}), 1),
    ("Convolution", conv(CODED | {"alpha": floats(16), "readType": 8}), 1),
    ("Convolution", conv({"type": 3, "buffer": np.zeros(192, "i1")}), 1),
    ("Convolution", conv({"type": 4, "buffer": np.zeros(96, "i1"), "alpha": floats(16)}), 1),
    ("Convolution", conv({"index": np.arange(3, dtype="<u4"), "alpha": floats(3), "weightSize": 96}), 1),
    ("PReLU", table("PRelu", slopeCount=4, slope=floats(4)), 1),
    ("Scale", table("Scale", channels=4, scaleData=floats(4), biasData=floats(4)), 1),
    ("LayerNorm", table("LayerNorm", gamma=floats(4), beta=floats(4)), 1),
    ("InnerProduct", table("InnerProduct", outputCount=2, weightSize=8, weight=floats(8), bias=floats(2)), 1),
    ("Pooling", table("Pool", isGlobal=True), 1),
    ("Pooling3D", table("Pool3D", kernels=ints(1, 2, 2), strides=ints(1, 2, 2)), 1),
    ("Reshape", table("Reshape", dims=ints(-1)), 1),
]


@pytest.mark.parametrize(("kind", "main", "reads"), VALID)
def test_right_tables_have_no_problems(kind: str, main: Table, reads: int) -> None:
    assert found(of(kind, main, reads)) == []


def deep(**more: Any) -> Table:
    """A Convolution3D with two biases."""
    fields = {"kernels": ints(1, 1, 1), "strides": ints(1, 1, 1), "dilates": ints(1, 1, 1), "outputCount": 2}
    return table("Convolution3D", common=table("Convolution3DCommon", **(fields | more)), bias=floats(2))


SPARSE = {"index": np.arange(3, dtype="<u4"), "weightSize": 96}
WRONG: list[tuple[str, Table, int, str, str]] = [
    ("Convolution", conv(CODED | {"buffer": codes((8, 12), 4, cut=1)}), 1, "quanParameter.buffer", "has 69 bytes"),
    ("Convolution", conv(CODED | {"buffer": codes((8, 13), 4)}), 1, "quanParameter.buffer", "holds 8 × 13 weights"),
    ("Convolution", conv(CODED | {"alpha": floats(9)}), 1, "quanParameter.alpha", "holds 9 scales"),
    ("Convolution", conv(CODED | {"alpha": floats(0)}), 1, "quanParameter.alpha", "holds 0 scales"),
    ("Convolution", conv(CODED | {"alpha": floats(16)}), 1, "quanParameter.alpha", "the buffer has 8 rows"),
    ("Convolution", conv({"type": 4, "buffer": np.zeros(90, "i1"), "alpha": floats(16)}), 1, "buffer", "int8"),
    ("Convolution", conv(SPARSE | {"alpha": floats(2)}), 1, "index", "3 places"),
    ("PReLU", table("PRelu", slopeCount=4, slope=floats(3)), 1, "slope", "slopeCount says 4"),
    ("PReLU", table("PRelu", slopeCount=4), 1, "slope", "is missing"),
    ("Scale", table("Scale", channels=4, biasData=floats(4)), 1, "scaleData", "is missing"),
    ("Scale", table("Scale", scaleData=floats(4), biasData=floats(3)), 1, "biasData", "scaleData 4"),
    ("InnerProduct", table("InnerProduct", outputCount=2, bias=floats(1)), 1, "bias", "outputCount says 2"),
    ("LayerNorm", table("LayerNorm", beta=floats(4)), 1, "beta", "is ignored"),
    ("Pooling", table("Pool", kernelX=2, kernelY=2, strideX=1), 1, "strideY", "0 is not possible"),
    ("Pooling3D", table("Pool3D", kernels=ints(2, 2)), 1, "strides", "is []"),
    ("Convolution3D", table("Convolution3D"), 1, "common", "is missing"),
    ("Convolution3D", deep(kernels=ints(0, 1, 1)), 1, "common.kernels", "is [0, 1, 1]"),
    ("Convolution3D", deep(outputCount=3), 1, "bias", "outputCount is 3"),
]


@pytest.mark.parametrize(("kind", "main", "reads", "where", "message"), WRONG)
def test_wrong_tables_are_errors(kind: str, main: Table, reads: int, where: str, message: str) -> None:
    (problem,) = found(of(kind, main, reads))
    assert problem[0] == "error"
    assert problem[1].startswith("ops[t].main.")
    assert problem[1].endswith(where)
    assert message in problem[2]


def test_bits_that_differ_and_groups_of_two_meanings_are_warnings() -> None:
    (problem,) = found(of("Convolution", conv(CODED | {"aMaxOrBits": 8})))
    assert problem[:2] == ("warning", "ops[t].main.quanParameter.aMaxOrBits")
    grouped = conv()
    grouped["common"].fields["group"] = 2
    (problem,) = found(of("Convolution", grouped))
    assert problem[:2] == ("warning", "ops[t].main.common.group")


def test_parameters_can_stand_for_inputs() -> None:
    assert found(of("Reshape", table("Reshape")))[0][2] == "lists 1 tensors, a Reshape reads at least 2"
    gru = table("RNNParam", isBidirectionalRNN=True)
    assert found(of("RNNSequenceGRU", gru, reads=6))[0][2] == "lists 6 tensors, a RNNSequenceGRU reads at least 11"
    assert found(of("RNNSequenceGRU", gru, reads=11)) == []


def static_loop(**more: Any) -> Document:
    view = table("View", stride=ints(1, 1, 1))
    command = table("RegionCommand", size=ints(1, 1, 1), indexes=ints(1, 0), iterIndexes=ints(-1, 0), view=[view, view])
    command.fields["op"] = op("UnaryOp", "", (), (), table("UnaryOp"))
    fields = {"tensorNumber": 2, "inputIndexes": ints(0), "outputIndexes": ints(1), "commands": [command]}
    infos = [table("TensorDescribe", blob=table("Blob"))]
    return of("While", table("LoopParam", **(fields | {"extraTensorInfos": infos} | more)))


def test_static_loops() -> None:
    assert found(static_loop()) == []
    assert found(static_loop(tensorNumber=1))[0][1:] == ("ops[t].main.outputIndexes[0]", "there is no tensor 1")
    assert found(static_loop(inputIndexes=ints(0, 0)))[0][1] == "ops[t].main.inputIndexes"
    assert found(static_loop(extraTensorInfos=None))[0][1] == "ops[t].main.extraTensorInfos"
    bare = table("RegionCommand")
    assert found(static_loop(commands=[bare]))[0][1] == "ops[t].main.commands[0].op"
    assert found(static_loop(initCommand=[bare])) == []


def loop(**more: Any) -> Document:
    """A While as TensorFlow has it: a subgraph that decides and one that computes."""
    fields = {
        "cond_graph": "go",
        "body_graph": "body",
        "aliases_inputs": [table("StringVec", data=["a", "i"])],
        "aliases_updates": [table("StringVec", data=["b", "i"]), table("StringVec", data=["b", "a"])],
        "aliases_outputs": ["b"],
    }
    doc = of("While", table("WhileParam", **(fields | more)))
    go = table("SubGraphProto", name="go", inputs=ints(0), outputs=ints(1), tensors=["i", "o"])
    go.fields["nodes"] = [op("UnaryOp", "o", (0,), (1,), table("UnaryOp"))]
    doc.net["subgraphs"].append(go)
    return doc


@pytest.mark.parametrize(
    ("change", "severity", "where", "message"),
    [
        ({"cond_graph": "goo"}, "error", "cond_graph", "there is no subgraph 'goo'"),
        ({"aliases_updates": None}, "error", "aliases_updates", "MNN crashes"),
        ({"aliases_inputs": [table("StringVec", data=["a"])]}, "error", "aliases_inputs", "'i' of subgraph 'go'"),
        ({"aliases_inputs": [table("StringVec")]}, "error", "aliases_inputs[0].data", "is missing"),
        ({"aliases_updates": [table("StringVec", data=["q", "i"])]}, "warning", "aliases_updates[0].data", "'q' is no"),
        ({"aliases_updates": [table("StringVec", data=["b"])]}, "error", "aliases_updates[0].data", "has 1 names"),
        ({"aliases_outputs": []}, "error", "aliases_outputs", "has 0 names"),
        ({"aliases_outputs": ["bb"]}, "error", "aliases_outputs[0]", "no tensor of the loop"),
    ],
)
def test_loops_with_a_condition(change: dict[str, Any], severity: str, where: str, message: str) -> None:
    assert found(loop()) == []
    problem = found(loop(**change))[0]
    assert problem[:2] == (severity, f"ops[t].main.{where}")
    assert message in problem[2]


def test_static_models_need_the_regions_that_mnn_reads() -> None:
    doc = small()
    view = table("View", stride=ints(1, 1, 1))
    region = table("Region", src=view, dst=view, size=ints(1, 1, 1), origin=0)
    doc.net.fields |= {"usage": 2, "extraTensorDescribe": [table("TensorDescribe", index=1, regions=[region])]}
    assert found(doc) == []
    region.fields |= {"origin": 7, "size": ints(1)}
    assert [where for _, where, _ in found(doc)] == [
        "extraTensorDescribe[0].regions[0].origin",
        "extraTensorDescribe[0].regions[0].size",
    ]


def test_subgraphs_of_one_name_are_an_error() -> None:
    doc = loop()
    doc.net["subgraphs"][0].fields["name"] = "go"
    assert ("error", "subgraphs[1].name", "'go' is the name of subgraphs 0, 1, and MNN takes the first") in found(doc)


def test_any_document_can_be_validated(tmp_path: Path) -> None:
    weights = tmp_path / "m.mnn.weight"
    weights.write_bytes(bytes(range(256)))
    for seed in range(60):
        draw = random.Random(seed)
        doc = random_document(draw, 150)
        doc.weights = weights if seed % 2 else None
        validate(doc)
        if seed < 4:
            doc.net.fields["oplists"] = [drawn(kind, draw) for kind in NEEDS]
            assert validate(doc)


def drawn(kind: str, draw: random.Random) -> Table:
    """An operator with parameters of a kind that belongs to it, filled at random."""
    tables = [name for name in NEEDS[kind].tables if name != "NONE"] or ["Axis"]
    for _ in range(9):
        ops = [one for _, one in random_document(draw, 40).net.walk() if one.type.name == draw.choice(tables)]
        if ops:
            return op(kind, draw.choice(NAMES), (0,), (1,), ops[0])
    return op(kind, "", (0,), (1,), table(draw.choice(tables)))


def test_every_kind_of_parameters_is_in_the_union() -> None:
    assert {name for needs in NEEDS.values() for name in needs.tables} <= set(SCHEMA.members)

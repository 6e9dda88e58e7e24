"""Validation: real models have no problems; problems say where they are and what to do."""

from __future__ import annotations

import time
import warnings
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from converted import CNN, LOOP, cnn_weights, convert
from documents import SCHEMA, ints, op, small, table

from graphkit.errors import ModelError
from graphkit.mnn.convert import ConverterError, run_converter
from graphkit.mnn.document import Document, read
from graphkit.mnn.document._valid_problem import Problem, near
from graphkit.mnn.document._valid_table import NEEDS
from graphkit.mnn.document.validate import require_valid, validate
from graphkit.mnn.options import ConverterOptions
from graphkit.mnn.worker import RunError, run

FLAVOURS: dict[str, dict[str, Any]] = {
    "float": {},
    "fp16": {"fp16": True},
    "w8": {"weightQuantBits": 8, "weightQuantAsymmetric": True},
    "w4b32": {"weightQuantBits": 4, "weightQuantBlock": 32},
    "external": {"saveExternalData": True},
    "w4b32-external": {"weightQuantBits": 4, "weightQuantBlock": 32, "saveExternalData": True},
}
MODELS = ("centerface", "dtln1", "magika", "orientation", "ppocr4_det", "ppocr4_rec", "silero_seq", "silero_vad")
IF = """g (float[2] x, float[2] z, bool c) => (float[2] y, float[2] q) {
    w = Exp(z)
    y, q = If(c) <then_branch = t () => (float[2] a, float[2] a2) { a = Neg(x) a2 = Mul(x, w) },
                  else_branch = e () => (float[2] b, float[2] b2) { b = Abs(w) b2 = Identity(x) }>
}"""


def errors(doc: Document) -> list[Problem]:
    return [problem for problem in validate(doc) if problem.severity == "error"]


@pytest.mark.parametrize("flavour", FLAVOURS)
@pytest.mark.parametrize("model", MODELS)
def test_real_models_have_no_problems(
    model: str, flavour: str, model_path: Callable[[str], Path], tmp_path: Path
) -> None:
    made = run_converter(model_path(model), tmp_path / "m.mnn", ConverterOptions.of(**FLAVOURS[flavour])).output
    assert validate(read(made)) == []


@pytest.mark.parametrize("options", FLAVOURS.values(), ids=FLAVOURS)
@pytest.mark.parametrize("text", [CNN, LOOP, IF], ids=["cnn", "loop", "if"])
def test_small_models_have_no_problems(text: str, options: dict[str, Any], tmp_path: Path) -> None:
    weights = cnn_weights() if text == CNN else None
    assert validate(read(convert(tmp_path / "m.mnn", text, weights, **options))) == []


@pytest.mark.parametrize("options", [{"detectSparseSpeedUp": True}, {"weightQuantBits": 8}, {"groupConvNative": True}])
def test_sparse_and_grouped_weights_have_no_problems(options: dict[str, Any], tmp_path: Path) -> None:
    weights = np.random.default_rng(0).standard_normal((64, 32, 3, 3)).astype(np.float32)
    weights[np.abs(weights) < 2.2] = 0
    text = """g (float[1, 32, 8, 8] x) => (float[1, 64, 6, 6] y, float[1, 64, 6, 6] z)
        { y = Conv(x, w) z = Conv<group = 2>(x, v) }"""
    path = convert(tmp_path / "m.mnn", text, {"w": weights, "v": weights[:, :16]}, **options)
    assert validate(read(path)) == []
    outside = convert(tmp_path / "o.mnn", text, {"w": weights, "v": weights[:, :16]}, **options, saveExternalData=True)
    assert validate(read(outside)) == []


def backend_models() -> list[Any]:
    """One in 25 of onnx's backend tests."""
    from onnx.backend.test.case.node import collect_testcases

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # numpy's, of the references
        cases = [case for case in collect_testcases(None) if case.model is not None]
    return cases[::25]


def test_of_the_backend_tests_mnn_runs_none_with_an_error(tmp_path: Path) -> None:
    tried = 0
    for case in backend_models():
        onnx.save(case.model, tmp_path / "m.onnx")
        try:
            run_converter(tmp_path / "m.onnx", tmp_path / "m.mnn", timeout=60)
        except ConverterError:
            continue
        tried += 1
        if errors(read(tmp_path / "m.mnn")):
            names = [value.name for value in case.model.graph.input]
            feeds = {name: np.asarray(array) for name, array in zip(names, case.data_sets[0][0], strict=True)}
            with pytest.raises(RunError):
                run(tmp_path / "m.mnn", feeds)
    assert tried > 40


def test_a_document_made_by_hand_is_valid() -> None:
    assert validate(small()) == []
    require_valid(small())


def change(which: str, /, **fields: Any) -> Callable[[Document], None]:
    """Set fields of an operator; None removes them."""

    def apply(doc: Document) -> None:
        found = next(one for one in doc.net["oplists"] if one["name"] == which)
        for field, value in fields.items():
            if value is None:
                del found.fields[field]
            else:
                found.fields[field] = value

    return apply


def net(**fields: Any) -> Callable[[Document], None]:
    return lambda doc: doc.net.fields.update(fields)


def two(*changes: Callable[[Document], None]) -> Callable[[Document], None]:
    def apply(doc: Document) -> None:
        for one in changes:
            one(doc)

    return apply


MESSAGES: Sequence[tuple[Callable[[Document], None], str, str, str]] = [
    (change("c", inputIndexes=ints(9)), "ops[c].inputIndexes[0]", "there is no tensor 9", "has 3 names, 0 to 2"),
    (change("c", inputIndexes=ints(-1)), "ops[c].inputIndexes[0]", "there is no tensor -1", "correct the index"),
    (change("c", outputIndexes=ints(3)), "ops[c].outputIndexes[0]", "there is no tensor 3", "has 3 names"),
    (change("c", outputIndexes=None), "ops[c].outputIndexes", "MNN refuses an operator without outputs", "give it"),
    (change("x", outputIndexes=ints()), "ops[x].outputIndexes", "names 0 tensors where a Input has one", "give it"),
    (change("y", outputIndexes=ints(1)), "ops[y].outputIndexes[0]", "is computed by Convolution 'c' already", "own"),
    (change("c", inputIndexes=ints(1)), "ops[c].inputIndexes[0]", "is the operator's own output", "another"),
    (change("c", inputIndexes=ints(2)), "ops[c].inputIndexes[0]", "read before UnaryOp 'y' computes it", "move ops[y]"),
    (change("c", type=9999), "ops[c].type", "no operator of type 9999", "set a type"),
    (change("c", type=47), "ops[c].main_type", "a Pooling has Pool, this one has Convolution2D", "set main_type"),
    (change("c", main=None), "ops[c].main", "MNN crashes on a Convolution without Convolution2D", "give it"),
    (change("c", main=None, main_type=None), "ops[c].main_type", "MNN crashes on a Convolution", "give it"),
    (change("c", main_type=7), "ops[c].main_type", "main_type says Blob, main is a Convolution2D", "to Convolution2D"),
    (
        change("c", inputIndexes=ints()),
        "ops[c].inputIndexes",
        "lists 0 tensors, a Convolution reads at least 1",
        "name",
    ),
    (net(outputName=["Y"]), "outputName[0]", "there is no tensor 'Y'", "name one of tensorName"),
    (net(outputName=[]), "outputName", "computes nothing", "at least one"),
    (net(tensorName=["x", "c", "y", "y"]), "tensorName[3]", "MNN finds the graph's output by name", "of its own"),
    (net(tensorName=["x", "c", "y", "q"], outputName=["q"]), "outputName[0]", "nothing computes tensor 3 'q'", "name"),
    (net(usage=2, extraTensorDescribe=[]), "", "", ""),
    (
        net(extraTensorDescribe=[table("TensorDescribe", index=3)]),
        "extraTensorDescribe[0].index",
        "there is no tensor 3",
        "there are 3",
    ),
]


@pytest.mark.parametrize(("apply", "where", "message", "hint"), MESSAGES)
def test_errors_name_the_place_and_what_to_do(
    apply: Callable[[Document], None], where: str, message: str, hint: str
) -> None:
    doc = small()
    apply(doc)
    found = errors(doc)
    if not where:
        assert found == []
        return
    assert [problem.where for problem in found].count(where) >= 1
    problem = next(problem for problem in found if problem.where == where)
    assert message in problem.message
    assert hint in problem.hint
    with pytest.raises(ModelError):
        require_valid(doc)


WARNINGS: Sequence[tuple[Callable[[Document], None], str, str]] = [
    (change("y", name="c"), "ops[2].name", "'c' is the name of 2 operators (1, 2)"),
    (net(tensorName=["x", "c", "y", "q", "q"]), "tensorName[4]", "'q' is the name of tensors 3, 4"),
    (net(outputName=["y", "y"]), "outputName[1]", "'y' is an output already"),
    (net(tensorNumber=2), "tensorNumber", "says 2 where tensorName has 3"),
    (change("c", defaultDimentionFormat=99), "ops[c].defaultDimentionFormat", "MNN_DATA_FORMAT has no number 99"),
    (lambda doc: doc.net["oplists"][2]["main"].fields.update(T=77), "ops[y].main.T", "DataType has no number 77"),
    (lambda doc: doc.net["oplists"][0]["main"].fields.update(dims=ints(1, -3)), "ops[x].main.dims[1]", "-3 is no size"),
    (lambda doc: doc.net.fields.pop("outputName"), "outputName", "names no outputs"),
    (change("x", inputIndexes=ints(1)), "ops[x].inputIndexes", "reads nothing"),
    (change("y", type=3), "ops[y].main_type", "a AsString has AsString, this one has UnaryOp"),
]


@pytest.mark.parametrize(("apply", "where", "message"), WARNINGS)
def test_warnings_name_the_place(apply: Callable[[Document], None], where: str, message: str) -> None:
    doc = small()
    apply(doc)
    found = [problem for problem in validate(doc) if problem.severity == "warning"]
    assert [problem.where for problem in found] == [where]
    assert message in found[0].message


def test_unknown_fields_are_warnings() -> None:
    doc = small()
    doc.net["oplists"][1].unknown = (40,)
    (problem,) = validate(doc)
    assert problem.severity == "warning"
    assert "field 40" in problem.message


def test_an_exception_lists_the_first_errors() -> None:
    doc = small()
    doc.net.fields["outputName"] = [f"missing {k}" for k in range(9)]
    with pytest.raises(ModelError, match=r"there is no tensor 'missing 0'(\n.*){4}\n  and 4 more") as caught:
        require_valid(doc)
    assert caught.value.exit_code == 2
    assert caught.value.hint


def test_near_names_are_offered_and_far_ones_not() -> None:
    names = ["conv1_out", "conv2_out", "softmax"]
    assert near("conv1_oot", names) == "did you mean 'conv1_out'?"
    assert near("resnet", names, "look again") == "look again"


def test_places_quote_odd_names() -> None:
    doc = small()
    doc.net["oplists"][1].fields |= {"name": "a[0]", "inputIndexes": ints(9)}
    assert errors(doc)[0].where == 'ops["a[0]"].inputIndexes[0]'


def test_problems_in_subgraphs_name_the_subgraph() -> None:
    doc = small()
    doc.net["subgraphs"][0]["nodes"][0].fields["inputIndexes"] = ints(5)
    (problem,) = errors(doc)
    assert problem.where == "subgraphs[body].ops[b].inputIndexes[0]"


def test_the_table_of_parameters_holds_names_of_the_schema() -> None:
    assert set(NEEDS) <= set(SCHEMA.enums["OpType"].numbers)
    for needs in NEEDS.values():
        assert set(needs.tables) <= set(SCHEMA.members)


def chain(count: int) -> Document:
    """Operators in a row."""
    doc = small()
    main = table("UnaryOp", opType=9, T=1)
    for k in range(3, count):
        doc.net["tensorName"].append(f"/model/layers.{k}/block/Sin_output_{k}")
        doc.net["oplists"].append(op("UnaryOp", f"sine {k}", (k - 1,), (k,), main))
    return doc


def test_five_thousand_operators_take_no_second() -> None:
    doc = chain(5000)
    start = time.process_time()
    assert validate(doc) == []
    assert time.process_time() - start < 1


def test_a_file_full_of_errors_takes_bounded_time() -> None:
    doc = chain(3000)
    for one in doc.net["oplists"][1:]:
        one.fields["inputIndexes"] = ints(*range(3001, 3020))
    start = time.process_time()
    assert len(errors(doc)) == 1000
    assert time.process_time() - start < 5

"""Tables as INT8 rows: exact in onnxruntime, and still bytes in a .mnn file."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from onnx import TensorProto, helper, numpy_helper

from graphkit.errors import UsageError
from graphkit.graph import Graph
from graphkit.mnn.document import read
from graphkit.mnn.road import convert
from graphkit.model import Model
from graphkit.quant.codes import Codes
from graphkit.quant.embeddings import write_table
from graphkit.quant.layers import find_layers
from graphkit.quant.pass_quantize import QuantizeEmbeddings
from graphkit.quant.write import Writer
from graphkit.testing import assert_unchanged, run

ROWS, WIDTH = 200, 48
TABLE = np.random.default_rng(0).standard_normal((ROWS, WIDTH)).astype(np.float32)


def table_model(dtype: int = TensorProto.FLOAT, *, tied: bool = False) -> Model:
    """ids → Gather → Neg; tied: the table is also the right factor of a product, transposed."""
    table = TABLE.astype(helper.tensor_dtype_to_np_dtype(dtype))
    nodes = [
        helper.make_node("Gather", ["table", "ids"], ["rows"], name="emb"),
        helper.make_node("Neg", ["rows"], ["y"]),
    ]
    outputs = [helper.make_tensor_value_info("y", dtype, ["n", WIDTH])]
    if tied:
        nodes.append(helper.make_node("Transpose", ["table"], ["head"], name="turn", perm=[1, 0]))
        nodes.append(helper.make_node("MatMul", ["rows", "head"], ["logits"], name="lm_head"))
        outputs.append(helper.make_tensor_value_info("logits", dtype, ["n", ROWS]))
    graph = helper.make_graph(
        nodes,
        "g",
        [helper.make_tensor_value_info("ids", TensorProto.INT64, ["n"])],
        outputs,
        [numpy_helper.from_array(table, "table")],
    )
    return Model.from_proto(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8))


def random_codes(zeros: bool) -> Codes:
    rng = np.random.default_rng(1)
    codes = rng.integers(-128, 128, (ROWS, WIDTH)).astype(np.int8)
    shift = rng.standard_normal((ROWS, 1)).astype(np.float32) if zeros else None
    return Codes(codes, (rng.random((ROWS, 1)) + 0.01).astype(np.float32), shift, 8)


@pytest.mark.parametrize("zeros", [False, True])
@pytest.mark.parametrize("dtype", [TensorProto.FLOAT, TensorProto.FLOAT16])
def test_rows_are_the_very_numbers(dtype: int, zeros: bool) -> None:
    graph = Graph.of(table_model(dtype))
    (layer,), _ = find_layers(graph)
    codes = random_codes(zeros)
    write_table(Writer(graph), layer, codes)
    ids = np.array([0, 3, 3, ROWS - 1, -1])
    outputs = run(graph.to_model(), {"ids": ids})
    expected = codes.values()[ids].astype(helper.tensor_dtype_to_np_dtype(dtype))
    np.testing.assert_array_equal(outputs["y"], -expected)
    assert "table" not in graph.initializers
    assert {w.data_type for w in graph.initializers.values() if w.nbytes > 1000} == {TensorProto.INT8}


def test_a_tied_table_keeps_its_floats_for_the_product() -> None:
    graph = Graph.of(table_model(tied=True))
    layers, _ = find_layers(graph)
    assert [layer.kind for layer in layers] == ["Embedding", "MatMul"]
    write_table(Writer(graph), layers[0], random_codes(False))
    np.testing.assert_array_equal(graph.initializers["table"].array(), TABLE)


def test_a_tied_table_with_equal_codes_is_stored_once() -> None:
    graph = Graph.of(table_model(tied=True))
    layers, _ = find_layers(graph)
    writer, codes = Writer(graph), random_codes(False)
    write_table(writer, layers[0], codes)
    writer.write(layers[1], codes)
    assert "table" not in graph.initializers
    assert [w.dims for w in graph.initializers.values() if w.data_type == TensorProto.INT8] == [(ROWS, WIDTH)]
    outputs = run(graph.to_model(), {"ids": np.array([5, 7])})
    np.testing.assert_allclose(outputs["logits"], -outputs["y"] @ codes.values().T, rtol=1e-4)


@pytest.mark.parametrize(("bits", "blocks", "problem"), [(4, 1, "8 bits, not 4"), (8, 3, "no blocks")])
def test_what_tables_cannot_have_is_refused(bits: int, blocks: int, problem: str) -> None:
    graph = Graph.of(table_model())
    (layer,), _ = find_layers(graph)
    codes = Codes(np.zeros((ROWS, WIDTH), np.int8), np.ones((ROWS, blocks), np.float32), None, bits)
    with pytest.raises(UsageError, match=problem):
        write_table(Writer(graph), layer, codes)


def test_the_pass_rounds_every_row_to_half_a_step() -> None:
    graph = Graph.of(table_model())
    result = QuantizeEmbeddings().run(graph)
    assert [change.node for change in result.changes] == ["emb"]
    assert result.counters == {"Embedding": 1}
    outputs = run(graph.to_model(), {"ids": np.arange(ROWS)})
    steps = np.abs(TABLE).max(axis=1, keepdims=True) / 127
    error = np.abs(-outputs["y"] - TABLE)
    assert (error <= 0.5001 * steps).all()
    assert error.max() > 0.4 * steps.min()


def test_the_pass_leaves_tables_that_are_skipped() -> None:
    assert not QuantizeEmbeddings(skip=("emb",)).run(Graph.of(table_model())).modified


def test_the_pass_has_nothing_to_do_without_tables() -> None:
    assert_unchanged(QuantizeEmbeddings(), "g (float[2,3] x) => (float[2,3] y) { y = Relu(x) }")


def test_the_pass_says_which_tables_stay() -> None:
    values = ",".join(["0.5"] * 600)
    text = f"g (int64[2] i) => (float[30,2] y) <float[30,20] t = {{{values}}}> {{ y = Gather <axis = 1> (t, i) }}"
    result = assert_unchanged(QuantizeEmbeddings(), text, refuses="not read by whole rows")
    assert "2,400 bytes" in result.refusals[0].reason


def test_mnn_keeps_bytes_and_computes_the_same(tmp_path: Path) -> None:
    graph = Graph.of(table_model())
    QuantizeEmbeddings().run(graph)
    result = convert(graph.to_model(), tmp_path / "m.mnn")
    assert result.proof.ok
    assert result.proof.max_error == 0
    ops = next(iter(read(tmp_path / "m.mnn").graphs())).ops
    stored = [op["main"] for op in ops if op.label("type") == "Const"]
    assert [blob.ints("dims") for blob in stored if blob.label("dataType") == "DT_INT8"] == [(ROWS, WIDTH)]
    assert result.size < TABLE.nbytes / 2

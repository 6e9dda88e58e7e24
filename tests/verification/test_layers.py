"""The table of layers on small models: clean files have no suspects, each planted fault is one row."""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Iterator, Mapping, Sequence, Set
from pathlib import Path

import numpy as np
import onnx
import pytest
from planted import Plant, changed, converted, frozen, op_named, planted, scaled, swapped, unary, wrong_scale

from graphkit.errors import ModelError, UsageError
from graphkit.graph import Graph
from graphkit.mnn import tracing
from graphkit.mnn.document import Document
from graphkit.mnn.fileinfo import FileOp
from graphkit.mnn.worker import RunError
from graphkit.model import Model
from graphkit.testing import parse
from graphkit.verification.bisect._rows import Rows
from graphkit.verification.bisect.alignment import Alignment, by_tensor
from graphkit.verification.bisect.layers import compare_layers, layers
from graphkit.verification.bisect.references import gather
from graphkit.verification.bisect.types import COLUMNS, LayersResult

RNG = np.random.default_rng(0)
CNN = """g (float[N,3,8,8] x, float[8,3,3,3] w, float[8] s, float[8] v, float[4,8,1,1] p) => (float[N,4] y) {
    c = Conv<pads = [1,1,1,1]>(x, w) b = BatchNormalization(c, s, s, s, v) r = Relu(b) m = MaxPool<kernel_shape = [2,2],
    strides = [2,2]>(r) q = Conv(m, p) e = Sigmoid(q) g = GlobalAveragePool(e) y = Flatten(g) }"""
WEIGHTS = {
    "w": RNG.standard_normal((8, 3, 3, 3)), "s": RNG.standard_normal(8), "v": RNG.random(8) + 0.5,
    "p": RNG.standard_normal((4, 8, 1, 1)),
}  # fmt: skip
IMAGES = [{"x": RNG.standard_normal((n, 3, 8, 8)).astype(np.float32)} for n in (1, 2)]


def with_weights(text: str, weights: Mapping[str, np.ndarray]) -> Model:
    """A model in text with some inputs as weights."""
    proto = parse(text).proto
    kept = [value for value in proto.graph.input if value.name not in weights]
    del proto.graph.input[:]
    proto.graph.input.extend(kept)
    for name, array in weights.items():
        made = array.astype(np.float32) if array.dtype == np.float64 else array
        proto.graph.initializer.append(onnx.numpy_helper.from_array(made, name))
    return Model.from_proto(proto)


@pytest.fixture(scope="module")
def cnn(tmp_path_factory: pytest.TempPathFactory) -> tuple[Model, Path]:
    """`CNN`, converted."""
    return converted(with_weights(CNN, WEIGHTS), tmp_path_factory.mktemp("layers"))


def found(
    made: tuple[Model, Path], folder: Path, samples: Sequence[Mapping[str, np.ndarray]], *plants: Plant
) -> LayersResult:
    """The table of a file with faults."""
    return compare_layers(made[0], planted(made[1], folder / "planted.mnn", *plants), samples)


def blamed(result: LayersResult) -> list[str]:
    """The tensors of the suspects, in MNN's order."""
    return [row.tensor for row in result.suspects]


def test_a_clean_file_has_no_suspects(cnn: tuple[Model, Path]) -> None:
    result = compare_layers(*cnn, IMAGES)
    assert result.ok
    assert result.forced
    assert {row.tensor for row in result.rows} >= {"r", "m", "q", "e"}
    assert {row.sample for row in result.rows} == {0, 1}
    assert all(row.ratio <= 1 for row in result.rows)


def test_a_row_names_the_node_with_the_weights_and_what_was_fused(cnn: tuple[Model, Path]) -> None:
    row = compare_layers(*cnn, IMAGES[:1]).of("r")[0]
    assert row.op == "Conv"
    assert len(row.fused) == 2
    assert row.anchors == ("x",)
    assert (row.shape, row.dtype, row.mnn_type) == ((1, 8, 8, 8), "float32", "Convolution")


@pytest.mark.parametrize(
    ("plant", "tensor"),
    [
        (scaled("c", "weight", 1.01), "r"),
        (scaled("c", "bias", 1.1), "r"),
        (changed("c", "common.relu", False), "r"),
        (changed("m", "type", 1), "m"),
        (scaled("q", "weight", 0.99), "q"),
        (unary("e", "TANH"), "e"),
    ],
    ids=["weights", "bias", "no relu", "average pool", "second weights", "tanh"],
)
def test_each_fault_is_found_exactly(cnn: tuple[Model, Path], tmp_path: Path, plant: Plant, tensor: str) -> None:
    result = found(cnn, tmp_path, IMAGES[:1], plant)
    assert blamed(result) == [tensor]
    assert not result.ok


def test_three_faults_at_once_are_three_rows(cnn: tuple[Model, Path], tmp_path: Path) -> None:
    result = found(cnn, tmp_path, IMAGES, scaled("c", "weight", 1.01), scaled("q", "weight", 0.9), unary("e", "TANH"))
    assert blamed(result) == ["r", "q", "e"]


def test_a_fault_at_the_second_shape_only(tmp_path: Path) -> None:
    """A value that was taken from the first sample and made a constant: right there, wrong with the other."""
    made = converted(parse("g (float[N] x) => (float[N] y) { m = ReduceMax(x) d = Sub(x, m) y = Exp(d) }"), tmp_path)
    samples = [{"x": np.arange(size, dtype=np.float32)} for size in (4, 7)]
    assert compare_layers(*made, samples).ok
    plant = frozen("d", 1, [3.0])
    assert found(made, tmp_path, samples[:1], plant).ok
    result = found(made, tmp_path, samples, plant)
    assert [(row.op, row.sample) for row in result.suspects] == [("Sub", 1)]


def test_swapped_inputs(tmp_path: Path) -> None:
    made = converted(
        parse("g (float[3] x, float[3] z) => (float[3] y) { a = Exp(x) b = Sin(z) d = Sub(a, b) y = Neg(d) }"), tmp_path
    )
    feeds = [{"x": np.array([1, 2, 3], np.float32), "z": np.array([0.5, 1, 2], np.float32)}]
    assert compare_layers(*made, feeds).ok
    result = found(made, tmp_path, feeds, swapped("d"))
    assert [(row.op, row.tensor) for row in result.suspects] == [("Sub", "d")]


def test_a_layout_change_that_a_session_does_not_show_is_named(tmp_path: Path) -> None:
    made = converted(
        parse("""g (float[1,4,4] x, float[4,4] w) => (float[1,4,4] y)
        { e = Exp(x) t = Transpose<perm = [0,2,1]>(e) s = Softmax<axis = 2>(t) y = MatMul(s, w) }"""),
        tmp_path,
    )
    feeds = [{"x": RNG.random((1, 4, 4)).astype(np.float32), "w": RNG.random((4, 4)).astype(np.float32)}]
    assert compare_layers(*made, feeds).ok
    result = found(made, tmp_path, feeds, changed("t", "dims", np.array([0, 1, 2], "<i4")))
    assert [(row.op, row.tensor) for row in result.suspects] == [("Transpose", "t")]


BRANCHES = """g (float[2,3] x, float[1] h) => (float[2,3] y) {
    a = Exp(x) m = ReduceMax<keepdims = 0>(a) c = Greater(m, h)
    b = If (c) <then_branch = t () => (float[2,3] p) { p1 = Sin(a) p = Abs(p1) },
        else_branch = e () => (float[2,3] q) { q1 = Sqrt(a) q = Neg(q1) }>
    y = Cos(b) }"""
TAKEN = {"x": RNG.random((2, 3)).astype(np.float32), "h": np.array([0.5], np.float32)}
OTHER = {"x": TAKEN["x"], "h": np.array([50], np.float32)}


@pytest.fixture(scope="module")
def branches(tmp_path_factory: pytest.TempPathFactory) -> tuple[Model, Path]:
    """`BRANCHES`, converted."""
    return converted(parse(BRANCHES), tmp_path_factory.mktemp("branches"))


def test_a_clean_file_with_branches(branches: tuple[Model, Path]) -> None:
    result = compare_layers(*branches, [TAKEN, OTHER])
    assert result.ok
    places = {row.place.rsplit("/", 1)[-1] for row in result.rows}
    assert places == {"", "then_branch", "else_branch"}


def test_a_fault_inside_the_branch_that_ran(branches: tuple[Model, Path], tmp_path: Path) -> None:
    result = found(branches, tmp_path, [TAKEN], unary("p1", "TAN"))
    assert [(row.tensor, row.place.rsplit("/", 1)[-1]) for row in result.suspects] == [("p1", "then_branch")]
    assert found(branches, tmp_path, [OTHER], unary("p1", "TAN")).ok


def test_faults_inside_and_outside_of_a_branch(branches: tuple[Model, Path], tmp_path: Path) -> None:
    result = found(branches, tmp_path, [TAKEN, OTHER], unary("q1", "EXP"), unary("a", "TAN"), unary("y", "SIN"))
    assert set(blamed(result)) == {"a", "q1", "y"}


def test_a_branch_that_is_taken_wrongly(branches: tuple[Model, Path], tmp_path: Path) -> None:
    def plant(document: Document) -> None:
        main = op_named(document, "c")["main"]
        main.fields["opType"] = document.schema.enums["BinaryOpOperation"].numbers["LESS"]

    assert blamed(found(branches, tmp_path, [TAKEN], plant)) == ["c"]


@pytest.fixture(scope="module")
def lstm(tmp_path_factory: pytest.TempPathFactory) -> tuple[Model, Path]:
    """An LSTM over four steps, which MNN runs as one operator of many."""
    text = """g (float[4,1,3] x, float[1,20,3] w, float[1,20,5] r, float[1,40] b) => (float[4,1,1,5] y, float[1,1,5] h)
    { a = Tanh(x) k, h, c = LSTM<hidden_size = 5>(a, w, r, b) y = Neg(k) }"""
    weights = {
        name: RNG.standard_normal(shape) / 2 for name, shape in (("w", (1, 20, 3)), ("r", (1, 20, 5)), ("b", (1, 40)))
    }
    return converted(with_weights(text, weights), tmp_path_factory.mktemp("lstm"))


def test_an_lstm_is_judged(lstm: tuple[Model, Path], tmp_path: Path) -> None:
    feeds = [{"x": RNG.standard_normal((4, 1, 3)).astype(np.float32)}]
    clean = compare_layers(*lstm, feeds)
    assert clean.ok

    def plant(document: Document) -> None:
        op = next(op for view in document.graphs() for op in view.ops if op.label("type") == "Convolution")
        op["main"].fields["weight"] = (op["main"]["weight"] * np.float32(1.1)).astype("<f4")

    result = found(lstm, tmp_path, feeds, plant)
    assert result.suspects
    assert {row.op for row in result.suspects} <= {"LSTM", "Neg"}
    assert any("LSTM" in (row.op, *row.fused) or row.op == "LSTM" for row in result.suspects)


@pytest.fixture(scope="module")
def quantized(tmp_path_factory: pytest.TempPathFactory) -> tuple[Model, Path]:
    """Two linear layers in 8 bits."""
    text = """g (float[N,64] x, float[64,96] w, float[96,32] v) => (float[N,32] y)
    { a = MatMul(x, w) r = Relu(a) y = MatMul(r, v) }"""
    weights = {"w": RNG.standard_normal((64, 96)), "v": RNG.standard_normal((96, 32))}
    folder = tmp_path_factory.mktemp("quantized")
    return converted(with_weights(text, weights), folder, weightQuantBits=8, weightQuantAsymmetric=False)


LINES = [{"x": RNG.standard_normal((5, 64)).astype(np.float32)}]


def test_quantized_layers_are_off_by_what_their_codes_predict(quantized: tuple[Model, Path]) -> None:
    result = compare_layers(*quantized, LINES)
    assert result.ok
    rows = [row for row in result.rows if row.bits]
    assert [row.bits for row in rows] == [8, 8]
    assert all(row.local is not None and 1e-4 < row.local < row.tolerance < 0.05 for row in rows)


@pytest.mark.parametrize("factor", [1.2, 0.8])
def test_a_wrong_scale_is_found(quantized: tuple[Model, Path], tmp_path: Path, factor: float) -> None:
    result = found(quantized, tmp_path, LINES, wrong_scale("y__matmul_converted", factor))
    assert blamed(result) == ["y"]


def test_a_file_that_does_not_run_is_an_error(cnn: tuple[Model, Path], tmp_path: Path) -> None:
    broken = planted(cnn[1], tmp_path / "broken.mnn", changed("q", "common.kernelX", 99))
    with pytest.raises(RunError):
        compare_layers(cnn[0], broken, IMAGES[:1])


def test_without_forcing_only_the_first_fault_on_a_path_is_named(
    cnn: tuple[Model, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What is left for models that no session runs: said in the note, and what follows a fault is not blamed."""

    def refuse(path: Path, *_: object, **__: object) -> None:
        raise RunError("a session cannot run this model", file=path)

    monkeypatch.setattr(tracing, "trace", refuse)
    clean = compare_layers(*cnn, IMAGES[:1])
    assert clean.ok
    assert not clean.forced
    result = found(cnn, tmp_path, IMAGES[:1], scaled("c", "weight", 1.5), scaled("q", "weight", 2.0))
    assert blamed(result) == ["r"]
    assert "nothing was put right" in result.note
    row = result.of("q")[0]
    assert row.local is None
    assert row.verdict == "suspect"
    assert row.accumulated is not None


def test_the_reference_is_converted_when_no_file_is_given(cnn: tuple[Model, Path]) -> None:
    result = layers(cnn[0], inputs=IMAGES[:1])
    assert result.ok
    assert result.candidate is None
    assert set(result.seconds) == {"convert", "layers"}


def test_a_given_file_is_compared_as_it_is(cnn: tuple[Model, Path], tmp_path: Path) -> None:
    broken = planted(cnn[1], tmp_path / "broken.mnn", scaled("q", "weight", 2.0))
    result = layers(cnn[0], broken, inputs=IMAGES[:1])
    assert result.candidate == broken
    assert blamed(result) == ["q"]


def test_another_onnx_model_is_compared_by_names(cnn: tuple[Model, Path], tmp_path: Path) -> None:
    changed_weights = WEIGHTS | {"p": WEIGHTS["p"] * 1.01, "w": WEIGHTS["w"] * 0.9}
    with_weights(CNN, changed_weights).save(tmp_path / "other.onnx")
    cnn[0].save(tmp_path / "same.onnx")
    assert layers(cnn[0], tmp_path / "same.onnx", inputs=IMAGES).ok
    result = layers(cnn[0], tmp_path / "other.onnx", inputs=IMAGES)
    assert blamed(result) == ["c", "q"]
    assert result.of("y")[0].accumulated > 1e-4
    assert [row.tensor for row in layers(cnn[0], tmp_path / "other.onnx", inputs=IMAGES[:1], memory=3000).suspects] == [
        "c",
        "q",
    ]


def test_onnx_models_without_a_name_in_common_say_so(cnn: tuple[Model, Path], tmp_path: Path) -> None:
    parse("g (float[N,3,8,8] x) => (float[N,3,8,8] other) { other = Neg(x) }").save(tmp_path / "other.onnx")
    result = layers(cnn[0], tmp_path / "other.onnx", inputs=IMAGES[:1])
    assert not result.ok
    assert "no value has the same name" in result.note


def test_random_inputs_are_made_when_none_are_given(cnn: tuple[Model, Path]) -> None:
    assert layers(cnn[0], cnn[1]).shapes[0]["x"][1:] == (3, 8, 8)


def test_no_samples_are_an_error(cnn: tuple[Model, Path]) -> None:
    with pytest.raises(UsageError, match="no samples"):
        compare_layers(*cnn, [])


def test_a_missing_file_is_an_error(cnn: tuple[Model, Path], tmp_path: Path) -> None:
    with pytest.raises(ModelError):
        layers(cnn[0], tmp_path / "no.mnn")


def test_memory_is_bounded_without_another_answer(cnn: tuple[Model, Path]) -> None:
    whole, small = compare_layers(*cnn, IMAGES[:1]), compare_layers(*cnn, IMAGES[:1], memory=5000)
    assert [row.tensor for row in small.rows] == [row.tensor for row in whole.rows]
    assert small.ok


def test_the_table_is_json_and_csv(cnn: tuple[Model, Path], tmp_path: Path) -> None:
    result = found(cnn, tmp_path, IMAGES[:1], scaled("c", "weight", 1.01))
    made = json.loads(json.dumps(result.to_dict(), allow_nan=False))
    assert made["suspects"][0]["tensor"] == "r"
    assert len(made["layers"]) == len(result.rows)
    lines = list(csv.reader(io.StringIO(result.csv())))
    assert tuple(lines[0]) == COLUMNS
    assert len(lines) == len(result.rows) + 1
    assert lines[1][COLUMNS.index("shape")] == "1x8x8x8"


def test_rows_are_sorted_by_any_column(cnn: tuple[Model, Path], tmp_path: Path) -> None:
    result = found(cnn, tmp_path, IMAGES[:1], scaled("q", "weight", 2.0))
    assert result.sorted_by("ratio")[0].tensor == "q"
    assert [row.tensor for row in result.sorted_by("tensor", descending=False)] == sorted(r.tensor for r in result.rows)
    with pytest.raises(KeyError):
        result.sorted_by("colour")


class Asked(Set[str]):
    """Names that can only be asked about."""

    def __init__(self, names: set[str]) -> None:
        self.names = names

    def __contains__(self, name: object) -> bool:
        return name in self.names

    def __iter__(self) -> Iterator[str]:
        raise AssertionError("all of them, for one row")

    def __len__(self) -> int:
        return len(self.names)


def test_a_row_does_not_go_over_all_that_is_known() -> None:
    model = parse("g (float[4] x) => (float[4] y) { a = Relu(x) y = Neg(a) }")
    item = Alignment(FileOp("UnaryOp", "y", ("a",), ("y",)), 0, "y", ("y",), True)
    with gather(model, {"x": np.ones(4, np.float32)}) as references:
        rows = Rows(Graph.of(model), by_tensor([item]), references, {})
        row = rows.row(tracing.OpTrace("y", "UnaryOp", 0, 0, (4,), "y"), Asked({"x", "a", "y"}), True)
    assert row.anchors == ("a",)

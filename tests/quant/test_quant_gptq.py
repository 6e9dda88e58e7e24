"""GPTQ keeps outputs: on data of the same kind that it has not seen, it beats rounding and clipping."""

from __future__ import annotations

from collections.abc import Callable
from itertools import pairwise, product
from pathlib import Path

import numpy as np
import onnx
import onnxruntime
import pytest
from quantized_layers import weight_matrix

import graphkit as gk
from fixtures.naturals import natural
from graphkit.errors import GraphkitError, ModelError, UsageError
from graphkit.graph import Graph
from graphkit.quant import collect, mse, rtn
from graphkit.quant.codes import Array, Codes
from graphkit.quant.damping import DAMPINGS
from graphkit.quant.gptq import best_damping, quantize_matrix
from graphkit.quant.layers import find_layers

COLUMNS = 96


def inputs(count: int, seed: int, columns: int = COLUMNS) -> Array:
    """Inputs of a layer that hang together, as real ones do: a few causes, and channels of very different size."""
    causes = np.random.default_rng(0).standard_normal((columns // 4, columns))
    sizes = np.exp(np.random.default_rng(1).standard_normal(columns))
    draw = np.random.default_rng(seed)
    made: Array = draw.standard_normal((count, columns // 4)) @ causes + 0.3 * draw.standard_normal((count, columns))
    return np.asarray(made * sizes)


def hessian(x: Array) -> Array:
    return np.asarray(x.T @ x / len(x))


def weights(rows: int = 64, columns: int = COLUMNS, seed: int = 3) -> Array:
    made: Array = np.random.default_rng(seed).standard_normal((rows, columns)).astype(np.float32)
    return made


def output_error(matrix: Array, codes: Codes, known: Array) -> float:
    """Relative squared error of outputs on data with this Hessian."""
    return collect.output_error(collect.Hessian(known, 1), matrix, codes.values()) ** 2


@pytest.mark.parametrize("bits", [2, 3, 4, 8])
@pytest.mark.parametrize("block", [0, 32])
@pytest.mark.parametrize("act_order", [False, True])
def test_outputs_on_unseen_data_are_nearer(bits: int, block: int, act_order: bool) -> None:
    matrix, seen, unseen = weights(), hessian(inputs(400, 7)), hessian(inputs(400, 8))
    near = output_error(matrix, rtn.quantize_matrix(matrix, bits, block), unseen)
    clipped = output_error(matrix, mse.quantize_matrix(matrix, bits, block), unseen)
    made = quantize_matrix(matrix, bits, block, hessian=seen, act_order=act_order)
    error = output_error(matrix, made, unseen)
    assert error < 0.5 * min(near, clipped)
    assert made.blocks == (COLUMNS // block if block else 1)


def test_the_error_is_that_of_the_outputs() -> None:
    matrix, x = weights(), inputs(300, 9)
    codes = rtn.quantize_matrix(matrix, 4, 32)
    expected, actual = x @ matrix.T, x @ codes.values().T
    direct = ((actual - expected) ** 2).sum() / (expected**2).sum()
    assert output_error(matrix, codes, hessian(x)) == pytest.approx(direct, rel=1e-3)


def test_the_error_of_outputs_that_are_nothing() -> None:
    matrix, nothing = weights(), np.zeros((COLUMNS, COLUMNS))
    assert output_error(matrix, rtn.quantize_matrix(matrix, 4), nothing) == 0
    silent = np.zeros_like(matrix)
    assert output_error(silent, rtn.quantize_matrix(silent, 4), hessian(inputs(50, 1))) == 0
    assert output_error(silent, rtn.quantize_matrix(matrix, 4), hessian(inputs(50, 1))) == float("inf")


def test_with_inputs_that_do_not_hang_together_it_is_clipping() -> None:
    matrix = weights()
    plain = quantize_matrix(matrix, 4, 32, hessian=np.eye(COLUMNS), rounds=0)
    clipped = mse.quantize_matrix(matrix, 4, 32)
    np.testing.assert_allclose(plain.scales, clipped.scales, rtol=1e-5)
    assert (plain.codes != clipped.codes).mean() < 1e-3


def test_little_is_lost_against_trying_all_codes() -> None:
    x = inputs(200, 4, columns=4)
    for seed in range(8):
        matrix = weights(1, 4, seed)
        made = quantize_matrix(matrix, 3, hessian=hessian(x), damping=1e-4)
        best = min(
            _least(matrix[0], np.array(codes, np.float64), hessian(x)) for codes in product(range(-4, 4), repeat=4)
        )
        whole = matrix[0] @ hessian(x) @ matrix[0]
        error = output_error(matrix, made, hessian(x)) * whole
        assert best * 0.999 <= error < best + 0.02 * whole


def _least(row: Array, codes: Array, known: Array) -> float:
    """The least error that any scale gives these codes."""
    size = codes @ known @ codes
    scale = codes @ known @ row / size if size > 0 else 0.0
    rest = row - scale * codes
    return float(rest @ known @ rest)


@pytest.mark.parametrize("block", [0, 32])
def test_each_round_lowers_the_error_it_works_on(block: int) -> None:
    matrix, seen = weights(), hessian(inputs(400, 7))
    known = seen + 0.1 * np.diag(seen).mean() * np.eye(COLUMNS)
    errors = [
        output_error(matrix, quantize_matrix(matrix, 3, block, hessian=seen, rounds=rounds), known)
        for rounds in (0, 1, 2, 4)
    ]
    assert all(after <= before * (1 + 1e-5) for before, after in pairwise(errors))
    assert errors[-1] < 0.97 * errors[0]


@pytest.mark.parametrize("act_order", [False, True])
def test_groups_are_quantized_each_with_its_own_hessian(act_order: bool) -> None:
    matrix = weights(60, 32)
    known = np.stack([hessian(inputs(200, seed, columns=32)) for seed in range(3)])
    known[1] *= 100
    made = quantize_matrix(matrix, 4, 16, hessian=known, damping=0.05)
    for group in range(3):
        rows = slice(20 * group, 20 * group + 20)
        alone = quantize_matrix(matrix[rows], 4, 16, hessian=known[group], damping=0.05)
        np.testing.assert_array_equal(made.codes[rows], alone.codes)
        np.testing.assert_allclose(made.scales[rows], alone.scales, rtol=1e-6)
    ordered = quantize_matrix(matrix, 4, 16, hessian=known, act_order=act_order)
    assert output_error(matrix, ordered, known) < 0.5 * output_error(matrix, mse.quantize_matrix(matrix, 4, 16), known)


def test_depthwise_one_row_a_group() -> None:
    matrix = weights(40, 9)
    known = np.stack([hessian(inputs(100, seed, columns=9)) for seed in range(40)])
    made = quantize_matrix(matrix, 4, hessian=known)
    assert output_error(matrix, made, known) < 0.7 * output_error(matrix, mse.quantize_matrix(matrix, 4), known)


@pytest.mark.parametrize("columns", [1, 2, 17, 129, 300])
@pytest.mark.parametrize("block", [0, 1])
def test_rows_of_any_length(columns: int, block: int) -> None:
    matrix = weights(5, columns)
    draw = np.random.default_rng(0).standard_normal((2 * columns + 4, columns))
    made = quantize_matrix(matrix, 4, block and columns, hessian=hessian(draw))
    assert output_error(matrix, made, hessian(draw)) < 0.1
    if columns == 300:
        for width in (20, 100, 150):
            made = quantize_matrix(matrix, 4, width, hessian=hessian(draw))
            assert output_error(matrix, made, hessian(draw)) < 0.02


def test_inputs_that_are_always_0_and_a_row_of_zeros() -> None:
    x = inputs(300, 7)
    x[:, 5:9] = 0
    matrix = weights()
    matrix[3], matrix[4, :32] = 0, 0
    for act_order in (False, True):
        made = quantize_matrix(matrix, 4, 32, hessian=hessian(x), act_order=act_order)
        assert (made.values()[3] == 0).all()
        assert (made.scales[3] == 0).all()
        assert np.isfinite(made.values()).all()
        assert np.abs(made.values() - matrix)[:, 5:9].max() < 1.5  # near, whatever the data say
    blind = quantize_matrix(matrix, 4, 32, hessian=np.zeros((COLUMNS, COLUMNS)))
    assert ((blind.values() - matrix) ** 2).sum() < 1.01 * (
        (mse.quantize_matrix(matrix, 4, 32).values() - matrix) ** 2
    ).sum()


def test_only_proportions_of_the_hessian_count() -> None:
    matrix, known = weights(), hessian(inputs(300, 7))
    one, other = (quantize_matrix(matrix, 4, 32, hessian=known * factor) for factor in (1.0, 1024.0))
    np.testing.assert_array_equal(one.codes, other.codes)
    np.testing.assert_array_equal(one.scales, other.scales)


@pytest.mark.parametrize("count", [24, 2000])
def test_the_damping_is_the_best_on_held_out_data(count: int) -> None:
    matrix, seen, held = weights(), hessian(inputs(count, 7)), hessian(inputs(500, 8))
    found = best_damping(matrix, 4, 32, hessian=seen, held_out=held, candidates=DAMPINGS)
    errors = {
        damping: output_error(matrix, quantize_matrix(matrix, 4, 32, hessian=seen, damping=damping), held)
        for damping in DAMPINGS
    }
    assert found.error**2 == min(errors.values()) == errors[found.value]
    assert {damping: error**2 for damping, error in found.tried}.items() <= errors.items()


def test_few_samples_want_more_damping_than_many() -> None:
    matrix, held = weights(), hessian(inputs(500, 8))
    few, many = (
        best_damping(matrix, 4, 32, hessian=hessian(inputs(count, 7)), held_out=held, candidates=DAMPINGS)
        for count in (20, 4000)
    )
    assert few.value > many.value
    assert many.error < few.error


def test_bad_requests() -> None:
    matrix, known = weights(), hessian(inputs(100, 7))
    with pytest.raises(UsageError, match="needs data") as caught:
        quantize_matrix(matrix, 4, name="/query")
    assert (caught.value.node, "--calib" in str(caught.value.hint)) == ("/query", True)
    for damping in (0.0, -1.0, float("nan"), float("inf")):
        with pytest.raises(UsageError, match="not positive"):
            quantize_matrix(matrix, 4, hessian=known, damping=damping)
    with pytest.raises(UsageError, match="gptq has no zero points"):
        quantize_matrix(matrix, 4, hessian=known, asymmetric=True)
    with pytest.raises(UsageError, match="1 bits"):
        quantize_matrix(matrix, 1, hessian=known)
    with pytest.raises(UsageError, match="does not divide"):
        quantize_matrix(matrix, 4, 36, hessian=known)
    with pytest.raises(UsageError, match="no damping"):
        best_damping(matrix, 4, hessian=known, held_out=known, candidates=())
    for shape in ((95, 95), (5, COLUMNS, COLUMNS), (COLUMNS,), (0, COLUMNS, COLUMNS)):
        with pytest.raises(GraphkitError, match="does not fit weights"):
            quantize_matrix(matrix, 4, hessian=np.ones(shape))
    with pytest.raises(ModelError, match="not positive definite"):
        quantize_matrix(matrix, 4, hessian=known - 1e9 * np.ones_like(known))


@pytest.mark.parametrize("bad", [np.nan, np.inf])
def test_what_is_no_number_names_the_layer(bad: float) -> None:
    matrix, known = weights(), hessian(inputs(100, 7))
    spoilt = known.copy()
    spoilt[3, 3] = bad
    with pytest.raises(ModelError, match="inputs are NaN or infinite") as caught:
        quantize_matrix(matrix, 4, hessian=spoilt, name="/query")
    assert caught.value.node == "/query"
    matrix[1, 1] = bad
    with pytest.raises(ModelError, match="has weights that are NaN or infinite") as caught:
        quantize_matrix(matrix, 4, hessian=known, name="/query")
    assert caught.value.node == "/query"


def test_layers_of_a_real_sentence_encoder(
    export_path: Callable[[str], Path], model_path: Callable[[str], Path], tmp_path: Path
) -> None:
    path = export_path("minilm_eager_ts")
    graph = Graph.of(gk.load(path))
    wanted = [layer for layer in find_layers(graph)[0] if layer.kind == "MatMul"][6:12]
    proto = onnx.load(path)
    reads = {node.output[0]: node.input[0] for node in proto.graph.node if node.op_type == "MatMul"}
    names = [reads[layer.outputs[0]] for layer in wanted]
    proto.graph.output.extend(onnx.helper.make_tensor_value_info(name, 1, None) for name in dict.fromkeys(names))
    onnx.save(proto, tmp_path / "exposed.onnx")
    session = onnxruntime.InferenceSession(tmp_path / "exposed.onnx", providers=["CPUExecutionProvider"])
    seen, unseen = (dict(zip(names, session.run(names, feeds), strict=True)) for feeds in reversed(natural("minilm")))
    for layer, name in zip(wanted, names, strict=True):
        matrix = weight_matrix(graph, layer)
        x, fresh = (values[name].reshape(-1, layer.columns).astype(np.float64) for values in (seen, unseen))
        near, clipped, fitted = (
            output_error(matrix, codes, hessian(fresh))
            for codes in (
                rtn.quantize_matrix(matrix, 4, 32),
                mse.quantize_matrix(matrix, 4, 32),
                quantize_matrix(matrix, 4, 32, hessian=hessian(x), damping=0.3),
            )
        )
        assert clipped < 0.9 * near
        assert fitted < 0.95 * clipped  # from the tokens of a few sentences, fewer than there are columns

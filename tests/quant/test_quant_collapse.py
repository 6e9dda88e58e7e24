"""Why ppocr4_det collapses at MNN's 8 bits, and that it does not here.

Not its Deconvolutions do it, where the errors show, but the convolution in front of them: its BatchNormalization is
folded into weights of 1e-4 over inputs of thousands, and MNN's converter makes every weight 0 whose scale is not above
1e-6. Measured in onnxruntime, so that MNN's run time has no part in it.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from fixtures.naturals import natural
from graphkit.graph import Graph
from graphkit.model import Model
from graphkit.optimizer import optimize
from graphkit.quant import rtn
from graphkit.quant._tiny import without_tiny_scales
from graphkit.quant.codes import TINY_SCALE, Codes
from graphkit.quant.engine import quantize
from graphkit.quant.layers import find_layers
from graphkit.quant.options import QuantizeOptions
from graphkit.runtime import Session

HEAD = "batch_norm_0.tmp_3"  # output of the convolution in front of the Deconvolutions


def probabilities(model: Model) -> np.ndarray:
    with Session(model) as session:
        (output,) = session.run(natural("ppocr4_det")[0]).values()
    return output.reshape(-1).astype(np.float64)


def cosine(a: np.ndarray, b: np.ndarray) -> float:
    return float(a @ b / np.linalg.norm(a) / np.linalg.norm(b))


def test_the_detector_keeps_its_head(model_path: Callable[[str], Path]) -> None:
    model = optimize(model_path("ppocr4_det"), "mnn", verify="none").model
    graph = Graph.of(model)
    layers, _ = find_layers(graph)
    head = next(layer for layer in layers if HEAD in layer.outputs)
    expected = probabilities(model)

    weight = graph.constant(head.weight)
    assert weight is not None
    codes = rtn.quantize_matrix(head.matrix(weight), 8)  # MNN's rounding
    lost = (codes.scales <= TINY_SCALE).sum()
    assert lost > head.rows // 2
    graph.set_initializer(head.weight, head.restore(codes.values()))
    assert cosine(probabilities(graph.to_model()), expected) < 0.2  # one layer does it all

    others = tuple(layer.name for layer in layers if layer is not head)
    assert cosine(probabilities(quantize(model, QuantizeOptions(skip=others)).model), expected) > 0.9999
    assert cosine(probabilities(quantize(model).model), expected) > 0.97
    spared = quantize(model, QuantizeOptions(skip=("p2o.Add.38",))).model  # 9 KB of floats
    assert cosine(probabilities(spared), expected) > 0.99


def rounded(bits: int, width: int) -> Callable[[np.ndarray], Codes]:
    return lambda matrix: rtn.quantize_matrix(matrix, bits, width)


@pytest.mark.parametrize("bits", [2, 4, 8])
@pytest.mark.parametrize("width", [0, 16])
@pytest.mark.parametrize("size", [1e-5, 1e-9, 1e-30, 1e-38])
def test_tiny_blocks_get_the_codes_of_large_ones(size: float, width: int, bits: int) -> None:
    rng = np.random.default_rng(0)
    matrix = rng.standard_normal((6, 64)).astype(np.float32)
    exact = np.float32(2.0 ** np.round(np.log2(size)))
    small = matrix.copy()
    small[::2, :16] *= exact
    codes = without_tiny_scales(small, bits, width, rounded(bits, width))
    if width:
        np.testing.assert_array_equal(codes.codes, rtn.quantize_matrix(matrix, bits, width).codes)
    steps = np.abs(codes.scales[::2, :1])
    off = np.abs(codes.values()[::2, :16] - small[::2, :16])
    assert (off <= 0.501 * steps).all()
    assert steps.max() > 0


def test_zeros_stay_zeros_and_large_blocks_are_not_touched() -> None:
    matrix = np.random.default_rng(0).standard_normal((4, 32)).astype(np.float32)
    matrix[1] = 0
    plain = rtn.quantize_matrix(matrix, 8)
    codes = without_tiny_scales(matrix, 8, 0, rounded(8, 0))
    np.testing.assert_array_equal(codes.codes, plain.codes)
    np.testing.assert_array_equal(codes.scales, plain.scales)
    assert codes.scales[1] == 0

"""Weights whose squares are no float32 numbers, and layers that get nothing."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
import pytest

from graphkit.graph import Graph
from graphkit.model import Model
from graphkit.quant import mse
from graphkit.quant._layer_work import weight_error
from graphkit.quant._unfold import Geometry, unfold
from graphkit.quant.collect import Hessian, output_error
from graphkit.quant.engine import QuantizeResult, quantize
from graphkit.quant.options import QuantizeOptions
from graphkit.testing import parse

RNG = np.random.default_rng(0)
PLAIN = RNG.standard_normal((64, 32)).astype(np.float32)
SAMPLES = [{"x": RNG.standard_normal((8, 64)).astype(np.float32) * 1e-3} for _ in range(6)]


def quantized(weights: np.ndarray[Any, Any], options: QuantizeOptions) -> QuantizeResult:
    proto = parse("g (float[n,64] x, float[64,32] w) => (float[n,32] y) { y = MatMul(x, w) }").proto
    del proto.graph.input[1]
    proto.graph.initializer.append(onnx.numpy_helper.from_array(weights, "w"))
    return quantize(Model.from_proto(proto), options, calibration=SAMPLES)


def codes_of(result: QuantizeResult) -> np.ndarray[Any, Any]:
    return next(weight.array() for weight in result.model.weights() if weight.data_type == onnx.TensorProto.INT8)


@pytest.mark.parametrize("method", ["rtn", "mse", "gptq"])
@pytest.mark.parametrize("size", [2.0**-99, 2.0**-66, 2.0**66, 2.0**99])
@pytest.mark.parametrize("bits", [4, 8])
def test_codes_do_not_depend_on_the_size_of_weights(method: Any, size: float, bits: int) -> None:
    options = QuantizeOptions(bits, method=method, damping=0.1)
    plain, scaled = quantized(PLAIN, options), quantized(PLAIN * np.float32(size), options)
    one, two = plain.records[0], scaled.records[0]
    assert 0 < one.weight_error < 0.3
    assert two.weight_error == pytest.approx(one.weight_error, rel=1e-3)
    assert two.output_error == pytest.approx(one.output_error, rel=1e-2)
    assert (codes_of(plain) == codes_of(scaled)).mean() > 0.999


def test_errors_of_zero_weights_are_zero() -> None:
    zeros = np.zeros((4, 8), np.float32)
    assert weight_error(zeros, mse.quantize_matrix(zeros, 4)) == 0
    assert output_error(Hessian(np.eye(8, dtype=np.float32), 8), zeros, zeros) == 0


def test_a_convolution_that_gets_nothing_has_no_vectors() -> None:
    graph = Graph.of(parse("g (float[n,4,9] x, float[8,4,3] w) => (float[n,8,7] y) { y = Conv(x, w) }"))
    geometry = Geometry.of(next(iter(graph.nodes)), (3,))
    assert [piece.shape for piece in unfold(np.zeros((0, 4, 9), np.float32), geometry)] == [(1, 12, 0)]

"""What rounded weights may add to the error of a layer."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from planted import converted

from graphkit import shapes
from graphkit.graph import Graph
from graphkit.mnn.document import read
from graphkit.mnn.fileinfo import file_info
from graphkit.model import Model
from graphkit.testing import parse
from graphkit.verification.bisect.alignment import align
from graphkit.verification.bisect.quantized import Scheme, _steps, allowances, carriers, schemes
from graphkit.verification.bisect.references import gather

RNG = np.random.default_rng(0)


def stored(text: str, **weights: np.ndarray) -> Model:
    """A model in text with some inputs as weights."""
    graph = Graph.of(parse(text))
    for name, array in weights.items():
        graph.input_infos.pop(name)
        graph.set_initializer(name, array.astype(np.float32))
    return graph.to_model()


def rounded(weight: np.ndarray, steps: np.ndarray) -> np.ndarray:
    """A weight rounded to its steps."""
    return np.round(weight / steps) * steps


@pytest.mark.parametrize(
    ("outputs", "inputs", "shape"), [(0, 1, (8, 32, 3, 3)), (1, 0, (32, 8)), (1, 0, (32, 8, 2, 2))]
)
def test_steps_go_by_output_channel_or_block(outputs: int, inputs: int, shape: tuple[int, ...]) -> None:
    weight = RNG.standard_normal(shape)
    others = tuple(axis for axis in range(weight.ndim) if axis != outputs)
    whole = _steps(weight, outputs, inputs, Scheme(8))
    np.testing.assert_allclose(whole, np.broadcast_to(np.abs(weight).max(axis=others, keepdims=True), shape) / 127)
    blocks = _steps(weight, outputs, inputs, Scheme(4, 16))
    first = np.moveaxis(weight, (outputs, inputs), (0, 1))[3, :16]
    assert np.moveaxis(blocks, (outputs, inputs), (0, 1))[3, 5].reshape(-1)[0] == pytest.approx(np.abs(first).max() / 7)
    assert blocks.shape == weight.shape


IMAGE = "float[2,16,9,9] x"
MODELS = {
    "conv": (f"g ({IMAGE}, float[8,16,3,3] w) => (float[2,8,7,7] y) {{ y = Conv(x, w) }}", (8, 16, 3, 3)),
    "grouped": (f"g ({IMAGE}, float[8,4,3,3] w) => (float[2,8,7,7] y) {{ y = Conv<group = 4>(x, w) }}", (8, 4, 3, 3)),
    "transposed": (
        f"g ({IMAGE}, float[16,8,2,2] w) => (float[2,8,10,10] y) {{ y = ConvTranspose(x, w) }}",
        (16, 8, 2, 2),
    ),
    "product": ("g (float[2,40,16] x, float[16,8] w) => (float[2,40,8] y) { y = MatMul(x, w) }", (16, 8)),
    "gemm": ("g (float[80,16] x, float[8,16] w) => (float[80,8] y) { y = Gemm<transB = 1>(x, w) }", (8, 16)),
}


@pytest.mark.parametrize("kind", MODELS)
@pytest.mark.parametrize("bits", [4, 8])
def test_rounding_stays_inside_and_is_not_far_below(kind: str, bits: int) -> None:
    text, shape = MODELS[kind]
    weight = RNG.standard_normal(shape)
    model = stored(text, w=weight)
    graph = Graph.of(model)
    shapes.infer(graph)
    node = next(iter(graph.nodes))
    feeds = {"x": RNG.standard_normal(graph.shape("x")).astype(np.float32)}  # type: ignore[arg-type]
    outputs, inputs = {"conv": (0, 1), "grouped": (0, 1), "gemm": (0, 1)}.get(kind, (1, 0))
    other = stored(text, w=rounded(weight, _steps(weight, outputs, inputs, Scheme(bits))))
    with gather(model, feeds) as references, gather(other, feeds) as moved:
        allowed = allowances(graph, {"op": (node, ())}, {"op": Scheme(bits)}, references, {"op": "y"})["op"]
        expected, actual = references.array("y"), moved.array("y")
        error = float(np.abs(actual - expected).max() / np.abs(expected).max())
    assert error < allowed < 8 * error


def test_a_norm_that_is_folded_in_widens_it() -> None:
    text = """g (float[1,4,5,5] x, float[4,4,1,1] w, float[4] s, float[4] b, float[4] v) => (float[1,4,5,5] y)
    { c = Conv(x, w) y = BatchNormalization(c, s, b, b, v) }"""
    scale = np.array([1.0, 3.0, 1.0, 1.0])
    model = stored(text, w=RNG.standard_normal((4, 4, 1, 1)), s=scale, b=np.zeros(4), v=np.ones(4))
    graph = Graph.of(model)
    conv, norm = graph.nodes
    feeds = {"x": RNG.standard_normal((1, 4, 5, 5)).astype(np.float32)}
    with gather(model, feeds) as references:
        folded = allowances(graph, {"op": (conv, (norm,))}, {"op": Scheme(8)}, references, {"op": "y"})["op"]
        plain = allowances(graph, {"op": (conv, ())}, {"op": Scheme(8)}, references, {"op": "y"})["op"]
    assert folded == pytest.approx(3 * plain, rel=1e-3)


def test_layers_without_reference_data_are_left_out() -> None:
    graph = Graph.of(stored(MODELS["product"][0], w=RNG.standard_normal((16, 8))))
    node = next(iter(graph.nodes))
    with gather(graph.model, {"x": np.ones((2, 40, 16), np.float32)}, ["y"]) as references:
        references._files.pop("x")
        assert allowances(graph, {"op": (node, ())}, {"op": Scheme(8)}, references, {"op": "y"}) == {}


def test_schemes_and_carriers_of_a_file(tmp_path: Path) -> None:
    model = stored(
        "g (float[5,64] x, float[64,32] w) => (float[5,32] y) { m = MatMul(x, w) y = Neg(m) }",
        w=RNG.standard_normal((64, 32)),
    )
    model, path = converted(model, tmp_path, weightQuantBits=4, weightQuantBlock=32, weightQuantAsymmetric=False)
    document = read(path)
    found = schemes(document)
    assert found == {("", "m__matmul_converted"): Scheme(4, 32)}
    assert schemes(document, 2) == {("", "m__matmul_converted"): Scheme(4, 32, True)}
    graph = Graph.of(model)
    info = file_info(document)
    alignments = align(graph, info.ops, info.outputs)
    node, behind = carriers(graph, alignments, {name: scheme for (_, name), scheme in found.items()})[
        "m__matmul_converted"
    ]
    assert (node.op, behind) == ("MatMul", ())

"""Symbolic evaluation where ONNX's own inference cannot be followed."""

from __future__ import annotations

import pytest

from graphkit.symbolic.symbols import Symbols
from graphkit.testing import graph_of, random_feeds, run


@pytest.mark.parametrize("opset", [19, 22])
@pytest.mark.parametrize("size", range(2, 9))
@pytest.mark.parametrize("attributes", ["kernel_shape=[1,1], strides=[2,2]", "kernel_shape=[2,2], strides=[3,3]"])
def test_pools_with_ceil_mode_have_the_size_that_onnxruntime_gives(opset: int, size: int, attributes: str) -> None:
    text = f"g (float[1,1,{size},{size}] x) => (float[1,1,H,W] y) {{ y = MaxPool<{attributes}, ceil_mode=1>(x) }}"
    graph = graph_of(text, opset=opset)
    (result,) = run(graph.to_model(), random_feeds(graph.to_model())).values()
    assert graph.shape("y") == result.shape


def test_names_of_sequence_elements_are_nobodys() -> None:
    """Elements may differ in a size that shares a name."""
    graph = graph_of(
        """
        g (seq(float[H, W, 3]) s, int64 i) => (float[a, b, c] y)
        {
            y = SequenceAt(s, i)
        }
        """
    )
    shape = graph.shape("y")
    assert shape is not None
    assert shape[:2] == ("y[0]", "y[1]")


def test_nested_expressions_do_not_grow_without_end() -> None:
    symbols = Symbols()
    size = symbols.name("n")
    for number in range(2000):
        size = str(symbols.minimum(symbols.sub(size, 1), symbols.name(f"m{number}")))
        assert len(size) < 300

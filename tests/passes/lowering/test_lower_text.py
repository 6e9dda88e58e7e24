"""TfIdfVectorizer of numbers: counts, weights, skips and sizes, in ONNX and in MNN."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from graphkit.passes.lower_for_mnn import LowerForMnn
from graphkit.testing import assert_equal_outputs, assert_unchanged, graph_of, parse
from tests.in_mnn import assert_right_in_mnn

POOL = "ngram_counts = [0, 4], ngram_indexes = [0, 1, 2, 3, 5, 4, 6], pool_int64s = [2, 3, 5, 4, 5, 6, 7, 8, 6, 7]"
WORDS = np.array([[1, 2, 3, 3, 5, 6], [8, 6, 7, 5, 6, 8]])


def model(shape: str, options: str, dtype: str = "int32") -> str:
    """One vectorizer."""
    return f"g ({dtype}[{shape}] x) => (float[*] y) {{ y = TfIdfVectorizer<{POOL}, {options}>(x) }}".replace(
        "float[*]", "float[N,7]" if "," in shape else "float[7]"
    )


VARIANTS = [
    ('mode = "TF", min_gram_length = 1, max_gram_length = 2, max_skip_count = 0', "2,6"),
    ('mode = "TF", min_gram_length = 2, max_gram_length = 2, max_skip_count = 5', "2,6"),
    ('mode = "TF", min_gram_length = 1, max_gram_length = 1, max_skip_count = 3', "N,6"),
    ('mode = "IDF", min_gram_length = 1, max_gram_length = 2, max_skip_count = 2', "2,6"),
    ('mode = "TFIDF", min_gram_length = 1, max_gram_length = 2, max_skip_count = 1,'
     " weights = [0.5, 1.0, 2.0, 0.25, 3.0, 1.5, 0.75]", "2,6"),
    ('mode = "TF", min_gram_length = 1, max_gram_length = 2, max_skip_count = 1', "6"),
]  # fmt: skip


@pytest.mark.parametrize(("options", "shape"), VARIANTS)
@pytest.mark.parametrize("opset", [9, 18])
def test_equal_in_onnx(options: str, shape: str, opset: int) -> None:
    text = model(shape, options, "int64" if opset == 18 else "int32")
    graph = graph_of(text, opset=opset)
    assert LowerForMnn().run(graph).modified
    words = WORDS[0] if shape == "6" else WORDS
    feeds = {"x": words.astype(np.int64 if opset == 18 else np.int32)}
    assert_equal_outputs(parse(text, opset=opset), graph.to_model(), inputs=feeds)


@pytest.mark.parametrize(("options", "shape"), VARIANTS[1:5:3])
def test_right_in_mnn(options: str, shape: str, tmp_path: Path) -> None:
    assert_right_in_mnn(model(shape, options), tmp_path, feeds={"x": WORDS.astype(np.int32)})


def test_refusals() -> None:
    skip = 'mode = "TF", min_gram_length = 1, max_gram_length = 2, max_skip_count = 0'
    assert_unchanged(LowerForMnn(), model("2,L", skip), refuses="number of words")
    text = (
        "g (string[4] x) => (float[2] y) { y = TfIdfVectorizer<ngram_counts = [0], ngram_indexes = [0, 1],"
        f' pool_strings = ["a", "b"], {skip}>(x) }}'
    )
    assert_unchanged(LowerForMnn(), text, refuses="its pool is text")
    assert_unchanged(
        LowerForMnn(), model("1", 'mode = "TF", min_gram_length = 2, max_gram_length = 2, max_skip_count = 0'),
        refuses="no row is as long",
    )  # fmt: skip

"""Test how logits are judged in the benchmark of the language model."""

from __future__ import annotations

import numpy as np
import pytest

from benchmarks.quant_smollm2 import LENGTH, Judged

VOCABULARY = 50


@pytest.fixture
def passages() -> list[dict[str, np.ndarray]]:
    ids = np.random.default_rng(0).integers(0, VOCABULARY, (3, 1, LENGTH))
    return [{"input_ids": row} for row in ids]


def test_equal_logits_have_the_vocabulary_as_perplexity(passages: list[dict[str, np.ndarray]]) -> None:
    judged = Judged.of((np.full((1, LENGTH, VOCABULARY), 7, np.float32) for _ in passages), passages)
    assert judged.perplexity == pytest.approx(VOCABULARY)
    assert judged.losses.shape == judged.likeliest.shape == (3, LENGTH - 1)


def test_next_tokens_are_what_counts(passages: list[dict[str, np.ndarray]]) -> None:
    def logits(ids: np.ndarray) -> np.ndarray:
        made = np.zeros((1, LENGTH, VOCABULARY), np.float32)
        made[0, np.arange(LENGTH - 1), ids[0, 1:]] = 3  # the likeliest token is the one that comes next
        return made

    right = Judged.of((logits(feeds["input_ids"]) for feeds in passages), passages)
    assert right.perplexity == pytest.approx((VOCABULARY - 1 + np.exp(3)) / np.exp(3), rel=1e-6)
    for feeds, likeliest in zip(passages, right.likeliest, strict=True):
        assert (likeliest == feeds["input_ids"][0, 1:]).all()
    shifted = [{"input_ids": (feeds["input_ids"] + 1) % VOCABULARY} for feeds in passages]
    wrong = Judged.of((logits(feeds["input_ids"]) for feeds in shifted), passages)
    assert right.agreement(right) == 1
    assert right.agreement(wrong) == 0
    assert wrong.perplexity > right.perplexity


def test_logits_that_are_not_finite_have_no_good_perplexity(passages: list[dict[str, np.ndarray]]) -> None:
    broken = np.zeros((1, LENGTH, VOCABULARY), np.float32)
    broken[0, 5, 3] = np.nan
    judged = Judged.of((broken for _ in passages), passages)
    assert judged.perplexity == np.inf
    assert judged.agreement(judged) == 1  # of the same nothing; no token of a model that works is -1
    assert (judged.likeliest == -1).all()

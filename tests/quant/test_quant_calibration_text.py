"""Calibration data from text: what a tokenizer's output becomes for models of different inputs."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from fixtures.naturals import SENTENCES, natural
from graphkit.errors import UsageError
from graphkit.model import Model
from graphkit.quant.calibration import load_calibration
from graphkit.testing import parse

tokenizers = pytest.importorskip("tokenizers")

WORDS = ("[PAD]", "[UNK]", "rain", "is", "wet", "snow", "cold")
TEXT = "rain is wet\nsnow is cold is cold\n\n  rain is wet  \nrain\n"


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A folder with a text and a tokenizer that pads to 32 by itself, as those of sentence encoders do."""
    made = tokenizers.Tokenizer(
        tokenizers.models.WordLevel({word: number for number, word in enumerate(WORDS)}, unk_token="[UNK]")
    )
    made.pre_tokenizer = tokenizers.pre_tokenizers.Whitespace()
    made.enable_padding(length=32, pad_id=0)
    made.enable_truncation(16)
    made.save(str(tmp_path / "tokenizer.json"))
    (tmp_path / "a.txt").write_text(TEXT, encoding="utf-8")
    return tmp_path


def model_of(inputs: str) -> Model:
    return parse(f"g ({inputs}) => (float[1] y) <float[1] k = {{1}}> {{ y = Identity(k) }}")


def rows(path: Path, inputs: str, **how: Any) -> dict[str, list[Any]]:
    samples = load_calibration(path, model_of(inputs), **how).samples
    return {name: [sample[name].tolist() for sample in samples] for name in samples[0]}


def test_each_line_is_a_sample_of_its_own_length(folder: Path) -> None:
    found = load_calibration(folder / "a.txt", model_of("int64[b,s] input_ids, int64[b,s] attention_mask"))
    assert [sample["input_ids"].tolist() for sample in found.samples] == [[[2, 3, 4]], [[5, 3, 6, 3, 6]], [[2]]]
    assert all((sample["attention_mask"] == 1).all() for sample in found.samples)
    assert found.note == "3 texts, 1 repeated lines left out"


def test_a_folder_of_texts_and_a_tokenizer_beside_the_model(folder: Path, tmp_path_factory: Any) -> None:
    other = tmp_path_factory.mktemp("texts")
    (other / "b.txt").write_text("snow\n", encoding="utf-8")
    (other / "a.txt").write_text("rain\nwet snow\n", encoding="utf-8")
    model_of("int32[b,s] ids").save(folder / "m.onnx")
    found = load_calibration(other, folder / "m.onnx")
    assert [sample["ids"].tolist() for sample in found.samples] == [[[2]], [[4, 5]], [[5]]]
    assert found.samples[0]["ids"].dtype == np.int32
    with pytest.raises(UsageError, match="needs a tokenizer") as caught:
        load_calibration(other, model_of("int32[b,s] ids"))
    assert "tokenizer.json" in str(caught.value.hint)


def test_all_inputs_a_language_model_may_have(folder: Path) -> None:
    inputs = (
        "int64[b,s] input_ids, int64[b,t] attention_mask, int64[b,s] position_ids, int64[b,s] token_type_ids, "
        "float[b,2,p,4] past_key_values_0, bool[1] use_cache_branch"
    )
    sample = load_calibration(folder, model_of(inputs)).samples[1]
    assert sample["position_ids"].tolist() == [[0, 1, 2, 3, 4]]
    assert sample["token_type_ids"].tolist() == [[0] * 5]
    assert sample["past_key_values_0"].shape == (1, 2, 0, 4)
    assert sample["use_cache_branch"].tolist() == [False]


def test_fixed_lengths_are_padded_and_cut(folder: Path) -> None:
    found = rows(folder, "int64[b,4] input_ids, float[b,4] attention_mask")
    assert found["input_ids"] == [[[2, 3, 4, 0]], [[5, 3, 6, 3]], [[2, 0, 0, 0]]]
    assert found["attention_mask"] == [[[1, 1, 1, 0]], [[1, 1, 1, 1]], [[1, 0, 0, 0]]]


def test_fixed_batches_take_several_texts(folder: Path) -> None:
    found = rows(folder, "int64[2,s] input_ids, int64[2,s] attention_mask")
    assert found["input_ids"] == [[[2, 3, 4, 0, 0], [5, 3, 6, 3, 6]]]
    assert found["attention_mask"] == [[[1, 1, 1, 0, 0], [1, 1, 1, 1, 1]]]
    with pytest.raises(UsageError, match="3 texts are too few: the model takes 8 at once"):
        rows(folder, "int64[8,s] input_ids")


def test_long_texts_are_cut_where_the_tokenizer_says(folder: Path) -> None:
    (folder / "a.txt").write_text(" ".join(["wet"] * 40), encoding="utf-8")
    assert rows(folder, "int64[b,s] input_ids")["input_ids"] == [[[4] * 16]]


def test_limits_choose_texts(folder: Path) -> None:
    found = load_calibration(folder, model_of("int64[b,s] input_ids"), limit=2)
    assert len(found.samples) == 2
    assert found.note.startswith("2 of 3 texts")


def test_tokenizers_may_be_paths_objects_and_functions(folder: Path) -> None:
    text = folder / "a.txt"
    expected = rows(text, "int64[b,s] input_ids")
    own = tokenizers.Tokenizer.from_file(str(folder / "tokenizer.json"))
    for given in (folder, folder / "tokenizer.json", own):
        assert rows(text, "int64[b,s] input_ids", tokenizer=given) == expected
    assert own.padding["length"] == 32  # left as it was

    def lengths(line: str) -> dict[str, list[int]]:
        return {"input_ids": [len(word) for word in line.split()], "unknown": [1]}

    assert rows(text, "int64[b,s] input_ids", tokenizer=lengths)["input_ids"][0] == [[4, 2, 3]]
    with pytest.raises(UsageError, match="no value for input 'other'"):
        rows(text, "int64[b,s] input_ids, int64[b,s] other", tokenizer=lengths)
    with pytest.raises(UsageError, match="gives a list"):
        rows(text, "int64[b,s] input_ids", tokenizer=lambda line: [line])
    with pytest.raises(UsageError, match="a int is no tokenizer"):
        rows(text, "int64[b,s] input_ids", tokenizer=3)


@pytest.mark.parametrize(
    ("inputs", "message"),
    [
        ("float[b,3,8,8] x", "none of the inputs is known to take tokens"),
        ("int64[b,s] a, int64[b,s] b", "none of the inputs is known to take tokens"),
        ("int64[b,s] input_ids, float[b,3] extra", "a tokenizer has nothing for input 'extra'"),
        ("int64[b,s] input_ids, float[b,h,p,4] past", "input 'past' is a past of unknown shape"),
    ],
)
def test_inputs_that_text_cannot_feed(inputs: str, message: str, folder: Path) -> None:
    with pytest.raises(UsageError, match=message) as caught:
        rows(folder, inputs)
    assert ".npz" in str(caught.value.hint)


def test_files_that_are_no_text_or_no_tokenizer(folder: Path) -> None:
    model = model_of("int64[b,s] input_ids")
    (folder / "bad.txt").write_bytes(b"\xff\xfe\x00")
    (folder / "empty.txt").write_text("\n \n", encoding="utf-8")
    (folder / "bad.json").write_text("{}", encoding="utf-8")
    for name, how, message in (
        ("bad.txt", {}, "cannot be read as UTF-8"),
        ("empty.txt", {}, "holds no samples"),
        ("a.txt", {"tokenizer": folder / "bad.json"}, "is no tokenizer"),
        ("a.txt", {"tokenizer": folder / "none.json"}, "is not there"),
    ):
        with pytest.raises(UsageError, match=message):
            load_calibration(folder / name, model, **how)


def test_without_the_package_the_error_says_what_to_install(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "tokenizers", None)
    with pytest.raises(UsageError, match="needs the package tokenizers") as caught:
        load_calibration(folder, model_of("int64[b,s] input_ids"))
    assert caught.value.hint == "pip install tokenizers"


def test_a_sentence_encoder_gets_what_its_tokenizer_means(model_path: Callable[[str], Path], tmp_path: Path) -> None:
    inputs = ", ".join(f"int64[batch,sequence] {name}" for name in ("input_ids", "attention_mask", "token_type_ids"))
    (tmp_path / "a.txt").write_text("\n".join(SENTENCES), encoding="utf-8")
    found = load_calibration(tmp_path, model_of(inputs), tokenizer=model_path("minilm")).samples
    first, others = natural("minilm")
    for name, array in first.items():
        np.testing.assert_array_equal(found[0][name], array)
    for number, sample in enumerate(found[1:]):
        length = int(others["attention_mask"][number].sum())
        np.testing.assert_array_equal(sample["input_ids"][0], others["input_ids"][number, :length])

"""Calibration data from pictures: sizes, colours, layouts and numbers, pixel by pixel."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

from graphkit.errors import UsageError
from graphkit.model import Model
from graphkit.quant._calib_images import ImageSpec
from graphkit.quant.calibration import load_calibration
from graphkit.testing import parse

Image = pytest.importorskip("PIL.Image")
Array = npt.NDArray[Any]

PIXELS = np.random.default_rng(0).integers(0, 256, (4, 6, 3), dtype=np.uint8)


def model_of(shape: str, dtype: str = "float") -> Model:
    return parse(f"g ({dtype}[{shape}] x) => (float[1] y) <float[1] k = {{1}}> {{ y = Identity(k) }}")


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A folder with one picture of 4 rows and 6 columns."""
    Image.fromarray(PIXELS).save(tmp_path / "a.png")
    return tmp_path


def only(path: Path, model: Model, images: Any = None) -> Array:
    (sample,) = load_calibration(path, model, images=images).samples
    return sample["x"]


def test_pixels_become_numbers_between_0_and_1_channels_first(folder: Path) -> None:
    found = only(folder, model_of("b,3,4,6"))
    assert found.dtype == np.float32
    np.testing.assert_allclose(found, PIXELS.transpose(2, 0, 1)[None] / 255, atol=1e-6)
    np.testing.assert_array_equal(found, only(folder / "a.png", model_of("b,3,4,6")))
    np.testing.assert_array_equal(found, only(folder, model_of("b,3,h,w")))  # sizes left free are the picture's


@pytest.mark.parametrize("shape", ["b,4,6,3", "b,h,w,3", "b,h,w,c"])
def test_channels_last(shape: str, folder: Path) -> None:
    how = {"layout": "nhwc"} if shape.endswith("c") else None
    np.testing.assert_allclose(only(folder, model_of(shape), how), PIXELS[None] / 255, atol=1e-6)


def test_mean_deviation_and_order_of_colours(folder: Path) -> None:
    text = "mean=.485:.456:.406,std=.229:.224:.225,color=bgr"
    expected = (PIXELS[..., ::-1] / 255 - [0.485, 0.456, 0.406]) / [0.229, 0.224, 0.225]
    found = only(folder, model_of("b,3,4,6"), text)
    np.testing.assert_allclose(found, expected.transpose(2, 0, 1)[None], atol=1e-5)
    fields = {"mean": [0.485, 0.456, 0.406], "std": (0.229, 0.224, 0.225), "colour": "BGR"}
    np.testing.assert_array_equal(found, only(folder, model_of("b,3,4,6"), fields))
    np.testing.assert_array_equal(found, only(folder, model_of("b,3,4,6"), ImageSpec.parse(text)))
    half = only(folder, model_of("b,3,4,6"), "mean=127.5,std=127.5,divide=1")
    np.testing.assert_allclose(half, (PIXELS.transpose(2, 0, 1)[None] - 127.5) / 127.5, atol=1e-6)


def test_gray_pictures_and_integer_inputs(folder: Path) -> None:
    gray = only(folder, model_of("b,1,4,6"), "colour=gray")
    np.testing.assert_allclose(gray[0, 0], (PIXELS @ [0.299, 0.587, 0.114]) / 255, atol=1 / 255)
    np.testing.assert_array_equal(only(folder, model_of("b,4,6,3", "uint8")), PIXELS[None])


def test_stretching_padding_and_cropping(tmp_path: Path) -> None:
    Image.fromarray(np.repeat(np.array([[10, 20, 30, 40]], np.uint8), 2, axis=0)).save(tmp_path / "a.png")  # 2 × 4
    model = model_of("b,1,4,4")

    def sized(how: str) -> Array:
        return only(tmp_path, model, f"colour=gray,divide=1,{how}")[0, 0]

    assert sized("fit=stretch").shape == (4, 4)
    np.testing.assert_array_equal(sized("fit=stretch"), np.tile(np.array([10, 20, 30, 40], np.float32), (4, 1)))
    padded = sized("fit=pad,fill=114")
    np.testing.assert_array_equal(padded[:2], np.tile(np.array([10, 20, 30, 40], np.float32), (2, 1)))
    np.testing.assert_array_equal(padded[2:], np.full((2, 4), 114, np.float32))
    cropped = sized("fit=crop")  # twice as large, the middle: between 20 and 30
    assert cropped.shape == (4, 4)
    assert 10 < cropped.min() < 25 < cropped.max() < 40
    np.testing.assert_allclose(cropped + cropped[:, ::-1], 50, atol=1)


@pytest.mark.parametrize(
    ("how", "expected"),
    [
        ("size=8x12", (8, 12)),
        ("size=8", (8, 8)),
        ("size=8x?", (8, 12)),
        ("size=?x3", (2, 3)),
        ("multiple=4", (4, 8)),
        ("size=8x?,multiple=5", (8, 10)),
        ({"size": 8}, (8, 8)),
        ({"size": [8, None]}, (8, 12)),
    ],
)
def test_sizes(how: Any, expected: tuple[int, int], folder: Path) -> None:
    assert only(folder, model_of("b,3,h,w"), how).shape == (1, 3, *expected)


def test_pictures_of_several_sizes_are_samples_of_their_own_or_share_a_batch(folder: Path) -> None:
    Image.fromarray(PIXELS[:2]).save(folder / "b.jpg")
    Image.fromarray(PIXELS[:, :2]).convert("RGBA").save(folder / "c.png")
    found = load_calibration(folder, model_of("b,3,h,w"))
    assert [sample["x"].shape[2:] for sample in found.samples] == [(4, 6), (2, 6), (4, 2)]
    assert found.note == "3 pictures, rgb, stretch"
    (sample,) = load_calibration(folder, model_of("2,3,8,8")).samples
    assert sample["x"].shape == (2, 3, 8, 8)
    assert load_calibration(folder, model_of("b,3,h,w"), limit=2).note.startswith("2 of 3 pictures")
    with pytest.raises(UsageError, match="3 pictures are too few: the model takes 4 at once"):
        load_calibration(folder, model_of("4,3,8,8"))
    with pytest.raises(UsageError, match="differ in size"):
        load_calibration(folder, model_of("2,3,h,w"))


@pytest.mark.parametrize(
    ("text", "message", "hint"),
    [
        ("sise=3", "no option 'sise'", "size"),
        ("size", "'size' is not NAME=VALUE", "size="),
        ("size=axb", "'axb' is no size", "size="),
        ("size=1x2x3", "'1x2x3' is no size", "size="),
        ("size=0", "at least 1", None),
        ("size=99999999999x99999999999", "too large", "at most"),
        ("size=1000000x1000000", "too large", "at most"),
        ("multiple=99999999999999", "too large", "at most"),
        ("mean=.5:.5", "1 value or 3", None),
        ("std=0", "divided by 0", None),
        ("divide=0", "divided by 0", None),
        ("colour=cmyk", "'cmyk' of pictures is none of rgb, bgr, gray", None),
        ("fit=fill", "'fill' of pictures is none of stretch", None),
        ("layout=chw", "'chw' of pictures is none of nchw", None),
    ],
)
def test_options_that_are_wrong(text: str, message: str, hint: str | None) -> None:
    with pytest.raises(UsageError, match=message) as caught:
        ImageSpec.parse(text)
    assert hint is None or hint in str(caught.value.hint)


def test_sizes_that_follow_from_others_have_a_bound_too(tmp_path: Path) -> None:
    Image.fromarray(np.zeros((1, 3000), np.uint8)).save(tmp_path / "wide.png")
    for how in ("size=30000x?", "size=8192x8192,fit=crop", "multiple=60000"):
        with pytest.raises(UsageError, match="too large") as caught:
            load_calibration(tmp_path, model_of("b,3,h,w"), images=how)
        assert caught.value.file == str(tmp_path / "wide.png")


def test_models_that_take_no_pictures(folder: Path) -> None:
    two = parse("g (float[1,3,4,6] x, float[1] z) => (float[1] y) { y = Identity(z) }")
    for model, message in (
        (two, "takes 'x', 'z'"),
        (model_of("b,n"), "do not fit the input x"),
        (model_of("b,3,4,6", "bool"), "do not fit the input x"),
        (model_of("b,1,4,6"), "rgb pictures have 3 channels"),
        (model_of("b,4,4,6"), "rgb pictures have 3 channels"),
    ):
        with pytest.raises(UsageError, match=message):
            load_calibration(folder, model)


def test_a_size_that_the_model_does_not_take_is_refused(folder: Path) -> None:
    with pytest.raises(UsageError, match=r"has shape \[1, 3, 8, 8\]"):
        load_calibration(folder, model_of("b,3,4,6"), images="size=8")


def test_files_that_are_no_pictures(folder: Path) -> None:
    (folder / "b.png").write_bytes(b"no picture")
    with pytest.raises(UsageError, match="is not a picture") as caught:
        load_calibration(folder, model_of("b,3,4,6"))
    assert caught.value.file == str(folder / "b.png")


def test_without_the_package_the_error_says_what_to_install(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "PIL", None)
    with pytest.raises(UsageError, match="need the package pillow") as caught:
        load_calibration(folder, model_of("b,3,4,6"))
    assert caught.value.hint == "pip install pillow"

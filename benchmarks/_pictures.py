"""Pictures for the vision models: what they are calibrated on, and others that they are judged by.

Lines and pages of text are rendered from sentences that people wrote, in Pillow's own font; photographs come with
scikit-image. The two parts share no sentence and no photograph.
"""

from __future__ import annotations

import textwrap
from collections.abc import Callable, Sequence
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray
from PIL import Image, ImageDraw, ImageFont
from skimage import data

from fixtures.naturals import Doubles, Feeds, picture, planes, resized
from fixtures.sentences import sentences

Part = Literal["calibration", "evaluation"]
LINES = {"calibration": 80, "evaluation": 60}
LONGEST = 42  # characters of a line
_SIZES = {"calibration": (320, 416), "evaluation": (448, 576)}
_HALF, _NONE, _ONE = (0.5,) * 3, (0.0,) * 3, (1.0,) * 3
_BACKGROUNDS = {
    "calibration": ("coffee", "brick", "rocket", "grass", "coins", "retina"),
    "evaluation": ("astronaut", "chelsea", "gravel"),
}
_SCENES = {
    "calibration": ("coffee", "rocket", "brick", "grass", "retina", "coins", "colorwheel", "moon"),
    "evaluation": ("chelsea", "gravel"),
}
_FACES = {"calibration": range(60), "evaluation": range(60, 100)}  # of the 100 small faces of scikit-image


def text_lines(part: Part) -> list[Feeds]:
    """Printed lines for ppocr4_rec: BGR ±1, [1, 3, 48, width], each of its own width."""
    rng = np.random.default_rng(len(part))
    texts = [textwrap.wrap(text, LONGEST)[0] for text in sentences(240 + LINES[part], part)[240:]]
    return [{"x": planes(_line(text, rng), _HALF, _HALF)[None]} for text in texts]


def pages(part: Part) -> list[Feeds]:
    """Pages and photographs with text on them for ppocr4_det: BGR ±1, [1, 3, height, width]."""
    rng = np.random.default_rng(len(part))
    texts = iter(sentences(120, part)[60:])
    papers = [np.full((*_SIZES[part], 3), rng.uniform(0.7, 1.0)) for _ in range(6 if part == "calibration" else 3)]
    photographs = [resized(picture(name), *_SIZES[part]) for name in _BACKGROUNDS[part]]
    shown = [_printed(paper, [next(texts) for _ in range(4)], rng) for paper in papers + photographs]
    if part == "evaluation":
        shown += [resized(picture("page"), 192, 384), resized(picture("page")[:120], 224, 736)]
    return [{"x": planes(pixels[..., ::-1], _HALF, _HALF)[None]} for pixels in shown]


def faces(part: Part) -> list[Feeds]:
    """Photographs with faces for centerface: RGB 0..255, [1, 3, 256, 256]."""
    rng = np.random.default_rng(len(part))
    shown = [_with_faces(resized(picture(name), 256, 256), part, rng) for name in _SCENES[part] for _ in range(2)]
    if part == "evaluation":
        astronaut = picture("astronaut")
        shown += [astronaut[0:256, 96:352], resized(astronaut, 256, 256), resized(picture("camera"), 256, 256)]
        shown += [resized(picture("chelsea"), 256, 256), resized(astronaut[0:384, 32:416], 256, 256)]
    return [{"input.1": planes(pixels * 255, _NONE, _ONE)[None]} for pixels in shown]


def _line(text: str, rng: np.random.Generator) -> Doubles:
    """One line of text, 48 pixels high, cut out close to the ink: with wider margins the float model itself reads
    spaces at the edges (11 of 60 lines right, against 57), and whether it does is a toss-up."""
    font = ImageFont.load_default(float(rng.integers(26, 38)))
    left, top, right, bottom = font.getbbox(text)
    margin = int(rng.integers(1, 4))
    size = (round(right - left) + 2 * margin, round(bottom - top) + 2 * margin)
    canvas = Image.new("L", size, int(rng.integers(200, 256)))
    ImageDraw.Draw(canvas).text((margin - left, margin - top), text, fill=int(rng.integers(0, 90)), font=font)
    width = max(8, round(48 * size[0] / size[1] / 8) * 8)
    return resized(_noisy(_coloured(canvas), rng), 48, width)


def _printed(pixels: Doubles, texts: Sequence[str], rng: np.random.Generator) -> Doubles:
    """A picture with paragraphs on it, dark on light or light on dark."""
    canvas = Image.fromarray((pixels * 255).astype(np.uint8))
    draw, row = ImageDraw.Draw(canvas), 16
    for text in texts:
        size = float(rng.integers(14, 34))
        font = ImageFont.load_default(size)
        around = pixels[row : row + int(3 * size)].mean() if row < pixels.shape[0] else 1.0
        ink = int(rng.integers(0, 70)) if around > 0.45 else int(rng.integers(210, 256))
        for line in textwrap.wrap(text, int(1000 / size)):
            draw.text((int(rng.integers(8, 40)), row), line, fill=(ink, ink, ink), font=font)
            row += int(size * 1.4)
        row += int(rng.integers(8, 30))
    return _noisy(np.asarray(canvas, np.float64) / 255, rng)


def _with_faces(pixels: Doubles, part: Part, rng: np.random.Generator) -> Doubles:
    """A photograph with three small faces in it, each larger than it was."""
    shown = pixels.copy()
    load: Callable[[], NDArray[Any]] = data.lfw_subset  # scikit-image leaves it unannotated
    small = load()
    for column in range(3):
        side = int(rng.integers(32, 80))
        face = resized(np.repeat(small[rng.choice(_FACES[part])][..., None], 3, axis=2).astype(np.float64), side, side)
        top, left = int(rng.integers(0, 256 - side)), 85 * column + int(rng.integers(0, 86 - side))
        tint = np.array([1.0, rng.uniform(0.8, 0.95), rng.uniform(0.65, 0.9)])
        shown[top : top + side, left : left + side] = face * tint
    return shown


def _coloured(canvas: Image.Image) -> Doubles:
    return np.repeat((np.asarray(canvas, np.float64) / 255)[..., None], 3, axis=2)


def _noisy(pixels: Doubles, rng: np.random.Generator) -> Doubles:
    return np.asarray(np.clip(pixels + rng.normal(0, 0.02, pixels.shape), 0, 1))

"""Calibration data from pictures: how pixels become the numbers that a model takes."""

from __future__ import annotations

import difflib
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from graphkit.errors import UsageError
from graphkit.quant._calib_specs import Array, Found, Sample, choose
from graphkit.runtime import InputSpec

Size = tuple[int | None, int | None]

SUFFIXES = (".bmp", ".jpeg", ".jpg", ".pgm", ".png", ".ppm", ".tif", ".tiff", ".webp")
_COLOURS, _LAYOUTS, _FITS = ("rgb", "bgr", "gray"), ("nchw", "nhwc"), ("stretch", "pad", "crop")
_MOST_PIXELS = 1 << 26  # of one picture: 0.8 GB as float32
_EXAMPLE = "an example: size=224x224,mean=.485:.456:.406,std=.229:.224:.225"


@dataclass(frozen=True)
class ImageSpec:
    """How a picture becomes an input: resized, divided, and normalised as (value / divide − mean) / std.

    size: (height, width) in pixels; None takes the model's, and where that is free, follows from the other side with
    the picture's proportions, or is the picture's own. multiple: free sides are rounded to a multiple of this.
    fit: `stretch` to the size, `pad` (fit inside, the rest at the right and bottom is `fill`, in pixel values), or
    `crop` (cover, the middle is kept). colour: `rgb`, `bgr` or `gray`. layout: `nchw` or `nhwc`, None for what the
    model's shape tells. divide: 255 by default, for integer inputs 1. mean, std: one number, or one a channel.
    Raises UsageError for values outside these.
    """

    size: Size = (None, None)
    mean: tuple[float, ...] = (0.0,)
    std: tuple[float, ...] = (1.0,)
    divide: float | None = None
    colour: str = "rgb"
    layout: str | None = None
    fit: str = "stretch"
    fill: float = 0.0
    multiple: int = 1

    def __post_init__(self) -> None:
        for what, value, known in (
            ("colour", self.colour, _COLOURS),
            ("layout", self.layout or "nchw", _LAYOUTS),
            ("fit", self.fit, _FITS),
        ):
            if value not in known:
                raise UsageError(f"{what} '{value}' of pictures is none of {', '.join(known)}")
        if any(side is not None and side < 1 for side in self.size) or self.multiple < 1:
            raise UsageError("sizes of pictures are at least 1")
        _check_pixels(*(side or 1 for side in self.size))
        _check_pixels(self.multiple, 1)
        if not all(self.std) or self.divide == 0:
            raise UsageError("pictures cannot be divided by 0", hint="std and divide must not be 0")
        channels = 1 if self.colour == "gray" else 3
        if {len(self.mean), len(self.std)} - {1, channels}:
            raise UsageError(f"mean and std have 1 value or {channels} for {self.colour} pictures")

    @classmethod
    def parse(cls, text: str) -> ImageSpec:
        """A spec from text such as `size=48x320,mean=.5,std=.5,colour=bgr,fit=pad`; size is height × width, `?` a side
        left free; channels are separated by ':'. Raises UsageError."""
        values: dict[str, Any] = {}
        for part in filter(None, (part.strip() for part in text.split(","))):
            name, equals, value = part.partition("=")
            if not equals:
                raise UsageError(f"'{part}' is not NAME=VALUE", hint=_EXAMPLE)
            values[name.strip()] = value.strip()
        return cls.of(values)

    @classmethod
    def of(cls, values: Mapping[str, Any]) -> ImageSpec:
        """A spec from its fields by name, as values or as text. Raises UsageError."""
        named = {"colour" if name == "color" else name: value for name, value in values.items()}
        unknown = [name for name in named if name not in _READERS]
        if unknown:
            close = difflib.get_close_matches(unknown[0], _READERS, 1)
            hint = f"did you mean '{close[0]}'?" if close else f"there are {', '.join(_READERS)}"
            raise UsageError(f"pictures have no option '{unknown[0]}'", hint=hint)
        made = {}
        for name, value in named.items():
            try:
                made[name] = _READERS[name](value)
            except (ValueError, TypeError) as error:
                raise UsageError(f"'{value}' is no {name} of pictures", hint=_EXAMPLE) from error
        return cls(**made)


def load(
    files: Sequence[Path],
    *,
    specs: Sequence[InputSpec],
    how: ImageSpec | Mapping[str, Any] | str | None,
    choice: tuple[int | None, int],
) -> Found:
    """A sample of each picture, and a note. Raises UsageError."""
    spec = ImageSpec.parse(how) if isinstance(how, str) else how
    spec = ImageSpec() if spec is None else spec if isinstance(spec, ImageSpec) else ImageSpec.of(spec)
    target = _target(specs, spec, files[0])
    chosen = choose(files, choice)
    batch = target.shape[0] if isinstance(target.shape[0], int) and target.shape[0] else 1
    if len(chosen) < batch:
        raise UsageError(f"{len(chosen)} pictures are too few: the model takes {batch} at once", file=files[0].parent)
    pictures = [picture(file, spec, target) for file in chosen[: len(chosen) // batch * batch]]
    starts = range(0, len(pictures), batch)
    samples = [(chosen[start], _stack(pictures[start : start + batch], target.name)) for start in starts]
    of = f" of {len(files)}" if len(chosen) < len(files) else ""
    return samples, f"{len(pictures)}{of} pictures, {spec.colour}, {spec.fit}"


def picture(file: Path, how: ImageSpec, target: InputSpec) -> Array:
    """One picture as the input takes it, without the batch axis. Raises UsageError when it cannot be read."""
    pillow = _pillow()
    layout = how.layout or _layout(target)
    sides = target.shape[2:4] if layout == "nchw" else target.shape[1:3]
    fixed = [s or (t if isinstance(t, int) else None) for s, t in zip(how.size, sides, strict=True)]
    try:
        with pillow.open(file) as opened:
            opened.draft("RGB", None)
            pixels = opened.convert("L" if how.colour == "gray" else "RGB")
    except (OSError, ValueError, SyntaxError, pillow.DecompressionBombError) as error:
        raise UsageError(f"is not a picture that can be read: {error}", file=file) from error
    try:
        return _numbers(_sized(pixels, fixed, how), how, layout, target)
    except UsageError as error:
        error.file = error.file or str(file)
        raise


def _numbers(pixels: Array, how: ImageSpec, layout: str, target: InputSpec) -> Array:
    """Pixels [height, width, channels] normalised, in the input's layout and type."""
    if how.colour == "bgr":
        pixels = pixels[..., ::-1]
    divide = how.divide if how.divide is not None else (1.0 if target.dtype.kind in "iu" else 255.0)
    values = (pixels / np.float32(divide) - np.asarray(how.mean, np.float32)) / np.asarray(how.std, np.float32)
    if target.dtype.kind in "iu":
        limits = np.iinfo(target.dtype)
        values = np.clip(np.rint(values), limits.min, limits.max)
    return np.ascontiguousarray(values.transpose(2, 0, 1) if layout == "nchw" else values, target.dtype)


def _sized(pixels: Any, sides: Sequence[int | None], how: ImageSpec) -> Array:
    """A Pillow picture in the wanted size as float32 [height, width, channels], 0 to 255."""
    own = (pixels.height, pixels.width)
    height, width = _sides(own, sides, how.multiple)
    scales = (height / own[0], width / own[1])
    scale = {"pad": min(scales), "crop": max(scales)}.get(how.fit)
    inner = (height, width) if scale is None else (max(1, round(own[0] * scale)), max(1, round(own[1] * scale)))
    _check_pixels(height, width)
    _check_pixels(*inner)
    bilinear = 2  # Pillow's number of it; it smooths when it makes smaller
    array = np.asarray(pixels.resize((inner[1], inner[0]), bilinear), np.float32)
    array = array.reshape(*inner, -1)
    top, left = max(0, (inner[0] - height) // 2), max(0, (inner[1] - width) // 2)
    array = array[top : top + height, left : left + width]
    missing = [(0, height - array.shape[0]), (0, width - array.shape[1]), (0, 0)]
    return np.pad(array, missing, constant_values=how.fill) if any(after for _, after in missing) else array


def _sides(own: tuple[int, int], wanted: Sequence[int | None], multiple: int) -> tuple[int, int]:
    """Height and width; a free side follows from the other one."""
    height, width = wanted
    if height is None:
        height = _rounded(own[0] * width / own[1] if width is not None else own[0], multiple)
    if width is None:
        width = _rounded(own[1] * height / own[0], multiple)
    return height, width


def _check_pixels(height: int, width: int) -> None:
    if height * width > _MOST_PIXELS:
        raise UsageError(f"pictures of {height} × {width} pixels are too large", hint=f"{_MOST_PIXELS:,} at most")


def _rounded(size: float, multiple: int) -> int:
    return max(1, round(size / multiple)) * multiple


def _target(specs: Sequence[InputSpec], how: ImageSpec, file: Path) -> InputSpec:
    """The input that takes pictures. Raises UsageError when there is none, or others beside it."""
    hint = "store all inputs as .npz"
    if len(specs) > 1:
        names = ", ".join(f"'{spec.name}'" for spec in specs)
        raise UsageError(f"pictures cannot feed a model that takes {names}", file=file.parent, hint=hint)
    spec = specs[0]
    if len(spec.shape) != 4 or spec.dtype.kind not in "fiu":
        raise UsageError(f"pictures do not fit the input {spec}", file=file.parent, hint=hint)
    layout = how.layout or _layout(spec)
    channels, have = spec.shape[1 if layout == "nchw" else 3], 1 if how.colour == "gray" else 3
    if isinstance(channels, int) and channels != have:
        fix = "colour=gray" if channels == 1 else "colour=rgb" if channels == 3 else hint
        raise UsageError(f"{how.colour} pictures have {have} channels; the model takes {spec}", hint=fix)
    return spec


def _layout(spec: InputSpec) -> str:
    return "nhwc" if spec.shape[3] in (1, 3) and spec.shape[1] not in (1, 3) else "nchw"


def _stack(pictures: Sequence[Array], name: str) -> Sample:
    if len({array.shape for array in pictures}) > 1:
        raise UsageError("pictures of one batch differ in size", hint="give a size: size=HEIGHTxWIDTH")
    return {name: np.stack(pictures)}


def _pillow() -> Any:
    try:
        from PIL import Image
    except ImportError as error:
        raise UsageError("pictures need the package pillow", hint="pip install pillow") from error
    return Image


def _read_size(value: Any) -> Size:
    sides = re.split(r"[x×]", value) if isinstance(value, str) else [value] if isinstance(value, int) else list(value)
    numbers = [None if side in ("?", None) else int(side) for side in sides]
    if len(numbers) not in (1, 2):
        raise ValueError("neither one side nor two")
    return numbers[0], numbers[-1]


def _read_floats(value: Any) -> tuple[float, ...]:
    items = re.split("[:/]", value) if isinstance(value, str) else value
    return tuple(float(item) for item in (items if isinstance(items, list | tuple) else [items]))


_READERS: dict[str, Callable[[Any], Any]] = {
    "size": _read_size,
    "mean": _read_floats,
    "std": _read_floats,
    "divide": float,
    "colour": lambda value: str(value).lower(),
    "layout": lambda value: None if value is None else str(value).lower(),
    "fit": lambda value: str(value).lower(),
    "fill": float,
    "multiple": int,
}

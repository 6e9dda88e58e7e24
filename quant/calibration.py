"""Calibration data: what a model is shown before it is quantized, from arrays, pictures or text.

The data stand for what the model will meet: their kind matters more than their number (2.6 times less error on
MiniLM with text of the right kind). Where there are enough, the result is judged by some of which nothing else was
made; `Calibration.split` keeps them back, and others for choices that need data of their own, such as the damping of
GPTQ.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from graphkit.errors import UsageError
from graphkit.inputs import check_feeds
from graphkit.model import Model
from graphkit.quant import _calib_arrays, _calib_images, _calib_text
from graphkit.quant._calib_images import ImageSpec
from graphkit.quant._calib_specs import Found, Sample, input_specs
from graphkit.runtime import InputSpec

Loader = Callable[[], Found]


@dataclass(frozen=True)
class Calibration:
    """Samples for a model: each maps the names of its inputs to arrays, and is one run.

    `note` says in a line what was read, and how arrays were taken apart.
    """

    samples: list[Sample]
    note: str = ""

    def __len__(self) -> int:
        return len(self.samples)

    def split(self, share: float = 0.2, seed: int = 0) -> tuple[Calibration, Calibration]:
        """Part the samples at random into those for calibration and those held out, the latter `share` of all.

        Both have at least one, unless there is only one sample: then nothing is held out. Equal seeds part
        equally; both keep the order. Raises UsageError unless 0 < share < 1.
        """
        if not 0 < share < 1:
            raise UsageError(f"a share of {share:g} cannot be held out", hint="choose one between 0 and 1")
        count = len(self.samples)
        held = min(max(1, round(count * share)), count - 1) if count > 1 else 0
        chosen = set(np.random.default_rng(seed).permutation(count)[:held].tolist())
        parts = ([], []) if not count else self._parted(chosen)
        return replace(self, samples=parts[0]), replace(self, samples=parts[1])

    def _parted(self, chosen: set[int]) -> tuple[list[Sample], list[Sample]]:
        numbered = list(enumerate(self.samples))
        return [s for i, s in numbered if i not in chosen], [s for i, s in numbered if i in chosen]


def load_calibration(
    path: Path | str,
    model: Model | Path | str,
    *,
    tokenizer: Any = None,
    images: ImageSpec | Mapping[str, Any] | str | None = None,
    limit: int | None = None,
    seed: int = 0,
) -> Calibration:
    """Read calibration data for a model from a file or a folder.

    - `.npz`: arrays by input name, one sample or many. Arrays with one more axis than the input are stacked along
      it, one sample each; arrays that no fixed batch size fits are cut along their first axis.
    - `.npy`: the same for a model with one input.
    - a folder of `.npz` (each as above) or of `.npy` (a file for each input, or samples of the only input).
    - pictures, or a folder of them: `images` says how they become numbers (`ImageSpec`, its fields, or its text).
    - `.txt`, or a folder of them: each line that is not empty is a text. `tokenizer` is a tokenizer.json, a folder
      that holds one, a `tokenizers.Tokenizer`, or a function from a text to arrays by input name; without it a
      tokenizer.json beside the text or the model is taken. Needs the package tokenizers (pictures: pillow).

    With `limit`, at most so many samples, chosen at random by `seed`; others are not decoded. Raises UsageError, which
    names the file, for data that are missing, damaged, not finite, or do not fit the model's names, types and shapes.
    """
    path = Path(path)
    if limit is not None and limit < 1:
        raise UsageError(f"a limit of {limit} samples leaves none")
    loaded = model if isinstance(model, Model) else Model.load(model)
    specs = input_specs(loaded)
    loader = _loader(path, loaded, specs, tokenizer, images, (limit, seed))
    samples, note = loader()
    if not samples:
        raise UsageError("holds no samples", file=path)
    return Calibration([_checked(specs, sample, file) for file, sample in samples], note)


def _loader(
    path: Path,
    model: Model,
    specs: Sequence[InputSpec],
    tokenizer: Any,
    images: ImageSpec | Mapping[str, Any] | str | None,
    choice: tuple[int | None, int],
) -> Loader:
    """What reads `path`, by the kind of its files."""
    for suffixes, load in (
        (_calib_arrays.SUFFIXES, partial(_calib_arrays.load, specs=specs)),
        (_calib_images.SUFFIXES, partial(_calib_images.load, specs=specs, how=images)),
        (_calib_text.SUFFIXES, partial(_calib_text.load, specs=specs, tokenizer=tokenizer, beside=model.path)),
    ):
        files = _files(path, suffixes)
        if files:
            return partial(load, files, choice=choice)
    if not path.exists():
        raise UsageError("is not there", file=path)
    kinds = ".npz, .npy, pictures or .txt"
    raise UsageError(f"holds no calibration data ({kinds})" if path.is_dir() else f"is none of {kinds}", file=path)


def _files(path: Path, suffixes: Sequence[str]) -> list[Path]:
    if path.is_file():
        return [path] if path.suffix.lower() in suffixes else []
    if not path.is_dir():
        return []
    # One kind at a time: arrays of the outputs often lie beside those of the inputs as .npy.
    for suffix in suffixes if suffixes is _calib_arrays.SUFFIXES else (None,):
        found = [file for file in path.iterdir() if file.is_file() and _is(file, suffix, suffixes)]
        if found:
            return sorted(found, key=_calib_arrays.natural)
    return []


def _is(file: Path, suffix: str | None, suffixes: Sequence[str]) -> bool:
    own = file.suffix.lower()
    return own == suffix if suffix is not None else own in suffixes


def _checked(specs: Sequence[InputSpec], sample: Sample, file: Path) -> Sample:
    try:
        feeds = check_feeds(specs, sample)
    except UsageError as error:
        error.file = error.file or str(file)
        raise
    for name, array in feeds.items():
        if array.dtype.kind == "f" and not np.isfinite(array).all():
            raise UsageError(f"input '{name}' holds NaN or infinities", file=file)
    return feeds

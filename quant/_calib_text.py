"""Calibration data from text: one sample a line, through a tokenizer."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from graphkit.errors import UsageError
from graphkit.quant._calib_specs import Array, Found, Sample, choose
from graphkit.runtime import InputSpec

Encode = Callable[[list[str]], Sample]

SUFFIXES = (".txt",)
_LONGEST = 512  # tokens of a text where neither model nor tokenizer says
_IDS = re.compile(r"(^|[._/:])(input_?ids|ids|input_tokens|tokens)$", re.IGNORECASE)
_STORE = "store all inputs as .npz, or give a function from a text to arrays by input name"


def load(
    files: Sequence[Path],
    *,
    specs: Sequence[InputSpec],
    tokenizer: Any,
    beside: Path | None,
    choice: tuple[int | None, int],
) -> Found:
    """Samples of the lines of text files, repeated lines once; and a note. Raises UsageError."""
    lines = [(line, file) for file in files for line in _lines(file)]
    homes = dict(reversed(lines))
    texts = list(dict.fromkeys(line for line, _ in lines))
    chosen = choose(texts, choice)
    if not chosen:
        return [], ""
    encode, batch = _encoder(tokenizer, files[0].parent, beside, specs)
    if len(chosen) < batch:
        raise UsageError(f"{len(chosen)} texts are too few: the model takes {batch} at once", file=files[0])
    starts = range(0, len(chosen) - batch + 1, batch)
    samples = [(homes[chosen[start]], encode(chosen[start : start + batch])) for start in starts]
    notes = [f"{len(samples) * batch} of {len(texts)} texts" if len(chosen) < len(texts) else f"{len(chosen)} texts"]
    if len(lines) > len(texts):
        notes.append(f"{len(lines) - len(texts)} repeated lines left out")
    return samples, ", ".join(notes)


def _lines(file: Path) -> list[str]:
    try:
        text = file.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise UsageError(f"cannot be read as UTF-8 text: {error}", file=file) from error
    return [line.strip() for line in text.splitlines() if line.strip()]


def _encoder(tokenizer: Any, folder: Path, beside: Path | None, specs: Sequence[InputSpec]) -> tuple[Encode, int]:
    """What makes a sample of so many texts."""
    if tokenizer is None or isinstance(tokenizer, str | Path):
        tokenizer = _read_tokenizer(_find(tokenizer, folder, beside))
    if hasattr(tokenizer, "encode_batch") and not callable(tokenizer):
        filler = _Filler(tokenizer, specs)
        return filler.sample, filler.batch
    if callable(tokenizer):
        known = {spec.name: spec for spec in specs}
        return lambda texts: _from_function(tokenizer, texts[0], known), 1
    raise UsageError(f"a {type(tokenizer).__name__} is no tokenizer", hint="give a tokenizer.json or a function")


def _find(tokenizer: str | Path | None, folder: Path, beside: Path | None) -> Path:
    if tokenizer is not None:
        path = Path(tokenizer) / "tokenizer.json" if Path(tokenizer).is_dir() else Path(tokenizer)
        if not path.is_file():
            raise UsageError("is not there", file=path, hint="name a tokenizer.json or a folder that holds one")
        return path
    for place in (folder, beside.parent if beside is not None else None):
        if place is not None and (place / "tokenizer.json").is_file():
            return place / "tokenizer.json"
    raise UsageError(
        "text needs a tokenizer, and there is no tokenizer.json beside it or the model",
        file=folder,
        hint="name the model's tokenizer.json, or store tokens as .npz",
    )


def _read_tokenizer(path: Path) -> Any:
    try:
        from tokenizers import Tokenizer
    except ImportError as error:
        raise UsageError("text needs the package tokenizers", hint="pip install tokenizers") from error
    try:
        return Tokenizer.from_file(str(path))
    except Exception as error:  # the package raises nothing narrower
        raise UsageError(f"is no tokenizer: {error}", file=path) from error


def _from_function(tokenizer: Callable[[str], Mapping[str, Any]], text: str, known: Mapping[str, InputSpec]) -> Sample:
    made = tokenizer(text)
    if not hasattr(made, "items"):
        raise UsageError(f"the tokenizer gives a {type(made).__name__}, not arrays by input name")
    arrays = {name: np.asarray(value) for name, value in made.items() if name in known}
    return {name: a[None] if a.ndim == len(known[name].shape) - 1 else a for name, a in arrays.items()}


class _Filler:
    """Fills a model's inputs from encoded texts: ids, masks, token types, positions, an empty past.

    Texts are not padded where the model's length is free. Raises UsageError for inputs of other kinds.
    """

    def __init__(self, tokenizer: Any, specs: Sequence[InputSpec]) -> None:
        ids = [spec for spec in specs if len(spec.shape) == 2 and spec.dtype.kind in "iu"]
        named = [spec for spec in ids if _IDS.search(spec.name)] or (ids if len(ids) == 1 else [])
        if not named:
            raise UsageError("none of the inputs is known to take tokens", hint=_STORE)
        self.specs, self.ids = specs, named[0]
        batch, length = self.ids.shape
        self.batch = batch if isinstance(batch, int) and batch else 1
        self.length = length if isinstance(length, int) and length else None
        self.pad = int((tokenizer.padding or {}).get("pad_id", 0))
        longest = self.length or int((tokenizer.truncation or {}).get("max_length", _LONGEST))
        self.tokenizer = type(tokenizer).from_str(tokenizer.to_str())  # the caller's own stays as it is
        self.tokenizer.no_padding()
        self.tokenizer.enable_truncation(longest)

    def sample(self, texts: list[str]) -> Sample:
        """One sample of `batch` texts, padded at the end to the longest or to the model's length."""
        encoded = self.tokenizer.encode_batch(texts)
        length = self.length or max(1, *(len(one.ids) for one in encoded))
        return {spec.name: self._fill(spec, encoded, length) for spec in self.specs}

    def _fill(self, spec: InputSpec, encoded: Sequence[Any], length: int) -> Array:
        name = spec.name.lower()
        if spec is self.ids:
            return self._rows([one.ids for one in encoded], length, self.pad, spec)
        if len(spec.shape) == 2 and "mask" in name:
            return self._rows([[1] * len(one.ids) for one in encoded], length, 0, spec)
        if len(spec.shape) == 2 and ("type" in name or "segment" in name):
            return self._rows([one.type_ids for one in encoded], length, 0, spec)
        if len(spec.shape) == 2 and "position" in name:
            return np.tile(np.arange(length, dtype=spec.dtype), (len(encoded), 1))
        if "past" in name and spec.dtype.kind == "f":
            return self._past(spec)
        if spec.dtype.kind == "b" and "cache" in name:
            return np.zeros([dim if isinstance(dim, int) else 1 for dim in spec.shape], bool)
        raise UsageError(f"a tokenizer has nothing for input '{spec.name}'", hint=_STORE)

    def _rows(self, rows: Sequence[Sequence[int]], length: int, pad: int, spec: InputSpec) -> Array:
        made = np.full((len(rows), length), pad, spec.dtype)
        for number, row in enumerate(rows):
            made[number, : len(row)] = row
        return made

    def _past(self, spec: InputSpec) -> Array:
        """No past: the one free size beside the batch is 0."""
        free = [axis for axis, dim in enumerate(spec.shape) if axis and not isinstance(dim, int)]
        if len(free) != 1:
            raise UsageError(f"input '{spec.name}' is a past of unknown shape", hint=_STORE)
        sizes = [dim if isinstance(dim, int) else 0 for dim in spec.shape]
        return np.zeros([sizes[0] or self.batch, *sizes[1:]], spec.dtype)

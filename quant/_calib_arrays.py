"""Calibration data from .npz and .npy: which arrays belong to which input, and where one sample ends."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from pathlib import Path

from graphkit.errors import UsageError
from graphkit.inputs import read_npy, read_npz
from graphkit.quant._calib_specs import Array, Found, Sample, choose
from graphkit.runtime import InputSpec

SUFFIXES = (".npz", ".npy")
_BATCH = re.compile(r"N|B|b|bs|bsz|.*[Bb][Aa][Tt][Cc][Hh].*")
_PICTURE = 4  # axes of a batch of pictures


def load(files: Sequence[Path], *, specs: Sequence[InputSpec], choice: tuple[int | None, int]) -> Found:
    """Samples of files of one kind, and a note; see `load_calibration`. Raises UsageError."""
    if files[0].suffix.lower() == ".npz":
        feeds = [(file, read_npz(file)) for file in (choose(files, choice) if len(files) > 1 else files)]
    else:
        feeds = _npy_feeds(files, specs)
    samples: list[tuple[Path, Sample]] = []
    notes: dict[str, None] = {}
    for file, arrays in feeds:
        found, note = unstack(_named(arrays, specs), specs, file)
        samples += [(file, sample) for sample in found]
        notes[note] = None
    chosen = choose(samples, choice)
    text = f"{len(chosen)} of {len(samples)}" if len(chosen) < len(samples) else f"{len(samples)}"
    how = "; ".join(note for note in notes if note)
    return chosen, f"{text} samples from {len(files)} file{'s' * (len(files) > 1)}{': ' * bool(how)}{how}"


def natural(path: Path) -> list[tuple[int, str]]:
    """A sort key that puts sample 2 before sample 10."""
    parts = re.split(r"(\d+)", path.stem)
    return [(int(part), "") if part.isdecimal() else (-1, part) for part in parts]


def unstack(feeds: Mapping[str, Array], specs: Sequence[InputSpec], file: Path) -> tuple[list[Sample], str]:
    """Take stacked arrays apart; returns the samples and a note, empty when the arrays are one sample.

    Arrays of one axis more than their input are stacks; inputs whose arrays have their own rank are the same for all.
    Where all have their rank, a first axis is cut when the model's fixed size demands it, or when it is a batch by
    its name (or, without one, of pictures).
    """
    known = {spec.name: spec for spec in specs if spec.name in feeds}
    stacked = [name for name, spec in known.items() if feeds[name].ndim == len(spec.shape) + 1]
    if stacked:
        count = _common(stacked, feeds, file)
        rows = [{n: a[i] if n in stacked else a for n, a in feeds.items()} for i in range(count)]
        return rows, "stacked arrays"
    size = _batch(known, feeds)
    if size is None:
        return [dict(feeds)], ""
    count = len(next(iter(feeds.values()))) // size
    cut = [{name: array[i * size : (i + 1) * size] for name, array in feeds.items()} for i in range(count)]
    return cut, f"cut along the first axis, {size} row{'s' * (size > 1)} a sample"


def _common(stacked: Sequence[str], feeds: Mapping[str, Array], file: Path) -> int:
    counts = {len(feeds[name]) for name in stacked}
    if len(counts) > 1:
        sizes = ", ".join(f"'{name}' {len(feeds[name])}" for name in stacked)
        raise UsageError(f"stacks differ in their number of samples: {sizes}", file=file)
    return counts.pop()


def _batch(known: Mapping[str, InputSpec], feeds: Mapping[str, Array]) -> int | None:
    """Rows of one sample, None when the arrays are one sample as they are."""
    if len(known) != len(feeds) or any(a.ndim == 0 or a.ndim != len(known[n].shape) for n, a in feeds.items()):
        return None
    counts = {len(array) for array in feeds.values()}
    firsts = {spec.shape[0] for spec in known.values()}
    if len(counts) != 1 or len(firsts) != 1:
        return None
    count, first = counts.pop(), firsts.pop()
    if isinstance(first, int):
        return first if first and count > first and count % first == 0 else None
    named = first is not None and _BATCH.fullmatch(first) and any(array.ndim > 1 for array in feeds.values())
    pictures = all(array.ndim == _PICTURE for array in feeds.values())
    return 1 if count > 1 and (named or pictures) else None


def _named(arrays: Mapping[str, Array], specs: Sequence[InputSpec]) -> Sample:
    """The arrays by the model's own names, as far as they are known; the array of an only input needs no name."""
    known = {spec.name for spec in specs}
    if len(specs) == len(arrays) == 1 and next(iter(arrays)) in ("arr_0", ""):
        return {specs[0].name: next(iter(arrays.values()))}
    plain = {name: name.replace("__s__", "/").replace("__c__", ":") for name in arrays}
    return {name if name in known or plain[name] not in known else plain[name]: a for name, a in arrays.items()}


def _npy_feeds(files: Sequence[Path], specs: Sequence[InputSpec]) -> list[tuple[Path, Sample]]:
    known = {spec.name for spec in specs}
    stems = {file: file.stem.replace("__s__", "/").replace("__c__", ":") for file in files}
    if any(stem in known for stem in (*stems.values(), *(file.stem for file in files))):
        return [(files[0].parent, {file.stem: read_npy(file) for file in files})]
    if len(specs) == 1:
        return [(file, {specs[0].name: read_npy(file)}) for file in files]
    raise UsageError(
        f"no .npy is called after an input, such as '{specs[0].name}.npy'",
        file=files[0].parent if len(files) > 1 else files[0],
        hint="name one file after each input, or store samples as .npz",
    )

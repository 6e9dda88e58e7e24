"""Try a written .mnn file: MNN loads it in a child process and runs it once where sizes can be found."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from graphkit.errors import MnnError, UsageError
from graphkit.mnn.fileinfo import FileInfo, FileInput, read_file_info
from graphkit.mnn.worker import Array, MnnRun, RunError, info, run

Shape = tuple[int, ...]

# Sizes tried for dimensions that the file leaves open, all of them alike: most models take the first or the second.
_SIZES = (32, 1, 16, 64, 224, 640)
# Integers are lengths, indexes or flags: 1 suits most of them, 0 all of them.
_INTEGERS = (1, 0)
_NO_WEIGHTS = "Can't open file"


@dataclass(frozen=True)
class Trial:
    """What MNN did with a file.

    shapes: of the inputs it ran with, by name; None when it was only loaded. outputs: shapes of the results, by
    name. note: all of it in words, such as `loads, runs at [1,3,640,640]`.
    """

    loads: bool
    shapes: Mapping[str, Shape] | None
    outputs: Mapping[str, Shape] | None
    note: str


def try_document(
    path: Path | str, shapes: Mapping[str, Sequence[int]] | None = None, *, timeout: float = 120.0
) -> Trial:
    """Load a .mnn file in a child process and run it once on random inputs (integers are 1 or 0).

    shapes: sizes for inputs, by name; those that are not given come from the file, where open dimensions are
    tried at several sizes. A model that MNN runs at none of these is loaded only, unless `shapes` are given or
    all sizes are in the file. timeout: seconds for each child.

    Raises MnnError that names the cause when MNN refuses the file, crashes, hangs or does not find its weights;
    UsageError for shapes that the file contradicts; ModelError for a file that is none.
    """
    path = Path(path)
    file = read_file_info(path)
    given = {name: tuple(sizes) for name, sizes in (shapes or {}).items()}
    _check_given(file, given, path)
    if not file.outputs:
        info(path, timeout=timeout)
        return Trial(True, None, None, "loads; it names no outputs, so it was not run")
    failures: list[RunError] = []
    for feeds in _feeds(file, given):
        try:
            done = run(path, feeds, timeout=timeout)
        except RunError as error:
            failures.append(error)
            if error.timed_out:
                break
            continue
        _check_weights(done, path)
        return _success(feeds, done)
    return _only_loads(file, given, path, failures, timeout)


def _check_given(file: FileInfo, given: Mapping[str, Shape], path: Path) -> None:
    known = {spec.name: spec for spec in file.inputs}
    for name, sizes in given.items():
        if name not in known:
            listed = ", ".join(f"'{known_name}'" for known_name in known) or "none"
            raise UsageError(f"the model has no input '{name}'", file=path, hint=f"inputs: {listed}")
        if any(size < 0 for size in sizes):
            raise UsageError(f"input '{name}': {list(sizes)} is no shape", file=path)


def _feeds(file: FileInfo, given: Mapping[str, Shape]) -> Iterator[dict[str, Array]]:
    """Inputs to try, best first; none twice."""
    seen = set()
    for size in _SIZES:
        shapes = {spec.name: given.get(spec.name) or _fill(spec, size) for spec in file.inputs}
        if tuple(shapes.values()) in seen:
            continue
        seen.add(tuple(shapes.values()))
        for integer in _INTEGERS if any(not _is_float(spec) for spec in file.inputs) else _INTEGERS[:1]:
            yield {spec.name: _values(spec, shapes[spec.name], integer) for spec in file.inputs}


def _fill(spec: FileInput, size: int) -> Shape:
    """The declared shape with its open dimensions filled; the first of several is the batch and becomes 1."""
    opened = [axis for axis, extent in enumerate(spec.shape) if extent < 0]
    batch = 0 if len(opened) > 1 else -1
    return tuple((1 if axis == batch else size) if extent < 0 else extent for axis, extent in enumerate(spec.shape))


def _is_float(spec: FileInput) -> bool:
    return spec.dtype.startswith(("float", "bfloat"))


def _values(spec: FileInput, shape: Shape, integer: int) -> Array:
    if _is_float(spec):
        return np.random.default_rng(0).random(shape, np.float32)
    return np.full(shape, integer, np.uint8 if spec.dtype == "uint8" else np.int32)


def _success(feeds: Mapping[str, Array], done: MnnRun) -> Trial:
    shapes = {name: array.shape for name, array in feeds.items()}
    outputs = {name: array.shape for name, array in done.outputs.items()}
    if not shapes:
        return Trial(True, shapes, outputs, "loads, runs")
    texts = [_text(shape) if len(shapes) == 1 else f"{name} {_text(shape)}" for name, shape in shapes.items()]
    return Trial(True, shapes, outputs, f"loads, runs at {', '.join(texts)}")


def _text(shape: Shape) -> str:
    return f"[{','.join(map(str, shape))}]"


def _check_weights(done: MnnRun, path: Path) -> None:
    """MNN computes with zeros when it cannot open the file of weights, and only prints a line."""
    if _NO_WEIGHTS in done.log:
        raise MnnError(
            f"MNN does not find the weights that are kept in '{path.name}.weight'",
            file=path,
            log=done.log,
            hint="put the file of weights beside the model under this name",
        )


def _only_loads(
    file: FileInfo, given: Mapping[str, Shape], path: Path, failures: Sequence[RunError], timeout: float
) -> Trial:
    """The answer when no run worked: an error, unless MNN loads the file and it may be the sizes that do not fit."""
    last = failures[-1]
    if not last.timed_out:
        try:
            info(path, timeout=timeout)
        except RunError as error:
            raise _renamed(error, path) from None
    fixed = all(spec.name in given or min(spec.shape, default=0) >= 0 for spec in file.inputs)
    if fixed or all(failure.signal or failure.timed_out for failure in failures):
        raise failures[0] if fixed else last
    note = f"loads; not run: no sizes were found for its open dimensions ({last.message})"
    return Trial(True, None, None, note)


def _renamed(error: RunError, path: Path) -> RunError:
    """The same error, saying that it came from loading."""
    if error.signal is None:
        return error
    return RunError(f"MNN crashed loading the model ({error.signal})", file=path, log=error.log, signal=error.signal)

"""Inputs for reference runs: random ones that a model accepts, or the user's own from files.

Random inputs respect what the graph does with them: indices stay inside their tables, masks leave something
unmasked, positions increase, equal symbols get equal sizes. What onnxruntime still rejects is replaced by
other shapes.
"""

from __future__ import annotations

import re
import zipfile
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import nullcontext, suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from graphkit.errors import GraphkitError, UsageError
from graphkit.graph import Graph
from graphkit.runtime import Engine, InputSpec, Session, Source
from graphkit.sampling.shapes import PROFILES, Profile, differing
from graphkit.sampling.values import InputMaker

Array = npt.NDArray[Any]

_PROBED_NODES = 64
_PROBED_BYTES = 4 << 20
_PROBED_ELEMENTS = 1 << 16
_PROBING_ROUNDS = 4


@dataclass(frozen=True)
class InputSet:
    """Samples for a model; `note` says what they leave out (empty when nothing), `shapes` are per sample.

    `probes` are further samples of unlikely values (see sampling.values), only for small models.
    """

    samples: tuple[dict[str, Array], ...]
    note: str = ""
    probes: tuple[dict[str, Array], ...] = ()

    @property
    def shapes(self) -> tuple[dict[str, tuple[int, ...]], ...]:
        """Shape of every input, sample by sample."""
        return tuple({name: array.shape for name, array in sample.items()} for sample in self.samples)


def random_inputs(
    graph: Graph, *, seed: int = 0, bind: Mapping[str, int] | None = None, variants: int = 2
) -> list[dict[str, Array]]:
    """Make `variants` random samples without running the model.

    Dynamic dimensions have another size in each variant; `bind` fixes them by symbol or as `name[axis]`.
    Equal seeds give equal samples. Raises UsageError for an unknown binding or an input without a rank,
    GraphkitError for an input type that cannot be made up (text).
    """
    maker = InputMaker(graph, seed, bind or {})
    return [maker.make(profile, number) for number, profile in zip(range(variants), _endless(PROFILES), strict=False)]


def usable_inputs(
    source: Source,
    graph: Graph,
    *,
    seed: int = 0,
    bind: Mapping[str, int] | None = None,
    variants: int = 2,
    engine: Engine | None = None,
) -> InputSet:
    """Make random samples that onnxruntime (or `engine`) accepts for `source`, whose graph is `graph`.

    Tries a list of shapes; the samples differ in every dynamic dimension where the model allows it, and the
    note names the dimensions that they do not vary. Raises GraphkitError when no shape works, with what was
    tried last, and what `random_inputs` and `Session` raise.
    """
    maker = InputMaker(graph, seed, bind or {})
    with nullcontext(engine) if engine is not None else Session(source) as session:
        search = _Search(maker, session, variants)
        search.run()
        if not search.samples:
            raise search.failure()
        probes = search.probes() if worth_probing(graph) else ()
    return InputSet(tuple(search.samples), search.note(), probes)


def worth_probing(graph: Graph) -> bool:
    """True for graphs so small that a fault for some values cannot hide behind the others, and runs are cheap."""
    return len(graph) <= _PROBED_NODES and graph.model.nbytes <= _PROBED_BYTES


class _Search:
    """Tries profiles until enough samples run; those that change every dynamic dimension first."""

    def __init__(self, maker: InputMaker, session: Engine, variants: int) -> None:
        self.maker, self.session, self.variants = maker, session, variants
        self.samples: list[dict[str, Array]] = []
        self.taken: list[dict[str, int]] = []
        self.profiles: list[Profile] = []
        self.failed: set[int] = set()
        self.spare: list[tuple[dict[str, Array], Profile]] = []
        self.last: tuple[dict[str, Array], GraphkitError] | None = None

    def run(self) -> None:
        self._run_dynamic() if self.maker.plan.dynamic else self._run_static()
        # Samples that tell nothing are better than none.
        for sample, profile in self.spare[: self.variants - len(self.samples)]:
            self._take(sample, profile)

    def _run_dynamic(self) -> None:
        # A model may take one sequence length only, but more than one batch.
        other_batch = [replace(profile, batch=3 - profile.batch) for profile in PROFILES]
        candidates = list(enumerate((*PROFILES, *other_batch)))
        for changes in range(len(self.maker.plan.dynamic), 0, -1):
            for number, profile in candidates:
                if len(self.samples) == self.variants:
                    return
                if number not in self.failed and self._changes(profile, changes):
                    self._try(number, profile)

    def _run_static(self) -> None:
        for number, profile in enumerate(PROFILES):
            tries = self.variants - len(self.samples)
            for _ in range(tries):
                if not self._try(number, profile):
                    break
            if len(self.samples) == self.variants:
                return

    def _changes(self, profile: Profile, count: int) -> bool:
        """True when this many dimensions differ from those of each sample so far."""
        sizes = self.maker.plan.sizes(profile)
        return all(len(set(differing(taken, sizes))) >= count for taken in self.taken)

    def _try(self, number: int, profile: Profile) -> bool:
        sample = self.maker.make(profile, len(self.samples), attempt=number)
        try:
            outputs = self.session.run(sample)
        except GraphkitError as error:
            self.failed.add(number)
            self.last = (sample, error)
            return False
        if _tells_nothing(outputs.values()):
            self.failed.add(number)
            self.spare.append((sample, profile))
            return False
        self._take(sample, profile)
        return True

    def _take(self, sample: dict[str, Array], profile: Profile) -> None:
        self.samples.append(sample)
        self.taken.append(self.maker.plan.sizes(profile))
        self.profiles.append(profile)

    def probes(self) -> tuple[dict[str, Array], ...]:
        """Samples of unlikely values, of the shapes that were accepted, as far as they run."""
        found: list[dict[str, Array]] = []
        elements = max(1, sum(array.size for sample in self.samples for array in sample.values()))
        if elements > _PROBED_ELEMENTS:
            return ()
        # Two values alone are seldom equal: the fewer there are, the more often we draw.
        rounds = min(_PROBING_ROUNDS, max(1, 256 // elements))
        for number, palette in enumerate(self.maker.palettes * rounds):
            profile = replace(self.profiles[number % len(self.profiles)], integers=None)
            sample = self.maker.make(profile, len(self.samples) + number, palette=palette)
            with suppress(GraphkitError):
                self.session.run(sample)
                found.append(sample)
        return tuple(found)

    def note(self) -> str:
        """Which dimensions the samples do not vary."""
        if self.variants < 2 or not self.maker.plan.dynamic:
            return ""
        first, *others = self.taken
        constant = [key for key in first if all(other[key] == first[key] for other in others)]
        if not constant:
            return ""
        sizes = ", ".join(f"'{key}'={first[key]}" for key in constant)
        return f"only one size was found that runs, so nothing is known about others: {sizes}"

    def failure(self) -> GraphkitError:
        """Why no sample was found."""
        if self.last is None:
            return GraphkitError("no random inputs were asked for")
        sample, error = self.last
        shapes = ", ".join(f"'{name}'{list(array.shape)}" for name, array in sample.items())
        return GraphkitError(
            f"no random input runs; of {len(self.failed)} tries the last was {shapes}: {error.message}",
            file=error.file,
            node=error.node,
            hint="pass real inputs with --inputs F.npz, or fix dimensions with --bind NAME=SIZE",
        )


def _tells_nothing(outputs: Iterable[Array]) -> bool:
    """True when no output has an element that is a finite number."""
    return not any(array.size and (array.dtype.kind != "f" or np.isfinite(array).any()) for array in outputs)


def load_inputs(path: Path | str) -> list[dict[str, Array]]:
    """Read samples: an .npz is one, a folder of .npz one each, a folder of .npy one input per file.

    Raises UsageError when there is nothing of that kind or a file cannot be read. Nothing is executed:
    pickled arrays are refused.
    """
    path = Path(path)
    if path.is_file():
        return [read_npz(path)]
    if not path.is_dir():
        raise UsageError("is not there", file=path)
    archives = sorted(path.glob("*.npz"), key=natural_order)
    if archives:
        return [read_npz(file) for file in archives]
    arrays = sorted(path.glob("*.npy"), key=natural_order)
    if not arrays:
        raise UsageError("has no .npz and no .npy files", file=path)
    return [{file.stem: read_npy(file) for file in arrays}]


def check_feeds(specs: Sequence[InputSpec], feeds: Mapping[str, Array]) -> dict[str, Array]:
    """Return the feeds as a model takes them, or raise UsageError that says what is wrong.

    Checked are names, dtypes, ranks and fixed dimensions. Integers become the model's integer type when
    all values fit, floats its float type. Names may be spelled with `__s__` for '/' and `__c__` for ':',
    which file names cannot hold.
    """
    known = {spec.name: spec for spec in specs}
    try:
        named = {_resolve(name, known): np.asarray(array) for name, array in feeds.items()}
        missing = [name for name in known if name not in named]
        if missing:
            raise UsageError(f"no value for input '{missing[0]}'", hint=_known(specs))
        return {name: _check_feed(spec, named[name]) for name, spec in known.items()}
    except UsageError as error:
        file = getattr(feeds, "file", None)  # samples read from files know theirs
        error.file = error.file or (str(file) if file is not None else None)
        raise


def _resolve(name: str, known: Mapping[str, InputSpec]) -> str:
    plain = name.replace("__s__", "/").replace("__c__", ":")
    for candidate in (name, plain):
        if candidate in known:
            return candidate
    raise UsageError(f"the model has no input '{name}'", hint=_known(known.values()))


def _known(specs: Iterable[InputSpec]) -> str:
    return f"the model takes {'; '.join(str(spec) for spec in specs)}"


def _check_feed(spec: InputSpec, array: Array) -> Array:
    cast = _cast(spec, array)
    fits = len(spec.shape) == cast.ndim and all(
        not isinstance(want, int) or want == got for want, got in zip(spec.shape, cast.shape, strict=True)
    )
    if not fits:
        raise UsageError(f"input '{spec.name}' has shape {list(cast.shape)}", hint=f"the model takes {spec}")
    return cast


def _cast(spec: InputSpec, array: Array) -> Array:
    if array.dtype == spec.dtype:
        return array
    have, want = (("f" if "float" in d.name else d.kind) for d in (array.dtype, spec.dtype))
    integers = have in "iu" and want in "iu"
    if not integers and not have == want == "f":
        raise UsageError(f"input '{spec.name}' is {array.dtype}", hint=f"the model takes {spec}")
    cast = array.astype(spec.dtype)
    if integers and not np.array_equal(cast, array):
        raise UsageError(f"input '{spec.name}' has values that {spec.dtype} cannot hold")
    return cast


def read_npz(path: Path) -> dict[str, Array]:
    """The arrays of an .npz file by name. Raises UsageError for anything else, and for Python objects."""
    try:
        # Opened here, because numpy leaves a damaged file open.
        with path.open("rb") as file:
            stored = np.load(file, allow_pickle=False)
            if isinstance(stored, np.ndarray):
                raise UsageError("is one array, not an .npz of named arrays", file=path)
            return {name: stored[name] for name in stored.files}
    except (OSError, ValueError, EOFError, zipfile.BadZipFile) as error:
        raise UsageError(f"cannot be read as .npz: {error}", file=path) from error


def read_npy(path: Path) -> Array:
    """The array of an .npy file. Raises UsageError for anything else, and for Python objects."""
    try:
        return np.asarray(np.load(path, allow_pickle=False))
    except (OSError, ValueError, EOFError) as error:
        raise UsageError(f"cannot be read as .npy: {error}", file=path) from error


def natural_order(path: Path) -> list[tuple[int, str]]:
    """A sort key that puts sample 2 before sample 10."""
    parts = re.split(r"(\d+)", path.stem)
    return [(int(part), "") if part.isdigit() else (-1, part) for part in parts]


def _endless(profiles: Sequence[Profile]) -> Iterator[Profile]:
    while True:
        yield from profiles

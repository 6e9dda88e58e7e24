"""What the reference computes on the way: every tensor of a model on disk, made in chunks under a memory bound.

onnxruntime keeps what is an output until the end, so asking for all tensors at once needs memory for all of them. A
first run tells how large each one is (its Size is an output instead), then as many runs as needed fill the folder.
"""

from __future__ import annotations

import re
import tempfile
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Self

import numpy as np
import numpy.typing as npt
from onnx import NodeProto, TensorProto, ValueInfoProto

from graphkit._scratch import scratch
from graphkit.errors import GraphkitError, OutputError, UsageError
from graphkit.graph import Graph, Node
from graphkit.inputs import check_feeds
from graphkit.model import Model
from graphkit.proof import Feeds
from graphkit.runtime import Session

Array = npt.NDArray[Any]

MEMORY = 1 << 30
_UNREADABLE = (TensorProto.STRING, TensorProto.BFLOAT16)
_NO_TENSORS = re.compile(r"Sequence(Construct|Insert|Erase|Empty|Map)|Optional|SplitToSequence|StringNormalizer")
_WIDEST = 8  # bytes of an element


class References(Mapping[str, Path]):
    """.npy files by tensor name, in a temporary folder that goes with `close`.

    `array(name)` maps one. `feeds` are the inputs they were made from; inputs of the model are references too.
    """

    def __init__(self, feeds: Feeds, folder: Path | None = None) -> None:
        self._own: tempfile.TemporaryDirectory[str] | None = None if folder else scratch("references")
        self.folder = folder or Path(self._own.name if self._own else "")
        self.feeds = dict(feeds)
        self._files: dict[str, Path] = {}
        for name, array in self.feeds.items():
            self.put(name, array)

    def put(self, name: str, array: Array) -> None:
        """Store one more, or replace it. Raises OutputError when the disk is full."""
        file = self._files.get(name) or self.folder / f"t{len(self._files)}.npy"
        try:
            np.save(file, np.asarray(array), allow_pickle=False)
        except OSError as error:
            raise OutputError(f"cannot be written: {error.strerror}", file=file, hint="set TMPDIR") from error
        self._files[name] = file

    def array(self, name: str) -> Array:
        """The values, mapped from the file. Raises KeyError when there are none of this tensor."""
        loaded: Array = np.load(self._files[name], mmap_mode="r", allow_pickle=False)
        return loaded

    def get_array(self, name: str) -> Array | None:
        """The same, None when there are no values of this tensor."""
        return self.array(name) if name in self._files else None

    def __getitem__(self, name: str) -> Path:
        return self._files[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._files)

    def __len__(self) -> int:
        return len(self._files)

    def close(self) -> None:
        """Remove the files."""
        if self._own is not None:
            self._own.cleanup()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def gather(
    model: Model, feeds: Feeds, names: Iterable[str] | None = None, *, memory: int = MEMORY, graph: Graph | None = None
) -> References:
    """Compute tensors of the main graph from one sample: those of `names`, default all that can be read.

    memory: bytes that the tensors asked for in one run may take; one that is larger by itself has a run of its own.
    Raises UsageError for wrong feeds, names or bounds, and GraphkitError when onnxruntime does not run the model.
    """
    graph = graph or Graph.of(model)
    with Session(model) as session:
        fitting = check_feeds(session.input_specs, feeds)
    found = References(fitting)
    try:
        asked = dict.fromkeys(readable(graph) if names is None else names)
        wanted = [name for name in asked if name not in found]
        for chunk in chunks(model, fitting, wanted, memory):
            for name, array in compute(model, fitting, chunk).items():
                found.put(name, array)
    except BaseException:
        found.close()
        raise
    return found


def readable(graph: Graph) -> list[str]:
    """Values made by nodes of a graph that are tensors of numbers, in order; constants left out."""
    return [
        name
        for node in graph.nodes
        for name in node.outputs
        if name and node.op_type != "Constant" and _is_numbers(graph, node, name)
    ]


def _is_numbers(graph: Graph, node: Node, name: str) -> bool:
    if _NO_TENSORS.fullmatch(node.op_type):
        return False
    return graph.dtype(name) not in _UNREADABLE


def compute(model: Model, feeds: Feeds, names: Sequence[str]) -> dict[str, Array]:
    """Tensors of a model, all in one run."""
    if not names:
        return {}
    with Session(model, outputs=list(names)) as session:
        return session.run(feeds)


def chunks(model: Model, feeds: Feeds, names: Sequence[str], memory: int) -> list[list[str]]:
    """Cut names into runs whose tensors take no more than `memory` bytes together."""
    if memory <= 0:
        raise UsageError(f"memory is a number of bytes above zero, not {memory}")
    sizes = _sizes(model, feeds, names) if names else {}
    parts: list[list[str]] = []
    room = 0
    for name in names:
        if not parts or sizes[name] > room:
            parts.append([])
            room = memory
        parts[-1].append(name)
        room -= sizes[name]
    return parts


def _sizes(model: Model, feeds: Feeds, names: Sequence[str]) -> dict[str, int]:
    """Bytes that tensors take at most, from one run that gives back their numbers of elements."""
    graph = Graph.of(model)
    counted = {name: graph.new_name(f"{name}/Size") for name in names}
    # The last first: onnxruntime begins with the last leaf of a graph, and so needs each value for its Size once, soon
    # after it is made. In the other order it computes all values before the first Size, and holds them until then.
    for name, size in reversed(counted.items()):
        graph.insert(NodeProto(op_type="Size", name=size, input=[name], output=[size]))
    graph.output_infos = {size: ValueInfoProto(name=size) for size in counted.values()}
    try:
        counts = compute(graph.to_model(), feeds, list(counted.values()))
    except GraphkitError:
        # Some tensors have no Size in onnxruntime (sequences that are not known as such): then one at a time.
        return dict.fromkeys(names, 1 << 62)
    return {name: int(counts[size]) * _WIDEST for name, size in counted.items()}

"""Which ONNX tensor the output of an MNN operator is.

Measured on MNN 3.6.1's converter: an operator keeps the name of the first ONNX tensor it swallowed, and writes a
tensor that has the name of the last one (`conv2d` → `relu`). Constant matrix products become `NAME__matmul_converted`,
and a Reshape that was moved behind an activation leaves names that lie: there, what the operator's readers read in
the ONNX graph decides. Only where neither tells does the caller have to compare values.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import takewhile

from graphkit.graph import Graph, Node
from graphkit.mnn.fileinfo import FileOp
from graphkit.mnn.tracing import Target
from graphkit.verification.bisect.regions import Region

MATMUL = "__matmul_converted"
LAYOUT = frozenset({"ConvertTensor", "Reshape", "Squeeze", "Unsqueeze", "Flatten", "Permute", "Identity", "Cast"})
CARRIERS = frozenset({"Conv", "ConvTranspose", "MatMul", "Gemm", "LSTM", "GRU", "RNN"})
_CHAIN = 8  # what MNN fuses behind one operator is shorter

# ONNX operators that MNN takes into the operator before: views by any, activations by what adds or multiplies, and by
# convolutions what is linear by channel as well.
_VIEWS = frozenset({"Reshape", "Squeeze", "Unsqueeze", "Flatten", "Identity", "Dropout", "Transpose", "Cast"})
_ACTIVATIONS = frozenset({"Relu", "Clip"})
_LINEAR = frozenset({"BatchNormalization", "Add", "Sub", "Mul", "Div"})
_CONVOLUTIONS = ("Convolution", "Deconvolution", "ConvInt8", "DepthwiseConvInt8")
_COMPUTING = frozenset(
    {"BinaryOp", "UnaryOp", "Eltwise", "ReLU", "ReLU6", "PReLU", "Select", "Softmax", "LayerNorm", "Scale", "Pooling",
     "Convolution", "ConvolutionDepthwise", "MatMul", "BatchMatMul", "Reduction"}
)  # fmt: skip
_LOOK_THROUGH = 6
_UNMATCHED = frozenset({"Const", "Input", "TrainableParam"})


@dataclass(frozen=True)
class Alignment:
    """One output of one MNN operator and the tensors it may hold.

    start: the ONNX tensor that the operator is named after. tensors: what its output may be, the likeliest first.
    sure: whether structure decided, so that a wrong value means a fault. moved: the tensors hold the same numbers in
    other places, and which of them it is, only the values tell.
    """

    op: FileOp
    slot: int
    start: str
    tensors: tuple[str, ...]
    sure: bool
    moved: bool = False

    @property
    def target(self) -> Target:
        """What tracing needs of it."""
        return Target(self.op.name, self.slot, self.tensors, self.sure)


def align(graph: Graph, ops: Sequence[FileOp], outputs: Collection[str] = ()) -> list[Alignment]:
    """Align the operators of one MNN graph with the tensors of an ONNX graph (or subgraph), in MNN's order.

    outputs: tensor names that the MNN graph gives back. Operators without a counterpart are left out.
    """
    return list(_Aligner(graph, ops, outputs).all())


class _Aligner:
    def __init__(self, graph: Graph, ops: Sequence[FileOp], outputs: Collection[str]) -> None:
        self.graph, self.ops, self.outputs = graph, ops, set(outputs)
        self.readers: dict[int, list[int]] = {}
        self.named = {name for op in ops for name in (op.name, op.name.removesuffix(MATMUL))}
        self._connect()

    def _connect(self) -> None:
        """Find the readers of each operator by index: tensor names may come up twice."""
        writer: dict[str, int] = {}
        for number, op in enumerate(self.ops):
            for name in op.inputs:
                if name in writer:
                    self.readers.setdefault(writer[name], []).append(number)
            writer.update(dict.fromkeys(op.outputs, number))

    def all(self) -> Iterator[Alignment]:
        for number, op in enumerate(self.ops):
            if op.type in _UNMATCHED or "__group__" in op.name:
                continue
            start = self._start(op)
            if start:
                yield self._first(number, op, start)
            for slot, name in enumerate(op.outputs[1:], 1):
                if self._is_made(name):
                    yield Alignment(op, slot, name, (name,), True)

    def _start(self, op: FileOp) -> str:
        """The ONNX tensor that the operator is named after, else nothing."""
        for name in (op.name, op.name.removesuffix(MATMUL)):
            if self._is_made(name):
                return name
        written = op.outputs[0] if op.outputs else ""
        return written if op.type in ("If", "While") and self._is_made(written) else ""

    def _is_made(self, name: str) -> bool:
        node = self.graph.producer(name)
        return node is not None and node.op_type != "Constant"

    def _first(self, number: int, op: FileOp, start: str) -> Alignment:
        written = op.outputs[0] if op.outputs else ""
        if written != start and self._is_made(written) and self._leads(start, written):
            return Alignment(op, 0, start, (written, *self._before(start, written)), True)
        chain = self._chain(start, op.type)
        if len(chain) == 1 or op.type in ("If", "While"):
            return Alignment(op, 0, start, (start,), True)
        read = self._read_behind(number)
        if written in self.outputs and written in chain:
            read.add(written)
        ends = [name for name in chain if name in read]
        if moved := self._moved(chain, ends):
            return Alignment(op, 0, start, moved, False, moved=True)
        if len(ends) == 1:
            return Alignment(op, 0, start, (ends[0], *self._before(start, ends[0])), True)
        own = list(takewhile(lambda name: name == start or name not in self.named, chain))
        if not ends and self._same_values(own):
            return Alignment(op, 0, start, tuple(own), True)
        return Alignment(op, 0, start, tuple(ends or own), False)

    def _same_values(self, chain: Sequence[str]) -> bool:
        """True when all of a chain holds the same numbers in the same order."""
        makers = (self.graph.producer(name) for name in chain[1:])
        return all(node is not None and node.op_type in _VIEWS - {"Transpose", "Cast"} for node in makers)

    def _moved(self, chain: Sequence[str], ends: Sequence[str]) -> tuple[str, ...]:
        """The ends, and what a chain has in front of them with the same numbers in other places; none if nothing has.

        A pass that makes one Transpose of two leaves the last one's name on an operator that reads what is in front
        of the first: its readers then do not tell which of these the operator holds.
        """
        if not ends:
            return ()
        first = chain.index(ends[0])
        while first and self._is_view(chain[first]):
            first -= 1
        before = chain[first : chain.index(ends[0])]
        makers = [self.graph.producer(name) for name in (*before[1:], ends[0])]
        turned = any(node is not None and node.op_type == "Transpose" for node in makers)
        return (*ends, *reversed(before)) if before and turned else ()

    def _stands_for(self, op: FileOp, start: str) -> Node | None:
        """The node whose inputs an operator of this name reads.

        One that computes and is named after a Slice or a view took the name when a pass dropped that node.
        """
        node = self.graph.producer(start) if start else None
        while node is not None and op.type in _COMPUTING and node.op_type in _VIEWS | {"Slice"}:
            node = self.graph.producer(node.inputs[0])
        return node

    def _is_view(self, name: str) -> bool:
        node = self.graph.producer(name)
        return node is not None and node.op_type in _VIEWS - {"Cast"}

    def _before(self, start: str, end: str) -> list[str]:
        """The chain from just before `end` back to `start`: for values whose size is not that of `end`."""
        chain = self._chain(start)
        return chain[: chain.index(end)][::-1] if end in chain else ([start] if start != end else [])

    def _chain(self, start: str, mnn_type: str = "Convolution") -> list[str]:
        """The tensor and what follows while each has one reader that an MNN operator of this type may take in."""
        taken = _VIEWS | _ACTIVATIONS | (_LINEAR if mnn_type.startswith(_CONVOLUTIONS) else frozenset())
        chain = [start]
        while len(chain) <= _CHAIN:
            node = self.graph.sole_consumer(chain[-1])
            if node is None or node.op_type not in taken:
                break
            chain.append(node.outputs[0])
        return chain

    def _leads(self, start: str, end: str) -> bool:
        """True when `end` is computed from `start` within a few steps."""
        waiting, seen = [end], {end}
        for _ in range(64):
            if not waiting:
                return False
            node = self.graph.producer(waiting.pop(0))
            for name in node.inputs if node is not None else ():
                if name == start:
                    return True
                if name and name not in seen:
                    seen.add(name)
                    waiting.append(name)
        return False

    def _read_behind(self, number: int, depth: int = 0) -> set[str]:
        """What the readers of an operator read in the ONNX graph, through operators that only change the layout."""
        found: set[str] = set()
        for reader in self.readers.get(number, ()):
            op = self.ops[reader]
            start = self._start(op)
            node = self._stands_for(op, start)
            if node is not None:
                found.update(name for name in node.inputs if name)
            if op.type in LAYOUT and depth < _LOOK_THROUGH:
                found.update(name for name in op.outputs if name in self.outputs)
                found |= self._read_behind(reader, depth + 1)
        return found


def region(graph: Graph, tensor: str, known: Collection[str]) -> Region:
    """What computes a tensor from the nearest of the `known` ones upstream, constants left out.

    Unlike `regions.between` it looks at no other node, and takes the values that nodes read in their order: nodes stand
    behind those that they read, the inputs are the tensors upstream, of the model too.
    """
    anchors: dict[str, None] = {}
    done: dict[Node, None] = {}
    maker = graph.producer(tensor)
    waiting = [(maker, False)] if maker is not None else []
    while waiting:
        node, ready = waiting.pop()
        if ready:
            done[node] = None
        elif node not in done:
            waiting.append((node, True))
            waiting += [(feeder, False) for feeder in _feeders(graph, node, known, anchors) if feeder not in done]
    return Region(graph, tuple(done), tuple(anchors), (tensor,))


def _feeders(graph: Graph, node: Node, known: Collection[str], anchors: dict[str, None]) -> list[Node]:
    """The nodes that make what a node reads; what is known or an input joins the anchors instead."""
    found = []
    for name in _used(graph, node):
        if not name or graph.is_constant(name):
            continue
        maker = graph.producer(name)
        if name in known or maker is None:
            anchors[name] = None
        else:
            found.append(maker)
    return found


def _used(graph: Graph, node: Node) -> list[str]:
    """What a node reads, its subgraphs too, always in the same order."""
    inside = graph.values_used_by(node) - set(node.inputs) if node.subgraphs else ()
    return [*node.inputs, *sorted(inside)]


def main_node(graph: Graph, start: str, mnn_type: str, nodes: Sequence[Node]) -> Node | None:
    """The node that an MNN operator stands for: the one with the weights, else the one it is named after."""
    named = graph.producer(start)
    if named is None or not (mnn_type.startswith(_CONVOLUTIONS) or mnn_type in LAYOUT or mnn_type == "While"):
        return named
    carriers = [node for node in nodes if node.op_type in CARRIERS]
    if named in carriers or not carriers or named.subgraphs:
        return named
    return carriers[-1]


def by_tensor(alignments: Sequence[Alignment]) -> Mapping[tuple[str, int], Alignment]:
    """Alignments by operator name and slot; the last of operators of one name."""
    return {(item.op.name, item.slot): item for item in alignments}

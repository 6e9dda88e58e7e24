"""Read the operators, inputs and outputs of a .mnn file without MNN.

A .mnn file is a FlatBuffer (schema of MNN 3.6.1) with the table Net at its root. Only what names and
counts need is read, and every offset is checked, so that a damaged file gives an error and no crash. The
numbers are the positions of the fields in the schema's tables.
"""

from __future__ import annotations

import mmap
import struct
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from graphkit.errors import ModelError

_OP_RUNS: Mapping[int, str] = {
    0: (
        "AbsVal QuantizedAdd ArgMax AsString InstanceNorm BatchToSpaceND Copy BinaryOp Bnll Cast "
        "Concat Const Convolution ConvolutionDepthwise Crop CropAndResize ImageProcess Deconvolution "
        "DeconvolutionDepthwise Dequantize DetectionOutput Dropout Eltwise ELU Unique Exp ExpandDims "
        "Fill Flatten Im2Col Gather GatherV2 Im2Seq InnerProduct Input Interp Log LRN LSTM MatMul MoE "
        "NonMaxSuppression NonMaxSuppressionV2 Normalize Pack Padding Permute Pooling Power PReLU "
        "PriorBox Proposal QuantizedAvgPool QuantizedBiasAdd QuantizedConcat QuantizedDepthwiseConv2D "
        "QuantizedLogistic RasterAndInterpolate QuantizedMaxPool Texture RasterDiff QuantizedReshape "
        "QuantizedSoftmax QuantizeMaxMin QuantizeV2 Range Rank ReduceJoin Reduction ReLU ReLU6 "
        "RequantizationRange Requantize Reshape Resize RNN ROIPooling Scale Selu Seq2Out Shape "
        "Sigmoid Size Slice SliceTf Softmax SpaceToBatchND SpatialProduct Col2Im Segment Squeeze "
        "StridedSlice CastLike StringSplit StringToNumber TanH TfQuantizedConv2D Threshold Tile "
        "TopKV2 Transpose UnaryOp Unpack Where Moments RNNSequenceGRU BatchMatMul Unsqueeze "
        "CosineSimilarity DepthToSpace SpaceToDepth ReverseSequence Pooling3D Convolution3D "
        "MatrixBandPart GatherND DetectionPostProcess UnravelIndex ScatterNd OneHot BroadcastTo "
        "Dilation2D Interp3D"
    ),
    128: (
        "Raster ConvertTensor ArgMin LinSpace RandomUniform TensorArray TensorArraySize "
        "TensorArrayRead TensorArrayWrite TensorArrayGather TensorArrayScatter TensorArraySplit "
        "TensorArrayConcat LSTMBlockCell Reverse ROIAlign RandomNormal TensorArrayInsert "
        "TensorArrayErase EyeLike CumSum Det CumProd ScatterElements GatherElements Svd Histogram "
        "DynamicQuant Stft"
    ),
    256: (
        "Plugin Select ZerosLike Broastcast SetDiff1D ReluGrad Identity PoolGrad SoftmaxGrad "
        "Conv2DBackPropFilter TrainableParam BatchNorm ConvTranspose3D ZeroGrad"
    ),
    299: "Attention FmhaV2 Fmhca SeqLen2Spatial SplitGeLU GroupNorm LinearAttention RoPE",
    512: "Extra ConvInt8 Int8ToFloat DepthwiseConvInt8",
    517: "FloatToInt8 EltwiseInt8",
    600: "While If",
    603: "LayerNorm GridSample",
}
OP_TYPES: Mapping[int, str] = {
    start + k: name for start, names in _OP_RUNS.items() for k, name in enumerate(names.split())
}
_DTYPES = {1: "float32", 3: "int32", 4: "uint8", 6: "int8", 9: "int64", 10: "bool", 19: "float16"}
_LAYOUTS = {0: "NCHW", 1: "NHWC", 2: "NC4HW4"}
_INPUT_PARAMETER = 21  # OpParameter's number for the table Input


@dataclass(frozen=True)
class FileOp:
    """One operator: MNN's type and name, and the names of the tensors it reads and writes."""

    type: str
    name: str
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]


@dataclass(frozen=True)
class FileInput:
    """One declared input: numpy dtype name, shape (-1 where unknown), MNN's dimension order."""

    name: str
    dtype: str
    shape: tuple[int, ...]
    layout: str


@dataclass(frozen=True)
class FileInfo:
    """What a .mnn file holds; `ops` are those of the main graph, `subgraphs` those of If and While bodies.

    `op_counts` and `op_total` count every entry of the file's operator lists, Input and Const included,
    subgraphs too; that is the number by which converters are compared. For exports by TorchScript it is
    173 for a MobileNetV3 (of which 11 are Const and 1 is Input), 700 for a small Qwen2, 389 or 390 for a
    two-layer BERT, whose ConstantOfShape MNN evaluates from uninitialised memory.
    """

    inputs: tuple[FileInput, ...]
    outputs: tuple[str, ...]
    ops: tuple[FileOp, ...]
    subgraphs: Mapping[str, tuple[FileOp, ...]]
    version: str

    @property
    def op_counts(self) -> dict[str, int]:
        """Operators by type, most frequent first."""
        bodies = (op for ops in self.subgraphs.values() for op in ops)
        return dict(Counter(op.type for op in (*self.ops, *bodies)).most_common())

    @property
    def op_total(self) -> int:
        """All operators."""
        return sum(self.op_counts.values())


def read_file_info(path: Path) -> FileInfo:
    """Read a .mnn file; raises ModelError when it is missing or not a .mnn file."""
    try:
        with path.open("rb") as source, mmap.mmap(source.fileno(), 0, access=mmap.ACCESS_READ) as data:
            return _read_net(_Buffer(data))
    except OSError as error:
        raise ModelError(f"cannot be read: {error.strerror}", file=path) from error
    except (ValueError, struct.error, IndexError, UnicodeDecodeError) as error:
        raise ModelError("is not an MNN model, or it is damaged", file=path) from error


class _Buffer:
    """FlatBuffer primitives; every access is checked by struct or by the slices here."""

    def __init__(self, data: mmap.mmap) -> None:
        self.data = data
        self.size = len(data)

    def u32(self, at: int) -> int:
        if not 0 <= at <= self.size - 4:
            raise ValueError("offset out of range")
        return int(struct.unpack_from("<I", self.data, at)[0])

    def follow(self, at: int) -> int:
        return at + self.u32(at)

    def field(self, table: int, index: int) -> int | None:
        """Position of a table's field, None when it is absent."""
        vtable = table - int(struct.unpack("<i", struct.pack("<I", self.u32(table)))[0])
        head = self.u32(vtable) & 0xFFFF
        if 4 + 2 * index + 2 > head:
            return None
        offset = self.u32(vtable + 2 * index + 2) >> 16
        return table + offset if offset else None

    def number(self, table: int, index: int, default: int) -> int:
        at = self.field(table, index)
        return default if at is None else self.u32(at)

    def byte(self, table: int, index: int, default: int) -> int:
        at = self.field(table, index)
        return default if at is None else int(self.data[at])

    def vector(self, table: int, index: int) -> tuple[int, int]:
        """Position of the first element and length of a vector of 4-byte elements."""
        at = self.field(table, index)
        if at is None:
            return 0, 0
        start = self.follow(at)
        length = self.u32(start)
        if start + 4 + 4 * length > self.size:
            raise ValueError("vector out of range")
        return start + 4, length

    def ints(self, table: int, index: int) -> tuple[int, ...]:
        start, length = self.vector(table, index)
        return struct.unpack_from(f"<{length}i", self.data, start)

    def children(self, table: int, index: int) -> Iterator[int]:
        start, length = self.vector(table, index)
        return (self.follow(start + 4 * k) for k in range(length))

    def text_at(self, at: int) -> str:
        length = self.u32(at)
        if at + 4 + length > self.size:
            raise ValueError("string out of range")
        return self.data[at + 4 : at + 4 + length].decode("utf-8", errors="replace")

    def text(self, table: int, index: int) -> str:
        at = self.field(table, index)
        return "" if at is None else self.text_at(self.follow(at))

    def texts(self, table: int, index: int) -> tuple[str, ...]:
        return tuple(self.text_at(at) for at in self.children(table, index))


def _read_net(data: _Buffer) -> FileInfo:
    net = data.follow(0)
    names = data.texts(net, 7)
    positions = list(data.children(net, 3))
    if not positions or not names:
        raise ValueError("no operators")
    subgraphs = {}
    for body in data.children(net, 10):
        local = data.texts(body, 3)
        subgraphs[data.text(body, 0)] = tuple(_read_op(data, at, local) for at in data.children(body, 4))
    extra = data.field(net, 2)
    return FileInfo(
        inputs=tuple(_read_input(data, at, names) for at in positions if _op_type(data, at) == "Input"),
        outputs=data.texts(net, 4),
        ops=tuple(_read_op(data, at, names) for at in positions),
        subgraphs=subgraphs,
        version=data.text(data.follow(extra), 2) if extra is not None else "",
    )


def _op_type(data: _Buffer, op: int) -> str:
    number = data.number(op, 5, 0)
    return OP_TYPES.get(number, f"op {number}")


def _read_op(data: _Buffer, op: int, names: tuple[str, ...]) -> FileOp:
    read, written = _tensors(data.ints(op, 0), names), _tensors(data.ints(op, 4), names)
    return FileOp(_op_type(data, op), data.text(op, 3), read, written)


def _tensors(indexes: tuple[int, ...], names: tuple[str, ...]) -> tuple[str, ...]:
    if any(k < 0 for k in indexes):
        raise ValueError("negative tensor index")
    return tuple(names[k] for k in indexes)


def _read_input(data: _Buffer, op: int, names: tuple[str, ...]) -> FileInput:
    written = _tensors(data.ints(op, 4), names)
    name = written[0] if written else data.text(op, 3)
    main = data.field(op, 2)
    if main is None or data.byte(op, 1, 0) != _INPUT_PARAMETER:
        return FileInput(name, "float32", (), "NCHW")
    table = data.follow(main)
    dtype = data.number(table, 1, 1)
    layout = data.byte(table, 2, 2)
    return FileInput(name, _DTYPES.get(dtype, f"type {dtype}"), data.ints(table, 0), _LAYOUTS.get(layout, "?"))

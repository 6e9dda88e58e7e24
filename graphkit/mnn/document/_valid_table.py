"""Which tables of parameters MNN 3.6.1 reads for each type of operator, and how many inputs it needs.

A row: the type, the tables it can have (`-` for none), after a comma the fewest inputs when that is not 1. `!` before
the tables: MNN reads the parameters without looking whether they are there, and crashes when they are not. Taken
from what MNN's converters write and its shape and execution code reads; what crashes was seen by removing the
parameters, or the last inputs, of converted models. Types that are not listed are not checked.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

_ROWS = """
ArgMax ! ArgMax
ArgMin ! ArgMax
AsString AsString
BatchMatMul ! BatchMatMulParam, 2
BatchNorm BatchNorm
BatchToSpaceND - SpaceBatch
BinaryOp ! BinaryOp, 2
BroadcastTo - Axis, 2
Cast ! CastParam
CastLike -, 2
Col2Im ! Convolution2D
Concat ! Axis
Const ! Blob, 0
Conv2DBackPropFilter ! Convolution2D, 2
ConvInt8 ! Convolution2D
ConvTranspose3D ! Convolution3D
ConvertTensor ! TensorConvertInfo
Convolution ! Convolution2D
Convolution3D ! Convolution3D
ConvolutionDepthwise ! Convolution2D
CosineSimilarity -, 3
Crop ! Crop, 2
CropAndResize ! CropAndResize
CumProd ! Axis
CumSum ! CumSum
Deconvolution ! Convolution2D
DeconvolutionDepthwise ! Convolution2D
DepthToSpace ! DepthSpaceParam
DepthwiseConvInt8 ! Convolution2D
Dequantize ! Dequantize
Det -
DetectionOutput ! DetectionOutput, 3
DetectionPostProcess ! DetectionPostProcessParam
Dilation2D ! Convolution2D
DynamicQuant -
ELU ! ELU
Eltwise ! Eltwise
EltwiseInt8 ! EltwiseInt8, 2
ExpandDims - ExpandDims
EyeLike -
Fill - Fill, 2
Flatten ! Flatten
FloatToInt8 - QuantizedFloatParam CastParam
Gather - Gather Axis, 2
GatherElements - Axis, 2
GatherND - Axis, 2
GatherV2 - GatherV2 Axis Input
GridSample ! GridSample, 2
GroupNorm ! GroupNorm
Histogram ! ArgMax
If ! IfParam
Im2Col ! Convolution2D
ImageProcess ! ImageProcessParam
InnerProduct ! InnerProduct
Input ! Input, 0
InstanceNorm ! BatchNorm
Int8ToFloat - QuantizedFloatParam CastParam
Interp ! Interp
Interp3D ! Interp
LRN ! LRN
LSTM ! LSTM, 4
LSTMBlockCell ! LSTMBlockCell, 8
LayerNorm ! LayerNorm
LinSpace -, 3
MatMul ! MatMul, 2
Moments ! MomentsParam
NonMaxSuppressionV2 - NonMaxSuppressionV2
Normalize ! Normalize
OneHot ! OneHotParam, 4
PReLU ! PRelu
Pack ! PackParam
Padding - PadParam, 2
Permute ! Permute
Plugin ! Plugin
PoolGrad ! Pool
Pooling ! Pool
Pooling3D ! Pool3D
PriorBox ! PriorBox, 2
Proposal ! Proposal, 3
QuantizedAdd ! QuantizedAdd
QuantizedAvgPool ! QuantizedAvgPool
QuantizedConcat ! QuantizedConcat
QuantizedDepthwiseConv2D ! TfQuantizedConv2D
QuantizedLogistic ! QuantizedLogistic
QuantizedMaxPool ! QuantizedMaxPool
QuantizedReshape - QuantizedReshape Reshape
QuantizedSoftmax ! QuantizedSoftmax
RNN ! LSTM, 4
RNNSequenceGRU ! RNNParam, 6
ROIAlign ! RoiParameters, 2
ROIPooling ! RoiParameters, 2
RandomNormal ! RandomUniform
RandomUniform ! RandomUniform
Range - Range, 3
Rank - Rank
ReLU - Relu
ReLU6 - Relu6
Reduction ! ReductionParam
Reshape - Reshape QuantizedReshape
Resize ! Resize
Reverse - Axis
ReverseSequence ! ReverseSequenceParam
Scale ! Scale
ScatterElements - BinaryOp Axis, 3
ScatterNd - BinaryOp, 3
Select -, 3
Selu ! Selu
SetDiff1D -, 2
Shape - ShapeParam
Size - Size
Slice ! Slice
SliceTf - SliceTf, 3
Softmax ! Axis
SpaceToBatchND - SpaceBatch
SpaceToDepth ! DepthSpaceParam
Squeeze ! SqueezeParam
Stft ! StftParam
StridedSlice ! StridedSliceParam, 3
TensorArray ! TensorArray
TensorArrayConcat ! TensorArray, 2
TensorArrayErase - TensorArray, 3
TensorArrayGather ! TensorArray, 3
TensorArrayInsert - TensorArray, 4
TensorArrayRead - TensorArray, 3
TensorArrayScatter - TensorArray, 4
TensorArraySize - TensorArray
TensorArraySplit ! TensorArray, 4
TensorArrayWrite - TensorArray, 4
TfQuantizedConv2D ! TfQuantizedConv2D
Threshold ! ELU
Tile -, 2
TopKV2 - TopKV2, 2
TrainableParam ! Blob, 0
Transpose - Transpose, 2
UnaryOp ! UnaryOp
Unpack ! Axis
UnravelIndex -, 2
Unsqueeze ! SqueezeParam
Where - Extra
While ! WhileParam LoopParam
"""


@dataclass(frozen=True)
class Needs:
    """What MNN expects of a type of operator. `tables` holds "NONE" where it runs without parameters."""

    tables: tuple[str, ...]
    crashes_without: bool
    inputs: int


def _needs(row: str) -> tuple[str, Needs]:
    left, _, fewest = row.partition(",")
    name, *words = left.split()
    tables = tuple("NONE" if word == "-" else word for word in words if word != "!")
    return name, Needs(tables, "!" in words, int(fewest or 1))


NEEDS: Mapping[str, Needs] = dict(_needs(row) for row in _ROWS.strip().splitlines())

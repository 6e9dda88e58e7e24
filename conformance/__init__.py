"""ONNX's own backend tests through both roads to MNN: the plain converter's and graphkit's."""

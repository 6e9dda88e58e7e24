"""Quantized weights of an ONNX model, carried past MNN's converter into the .mnn file: the same codes and scales."""

"""Normalizations: ONNX's own that MNN lacks, and onnxruntime's contrib ones."""

from __future__ import annotations

from graphkit.rewrite import Rule

RULES: tuple[Rule, ...] = ()

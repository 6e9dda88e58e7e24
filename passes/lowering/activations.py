"""Activations that MNN lacks, and onnxruntime's fused ones."""

from __future__ import annotations

from graphkit.rewrite import Rule

RULES: tuple[Rule, ...] = ()

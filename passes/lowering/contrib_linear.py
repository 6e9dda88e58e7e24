"""onnxruntime's fused products, and rotary embeddings."""

from __future__ import annotations

from graphkit.rewrite import Rule

RULES: tuple[Rule, ...] = ()

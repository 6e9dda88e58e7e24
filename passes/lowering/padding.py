"""Pad, crop and tile in forms that MNN computes wrong."""

from __future__ import annotations

from graphkit.rewrite import Rule

RULES: tuple[Rule, ...] = ()

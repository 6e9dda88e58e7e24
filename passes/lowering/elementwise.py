"""Elementwise operators that MNN lacks or computes wrong."""

from __future__ import annotations

from graphkit.rewrite import Rule

RULES: tuple[Rule, ...] = ()

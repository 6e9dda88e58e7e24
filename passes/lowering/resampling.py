"""Resize, GridSample, AffineGrid, Upsample."""

from __future__ import annotations

from graphkit.rewrite import Rule

RULES: tuple[Rule, ...] = ()

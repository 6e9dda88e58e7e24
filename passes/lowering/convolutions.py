"""Convolutions of ranks and forms that MNN does not run."""

from __future__ import annotations

from graphkit.rewrite import Rule

RULES: tuple[Rule, ...] = ()

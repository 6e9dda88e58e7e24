"""Integer operators: bits, remainders, powers, and numbers beyond what MNN holds."""

from __future__ import annotations

from graphkit.rewrite import Rule

RULES: tuple[Rule, ...] = ()

"""IsNaN, IsInf, and the guards against NaN that exporters put behind Softmax."""

from __future__ import annotations

from graphkit.rewrite import Rule

RULES: tuple[Rule, ...] = ()

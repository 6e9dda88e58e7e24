"""Operators that choose: ArgMax, TopK, Hardmax, OneHot and their kind."""

from __future__ import annotations

from graphkit.rewrite import Rule

RULES: tuple[Rule, ...] = ()

"""RNN, LSTM and GRU."""

from __future__ import annotations

from graphkit.rewrite import Rule

RULES: tuple[Rule, ...] = ()

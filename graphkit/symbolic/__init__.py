"""Symbolic evaluation: what is known of every value before anything runs (see `graphkit.shapes`)."""

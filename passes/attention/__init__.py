"""Attention operators of all kinds, read into one form and written as plain operators."""

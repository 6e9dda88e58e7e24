"""The .mnn file as a document: read, change, write."""

from graphkit.mnn.document.files import Document, GraphView, dump, parse, read, write

__all__ = ["Document", "GraphView", "dump", "parse", "read", "write"]

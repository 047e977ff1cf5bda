"""Embedding: the protocol, its adapters and how a model is found."""

from __future__ import annotations

from calmem.embedding.protocol import PROBE_TEXT, Embedder, embedding_text, probe, understands
from calmem.embedding.resolve import load

__all__ = ["PROBE_TEXT", "Embedder", "embedding_text", "load", "probe", "understands"]

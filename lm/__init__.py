"""Ablations for transformer language models: paired, honest, resumable."""

__version__ = "0.1.0"

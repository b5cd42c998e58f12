"""Ways to compute the loss from the last hidden states, at two vocabularies: they stand with the other parts."""

from benchmarks.parts import losses

__all__ = ["losses"]

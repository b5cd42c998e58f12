"""Corpora, tokenizers, packing, the order of batches, and the LightningDataModule."""

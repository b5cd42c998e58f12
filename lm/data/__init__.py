"""Corpora, tokenizers, packing, the order of batches, and the LightningDataModule."""

IGNORED = -100  # a target that is not to be predicted, such as padding

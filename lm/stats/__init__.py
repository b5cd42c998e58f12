"""Tests, intervals and verdicts: numbers in, numbers or words out."""

"""Ladders: the same arms at several sizes."""

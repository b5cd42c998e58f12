"""Streaming measurements, exact under accumulation and across devices."""

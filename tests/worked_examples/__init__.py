"""The worked examples of the teaching texts, recomputed with the library's own functions and judged."""

"""The transformer and its swappable parts: one class per choice, each holding its own options."""

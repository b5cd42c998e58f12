"""From an experiment's file to its report: what is trained, in which order, and what comes of it."""

"""From an experiment or search file to finished cells: what is trained, in which order, and what comes of it."""

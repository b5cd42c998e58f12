"""From an experiment file to finished cells: the plan (arms x seeds) and the processes that carry it out."""

"""Faults injected into small runs, which are to end in what a run comes to that nothing disturbed: `lm chaos`."""

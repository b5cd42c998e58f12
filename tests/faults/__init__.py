"""Faults injected into small runs, whose results are compared with those of an undisturbed run."""

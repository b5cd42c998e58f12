"""The audit of the statistics: how often the method is wrong on simulated experiments."""

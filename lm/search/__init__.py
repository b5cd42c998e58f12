"""Hyperparameter search with Optuna, from a sweep's file to its report."""

"""Runs that others trained and logged: read, checked, and told apart by arm and seed."""

"""From a configuration to its record."""

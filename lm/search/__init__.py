"""From a sweep's file to its report."""

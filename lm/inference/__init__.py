"""What a finished run can do."""

"""What all of this costs on this machine: every way of doing something against another, in turn, in one run."""

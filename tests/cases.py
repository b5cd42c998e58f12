"""How many cases the tests try that make up their input: the one place that says so."""

import os

CASES = int(os.environ.get("FUZZ_CASES", "500"))
"""In all; `make fuzz` tries 10,000."""

SHARES = {
    "commands": 0.3,
    "configurations": 0.2,
    "experiments": 0.1,
    "sweeps": 0.1,
    "records": 0.08,
    "manifests": 0.06,
    "checkpoints": 0.06,
    "corpora": 0.1,
}
"""Of each kind."""


def share(kind: str) -> int:
    """Cases of a kind."""
    return max(1, round(CASES * SHARES[kind]))

"""How the benchmarks are to be run."""

import os
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True)
class Asked:
    """What every case is told.

    Args:
        threads: of this process and of those it starts.
        quick: whether each case is done at its smallest, to see that it works; the figures mean nothing.
        nanogpt: a checkout of nanoGPT.
    """

    threads: int = 1
    quick: bool = False
    nanogpt: Path | None = None

    def environment(self) -> dict[str, str]:
        """Of a command that is to have as many threads."""
        return {**os.environ, "OMP_NUM_THREADS": str(self.threads), "MKL_NUM_THREADS": str(self.threads)}

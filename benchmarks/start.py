"""How long `lm` takes to begin: its help, and training until the first step is done, beside importing torch."""

import functools
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import yaml

from benchmarks.asked import Asked
from benchmarks.ratios import alternate
from benchmarks.rows import Row, rows_of
from benchmarks.sizes import SMALLEST
from lm.store.files import write_atomic

TORCH = "python -c 'import torch'"
FIRST = "step 1/"
"""How a line of progress begins once the first step is done."""


def start(asked: Asked) -> list[Row]:
    """Seconds from calling a command to what is waited for."""
    python = [sys.executable, "-P"]
    with tempfile.TemporaryDirectory() as name:
        place = Path(name)
        config = place / "run.yaml"
        described = SMALLEST.cell({"trainer.log_every_n_steps": 1}).config
        write_atomic(config, yaml.safe_dump(described, sort_keys=False))
        ways = {
            TORCH: functools.partial(_whole, [*python, "-c", "import torch"], asked),
            "lm --help": functools.partial(_whole, [*python, "-m", "lm", "--help"], asked),
            "lm fit, until its first step is done": functools.partial(
                _first_step, [*python, "-m", "lm"], config, asked
            ),
        }
        taken = alternate(ways, 1 if asked.quick else 7)
    return rows_of("start", taken, TORCH)


def _whole(command: list[str], asked: Asked) -> float:
    begun = time.perf_counter()
    subprocess.run(command, check=True, capture_output=True, env=asked.environment())
    return time.perf_counter() - begun


def _first_step(lm: list[str], config: Path, asked: Asked) -> float:
    """Seconds until `lm fit` says that its first step is done; it is ended then."""
    with tempfile.TemporaryDirectory() as out:
        begun = time.perf_counter()
        command = [*lm, "fit", str(config), "--out", out]
        streams: dict[str, Any] = {"stdout": subprocess.DEVNULL, "stderr": subprocess.PIPE, "text": True}
        with subprocess.Popen(command, env=asked.environment(), **streams) as process:
            assert process.stderr is not None
            said = ""
            for line in process.stderr:
                said = line
                if line.startswith(FIRST):
                    break
            taken = time.perf_counter() - begun
            process.kill()
        if not said.startswith(FIRST):
            raise RuntimeError(f"lm fit did not come to its first step: {said.strip()}")
        return taken

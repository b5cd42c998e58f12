"""Files of small experiments."""

from pathlib import Path
from typing import Any

import yaml
from helpers import RUN


def write_experiment(folder: Path, name: str = "small", **changes: Any) -> Path:
    """Write an experiment of two arms over the tests' small base, with keys replaced (None: left out)."""
    folder.mkdir(exist_ok=True)
    (folder / "base.yaml").write_text(yaml.safe_dump(RUN))
    arms = {"layer": {}, "rms": {"model.norm": "RMSNorm"}}
    tree = {"base": "base.yaml", "baseline": "layer", "arms": arms, "seeds": 6, **changes}
    path = folder / f"{name}.yaml"
    path.write_text(yaml.safe_dump({key: value for key, value in tree.items() if value is not None}, sort_keys=False))
    return path

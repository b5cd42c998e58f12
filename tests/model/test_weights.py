"""Weights are those that were written, or none."""

from pathlib import Path

import torch
from messages import Refused

from lm.model.transformer import load_weights


def test_a_changed_byte_is_not_taken_for_a_weight(tmp_path: Path, refused: Refused) -> None:
    path, whole = tmp_path / "last.ckpt", torch.arange(64, dtype=torch.float64)
    torch.save({"state_dict": {"model.a": whole, "other": whole}}, path)
    assert torch.equal(load_weights(path)["a"], whole)
    content = path.read_bytes()
    at = content.index(whole[9:11].numpy().tobytes())
    path.write_bytes(content[:at] + b"\1" + content[at + 1 :])
    assert not torch.equal(torch.load(path)["state_dict"]["model.a"], whole), "torch notices nothing"
    with refused(ValueError):
        load_weights(path)

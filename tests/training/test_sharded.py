"""Weights shared out among processes: what is refused, and checkpoints that are folders. The rest: test_ranks.py."""

import os
import pickle
from pathlib import Path, PosixPath
from typing import Any

import pytest
import torch
from helpers import RUN, Patch
from torch import nn
from torch.distributed.checkpoint.metadata import _MEM_FORMAT_ENCODING, Metadata
from torch.distributed.checkpoint.state_dict_saver import save

from lm.config.tree import InputError, override
from lm.metrics.gradients import clip_by_norm, clip_by_value
from lm.store.files import BACKUP_CHECKPOINT, replace_checkpoint, restore_backup
from lm.training.cell import check
from lm.training.strategies import (
    METADATA_FILE,
    PRECISIONS,
    consolidate,
    is_intact,
    read_checkpoint_metadata,
    weights_only_load,
)

SHARDED = {"trainer.strategy": "fsdp2", "trainer.devices": 2, "trainer.accelerator": "cpu"}


def test_sharding_is_no_part_of_the_identity() -> None:
    assert check(override(RUN, SHARDED)).id == check(RUN).id


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"trainer.precision": "16-mixed"}, "fsdp2 does not support '16-mixed'; expected one of 32-true,"),
        ({"trainer.sync_batchnorm": True}, "trainer.sync_batchnorm: strategy fsdp2 does not .* expected strategy ddp"),
        ({"model.norm": "BatchNorm"}, "batch norm would see the rows of each of 2 processes alone"),
        ({"model.block": "ReZero"}, r"fsdp2 shares out parameters by their rows, and blocks.0.\S+share is a single"),
        ({"trainer.strategy": "fsdp"}, r"trainer.strategy: 'fsdp' flattens weights, .* such as ddp or fsdp2"),
        ({"trainer.strategy": "fsdp_cpu_offload"}, "such as ddp or fsdp2"),
        ({"trainer.strategy": "fsdp3"}, "such as ddp or fsdp2"),
    ],
)
def test_settings_that_cannot_be_sharded_are_refused(changes: dict[str, Any], words: str) -> None:
    with pytest.raises(InputError, match=words):
        check(override(RUN, {**SHARDED, **changes}))


@pytest.mark.parametrize("precision", PRECISIONS)
def test_each_supported_precision_is_accepted_by_the_trainer(precision: str) -> None:
    check(override(RUN, {**SHARDED, "trainer.precision": precision}))


# gradients -----------------------------------------------------------------------------------------------------------


class Share(torch.Tensor):
    """A gradient of which this process holds the first row."""

    def to_local(self) -> torch.Tensor:
        return self.as_subclass(torch.Tensor)[:1]


def test_a_sharded_gradient_is_clipped_by_the_global_norm() -> None:
    parameter = nn.Parameter(torch.zeros(2, 2))
    parameter.grad = torch.tensor([[3.0, 4.0], [6.0, 8.0]]).as_subclass(Share)
    clip_by_norm([parameter], 1.0, torch.tensor(10.0))
    expected = torch.tensor([[0.3, 0.4], [6.0, 8.0]])
    torch.testing.assert_close(parameter.grad.as_subclass(torch.Tensor), expected)
    clip_by_value([parameter], 0.35)
    torch.testing.assert_close(parameter.grad.as_subclass(torch.Tensor)[0], torch.tensor([0.3, 0.35]))


# checkpoints ---------------------------------------------------------------------------------------------------------


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A checkpoint such as Lightning's strategy leaves, of a model with two parameters."""
    path = tmp_path / "last.ckpt"
    names = ["model.b", "model.w"]
    state = {name: {"exp_avg": torch.full((2,), index + 0.5)} for index, name in enumerate(names)}
    groups = [{"params": ["model.w"], "lr": 0.1}, {"params": ["model.b"], "lr": 0.2}]
    weights = {name: torch.arange(2.0) + index for index, name in enumerate(names)}
    with pytest.warns(UserWarning, match="single process"):
        save({"state_dict": weights, "optimizer_0": {"state": state, "param_groups": groups}}, checkpoint_id=path)
    torch.save({"global_step": 7, "callbacks": {}}, path / "meta.pt")
    return path


@pytest.mark.filterwarnings("ignore:torch.distributed")
def test_a_sharded_checkpoint_becomes_one_file_of_tensors(folder: Path, tmp_path: Path) -> None:
    consolidate(folder, tmp_path / "one.ckpt")
    checkpoint = torch.load(tmp_path / "one.ckpt", weights_only=True)
    assert checkpoint["global_step"] == 7
    assert checkpoint["state_dict"]["model.w"].tolist() == [1, 2]
    (state,) = checkpoint["optimizer_states"]
    assert [(group["params"], group["lr"]) for group in state["param_groups"]] == [([0], 0.1), ([1], 0.2)]
    assert state["state"][0]["exp_avg"].tolist() == [1.5, 1.5], "of w, which the groups have first"


class Evil:
    def __reduce__(self) -> Any:
        return os.mkdir, ("evil",)


def test_checkpoint_metadata_cannot_run_code(folder: Path, tmp_path: Path, monkeypatch: Patch) -> None:
    monkeypatch.chdir(tmp_path)
    (folder / METADATA_FILE).write_bytes(pickle.dumps(Evil()))
    assert not is_intact(folder)
    with pytest.raises(pickle.UnpicklingError, match="mkdir is no part of a checkpoint"):
        consolidate(folder, tmp_path / "one.ckpt")
    assert not (tmp_path / "evil").exists()


class Reaches:
    """Is written as what `getattr` finds, as Python before 3.11.4 writes the members of an enumeration."""

    def __init__(self, of: Any, name: str) -> None:
        self.of, self.name = of, name

    def __reduce__(self) -> Any:
        return getattr, (self.of, self.name)


def test_pickled_getattr_reaches_members_of_an_enumeration_only(folder: Path) -> None:
    member = _MEM_FORMAT_ENCODING.TORCH_CONTIGUOUS_FORMAT
    written = pickle.dumps(Metadata({}, planner_data=Reaches(type(member), member.name)))
    (folder / METADATA_FILE).write_bytes(written)
    assert read_checkpoint_metadata(folder).planner_data is member
    for of, name in ((PosixPath, "mkdir"), (type(member), "__class__"), (type(member), "mro"), (Metadata, "__init__")):
        (folder / METADATA_FILE).write_bytes(pickle.dumps(Metadata({}, planner_data=Reaches(of, name))))
        assert not is_intact(folder)
        with pytest.raises(pickle.UnpicklingError, match=f"'{name}' of .* is no part of a checkpoint"):
            read_checkpoint_metadata(folder)


def test_plain_values_in_a_shard_cannot_run_code(tmp_path: Path, monkeypatch: Patch) -> None:
    monkeypatch.chdir(tmp_path)
    torch.save(Evil(), tmp_path / "value")
    described_ = tmp_path / "value"
    with weights_only_load(described_), pytest.raises(pickle.UnpicklingError, match="mkdir"):
        torch.load(described_, weights_only=False)
    assert not (tmp_path / "evil").exists()


@pytest.mark.parametrize("damage", ["none", "cut", "missing", "unmarked", "no-meta", "empty-mark"])
def test_a_damaged_sharded_checkpoint_is_recognised(folder: Path, damage: str) -> None:
    (share,) = folder.glob("*.distcp")
    if damage == "cut":
        share.write_bytes(share.read_bytes()[:-1])
    elif damage == "missing":
        share.unlink()
    elif damage == "unmarked":
        (folder / METADATA_FILE).unlink()
    elif damage == "no-meta":
        (folder / "meta.pt").write_bytes(b"PK")
    elif damage == "empty-mark":
        (folder / METADATA_FILE).write_bytes(b"")
    assert is_intact(folder) is (damage == "none")
    if damage == "none":
        assert read_checkpoint_metadata(folder).state_dict_metadata


def test_the_old_checkpoint_stays_until_it_is_replaced(tmp_path: Path) -> None:
    path, new = tmp_path / "last.ckpt", tmp_path / "new"
    for old in ("file", "folder"):
        new.mkdir()
        (new / old).touch()
        if old == "file":
            path.write_text("before")
        replace_checkpoint(new, path)
        assert os.listdir(path) == [old]
    os.replace(path, tmp_path / BACKUP_CHECKPOINT)  # where a kill came in between
    restore_backup(path)
    assert os.listdir(path) == ["folder"]
    new.write_text("file")
    replace_checkpoint(new, path)
    assert path.read_text() == "file"
    assert os.listdir(tmp_path) == ["last.ckpt"]

"""Callbacks that a configuration names: known by their code, kept from ending a run, and resumed with it."""

from pathlib import Path
from typing import Any

import pytest
from helpers import RUN, Patch, known
from messages import CheckMessage, Refused
from small_runs import own_module, resume_cell, train_cell

from lm.config.fingerprint import code_of
from lm.config.tree import InputError, override
from lm.training.callbacks import REASONS, REFUSED
from lm.training.cell import check
from lm.training.identified import Cell

OWN = '''
import torch
from lightning.pytorch import Callback

class Shrinks(Callback):
    """Multiplies gradients by a factor that goes down with every step."""
    def __init__(self, by: float = 0.9) -> None:
        self.by = by
        self.factor = 1.0
    def state_dict(self):
        return {"factor": self.factor}
    def load_state_dict(self, state):
        self.factor = state["factor"]
    def on_before_optimizer_step(self, trainer, pl_module, optimizer):
        for parameter in pl_module.parameters():
            if parameter.grad is not None:
                parameter.grad.mul_(self.factor)
    def on_train_batch_end(self, trainer, pl_module, outputs, batch, batch_idx):
        self.factor *= self.by

class Looks(Callback):
    """Changes nothing."""

class Ends(Callback):
    """Ends a run by what it sees."""
    def on_validation_end(self, trainer, pl_module):
        trainer.should_stop = True

class Refuses(Callback):
    """Cannot be made."""
    def __init__(self, number: int = 1):
        raise ValueError(f"number={number} is never right")

import random
import numpy

class Draws(Callback):
    """Adds noise to the weights before every step, from three generators."""
    def __init__(self):
        self.factor = 1.0
    def on_fit_start(self, trainer, pl_module):
        self.factor = 1 + torch.rand(1).item()
    def on_train_batch_start(self, trainer, pl_module, batch, batch_idx):
        with torch.no_grad():
            for parameter in pl_module.parameters():
                noise = torch.randn_like(parameter) * random.random() * numpy.random.rand()
                parameter.add_(1e-3 * self.factor * noise)

class Breaks(Callback):
    """Makes the weights infinite before the fourth batch."""
    def on_train_batch_start(self, trainer, pl_module, batch, batch_idx):
        if batch_idx == 3:
            with torch.no_grad():
                next(pl_module.parameters()).fill_(float("nan"))
'''


@pytest.fixture
def own(tmp_path: Path, monkeypatch: Patch) -> str:
    """A module of callbacks of a user's own, by a name that no other test has."""
    return own_module(tmp_path, monkeypatch, OWN)


def checked(*callbacks: Any, **changes: Any) -> Cell:
    return check(override(RUN, {"trainer.callbacks": list(callbacks), **changes}))


def test_a_callback_is_part_of_the_identity(own: str, tmp_path: Path) -> None:
    cell = checked(f"{own}.Shrinks")
    (node,) = cell.config["trainer"]["callbacks"]
    assert node == {"class_path": f"{own}.Shrinks", "init_args": {"by": 0.9}}
    assert cell.id == checked({"class_path": f"{own}.Shrinks", "init_args": {"by": 0.9}}).id, "a default filled in"
    ids = {check(RUN).id, cell.id, checked({"class_path": f"{own}.Shrinks", "init_args": {"by": 0.8}}).id}
    (tmp_path / "another.py").write_text(OWN.replace("*= self.by", "*= self.by**2"))
    (tmp_path / "renamed.py").write_text(OWN)
    ids |= {checked("another.Shrinks").id, checked("renamed.Shrinks").id}
    assert len(ids) == 5


def test_the_identity_holds_a_callbacks_code_or_lightnings_version(own: str) -> None:
    hashes = code_of(checked(f"{own}.Shrinks", "LambdaCallback").config)
    assert hashes["lightning.pytorch.callbacks.lambda_function.LambdaCallback"].startswith("lightning ")
    assert len(hashes[f"{own}.Shrinks"]) == 64


def test_a_harmless_callback_is_no_part_of_the_identity(own: str) -> None:
    harmless = {"class_path": f"{own}.Looks", "harmless": True}
    cell = checked(harmless)
    assert cell.id == check(RUN).id == check(override(RUN, {"trainer.callbacks": []})).id
    assert cell.config["trainer"]["callbacks"] == [{**harmless, "init_args": {}}]
    assert checked({**harmless, "harmless": False}).id != check(RUN).id
    assert checked(harmless, f"{own}.Shrinks").id == checked(f"{own}.Shrinks").id


@pytest.mark.parametrize(
    "entry",
    [
        "EarlyStopping",
        {"class_path": "lightning.pytorch.callbacks.EarlyStopping", "init_args": {"monitor": "x"}},
        "Timer",
        "lightning.pytorch.callbacks.ModelCheckpoint",
        "OWN.Refuses",
        "OWN.Nothing",
        "Spiral",
        "os.path.join",
        "lm.training.recorder.Recorder",
        {"init_args": {}},
        {"class_path": "OWN.Looks", "harmles": True},
        {"class_path": "OWN.Looks", "harmless": "yes"},
        {"class_path": "OWN.Shrinks", "init_args": {"bye": 1}},
        {"class_path": "OWN.Shrinks", "init_args": {"by": "x"}},
    ],
    ids=str,
)
def test_an_unusable_callback_is_one_line_with_the_reason(entry: Any, own: str, check_message: CheckMessage) -> None:
    if isinstance(entry, str):
        entry = entry.replace("OWN", own)
    elif "class_path" in entry:
        entry = {**entry, "class_path": entry["class_path"].replace("OWN", own)}
    with pytest.raises(InputError) as caught:
        checked(f"{own}.Looks", entry)
    assert "\n" not in str(caught.value)
    check_message(str(caught.value).replace(own, "own"))


def test_a_callback_is_given_once(own: str, check_message: CheckMessage) -> None:
    with pytest.raises(InputError) as caught:
        checked(f"{own}.Looks", f"{own}.Looks")
    check_message(str(caught.value).replace(own, "own"))


@pytest.mark.parametrize("entry", [3, "x", [3], {"class_path": "a.B"}], ids=str)
def test_callbacks_are_a_list(entry: Any, refused: Refused) -> None:
    with refused():
        check(override(RUN, {"trainer.callbacks": entry}))


def test_every_lightning_callback_is_refused_or_accepted() -> None:
    """A new one of a new Lightning is to be looked at before anybody uses it."""
    import lightning.pytorch.callbacks as known

    kinds = [getattr(known, name) for name in known.__all__]
    open_to_all = {kind.__name__ for kind in kinds if not issubclass(kind, tuple(REFUSED))}
    expected = {"BackboneFinetuning", "BaseFinetuning", "LambdaCallback", "ModelPruning", "SpikeDetection"}
    assert open_to_all - {"Callback"} == expected


@pytest.mark.parametrize("key", [*(f"trainer.{name}" for name in REASONS), "early_stopping", "patience"])
def test_settings_of_early_stopping_are_refused_with_the_reason(key: str, refused: Refused) -> None:
    with refused():
        check(override(RUN, {key: 3}))


def test_misplaced_loggers_and_callbacks_name_the_right_place(refused: Refused) -> None:
    with refused():
        check(override(RUN, {"trainer.logger": True}))
    with refused():
        check(override(RUN, {"callbacks": []}))


# trained -------------------------------------------------------------------------------------------------------------


@pytest.mark.extra
def test_a_resumed_run_restores_the_state_of_its_callback(own: str, tmp_path: Path) -> None:
    changes = {"trainer.callbacks": [f"{own}.Shrinks"], "optim.optimizer": "SGD"}
    _, whole, folder = train_cell(tmp_path / "whole", changes)
    _, resumed, _ = resume_cell(tmp_path / "parts", changes, 9)
    assert resumed["provenance"]["resumed"]
    assert resumed["metrics"] == whole["metrics"]
    plain = train_cell(tmp_path / "plain", {"optim.optimizer": "SGD"})[1]
    assert plain["metrics"]["nll"] != whole["metrics"]["nll"], "it must have been at work"
    assert list(folder.glob(f"code/*{own}.py"))


@pytest.mark.slow
def test_a_resumed_run_draws_for_its_callbacks_as_one_never_stopped(own: str, tmp_path: Path) -> None:
    changes = {"trainer.callbacks": [f"{own}.Draws"]}
    whole, resumed = train_cell(tmp_path / "whole", changes)[1], resume_cell(tmp_path / "parts", changes, 9)[1]
    assert resumed["provenance"]["resumed"]
    assert resumed["metrics"] == whole["metrics"]
    assert train_cell(tmp_path / "plain")[1]["metrics"]["nll"] != whole["metrics"]["nll"]


@pytest.mark.slow
def test_a_run_diverges_at_the_same_step_whenever_checkpoints_are_due(own: str, tmp_path: Path) -> None:
    changes = {"trainer.callbacks": [f"{own}.Breaks"], "trainer.log_every_n_steps": 3, "trainer.val_check_interval": 3}
    records = [train_cell(tmp_path / f"{seconds}", changes, checkpoint_seconds=seconds)[1] for seconds in (0.0, 1e9)]
    often, never = ([record[name] for name in ("error", "diverged", "steps", "pairing")] for record in records)
    assert often == never
    assert records[0]["diverged"] is not None


@pytest.mark.slow
def test_a_run_that_a_callback_ends_fails(own: str, tmp_path: Path, check_message: CheckMessage) -> None:
    _, record, folder = train_cell(tmp_path, {"trainer.callbacks": [f"{own}.Ends"]})
    assert record["status"] == "failed"
    check_message(known(record["error"]))
    assert not (folder / "history.csv").exists()


@pytest.mark.slow
def test_a_run_that_diverges_is_no_fault_of_its_callbacks(own: str, tmp_path: Path) -> None:
    changes = {"trainer.callbacks": [f"{own}.Looks"], "optim.lr": 1e200, "optim.schedule": "Constant"}
    assert train_cell(tmp_path, changes)[1]["status"] == "diverged"

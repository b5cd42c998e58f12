"""Settings of Lightning's trainer: each determines numbers or execution, or is refused or fixed."""

import inspect
from pathlib import Path
from typing import Any

import lightning.pytorch
import pytest
from helpers import RUN, Patch
from lightning.pytorch.callbacks import Timer
from messages import Refused

from lm.config.components import build, plain_options
from lm.config.tree import override
from lm.data.text import RowData
from lm.training.cell import check
from lm.training.recorder import Recorder
from lm.training.run import EXECUTION, UNSOUND, RunConfig, Trainer

COMPUTED = frozenset(
    (
        "callbacks", "max_steps", "precision", "limit_val_batches", "val_check_interval", "accumulate_grad_batches",
        "gradient_clip_val", "gradient_clip_algorithm", "deterministic", "sync_batchnorm",
    )
)  # fmt: skip
"""Settings that determine a cell's numbers."""

FIXED = frozenset(
    (
        "max_epochs", "min_epochs", "min_steps", "check_val_every_n_epoch", "num_sanity_val_steps",
        "limit_train_batches", "overfit_batches", "fast_dev_run", "barebones", "logger", "plugins", "profiler",
        "enable_checkpointing", "enable_progress_bar", "enable_model_summary", "enable_autolog_hparams",
        "use_distributed_sampler", "reload_dataloaders_every_n_epochs", "default_root_dir", "model_registry",
    )
)  # fmt: skip
"""Settings that the trainer fixes."""

OWN = frozenset(("attention", "compile", "checkpoint_activations", "ema", "init_from"))
"""Settings that Lightning's trainer does not have."""


def test_every_setting_of_lightning_has_a_declared_role() -> None:
    """A new one of a new Lightning is to be looked at before anybody uses it."""
    places = (COMPUTED, EXECUTION - OWN, frozenset(UNSOUND), FIXED)
    actual = set(inspect.signature(lightning.pytorch.Trainer.__init__).parameters) - {"self"}
    assert actual == frozenset().union(*places)
    assert sum(map(len, places)) == len(actual)
    assert set(plain_options(Trainer, 1)) == actual - FIXED | OWN


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("max_time", "00:00:00:30"),
        ("max_time", {"seconds": 30}),
        ("limit_test_batches", 2),
        ("benchmark", True),
        ("limit_predict_batches", 0.5),
    ],
    ids=str,
)
def test_unsound_settings_are_refused_with_the_reason(name: str, value: Any, refused: Refused) -> None:
    with refused():
        check(override(RUN, {f"trainer.{name}": value}))


@pytest.mark.parametrize("every", ["00:10:00", {"minutes": 10}], ids=str)
def test_validation_by_the_clock_is_refused_by_the_plan(every: Any, refused: Refused) -> None:
    with refused():
        check(override(RUN, {"trainer.val_check_interval": every}))


def test_a_refused_setting_that_is_off_keeps_the_identity() -> None:
    assert check(override(RUN, {"trainer.benchmark": False})).id == check(RUN).id


def test_recomputed_activations_keep_the_identity_and_need_layers_without_state(refused: Refused) -> None:
    recomputed = {"trainer.checkpoint_activations": True}
    assert check(override(RUN, recomputed)).id == check(RUN).id
    for change in ({"model.mlp": "Experts"}, {"model.norm": "BatchNorm"}):
        with refused():
            check(override(RUN, {**recomputed, **change}))
    with refused():
        check(override(RUN, {**recomputed, "trainer.devices": 2, "trainer.strategy": "fsdp2"}))


def test_batch_norm_in_several_processes_is_refused_by_the_plan(refused: Refused) -> None:
    """Each would take its statistics from its own rows: one identity, and a number that hangs on the machine."""
    two = {"trainer.devices": 2, "trainer.strategy": "ddp"}
    check(override(RUN, two))
    check(override(RUN, {"model.norm": "BatchNorm"}))
    check(override(RUN, {**two, "model.norm": "BatchNorm", "trainer.sync_batchnorm": True}))
    with refused():
        check(override(RUN, {**two, "model.norm": "BatchNorm"}))


def trainer(work: Path) -> Any:
    """The trainer of a run: Lightning declares no types for the parts that are looked at here."""
    run: RunConfig = build(check(RUN).config, RunConfig)
    recorder = Recorder(work, run.data(0))
    return run.trainer(recorder)


def test_a_callback_of_an_installed_package_is_refused(tmp_path: Path, monkeypatch: Patch, refused: Refused) -> None:
    assert [type(callback) for callback in trainer(tmp_path).callbacks] == [Recorder]
    connector = "lightning.pytorch.trainer.connectors.callback_connector._load_external_callbacks"
    monkeypatch.setattr(connector, lambda group: [Timer(duration={"seconds": 1})])
    with refused(ValueError):
        trainer(tmp_path)


def test_a_stray_checkpoint_is_not_loaded(tmp_path: Path, monkeypatch: Patch) -> None:
    """Under SLURM Lightning takes up what it finds in its folder: that must be the cell's."""
    (tmp_path / "work").mkdir()
    (tmp_path / "hpc_ckpt_1.ckpt").touch()
    monkeypatch.chdir(tmp_path)
    assert trainer(tmp_path / "work")._checkpoint_connector._hpc_resume_path is None


def test_no_variable_of_the_environment_changes_a_run(tmp_path: Path, monkeypatch: Patch) -> None:
    for name, text in {"MAX_TIME": "00:00:00:01", "ACCUMULATE_GRAD_BATCHES": "7", "MAX_STEPS": "3"}.items():
        monkeypatch.setenv(f"PL_TRAINER_{name}", text)
    actual = trainer(tmp_path)
    assert (actual.max_steps, actual.accumulate_grad_batches) == (12, 1)
    assert [type(callback) for callback in actual.callbacks] == [Recorder]


@pytest.mark.parametrize(
    ("changes", "batches"),
    [
        ({"trainer.val_check_interval": 400}, 10),
        ({"trainer.val_check_interval": 9}, 1),
        ({"trainer.val_check_interval": 50, "data.evaluation_batch_size": 4}, 5),
        ({"trainer.val_check_interval": 400, "data.batch_size": {0: 2, 1000: 8}}, 10),
        ({"trainer.val_check_interval": None, "trainer.max_steps": 200, "trainer.accumulate_grad_batches": 2}, 10),
        ({"trainer.val_check_interval": 50, "trainer.limit_val_batches": 7}, 7),
        ({"trainer.val_check_interval": 50, "trainer.limit_val_batches": None}, None),
    ],
)
def test_validations_read_a_tenth_of_what_is_trained(changes: dict[str, Any], batches: int | None) -> None:
    tree = override(RUN, {"data.batch_size": 4, **changes})
    if "trainer.limit_val_batches" not in changes:
        del tree["trainer"]["limit_val_batches"]
    cell = check(tree)
    settings, data = cell.config["trainer"], cell.open().data
    assert isinstance(data, RowData)
    assert settings["limit_val_batches"] == batches
    if batches and "trainer.limit_val_batches" not in changes and "trainer.max_steps" not in changes:
        every, size = settings["val_check_interval"], data.evaluation_batch_size
        trained = every * max(len(batch.rows_b) for batch in data.training_batches(0, 2000))
        assert batches * size <= trained / 10 or batches == 1
    assert check(check(tree).config).config["trainer"] == settings, "a resolved configuration stays what it is"

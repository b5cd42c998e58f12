"""Settings of Lightning's trainer: each says what is computed, or how it is run, or is refused or fixed."""

import inspect
from typing import Any

import lightning.pytorch
import pytest
from helpers import RUN

from lm.cell import COMPUTED, EXECUTION, UNSOUND, Trainer, check
from lm.components import plain_options
from lm.config import InputError, override

FIXED = frozenset(
    (
        "callbacks",
        "max_epochs",
        "min_epochs",
        "min_steps",
        "check_val_every_n_epoch",
        "num_sanity_val_steps",
        "limit_train_batches",
        "overfit_batches",
        "fast_dev_run",
        "barebones",
        "logger",
        "plugins",
        "profiler",
        "enable_checkpointing",
        "enable_progress_bar",
        "enable_model_summary",
        "enable_autolog_hparams",
        "use_distributed_sampler",
        "reload_dataloaders_every_n_epochs",
        "default_root_dir",
        "model_registry",
    )
)
"""What the trainer decides itself."""


def test_every_setting_of_lightning_has_its_place() -> None:
    """A new one of a new Lightning is to be looked at before anybody uses it."""
    places = (COMPUTED, EXECUTION, frozenset(UNSOUND), FIXED)
    found = set(inspect.signature(lightning.pytorch.Trainer.__init__).parameters) - {"self"}
    assert found == frozenset().union(*places)
    assert sum(map(len, places)) == len(found)
    assert set(plain_options(Trainer, 1)) == found - FIXED


@pytest.mark.parametrize(
    ("name", "value", "words"),
    [
        ("max_time", "00:00:00:30", "would end a cell by the speed of the machine; give max_steps"),
        ("max_time", {"seconds": 30}, "give max_steps"),
        ("limit_test_batches", 2, "has no effect"),
        ("limit_predict_batches", 0.5, "has no effect"),
    ],
)
def test_a_setting_that_the_clock_would_decide_is_refused_by_the_plan(name: str, value: Any, words: str) -> None:
    with pytest.raises(InputError, match=f"trainer: {name}=.*{words}"):
        check(override(RUN, {f"trainer.{name}": value}))


@pytest.mark.parametrize("every", ["00:10:00", {"minutes": 10}])
def test_validation_by_the_clock_is_refused_by_the_plan(every: Any) -> None:
    with pytest.raises(InputError, match="val_check_interval: expected a number of batches"):
        check(override(RUN, {"trainer.val_check_interval": every}))

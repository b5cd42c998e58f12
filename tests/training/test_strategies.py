"""What `trainer.strategy` may say: names, classes with arguments, DeepSpeed; and what of it is refused."""

import importlib.util
import json
import os
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
import yaml
from helpers import RUN
from lightning.pytorch.strategies import DeepSpeedStrategy, StrategyRegistry

from lm.config.tree import InputError, override
from lm.training.adapter import gives_gradients, is_whole
from lm.training.cell import check
from lm.training.strategies import DEEPSPEED, DeepSpeed, asked, check_sharded, known, shared_out

CLASS = "lightning.pytorch.strategies.DeepSpeedStrategy"


def test_a_name_and_a_class_with_its_arguments_are_told_apart() -> None:
    assert asked("ddp").name == "ddp"
    found = asked({"class_path": "lightning.pytorch.strategies.ModelParallelStrategy"})
    assert (found.name, found.options) == ("ModelParallelStrategy", {})
    assert asked({"class_path": CLASS, "init_args": {"stage": 1}}).options == {"stage": 1}
    assert shared_out("ddp") is None
    assert shared_out("fsdp2") is not None


def test_lightning_knows_what_is_asked_for_by_a_name() -> None:
    name = known({"class_path": "ModelParallelStrategy", "init_args": {"tensor_parallel_size": 2}})
    made = StrategyRegistry.get(name)
    made.parallel_devices = [torch.device("cpu")] * 4
    assert made.sizes() == (2, 2)
    made = StrategyRegistry.get("fsdp2")
    made.parallel_devices = [torch.device("cpu")] * 4
    assert made.sizes() == (4, 1)
    assert known("ddp") == "ddp"


@pytest.mark.parametrize(
    ("strategy", "words"),
    [
        ({"class_path": "ModelParalelStrategy"}, "called 'ModelParalelStrategy' .* Did you mean ModelParallelStrategy"),
        ({"class_path": "FSDPStrategy"}, "no class of strategies called 'FSDPStrategy' is offered"),
        ({"class_path": "os.system"}, "no class of strategies called 'os.system' is offered"),
        ({"class_path": "ModelParallelStrategy", "args": {}}, "trainer.strategy.args: a strategy has class_path and"),
        ({"class_path": "DeepSpeedStrategy", "init_args": [1]}, "trainer.strategy.init_args: expected a mapping"),
        ({"class_path": "DeepSpeedStrategy", "init_args": {"config": "ds.json"}}, "init_args.config: DeepSpeedStr"),
        ({"class_path": "DeepSpeedStrategy", "init_args": {"stage": 3}}, "init_args.stage: expected 0, 1 or 2"),
        ({"class_path": "DeepSpeedStrategy", "init_args": {"overlap_comm": 1}}, "overlap_comm: expected true or false"),
        ({"class_path": "DeepSpeedStrategy", "init_args": {"reduce_bucket_size": 0}}, "expected a number of elements"),
        ("deepspeed_stage_3", "'deepspeed_stage_3' keeps weights or optimiser to itself, .* expected one of deep"),
    ],
)  # fmt: skip
def test_what_is_not_offered_is_answered_in_a_line(strategy: Any, words: str) -> None:
    with pytest.raises(InputError, match=words) as caught:
        check_sharded({**SETTINGS, "strategy": strategy})
    assert "\n" not in str(caught.value)


# DeepSpeed -----------------------------------------------------------------------------------------------------------


SETTINGS = {
    "strategy": "deepspeed",
    "accelerator": "cuda",
    "precision": None,
    "gradient_clip_algorithm": None,
    "accumulate_grad_batches": 1,
    "sync_batchnorm": False,
}


@pytest.fixture
def there(monkeypatch: pytest.MonkeyPatch) -> None:
    """As if DeepSpeed and a CUDA device were there."""
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: SimpleNamespace(name=name))
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)


@pytest.mark.skipif(importlib.util.find_spec("deepspeed") is not None, reason="the package is there")
@pytest.mark.parametrize("strategy", [*DEEPSPEED, {"class_path": CLASS}])
def test_without_its_package_deepspeed_is_refused_by_the_plan(strategy: Any) -> None:
    with pytest.raises(InputError, match="needs the package deepspeed: pip install deepspeed; or expected another"):
        check(override(RUN, {"trainer.strategy": strategy, "trainer.precision": "32-true"}))


def test_without_a_cuda_device_it_is_refused_too(there: None, monkeypatch: pytest.MonkeyPatch) -> None:
    check_sharded(SETTINGS)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    with pytest.raises(InputError, match="deepspeed needs a CUDA device, and accelerator cuda"):
        check_sharded(SETTINGS)


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("accelerator", "cpu"),
        ("precision", "64-true"),
        ("precision", "bf16-mixed"),
        ("gradient_clip_algorithm", "value"),
        ("accumulate_grad_batches", 2),
        ("sync_batchnorm", True),
    ],
)
def test_what_it_would_compute_in_its_own_way_is_refused(there: None, name: str, value: Any) -> None:
    with pytest.raises(InputError, match=name):
        check_sharded({**SETTINGS, name: value})


def test_settings_of_its_own_from_elsewhere_are_refused(there: None, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(DeepSpeedStrategy.DEEPSPEED_ENV_VAR, "ds.json")
    with pytest.raises(InputError, match="PL_DEEPSPEED_CONFIG_PATH: DeepSpeed's own settings"):
        check_sharded(SETTINGS)


@pytest.mark.parametrize(
    ("strategy", "stage"), [("deepspeed", 2), ("deepspeed_stage_1", 1), ({"class_path": CLASS}, 2)]
)
def test_it_reaches_lightnings_strategy_with_its_arguments(strategy: Any, stage: int) -> None:
    found = StrategyRegistry[known(strategy)]
    assert issubclass(found["strategy"], DeepSpeedStrategy)
    assert found["init_params"] == {"stage": stage}


def test_what_it_keeps_to_itself_is_not_measured() -> None:
    trainer = SimpleNamespace(strategy=DeepSpeed.__new__(DeepSpeed))
    assert not gives_gradients(trainer)
    assert not is_whole(trainer)


@pytest.mark.gpu
@pytest.mark.slow
@pytest.mark.skipif(
    not torch.cuda.is_available() or importlib.util.find_spec("deepspeed") is None,
    reason="needs a CUDA device and the package deepspeed",
)
def test_deepspeed_gives_the_losses_of_ddp(tmp_path: Path) -> None:
    found = []
    for strategy in ("ddp", "deepspeed"):
        changes = {"trainer.strategy": strategy, "trainer.precision": "32-true", "trainer.accelerator": "cuda"}
        (tmp_path / "run.yaml").write_text(yaml.safe_dump(override(RUN, changes)))
        command = [sys.executable, "-m", "lm", "fit", "run.yaml", "--out", strategy]
        done = subprocess.run(
            command, cwd=tmp_path, capture_output=True, text=True, timeout=600, env={**os.environ}, check=False
        )
        assert done.returncode == 0, done.stderr
        (record,) = (tmp_path / strategy).glob("cells/[0-9a-f]*/record.json")
        found.append(json.loads(record.read_text()))
    ddp, deepspeed = found
    assert deepspeed["pairing"] == ddp["pairing"]
    for name in ("nll", "ece", "test_nll"):
        assert deepspeed["metrics"][name] == pytest.approx(ddp["metrics"][name], rel=1e-4), name
    assert deepspeed["metrics"].get("gradient_norm") is None

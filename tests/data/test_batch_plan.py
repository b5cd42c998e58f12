"""Schedules of the batch size by tokens and of the length of rows: the same rows in the same order, step by step."""

import csv
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from helpers import RUN, known, order_hash
from messages import Refused
from small_runs import Killed, kill_at, train_cell

from lm.config.components import build
from lm.config.plain import parse_yaml
from lm.config.tree import is_schedule, override
from lm.data.batch import Batch
from lm.data.order import BatchPlan, batch_rows
from lm.data.text import TextData
from lm.training.cell import check, sizes
from lm.training.run import RunConfig, build_data

GROWING = {"data.batch_size": {0: 4, 256: 8, 640: 16}}
WARMUP = {"data.context_warmup": {"start": 4, "batches": 6}}


def data_of(changes: dict[str, Any]) -> TextData:
    cell = check(override(RUN, changes))
    data = build_data(build(cell.config, RunConfig), cell.facts)
    data.setup("fit")
    assert isinstance(data, TextData)
    return data


def batches(changes: dict[str, Any], count: int = 12, **ranks: int) -> list[Batch]:
    return list(data_of(changes).training_batches(0, count, **ranks))


def test_rows_follow_the_schedule_by_tokens() -> None:
    shown, expected = 0, []
    for _ in range(12):
        expected.append(16 if shown >= 640 else 8 if shown >= 256 else 4)
        shown += 16 * expected[-1]
    assert [len(batch.rows_b) for batch in batches(GROWING)] == expected == [4] * 4 + [8] * 3 + [16] * 5


def test_a_schedule_reads_the_rows_of_the_plain_order() -> None:
    scheduled = np.concatenate([batch.rows_b.numpy() for batch in batches(GROWING)])
    plain = np.concatenate([batch.rows_b.numpy() for batch in batches({}, 30)])
    assert scheduled.tolist() == plain[: len(scheduled)].tolist()
    blocks = data_of({}).count_rows("train")
    assert plain[:8].tolist() == batch_rows(0, 0, 8, blocks).tolist()


def test_batches_may_start_anywhere_and_be_shared_by_processes() -> None:
    whole, data = batches(GROWING | WARMUP), data_of(GROWING | WARMUP)
    for start in (1, 5, 11):
        later = list(data.training_batches(start, 12))
        assert all(torch.equal(a.targets_bt, b.targets_bt) for a, b in zip(later, whole[start:], strict=True))
    shares = [batches(GROWING | WARMUP, rank=rank, world=2) for rank in (0, 1)]
    for first, second, both in zip(*shares, whole, strict=True):
        assert torch.equal(torch.cat([first.targets_bt, second.targets_bt]), both.targets_bt)


def test_rows_grow_to_the_context_in_multiples_of_eight() -> None:
    plan = BatchPlan({0: 2}, 64, start=4, batches=10)
    lengths = [plan.length(step) for step in range(12)]
    linear = [4 + 60 * step // 10 for step in range(10)]
    assert lengths == [4, *(length // 8 * 8 for length in linear[1:]), 64, 64]
    assert plan.tokens(12) == 2 * sum(lengths)
    cut, whole = batches(WARMUP), batches({})
    assert [batch.targets_bt.shape[1] for batch in cut] == [4, 4, 8, 8, 8, 8, *[16] * 6]
    for short, long in zip(cut, whole, strict=True):
        time = short.targets_bt.shape[1]
        assert torch.equal(short.inputs[0], long.inputs[0][:, :time])
        assert torch.equal(short.targets_bt, long.targets_bt[:, :time])


def test_tokens_of_a_step_are_the_mean_of_all() -> None:
    changes = GROWING | WARMUP
    tokens = sum(batch.targets_bt.numel() for batch in batches(changes))
    assert sizes(check(override(RUN, changes))).tokens_per_step == round(tokens / 12)


def test_ids_hold_schedules_as_numbers_and_none_at_the_default() -> None:
    plain, growing = check(RUN), check(override(RUN, GROWING))
    assert check(override(RUN, {"data.context_warmup": None})).id == plain.id
    assert "context_warmup" not in plain.config["data"]["init_args"]
    text = {"data.batch_size": {"0": 4, "2.56e2": 8, "640.0": 16}}
    assert check(override(RUN, text)).id == growing.id != plain.id
    assert check(growing.config).id == growing.id
    other = override(override(RUN, GROWING), {"data.batch_size": {0: 2}})
    assert other["data"]["init_args"]["batch_size"] == {0: 2}, "a schedule is replaced whole"
    assert not any(map(is_schedule, ({}, {"a": 1}, 3, {"nan": 1}, {None: 1}, {0: {"mlp": "ReLU"}})))


@pytest.mark.parametrize(
    "changes",
    [
        {"data.batch_size": {16: 4}},
        {"data.batch_size": {0: 4, 100: 0}},
        {"data.batch_size": {"small": 4}},
        {"data.batch_size": {0: 2.5}},
        {"data.context_warmup": {"start": 4}},
        {"data.context_warmup": {"start": 17, "batches": 3}},
        {"data.context_warmup": {}},
        {**GROWING, "trainer.devices": 3, "trainer.strategy": "ddp"},
    ],
    ids=str,
)
def test_wrong_schedules_are_refused(changes: dict[str, Any], refused: Refused) -> None:
    with refused():
        check(override(RUN, changes))


@pytest.mark.slow
@pytest.mark.parametrize(
    "changes",
    [
        *(pytest.param(changes, marks=pytest.mark.extra) for changes in (GROWING, WARMUP)),
        {**GROWING, "trainer.accumulate_grad_batches": 2},
    ],
)
def test_a_run_counts_its_tokens_and_resumes_to_the_bit(tmp_path: Path, changes: dict[str, Any]) -> None:
    changes = {**changes, "trainer.log_every_n_steps": 1, "trainer.val_check_interval": 100}
    count = 12 * changes.get("trainer.accumulate_grad_batches", 1)
    _, whole, folder = train_cell(tmp_path / "whole", changes)
    assert whole["cost"]["tokens"] == sum(batch.targets_bt.numel() for batch in batches(changes, count))
    if "data.batch_size" not in changes:
        assert known(whole["pairing"])["order"] == order_hash(0, 12, 8, data_of({}).count_rows("train")), (
            "paired with others"
        )
    with pytest.raises(Killed):
        train_cell(tmp_path / "killed", changes, kill_at(7), checkpoint_seconds=0.0)
    _, resumed, other = train_cell(tmp_path / "killed", changes, checkpoint_seconds=0.0)
    assert resumed["provenance"]["resumed"] == 1
    assert resumed["pairing"] == whole["pairing"]
    curves = [list(csv.DictReader((path / "history.csv").open())) for path in (folder, other)]
    assert curves[0] == curves[1]


@pytest.mark.parametrize(
    "arm", ["data.batch_size: {0: 4, 1.0e6: 8}", "data.init_args: {batch_size: {0: 4, 1000000: 8}}"]
)
def test_an_arm_of_a_file_may_have_a_schedule(arm: str) -> None:
    for base in (RUN, override(RUN, GROWING)):
        tree = override(base, parse_yaml(arm))
        assert check(tree).config["data"]["init_args"]["batch_size"] == {"0": 4, "1000000": 8}

"""One cell from configuration to record: trained as a bare loop would train it, resumed as if never stopped."""

import errno
import itertools
import json
import math
import shutil
import tempfile
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from helpers import RUN, Capture, Patch, known, order_hash
from messages import CheckMessage
from small_runs import Killed, curve, kill_at, own_module, silent

from lm.config.components import build
from lm.config.tree import override
from lm.data.text import TextData
from lm.metrics.tokens import TokenStatistics
from lm.model.transformer import Decoder, build_and_initialize
from lm.store.leases import LostError
from lm.store.record import Record
from lm.store.store import Store
from lm.store.validation import curve_checksum, validate_curve_text
from lm.training.adapter import InPlace
from lm.training.cell import check
from lm.training.identified import Cell
from lm.training.module import LanguageModel
from lm.training.process import Execution
from lm.training.run import RunConfig
from lm.training.train import fail, train

pytestmark = pytest.mark.slow
QUIET = Execution(threads=1)
ALWAYS = Execution(threads=1, checkpoint_seconds=0)


def killed(*_: object) -> None:
    """End a run as a signal would."""
    raise Killed


def run(out: Path, changes: dict[str, Any] | None = None, execution: Execution = QUIET) -> tuple[Cell, Record]:
    cell, store = check(override(RUN, changes or {})), Store(out)
    train(cell, store, silent, execution)
    return cell, store.record(cell.id)


def history(out: Path, cell: Cell) -> list[dict[str, str]]:
    return curve(Store(out).directory(cell.id))


def weights(out: Path, cell: Cell) -> dict[str, torch.Tensor]:
    checkpoint = torch.load(Store(out).directory(cell.id) / "last.ckpt", weights_only=True)
    return {name.removeprefix("model."): value for name, value in checkpoint["state_dict"].items()}


def prepared(cell: Cell) -> tuple[RunConfig, TextData, Decoder]:
    built: RunConfig = build(cell.config, RunConfig)
    data = built.data(built.seed)
    data.setup("fit")
    model = build_and_initialize(built.model, cell.facts.vocabulary, data.context, built.seed).double()
    assert isinstance(data, TextData)
    assert isinstance(model, Decoder)
    return built, data, model


def clipped(model: torch.nn.Module, limit: float, algorithm: str | None) -> float:
    """Clips the gradients; what is compared with the limit."""
    if algorithm != "value":
        return torch.nn.utils.clip_grad_norm_(model.parameters(), limit).item()
    gradients = [p.grad for p in model.parameters() if p.grad is not None]
    largest = max(gradient.abs().max().item() for gradient in gradients)
    for gradient in gradients:
        gradient.clamp_(-limit, limit)
    return largest


def bare_loop(cell: Cell) -> tuple[dict[str, torch.Tensor], list[float], list[float]]:
    """The same training in plain PyTorch: weights, losses, and gradient norms, or what else they are clipped by."""
    built, data, model = prepared(cell)
    settings, clip = cell.config["trainer"], cell.config["trainer"]["gradient_clip_val"]
    optimizer, schedule = built.optim.build(model.parameters(), settings["max_steps"])
    losses, norms = [], []
    for batch in data.training_batches(0, settings["max_steps"]):
        loss = built.optim.objective.loss(model(*batch.inputs).flatten(0, 1), batch.targets_bt.flatten())
        optimizer.zero_grad()
        loss.backward()
        norms.append(clipped(model, clip, settings["gradient_clip_algorithm"]))
        optimizer.step()
        schedule.step()
        losses.append(loss.item())
    return dict(model.state_dict()), losses, norms


def test_training_is_the_bare_loop(tmp_path: Path) -> None:
    cell, record = run(tmp_path, {"trainer.log_every_n_steps": 1})
    expected, losses, norms = bare_loop(cell)
    rows = [row for row in history(tmp_path, cell) if row["train_loss"]]
    assert [float(row["train_loss"]) for row in rows] == pytest.approx(losses, rel=1e-12)
    assert [float(row["gradient_norm"]) for row in rows] == pytest.approx(norms, rel=1e-9)
    assert max(norms) > 1, "clipping must have been at work"
    for name, value in weights(tmp_path, cell).items():
        torch.testing.assert_close(value, expected[name], rtol=1e-9, atol=1e-12)
    assert record["metrics"]["gradient_norm"] == pytest.approx(sum(norms) / len(norms), rel=1e-9)


@pytest.mark.parametrize(("algorithm", "limit"), [("norm", 1.22), ("value", 0.255)])
def test_clipping_equals_the_bare_loop_and_is_counted(tmp_path: Path, algorithm: str, limit: float) -> None:
    changes = {"trainer.gradient_clip_algorithm": algorithm, "trainer.gradient_clip_val": limit}
    cell, record = run(tmp_path, changes)
    expected, _, compared = bare_loop(cell)
    share = sum(one > limit for one in compared) / 12
    assert 0 < share < 1
    assert record["metrics"]["clipped_share"] == pytest.approx(share, rel=1e-12)
    for name, value in weights(tmp_path, cell).items():
        torch.testing.assert_close(value, expected[name], rtol=1e-9, atol=1e-12)


def test_the_record_holds_what_a_second_evaluation_finds(tmp_path: Path) -> None:
    cell, record = run(
        tmp_path, {"optim.objective": {"class_path": "CrossEntropy", "init_args": {"label_smoothing": 0.2}}}
    )
    _, data, model = prepared(cell)
    model.load_state_dict(weights(tmp_path, cell))
    with torch.no_grad():
        batches = list(data.evaluation_batches("validation"))
        logits = torch.cat([model(*batch.inputs).flatten(0, 1) for batch in batches])
        targets = torch.cat([batch.targets_bt.flatten() for batch in batches])
    nll = torch.nn.functional.cross_entropy(logits, targets).item()
    measured = record["metrics"]
    assert measured["nll"] == pytest.approx(nll, rel=1e-12), "evaluation never smooths"
    assert measured["perplexity"] == pytest.approx(math.exp(nll), rel=1e-12)
    assert measured["bits_per_byte"] == pytest.approx(nll / math.log(2), rel=1e-12), "a byte a token"
    assert measured["accuracy"] == pytest.approx((logits.argmax(-1) == targets).double().mean().item(), abs=1e-12)
    smoothed = bare_loop(cell)[1][-3:]
    assert measured["train_loss"] == pytest.approx(sum(smoothed) / 3, rel=1e-9), "the objective is smoothed"
    assert known(record["evaluated"])["tokens"] == len(targets) == data.count_rows("validation") * 16
    assert sum(known(record["reliability"])["count"]) == len(targets)


def test_the_record_is_complete(tmp_path: Path) -> None:
    cell, record = run(tmp_path)
    assert record["status"] == "ok"
    assert record["id"] == cell.id == Store(tmp_path).directory(cell.id).name
    assert record["steps"] == 12
    assert record["cost"]["parameters"] == sum(p.numel() for p in prepared(cell)[2].parameters())
    assert record["cost"]["tokens"] == 12 * 8 * 16
    assert known(record["cost"]["tokens_per_second"]) > 0
    assert known(record["cost"]["peak_memory"]) > 0
    blocks = (cell.facts.tokens["train"] - 1) // 16
    assert record["pairing"] == {"order": order_hash(0, 12, 8, blocks), "batches": 12}
    assert record["provenance"]["packages"]["torch"] == torch.__version__
    assert known(record["curve"])["rows"] == len(history(tmp_path, cell))
    assert record["curve"] == curve_checksum(Store(tmp_path).history(cell.id).read_text())
    names = {path.name for path in Store(tmp_path).directory(cell.id).iterdir()}
    assert names == {"config.yaml", "record.json", "history.csv", "documents.npz", "test_documents.npz", "last.ckpt"}
    assert not Store(tmp_path).work(cell.id).exists()


@pytest.mark.extra
def test_accumulating_two_batches_is_training_on_their_union(tmp_path: Path) -> None:
    whole = {"trainer.val_check_interval": 100, "data.evaluation_batch_size": 8}
    halves = {**whole, "data.batch_size": 4, "trainer.accumulate_grad_batches": 2}
    one, first = run(tmp_path, whole)
    two, second = run(tmp_path, halves)
    assert first["steps"] == second["steps"] == 12
    assert first["cost"]["tokens"] == second["cost"]["tokens"]
    for name, value in weights(tmp_path, one).items():
        torch.testing.assert_close(weights(tmp_path, two)[name], value, rtol=1e-9, atol=1e-12)
    for name in ("nll", "accuracy", "ece", "train_loss", "gradient_norm"):
        assert second["metrics"][name] == pytest.approx(first["metrics"][name], rel=1e-9)


def comparable(record: Record) -> dict[str, Any]:
    """A record without what time and place decide."""
    kept = {key: value for key, value in record.items() if key != "provenance"}
    counted = ("parameters", "tokens", "flops_per_token", "world_size")
    return {**kept, "cost": {key: record["cost"][key] for key in counted}}


def of(name: str, **options: Any) -> dict[str, Any]:
    return {"class_path": name, "init_args": options}


ROWS = {"trainer.log_every_n_steps": 1}
STOPPED: dict[str, dict[str, Any]] = {
    "plain": {},
    "dropout": {"model.dropout": 0.1},
    "accumulation": {"data.batch_size": 4, "trainer.accumulate_grad_batches": 2, "trainer.val_check_interval": 6},
    "validation off beat": {"trainer.log_every_n_steps": 2, "trainer.val_check_interval": 3},
    "every step": {**ROWS, "trainer.val_check_interval": 1},
    "every batch": {**ROWS, "trainer.val_check_interval": 1, "trainer.accumulate_grad_batches": 2},
    "last window short": {"trainer.log_every_n_steps": 5, "trainer.val_check_interval": 100},
    "average": {**ROWS, "trainer.ema": {"decay": 0.6}, "trainer.accumulate_grad_batches": 2},
    "beta2": {"optim.beta2_warmup": True, "optim.schedule": of("WarmupStableDecay", warmup=3)},
    "muon": {
        "optim.beta2_warmup": True,
        "optim.optimizer": "MuonAdamW",
        "optim.schedule": of("WarmupLinear", warmup=3),
    },
    "sgd": {
        "optim.optimizer": of("SGD", momentum=0.9, nesterov=True, weight_decay=0.1),
        "optim.schedule": of("InverseSquareRoot", warmup=4),
    },
    "rmsprop": {"optim.optimizer": "RMSprop", "optim.objective.z_loss": 1e-3},
    "cautious": {**ROWS, "optim.cautious": True, "optim.decay": "all"},
    **{kind: {**ROWS, "model.prediction": of(kind, heads=2)} for kind in ("ParallelHeads", "SequentialHeads")},
}
PACKAGE: dict[str, dict[str, Any]] = {
    "Lion": {},
    "SOAP": {"precondition_frequency": 2},
    "Adan": {},
    "ScheduleFreeAdamW": {"warmup_steps": 2},
}
IN_CI = ("dropout", "every batch", "muon", "ScheduleFreeAdamW")


def with_optimizer_of_package(name: str) -> dict[str, Any]:
    pytest.importorskip("pytorch_optimizer", reason="needs pytorch_optimizer: pip install 'lm-ablations[optimizers]'")
    optimizer = of(f"pytorch_optimizer.{name}", weight_decay=0.1, **PACKAGE[name])
    return {**ROWS, "optim.optimizer": optimizer, "optim.lr": 0.003}


@pytest.mark.parametrize(
    "name", [name if name in IN_CI else pytest.param(name, marks=pytest.mark.extra) for name in (*STOPPED, *PACKAGE)]
)
def test_a_run_killed_repeatedly_equals_the_run_never_stopped(tmp_path: Path, name: str) -> None:
    changes = with_optimizer_of_package(name) if name in PACKAGE else STOPPED[name]
    cell, whole = run(tmp_path / "whole", changes)
    store = Store(tmp_path / "killed")
    kills, last = 0, 0

    def kill(step: int, steps: int, loss: float) -> None:
        nonlocal kills, last
        if step > last + 1 and step < steps:
            kills, last = kills + 1, step
            raise Killed

    for _ in range(20):
        try:
            train(cell, store, kill, ALWAYS)
            break
        except Killed:
            assert not store.finished(cell.id)
    assert kills >= 1
    assert comparable(store.record(cell.id)) == comparable(whole)
    assert history(tmp_path / "killed", cell) == history(tmp_path / "whole", cell)
    assert validate_curve_text(store.history(cell.id).read_text(), {"steps": 12}) == "", (
        "no curve without a seal is taken for damaged"
    )
    assert store.record(cell.id)["provenance"]["resumed"] == kills
    expected = weights(tmp_path / "whole", cell)
    for name, value in weights(tmp_path / "killed", cell).items():
        assert torch.equal(value, expected[name]), name


def test_a_clock_set_back_changes_no_duration(tmp_path: Path, monkeypatch: Patch) -> None:
    days = itertools.count(0, -86400)
    monkeypatch.setattr(
        "lm.training.train.time", SimpleNamespace(time=lambda: time.time() + next(days), monotonic=time.monotonic)
    )
    _, record = run(tmp_path)
    origin = record["provenance"]
    assert origin["finished"] < origin["started"]
    assert 0 < origin["seconds"] < 3600


def test_a_kill_between_outcome_and_record_loses_nothing(tmp_path: Path, monkeypatch: Patch) -> None:
    cell, whole = run(tmp_path / "whole")
    store = Store(tmp_path / "killed")

    for place in ("lm.training.train.finish", "lm.store.store.Store.complete"):
        with monkeypatch.context() as patch:
            patch.setattr(place, killed)
            with pytest.raises(Killed):
                train(cell, store, silent, QUIET)
    assert not store.finished(cell.id)
    monkeypatch.setattr("lm.training.train.fit", killed)  # nothing is left to train
    train(cell, store, silent, QUIET)
    assert comparable(store.record(cell.id)) == comparable(whole)


@pytest.mark.parametrize(
    "place",
    [
        "lm.training.recorder.save_checkpoint",
        pytest.param("lm.training.recorder.write_atomic", marks=pytest.mark.extra),
        pytest.param("lm.training.train.write_atomic", marks=pytest.mark.extra),
        pytest.param("lm.store.store.write_atomic", marks=pytest.mark.extra),
    ],
)
def test_a_full_disk_is_no_result(tmp_path: Path, monkeypatch: Patch, place: str) -> None:
    def full(*_: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device", "somewhere")

    cell, whole = run(tmp_path / "whole")
    store = Store(tmp_path / "full")
    with monkeypatch.context() as patch:
        patch.setattr(place, full)
        with pytest.raises(OSError, match="No space left on device"):
            train(cell, store, silent, ALWAYS)
    assert not store.finished(cell.id)
    train(cell, store, silent, ALWAYS)
    assert comparable(store.record(cell.id)) == comparable(whole)
    assert history(tmp_path / "full", cell) == history(tmp_path / "whole", cell)


def test_an_error_after_a_lost_lease_is_no_failure(tmp_path: Path, check_message: CheckMessage) -> None:
    cell, whole = run(tmp_path / "whole")
    store = Store(tmp_path / "removed")

    def remove(step: int, steps: int, loss: float) -> None:
        if step > 6:
            for lease in (store.cells / ".leases" / cell.id).iterdir():
                lease.unlink()
            shutil.rmtree(store.work(cell.id))  # as whoever takes the cell over next may
            raise FileNotFoundError(errno.ENOENT, "a file that another took away")

    with pytest.raises(LostError) as lost:
        train(cell, store, remove, ALWAYS)
    check_message(str(lost.value).replace(cell.id[:8], "ID"))
    assert not store.finished(cell.id)
    train(cell, store, silent, ALWAYS)
    assert comparable(store.record(cell.id)) == comparable(whole)
    assert history(tmp_path / "removed", cell) == history(tmp_path / "whole", cell)


def test_a_checkpoint_uses_no_temporary_folder(tmp_path: Path, monkeypatch: Patch) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "missing"))
    cell, store = check(RUN), Store(tmp_path / "out")

    with pytest.raises(Killed):
        train(cell, store, kill_at(9), ALWAYS)
    assert (store.work(cell.id) / "last.ckpt").is_file()


def test_a_checkpoint_does_not_recreate_a_removed_folder(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError):
        InPlace().save_checkpoint({"weights": torch.zeros(3)}, tmp_path / "gone" / "saving.ckpt")
    assert not any(tmp_path.iterdir())


def test_a_damaged_checkpoint_costs_only_time(tmp_path: Path, capsys: Capture, check_message: CheckMessage) -> None:
    cell, whole = run(tmp_path / "whole")
    store = Store(tmp_path / "cut")

    with pytest.raises(Killed):
        train(cell, store, kill_at(9), ALWAYS)
    checkpoint = store.work(cell.id) / "last.ckpt"
    checkpoint.write_bytes(checkpoint.read_bytes()[:-1000])
    capsys.readouterr()
    train(cell, store, silent, ALWAYS)
    check_message(capsys.readouterr().err.splitlines())
    assert comparable(store.record(cell.id)) == comparable(whole)
    assert not store.record(cell.id)["provenance"]["resumed"]


@pytest.mark.extra
def test_a_damaged_outcome_costs_only_time(
    tmp_path: Path, monkeypatch: Patch, capsys: Capture, check_message: CheckMessage
) -> None:
    cell, whole = run(tmp_path / "whole")
    store = Store(tmp_path / "cut")

    with monkeypatch.context() as patch:
        patch.setattr("lm.training.train.evaluate_trained", killed)
        with pytest.raises(Killed):
            train(cell, store, silent, ALWAYS)
    outcome = store.work(cell.id) / "outcome.json"
    outcome.write_text(outcome.read_text()[:100])
    capsys.readouterr()
    train(cell, store, silent, ALWAYS)
    check_message(capsys.readouterr().err.splitlines())
    assert comparable(store.record(cell.id)) == comparable(whole)
    assert store.record(cell.id)["provenance"]["resumed"]


def test_who_does_not_hold_a_cell_writes_nothing_of_it(tmp_path: Path) -> None:
    cell, store = check(RUN), Store(tmp_path)
    with store.lock(cell.id):
        assert fail(cell, store, "process killed by SIGKILL", 1.0) is None
        assert not store.work(cell.id).exists()
    assert not store.finished(cell.id)
    record = fail(cell, store, "process killed by SIGKILL", 1.0)
    assert record is not None
    assert record["status"] == "failed"
    assert store.record(cell.id) == record
    assert fail(cell, store, "another", 1.0) == record, "a finished cell stays what it is"
    again = fail(cell, store, "another", 1.0, retrain=True)
    assert again is not None
    assert again["error"] == "another"


def test_a_finished_cell_is_not_trained_again(tmp_path: Path, monkeypatch: Patch) -> None:
    cell, first = run(tmp_path)
    monkeypatch.setattr("lm.training.train.fit", lambda *_: pytest.fail("trained again"))
    train(cell, Store(tmp_path), silent, QUIET)
    assert Store(tmp_path).record(cell.id) == first


def test_a_loss_that_is_not_finite_means_diverged(tmp_path: Path, check_message: CheckMessage) -> None:
    # Adam's first step is as long as the rate: weights of 1e200 overflow when multiplied.
    cell, record = run(tmp_path, {"optim.lr": 1e200, "optim.schedule": "Constant", "trainer.log_every_n_steps": 5})
    assert record["status"] == "diverged"
    diverged = known(record["diverged"])
    assert diverged["step"] == 2
    assert diverged["last_finite"]["train_loss"] == pytest.approx(bare_loop(cell)[1][0], rel=1e-12)
    assert math.isfinite(diverged["last_finite"]["gradient_norm"])
    assert record["metrics"] == {}
    check_message(known(record["error"]))
    json.dumps(record, allow_nan=False)


OWN = """
import os, sys
from lm.model.mlp import ReLU

class OnceTrained(ReLU):
    \"\"\"Does something once it is trained on more than the one row of a plan.\"\"\"
    def forward(self, x_btd):
        if self.training and len(x_btd) > 1:
            self.act()
        return super().forward(x_btd)

class Exits(OnceTrained):
    def act(self):
        sys.exit(0)

class Broken(OnceTrained):
    def act(self):
        raise RuntimeError("out of luck with " + os.environ["SOME_API_KEY"])
"""


@pytest.mark.parametrize("cls", ["Exits", "Broken"])
def test_an_exception_is_a_record_that_keeps_no_secret(
    tmp_path: Path, monkeypatch: Patch, cls: str, check_message: CheckMessage
) -> None:
    monkeypatch.setenv("SOME_API_KEY", "0123456789abcdef")
    name = own_module(tmp_path, monkeypatch, OWN)
    cell, record = run(tmp_path / "out", {"model.mlp": f"{name}.{cls}"})
    assert record["status"] == "failed"
    check_message(known(record["error"]).replace(name, "own"))
    trace = known(record["traceback"])
    assert "Traceback" in trace
    files = [path for path in (tmp_path / "out").rglob("*") if path.is_file()]
    assert trace in (Store(tmp_path / "out").directory(cell.id) / "log.txt").read_text()
    assert not [path for path in files if b"0123456789abcdef" in path.read_bytes()]


def test_the_identity_ignores_paths_and_execution(tmp_path: Path) -> None:
    text = "".join(f"line {i} of a text\n" for i in range(2000))
    ids = set()
    for name in ("a.txt", "b.txt"):
        (tmp_path / name).write_text(text)
        corpus = {"class_path": "LocalText", "init_args": {"path": str(tmp_path / name), "document": "line"}}
        for extra in ({}, {"trainer.log_every_n_steps": 7}, {"trainer.devices": 2, "trainer.strategy": "ddp"}):
            ids.add(check(override(RUN, {"data.corpus": corpus, **extra})).id)
    assert len(ids) == 1


@pytest.mark.parametrize(
    "changes",
    [
        {"seed": 1},
        {"optim.lr": 0.011},
        {"model.norm": "RMSNorm"},
        {"trainer.max_steps": 13},
        {"trainer.precision": "32-true"},
        {"trainer.gradient_clip_val": None},
        {"data.context": 15},
        {"data.split": [0.7, 0.2, 0.1]},
        {"data.corpus.size": 60001},
        {"data.tokenizer": "Characters"},
    ],
    ids=str,
)
def test_identity_changes_with_what_is_computed(changes: dict[str, Any]) -> None:
    assert check(override(RUN, changes)).id != check(RUN).id


def test_arms_share_batches_and_initial_parameters_by_seed(tmp_path: Path) -> None:
    base, first = run(tmp_path)
    arm, second = run(tmp_path, {"model.norm": "RMSNorm", "model.position": "Alibi"})
    assert second["pairing"] == first["pairing"]
    left, right = (dict(prepared(cell)[2].named_parameters()) for cell in (base, arm))
    for name in left.keys() & right.keys():
        assert torch.equal(left[name], right[name]), name


def test_training_beats_the_best_that_single_characters_could_do(tmp_path: Path) -> None:
    changes = {"trainer.max_steps": 300, "trainer.val_check_interval": 300, "trainer.precision": "32-true"}
    cell, record = run(tmp_path, {**changes, "data.batch_size": 16})
    data = prepared(cell)[1]
    assert data.tokens is not None
    counts = torch.bincount(torch.from_numpy(data.tokens.split["validation"].astype("int64")))
    entropy = -(counts / counts.sum() * (counts / counts.sum()).clamp(min=1e-12).log()).sum().item()
    assert known(record["metrics"]["nll"]) < entropy - 0.3


def test_a_metric_that_no_table_knows_is_kept(tmp_path: Path, monkeypatch: Patch, check_message: CheckMessage) -> None:
    def more(statistics: TokenStatistics) -> dict[str, Any]:
        return {**compute(statistics), "my_metric": 1.25, "my_list": [1]}

    compute = TokenStatistics.compute
    monkeypatch.setattr(TokenStatistics, "compute", more)
    record = run(tmp_path)[1]
    assert record["status"] == "ok"
    assert record["metrics"]["my_metric"] == 1.25
    check_message([flag for flag in record["flags"] if flag.startswith("my_list")])


def test_the_final_evaluation_reuses_the_last_validation(tmp_path: Path, monkeypatch: Patch) -> None:
    """And measures what it would have measured without one."""
    read: list[int] = []
    plain = LanguageModel.validation_step

    def counted(self: LanguageModel, batch: Any, batch_idx: int) -> None:
        read.append(self.global_step)
        plain(self, batch, batch_idx)

    monkeypatch.setattr(LanguageModel, "validation_step", counted)
    records = []
    for every in (3, 4):
        changes = {"trainer.max_steps": 6, "trainer.val_check_interval": every, "trainer.limit_val_batches": 2}
        cell, store = check(override(RUN, changes)), Store(tmp_path)
        train(cell, store, lambda *_: None, Execution(threads=1))
        records.append(store.record(cell.id))
    blocks = len(cell.open().data.evaluation_batches("validation"))
    assert blocks > 2
    assert read == [3, 3, *[6] * blocks, 4, 4, *[6] * blocks]
    assert {**records[0]["metrics"], "noise_scale": 0} == {**records[1]["metrics"], "noise_scale": 0}
    assert records[0]["reliability"] == records[1]["reliability"]
    assert records[0]["final"] == records[1]["final"]

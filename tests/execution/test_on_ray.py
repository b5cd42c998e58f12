"""Cells on a Ray cluster: what travels to a node and back, and a cell whose actor is lost."""

import os
import sys
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import stand_in
from helpers import Patch
from stand_in import StandIn
from stand_in_task import CellTrainer as StandInTrainer

from lm import __version__
from lm.config.tree import InputError
from lm.data.tokens import TextStats
from lm.execution import on_ray
from lm.execution.executor import Executor, Job
from lm.execution.factory import make_executor
from lm.execution.on_ray import (
    CellTrainer,
    Changes,
    Order,
    code_of,
    files_below,
    unpack,
    unpack_cell,
    write_files,
)
from lm.store.store import Store


def write(folder: Path, **files: str) -> Path:
    for name, content in files.items():
        path = folder / name.replace("__", "/").replace("_", ".")
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(content)
    return folder


def read(folder: Path) -> dict[str, str]:
    return {str(path.relative_to(folder)): path.read_text() for path in sorted(folder.rglob("*")) if path.is_file()}


def test_files_are_sent_in_pieces(tmp_path: Path, monkeypatch: Patch) -> None:
    monkeypatch.setattr(on_ray, "PIECE", 4)
    folder = write(tmp_path / "a", last_ckpt="0123456789", code__module_py="x = 1", empty_txt="", saving_ckpt="half")
    (folder / ".hidden").write_text("not whole")
    sent: list[bytes] = []

    def put(piece: bytes) -> int:
        sent.append(piece)
        return len(sent) - 1

    files = files_below(folder, put, ("saving.ckpt",))
    assert max(map(len, sent)) == 4
    unpack(files, lambda place: sent[place], tmp_path / "b")
    assert read(tmp_path / "b") == {"last.ckpt": "0123456789", "code/module.py": "x = 1", "empty.txt": ""}
    assert files_below(tmp_path / "nothing", put) == []


def test_prepared_text_is_sent_to_a_node_once(tmp_path: Path, monkeypatch: Patch) -> None:
    folder = write(tmp_path / "here" / "tokens" / "abc", train_npy="ids", facts_json="{}")
    facts = TextStats(str(folder), "text", "tokenizer", 9, {}, {}, {}, {})
    cell: Any = replace(StandIn("a" * 16), facts=facts)
    asked: list[bytes] = []

    def get(piece: bytes) -> bytes:
        asked.append(piece)
        return piece

    sent = Order(cell, cell, "cell a", 1, files_below(folder, bytes), [], [])
    monkeypatch.setenv("LM_CACHE", str(tmp_path / "there"))
    for _ in range(2):
        there = unpack_cell(sent, get, tmp_path / "code")
        assert there.facts.folder == str(tmp_path / "there" / "tokens" / "abc")
        assert (tmp_path / "there" / "tokens" / "abc" / "train.npy").read_text() == "ids"
        assert len(asked) == 2
    (tmp_path / "there" / "tokens" / "abc" / "train.npy").write_text("other")
    unpack_cell(sent, get, tmp_path / "code")
    assert (tmp_path / "there" / "tokens" / "abc" / "train.npy").read_text() == "ids"


def test_user_modules_are_sent_with_the_cell(tmp_path: Path, monkeypatch: Patch) -> None:
    write(tmp_path / "own", parcelled____init___py="", parcelled__parts_py="from parcelled import more\nclass A: ...")
    (tmp_path / "own" / "parcelled" / "__init__.py").write_text("")
    (tmp_path / "own" / "parcelled" / "more.py").write_text("X = 1\n")
    monkeypatch.setattr(sys, "path", [str(tmp_path / "own"), *sys.path])
    cell: Any = replace(StandIn("a" * 16), config={"model": {"class_path": "parcelled.parts.A"}})
    code = code_of(cell)
    assert [module for module, _, _ in code] == ["parcelled", "parcelled.more", "parcelled.parts"]
    unpack_cell(Order(cell, cell, "cell a", 1, [], [], code), bytes, tmp_path / "there")
    assert sys.path[-1] == str(tmp_path / "there")
    written = (tmp_path / "there" / "parcelled" / "parts.py").stat()
    unpack_cell(Order(cell, cell, "cell a", 1, [], [], code), bytes, tmp_path / "there")
    assert (tmp_path / "there" / "parcelled" / "parts.py").stat() == written
    assert read(tmp_path / "there").keys() == {"parcelled/__init__.py", "parcelled/more.py", "parcelled/parts.py"}


def test_changed_files_are_sent_with_checkpoints_and_at_the_end(tmp_path: Path) -> None:
    folder = write(tmp_path / "work", cell_json="{}", last_ckpt="1")
    changes = Changes(folder)
    assert changes.take(folder, whole=False) == {}
    write(folder, log_txt="a", progress_json="3", saving_ckpt="half")
    assert changes.take(folder, whole=False) == {"progress.json": b"3"}
    write(folder, last_ckpt="22")
    assert changes.take(folder, whole=False) == {"last.ckpt": b"22", "log.txt": b"a"}
    assert changes.take(folder, whole=True) == {}
    write(folder, history_csv="step\n")
    assert changes.take(folder, whole=True) == {"history.csv": b"step\n"}
    assert Changes(tmp_path / "nothing").take(tmp_path / "nothing", whole=True) == {}


def test_outcome_and_record_are_written_last(tmp_path: Path, monkeypatch: Patch) -> None:
    written: list[str] = []
    monkeypatch.setattr(on_ray, "write_atomic", lambda path, content: written.append(path.name))
    write_files(dict.fromkeys(["record.json", "outcome.json", "a.csv", "z.csv"], b""), tmp_path)
    assert written == ["a.csv", "z.csv", "outcome.json", "record.json"]


def order(cell: Any, version: str = __version__) -> Order:
    return Order(cell, stand_in.execution(), "cell a", 1, [], [], [], version)


@pytest.fixture
def node(light: None, monkeypatch: Patch) -> None:
    monkeypatch.setattr(sys.modules["__main__"], "__file__", None, raising=False)
    monkeypatch.setenv("OMP_NUM_THREADS", "1")


@pytest.mark.slow
@pytest.mark.parametrize(("answer", "outcome"), [(True, "recorded"), (False, "pruned")])
def test_an_actor_trains_one_cell_after_the_other(node: None, answer: bool, outcome: str) -> None:
    trainer = CellTrainer()
    for cell in ("a" * 16, "b" * 16):
        assert trainer.start(order(StandIn(cell, {5: "validate"})), bytes) == ([], {})
        messages: list[Any] = []
        while not messages or messages[-1][0] != "ended":
            messages, files = trainer.take()
            if any(message[0] == "validation" for message in messages):
                trainer.answer(answer)
        assert messages[-1][1] == outcome
        assert ("record.json" in files) == (outcome == "recorded")
        assert os.listdir(trainer.own.name) == []


def test_a_node_with_another_version_refuses_a_cell() -> None:
    with pytest.raises(InputError, match=r"has lm .*, and cells come from 0\.0; install the same there"):
        CellTrainer().start(order(StandIn("a" * 16), "0.0"), bytes)


# on a cluster --------------------------------------------------------------------------------------------------------


class Losing:
    """An executor whose every task is lost."""

    def __init__(self, store: Store, monkeypatch: Patch) -> None:
        pytest.importorskip("ray", reason="needs ray: pip install 'lm-ablations[ray]'")
        self.executor = on_ray.Ray.__new__(on_ray.Ray)
        Executor.__init__(self.executor, store, 1)
        monkeypatch.setattr("lm.training.train.fail", lambda *_: {})
        monkeypatch.setattr(self.executor, "_start_actor", self.start)
        self.starts = 0
        cell: Any = SimpleNamespace(id="a" * 16)
        execution: Any = SimpleNamespace(retrain=False)
        self.job = on_ray.OnRay(cell, execution, "arm")
        self.executor.jobs.append(self.job)
        self.most = on_ray.STARTS

    def start(self, job: Any) -> None:
        self.starts += 1

    def lose(self, has_started: bool) -> None:
        self.job.has_started = has_started
        self.executor._on_actor_lost(self.job, "lost")

    def outcomes(self) -> list[str]:
        return [message[1] for _, message in self.executor.messages if message[0] == "ended"]


@pytest.mark.extra
def test_a_task_lost_before_it_begins_is_not_counted(store: Store, monkeypatch: Patch) -> None:
    losing = Losing(store, monkeypatch)
    losing.lose(True)
    losing.lose(False)  # on a node that had gone too, which was not known
    assert (losing.starts, losing.outcomes()) == (2, [])
    losing.lose(True)
    assert losing.outcomes() == ["recorded"]


@pytest.mark.extra
def test_a_cell_whose_tasks_never_begin_is_lost(store: Store, monkeypatch: Patch) -> None:
    losing = Losing(store, monkeypatch)
    while not losing.outcomes():
        losing.lose(False)
    assert losing.outcomes() == ["recorded"]
    assert losing.starts == losing.most


@pytest.mark.extra
def test_no_more_tasks_run_than_the_cluster_has_cores(
    light: None, small_ray: None, store: Store, monkeypatch: Patch
) -> None:
    monkeypatch.setattr("lm.execution.on_ray.CellTrainer", StandInTrainer)
    running: set[Job] = set()
    most, ended = 0, 0
    with make_executor("ray", store, 4) as executor:
        for letter in "abcd":
            cell: Any = StandIn(letter * 16)
            executor.submit(cell, stand_in.execution(), f"cell {letter}")
        while ended < 4:
            for job, message in executor.poll(1.0):
                if message[0] == "started":
                    running.add(job)
                elif message[0] == "ended":
                    running.discard(job)
                    ended += 1
                most = max(most, len(running))
    assert most <= 2

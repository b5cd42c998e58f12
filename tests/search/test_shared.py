"""One study for several processes: none of its trials lost or done twice, its budget kept, through failures."""

import contextlib
import itertools
import os
import random
import re
import socket
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import optuna
import pytest
import sqlalchemy
from helpers import Patch
from messages import CheckMessage, Refused
from optuna.exceptions import StorageInternalError
from optuna.trial import TrialState
from search_world import GRID, SETTINGS, World, carry_out, cells_of_nothing, searching, spec
from sqlalchemy.exc import OperationalError, ProgrammingError

from lm.config.tree import InputError
from lm.execution.scheduler import Planned
from lm.search import storage
from lm.search.spec import Method, SweepSpec
from lm.search.storage import Backend, check_storage, journal, open_storage
from lm.search.study import open_study
from lm.search.trials import Searches
from lm.search.workers import LeaseRow, row_leases
from lm.store.leases import try_acquire


@pytest.fixture(autouse=True)
def _cells_of_nothing(monkeypatch: Patch) -> None:
    cells_of_nothing(monkeypatch)


@pytest.fixture(params=["journal", pytest.param("database", marks=pytest.mark.slow)])
def place(request: pytest.FixtureRequest, tmp_path: Path) -> str | None:
    """Where the study lies: a journal, or the rows of a database, whose rules are those of PostgreSQL."""
    return f"sqlite:///{tmp_path}/study.db" if request.param == "database" else None


def step(world: World, source: Searches, held: list[Planned]) -> bool:
    """Takes all that is due and ends the first; says whether anything happened."""
    while len(held) < world.workers and (planned := source.pop()):
        held.append(planned)
    if not held:
        return False
    planned = held.pop(0)
    record = world.answer(planned.cell.config)
    world.trained.append(planned.cell.config)
    source.ended(planned, record)
    return True


def study_of(one: SweepSpec, folder: Path) -> list[optuna.trial.FrozenTrial]:
    found = open_storage(one, journal(one, folder / one.name))
    return optuna.load_study(study_name=one.name, storage=found).get_trials()


@contextlib.contextmanager
def both(folder: Path, one: SweepSpec) -> Iterator[list[tuple[World, Searches, list[Planned]]]]:
    """Two that work on a study, each as a process would see it; the results of each lie in a folder of its own."""
    worlds = [World(workers=2), World(workers=1)]
    with searching(folder, worlds[0], one) as first, searching(folder, worlds[1], one) as second:
        yield [(worlds[0], first, []), (worlds[1], second, [])]


@pytest.mark.parametrize(
    "seed", [0, *(pytest.param(seed, marks=[pytest.mark.slow, pytest.mark.extra]) for seed in (1, 2))]
)
@pytest.mark.parametrize("name", ["random", "grid", "tpe"])
def test_two_processes_share_a_study_without_losing_or_repeating_trials(
    tmp_path: Path, place: str | None, name: str, seed: int
) -> None:
    one = spec(GRID, trials=7, sampler=Method(name), storage=place)
    with both(tmp_path, one) as two:
        turns = random.Random(seed)
        while any(step(*who) for who in turns.sample(two, 2)):
            pass
        for _, source, _ in two:
            source.refresh()
            assert not source.blocked_on()
    found = study_of(one, tmp_path)
    assert [trial.state for trial in found] == [TrialState.COMPLETE] * 7
    done = [tree for world, _, _ in two for tree in world.trained]
    assert len(done) == 7
    assert all(world.trained for world, _, _ in two)
    if name == "grid":
        assert len({str(tree) for tree in done}) == 7


def without_holder(lines: Iterable[str]) -> list[str]:
    """Lines without the name of this process, which holds every seat."""
    here = rf"process {os.getpid()} on host {re.escape(socket.gethostname())} since (\S+ )?\d\d:\d\d"
    return [re.sub(here, "HOLDER", line) for line in lines]


def test_each_process_reports_what_the_other_does(
    tmp_path: Path, place: str | None, check_message: CheckMessage
) -> None:
    one = spec(trials=2, storage=place)
    with both(tmp_path, one) as ((world, first, held), (other, second, theirs)):
        for source, kept in ((first, held), (second, theirs)):
            planned = source.pop()
            assert planned is not None
            kept.append(planned)
        assert second.pop() is None
        check_message(without_holder(second.blocked_on()))
        assert step(world, first, held)
        second.refresh()
        first.refresh()
    assert [(name, outcome.split(",")[0], cells) for name, outcome, cells in other.said if cells] == [
        ("s trial 0", "complete", 1)
    ]
    for said in (world.said, other.said):
        check_message(without_holder(outcome for name, outcome, _ in said if name == "s"))


def test_a_trial_that_one_process_leaves_is_resumed_at_once(tmp_path: Path, place: str | None) -> None:
    one = spec(trials=3, storage=place)
    world, other = World(workers=2), World()
    with searching(tmp_path, world, one) as first:
        with searching(tmp_path, other, one) as second:
            left = second.pop()
            assert left is not None
            mine = [first.pop(), first.pop()]
            assert None not in mine
            assert first.pop() is None
            assert first.blocked_on()
        first.refresh()  # the other has gone, in the middle of its trial
        taken = first.pop()
        assert taken is not None
        assert taken.cell.config == left.cell.config
        for planned in (*mine, taken):
            assert planned is not None
            first.ended(planned, world.answer(planned.cell.config))
        assert first.pop() is None
        assert not first.blocked_on()
    assert [(t.state, t.user_attrs.get("taken_up")) for t in study_of(one, tmp_path)] == [
        (TrialState.COMPLETE, 1),
        (TrialState.COMPLETE, None),
        (TrialState.COMPLETE, None),
    ]


def test_concurrent_processes_suggest_different_values(tmp_path: Path) -> None:
    one = spec(trials=6, sampler=Method("random"))
    alone = [trial.params for trial in carry_out(tmp_path / "alone", World(), one)]
    with both(tmp_path / "shared", one) as (first, second):
        for _ in range(3):
            assert step(*first)
        assert step(*second)
    shared = [trial.params for trial in study_of(one, tmp_path / "shared")]
    assert shared[:2] == alone[:2]  # of two at a time, and of those after these
    assert len({tuple(params.values()) for params in shared}) == len(shared)


def test_a_process_that_joins_during_a_draw_keeps_its_trial(tmp_path: Path, monkeypatch: Patch) -> None:
    one = spec(trials=2)
    theirs: list[Planned | None] = []
    with contextlib.ExitStack() as stack:
        first = stack.enter_context(searching(tmp_path, World(), one))
        workers = first.searches[0].workers
        real = workers.mutex

        def mutex() -> Any:
            if not theirs:
                theirs.append(None)
                theirs[0] = stack.enter_context(searching(tmp_path, World(), one)).pop()
            return real()

        monkeypatch.setattr(workers, "mutex", mutex)
        mine = first.pop()
        assert mine is not None
        assert theirs[0] is not None
        assert mine.arm != theirs[0].arm
        assert first.pop() is None


def test_an_evicted_process_registers_again_and_counts_no_trial_twice(
    tmp_path: Path, place: str | None, check_message: CheckMessage
) -> None:
    one = spec(trials=2, storage=place)
    with both(tmp_path, one) as ((world, first, _), (_, second, theirs)):
        silent = first.pop()
        assert silent is not None
        seat = first.searches[0].workers.slot
        assert seat is not None
        seat.release()  # as the other sees it, who takes the seat and the trial
        with searching(tmp_path, World(), one) as third:
            again = third.pop()
            assert again is not None
            assert again.cell.config == silent.cell.config
            third.ended(again, world.answer(again.cell.config))
            first.ended(silent, world.answer(silent.cell.config))
        assert first.searches[0].spent == 0
        more = first.pop()
        assert more is not None
        assert first.searches[0].workers.slot is not seat
        assert second.pop() is None
        assert second.blocked_on()
        first.ended(more, world.answer(more.cell.config))
        assert not theirs
    assert [trial.state for trial in study_of(one, tmp_path)] == [TrialState.COMPLETE] * 2
    check_message([outcome for name, outcome, cells in world.said if name == silent.arm and not cells])


# storages that fail --------------------------------------------------------------------------------------------------


class Flaky:
    """Makes each write of a storage fail at its turn, before it is made or after: nobody knows which."""

    def __init__(self, monkeypatch: Patch, kind: type, methods: list[str]) -> None:
        self.left: Iterator[str] = iter(())
        for name in methods:
            self._wrap(monkeypatch, kind, name)

    def _wrap(self, monkeypatch: Patch, kind: type, name: str) -> None:
        real = getattr(kind, name)

        def call(*args: Any, **named: Any) -> Any:
            what = next(self.left, "")
            if what == "before":
                raise StorageInternalError("gone")
            found = real(*args, **named)
            if what == "after":
                raise StorageInternalError("gone")
            return found

        monkeypatch.setattr(kind, name, call)


WRITES = ["create_new_trial", "set_trial_param", "set_trial_user_attr", "set_trial_state_values"]


@pytest.mark.parametrize("when", ["before", "after"])
@pytest.mark.parametrize("name", ["random", "grid"])
def test_a_storage_that_fails_at_any_write_loses_no_trial(
    tmp_path: Path, monkeypatch: Patch, place: str | None, when: str, name: str
) -> None:
    monkeypatch.setattr(storage, "TRY_SECONDS", 0.0)
    one = spec(GRID, trials=3, sampler=Method(name), storage=place)
    kind = optuna.storages.RDBStorage if place else optuna.storages.JournalStorage
    flaky = Flaky(monkeypatch, kind, WRITES)
    world = World()
    with searching(tmp_path, world, one) as source:
        flaky.left = itertools.chain(*([["", when], [when], ["", "", when]] * 8))
        world.run(source)
        assert next(flaky.left, None) is None or len(world.trained) == 3
    found = [trial for trial in study_of(one, tmp_path) if trial.state != TrialState.WAITING]
    assert [trial.state for trial in found] == [TrialState.COMPLETE] * 3
    assert not [trial for trial in found if "taken_up" in trial.user_attrs]
    assert len(world.trained) == 3


@pytest.mark.parametrize("words", storage.DAMAGED)
def test_a_damaged_database_is_reported_without_waiting(monkeypatch: Patch, words: str, refused: Refused) -> None:
    def broken() -> None:
        raise StorageInternalError("An exception is raised during the commit.") from ValueError(words)

    waits: list[float] = []
    monkeypatch.setattr("time.sleep", waits.append)
    monkeypatch.setattr(storage, "WAIT_SECONDS", 0.0)
    with refused():
        storage.RetryingStorage("sqlite:////x/study.db", print)(broken)
    assert waits == []


def test_an_unreachable_storage_ends_with_one_line_and_resumes(
    tmp_path: Path, monkeypatch: Patch, refused: Refused, check_message: CheckMessage
) -> None:
    monkeypatch.setattr(storage, "TRY_SECONDS", 0.0)
    monkeypatch.setattr(storage, "WAIT_SECONDS", 0.05)
    one = spec(trials=3)
    told: list[str] = []
    with monkeypatch.context() as broken, searching(tmp_path, World(), one) as source:
        source.searches[0].shared.say = told.append
        planned = source.pop()
        assert planned is not None
        flaky = Flaky(broken, optuna.storages.JournalStorage, ["get_all_trials"])
        flaky.left = itertools.repeat("before")
        with refused():
            source.pop()
    check_message(told)
    assert len(carry_out(tmp_path, World(), one)) == 3


def test_tables_created_by_two_processes_at_once_are_opened(tmp_path: Path, monkeypatch: Patch) -> None:
    monkeypatch.setattr(storage, "PAUSE_SECONDS", 0.0)
    tries = iter(range(2))

    def opened(url: str, **options: Any) -> str:
        if next(tries, None) is not None:
            cause = Exception('type "alembic_version" already exists')
            raise ProgrammingError("CREATE TABLE", {}, cause) from cause
        return "opened"

    monkeypatch.setattr(storage, "RDBStorage", opened)
    assert open_storage(spec(storage=f"sqlite:///{tmp_path}/a.db"), None) == "opened"  # type: ignore[comparison-overlap]


def test_a_lease_taken_during_a_failure_can_be_released(tmp_path: Path, monkeypatch: Patch) -> None:
    place = row_leases(sqlalchemy.create_engine(f"sqlite:///{tmp_path}/leases.db"), "s")
    real, answers = LeaseRow.create, iter(["taken, but not told"])

    def created(self: LeaseRow, *args: Any) -> bool:
        found = real(self, *args)
        if next(answers, ""):
            raise OperationalError("", {}, Exception("gone"))
        return found

    monkeypatch.setattr(LeaseRow, "create", created)
    with pytest.raises(OperationalError):
        try_acquire(place("turn"))
    with monkeypatch.context() as other:  # another process knows of nothing
        other.setattr("lm.store.leases._given_up", set())
        assert try_acquire(place("turn")) is None
    lease = try_acquire(place("turn"))
    assert lease is not None
    with monkeypatch.context() as broken:
        broken.setattr(LeaseRow, "write", lambda *_: next(iter(())))
        lease.release()
    after = try_acquire(place("turn"))
    assert after is not None
    after.release()
    assert place("turn").read().free()


def test_a_line_torn_during_a_search_is_cut_off(tmp_path: Path) -> None:
    one = spec(trials=4)
    with searching(tmp_path, World(), one) as source:
        planned = source.pop()
        assert planned is not None
        with (tmp_path / "s/study.journal").open("ab") as file:
            file.write(b'{"op_code": 4, "wor')
        source.ended(planned, World().answer(planned.cell.config))
        assert study_of(one, tmp_path)[0].state == TrialState.COMPLETE
    assert len(carry_out(tmp_path, World(), one)) == 4


def test_the_lock_of_a_journal_has_an_age(tmp_path: Path, monkeypatch: Patch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "out").mkdir()
    lock = Backend(Path("out/study.journal")).lock
    lock.acquire()
    assert (tmp_path / "out/study.journal.lock").stat()  # Optuna asks for its age, by which it knows
    lock.release()


# passwords -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "url", ["postgresql+pg://me:secret@host/db", "mysql://me:secret@host:x/db", "mysql://m:secret@"]
)
def test_a_wrong_url_hides_its_password(tmp_path: Path, url: str) -> None:
    with pytest.raises(InputError) as error:
        check_storage(spec(storage=url), tmp_path)
    assert "secret" not in str(error.value)
    assert "\n" not in str(error.value)


def test_a_database_that_cannot_be_opened_hides_its_password(tmp_path: Path) -> None:
    pytest.importorskip("psycopg", reason="needs the extra postgres")
    url = "postgresql://me:secret@127.0.0.1:1/db"
    with (
        pytest.raises(InputError, match="cannot be opened") as error,
        open_study(spec(storage=url), tmp_path, SETTINGS, False),
    ):
        pass
    assert "secret" not in str(error.value)
    assert "\n" not in str(error.value)

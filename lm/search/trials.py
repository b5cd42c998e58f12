"""Studies that say which cell to train next, and are told what became of it."""

import math
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import optuna
from optuna.exceptions import UpdateFinishedTrialError
from optuna.trial import FrozenTrial, TrialState

from lm.config.tree import InputError, canonical, override
from lm.execution.cell_queue import Planned
from lm.search.peers import PeerWorkers
from lm.search.spec import SweepSpec
from lm.search.study import CELLS, FINISHED_STATES, HOLDER, REASON, SECONDS, SharedStudy, resume_trial
from lm.store.record import Ending
from lm.store.redaction import redacted
from lm.store.store import Store
from lm.training.cell import Cell, check, with_seed

REST_SECONDS = 2.0
"""Between two looks for a trial where there was none to begin."""

Say = Callable[[str, str, int], None]
"""Told of cells that are settled without being trained: whose, how it went, and how many."""


@dataclass
class Open:
    """A trial that has been asked for and not told yet: a cell for each seed."""

    trial: optuna.trial.Trial
    cells: dict[int, Cell] = field(default_factory=dict)
    records: dict[int, Ending] = field(default_factory=dict)
    training: set[int] = field(default_factory=set)
    stopped: bool = False
    begun: float = field(default_factory=time.monotonic)


class Search:
    """One study. It knows nothing of processes: `ask` for a cell, then say how it went with `ended`.

    Args:
        spec: what is searched.
        shared: the study where trials are kept, and who else works on it.
        store: a cell that is finished there is not trained again.
        say: told of cells that need no training.
        label: put before the names of trials, where several studies share the workers.
        called: put before the numbers of trials in what loggers call their runs.
        changed: told that a trial has begun or ended.
    """

    def __init__(
        self,
        spec: SweepSpec,
        shared: SharedStudy,
        store: Store,
        say: Say,
        label: str = "",
        called: str = "",
        changed: Callable[[], None] = lambda: None,
    ) -> None:
        self.spec = spec
        self.shared = shared
        self.study = shared.study
        self.workers = shared.workers
        self.store = store
        self.say = say
        self.label = label
        self.called = called or f"{spec.name}/trial_"
        self.changed = changed
        self.open: dict[str, Open] = {}
        self.queue: list[Planned] = []
        self.points = spec.space.grid() if spec.sampler.name == "grid" else None
        self.peers = PeerWorkers(spec, self.workers, label, say)
        self.rest = 0.0
        found = shared.trials()
        self.spent = _spent(found)
        self.unfinished = sum(self._free(one) for one in found)
        self.peers.initialise(found)

    @property
    def left(self) -> int:
        """Cells to come, here or elsewhere, had every trial one for each seed."""
        to_begin = self.spec.trials - self.spent - len(self.open)
        return len(self.queue) + max(0, to_begin) * len(self.spec.seeds)

    def ask(self) -> Planned | None:
        """A cell to train, or None where none is due: before another ends, or for good."""
        while not self.queue:
            if time.monotonic() < self.rest or not self._another():
                return None
        planned = self.queue.pop(0)
        self.open[planned.arm].training.add(planned.seed)
        return planned

    def refresh(self) -> list[FrozenTrial]:
        """Sees what others have done since the last time, and says it; returns all trials."""
        found = self.shared.trials()
        self.spent = _spent(found)
        self.shared.retry(lambda: self.peers.refresh(found))
        if self._due(found):
            self.rest = 0.0
        return found

    def _another(self) -> bool:
        """Begins a trial that is free, or a new one; says whether there was any."""
        while self._due(self.refresh()):
            asked = self.shared.retry(self._asked)
            if isinstance(asked, int):
                self.say(f"{self.label}trial {asked}", "given up: every process that took it up ended", 0)
            elif asked is not None:
                self._begin(*asked)
                return True
        self.rest = time.monotonic() + REST_SECONDS
        return False

    def _asked(self) -> tuple[optuna.trial.Trial, dict[str, Any]] | int | None:
        """A trial and its changes, drawn in a turn; the number of one that was given up; None where none is due.

        It may fail at any point and be begun again: what it leaves then is a trial that is free.
        """
        with self.workers.mutex():
            self._register_again()
            self.peers.alive = self.workers.peers()  # nobody comes, or begins a trial, in another's turn
            found = self.study.get_trials(deepcopy=False)
            for one in found:
                if self._free(one):
                    trial = resume_trial(self.study, one, self.workers.signature(), self.workers.tokens)
                    if trial is None:
                        return one.number
                    break
            else:
                if _begun(found) >= self.spec.trials:
                    return None
                trial = self._next(found)
                if _begun(self.study.get_trials(deepcopy=False)) > self.spec.trials:  # asked for twice, or too late
                    self.study._storage.set_trial_state_values(trial._trial_id, TrialState.WAITING)
                    return None
                trial.set_user_attr(HOLDER, self.workers.signature())
            return trial, self.spec.space.suggest(trial)

    def _due(self, found: list[FrozenTrial]) -> bool:
        """Whether there may be a trial to begin: only a turn shows it for certain."""
        return _begun(found) < self.spec.trials or any(self._free(one) for one in found)

    def _free(self, one: FrozenTrial) -> bool:
        """Whether a trial is running that nobody alive carries out."""
        if one.state != TrialState.RUNNING:
            return False
        return not self.peers.owns(one) and f"{self.label}trial {one.number}" not in self.open

    def _register_again(self) -> None:
        """Signs anew what this process has open, where others took it for dead meanwhile."""
        if self.workers.is_evicted():
            self.workers.register()
            for one in self.open.values():
                if self.peers.is_own(self.study._storage.get_trial(one.trial._trial_id)):
                    one.trial.set_user_attr(HOLDER, self.workers.signature())

    def judge(self, planned: Planned, step: int, measured: Mapping[str, float]) -> bool:
        """Takes in what a validation measured at an optimiser step; says whether the cell goes on.

        With several seeds, the first decides for all.
        """
        one = self.open[planned.arm]
        objectives = list(self.spec.objectives)
        value = measured.get(objectives[0])
        if one.stopped or len(objectives) > 1 or planned.seed != self.spec.seeds[0]:
            return not one.stopped
        if value is None or not math.isfinite(value):
            return True  # the run ends as diverged by itself
        number = float(value)

        def stopped() -> bool:
            if step not in self.study._storage.get_trial(one.trial._trial_id).intermediate_values:
                one.trial.report(number, step)
            return one.trial.should_prune()

        try:
            one.stopped = self.shared.retry(stopped)
        except UpdateFinishedTrialError:  # by another process, which took this one for dead
            return True
        if one.stopped:
            self._drop(planned.arm)
        return not one.stopped

    def ended(self, planned: Planned, record: Ending | None) -> None:
        """Takes in a cell's record; None leaves its trial open for the next time."""
        if record is None:
            self._drop(planned.arm)
            return
        one = self.open[planned.arm]
        one.training.discard(planned.seed)
        one.records[planned.seed] = record
        if record["status"] != "ok":
            self._drop(planned.arm)
        if not one.training and not self._queued(planned.arm):
            self._settle(planned.arm)

    def _next(self, found: list[FrozenTrial]) -> optuna.trial.Trial:
        if self.points is not None and not any(one.state == TrialState.WAITING for one in found):
            tried = {canonical({**one.system_attrs.get("fixed_params", {}), **one.params}) for one in found}
            untried = [point for point in self.points if canonical(point) not in tried]
            self.study.enqueue_trial(untried[0])
        return self.study.ask()

    def _begin(self, trial: optuna.trial.Trial, changes: dict[str, Any]) -> None:
        """Makes a suggestion a trial of cells, and settles it at once where nothing is to be trained."""
        name = f"{self.label}trial {trial.number}"
        one = self.open[name] = Open(trial)
        try:
            first = check(override(self.spec.tree, {**changes, "seed": self.spec.seeds[0]}))
        except InputError as error:
            self._fail(name, str(error))
            self.say(name, f"failed: {error}", len(self.spec.seeds))
            return
        one.cells = {seed: with_seed(first, seed) for seed in self.spec.seeds}
        cells = {str(seed): cell.id for seed, cell in one.cells.items()}
        self.shared.retry(lambda: trial.set_user_attr(CELLS, cells))
        for seed, cell in one.cells.items():
            self.store.recover(cell.id)
            if self.store.finished(cell.id):
                one.records[seed] = self.store.record(cell.id)
                self.say(f"{name} seed {seed}", "trained already", 1)
            else:
                self.queue.append(Planned(name, seed, cell, f"{self.called}{trial.number}/{seed}"))
        self.changed()
        if not self._queued(name):
            self._settle(name)

    def _queued(self, name: str) -> bool:
        return any(planned.arm == name for planned in self.queue)

    def _drop(self, name: str) -> None:
        """Leaves out the trial's cells that have not begun."""
        dropped = [planned for planned in self.queue if planned.arm == name]
        self.queue = [planned for planned in self.queue if planned.arm != name]
        if dropped:
            self.say(name, "its other seeds are left out", len(dropped))

    def _settle(self, name: str) -> None:
        """Tells the study how a trial ended: one bad seed is a failed trial, one stopped seed a pruned one."""
        one = self.open[name]
        bad = [(seed, r) for seed, r in sorted(one.records.items()) if r["status"] in ("failed", "diverged")]
        if bad:
            seed, record = bad[0]
            self._fail(name, f"{record['status']}, seed {seed}: {record['error']}")
            return
        if any(record["status"] == "pruned" for record in one.records.values()) or len(one.records) < len(one.cells):
            self._tell(name, TrialState.PRUNED)
            return
        measured = [{**record["metrics"], **record["cost"]} for record in one.records.values()]
        values = []
        for quantity in self.spec.objectives:
            of_seeds = [found.get(quantity) for found in measured]
            numbers = [float(value) for value in of_seeds if value is not None]
            if len(numbers) < len(of_seeds):
                self._fail(name, f"{quantity} was not measured")
                return
            values.append(sum(numbers) / len(numbers))
        self._tell(name, TrialState.COMPLETE, values)

    def _fail(self, name: str, reason: str) -> None:
        self._tell(name, TrialState.FAIL, reason=redacted(reason))

    def _tell(self, name: str, state: TrialState, values: list[float] | None = None, reason: str | None = None) -> None:
        one = self.open[name]

        def told() -> bool:
            with self.workers.mutex():
                frozen = self.study._storage.get_trial(one.trial._trial_id)
                if not self.peers.is_own(frozen):
                    return False
                if frozen.state == TrialState.RUNNING:  # and not told already, before the storage failed
                    one.trial.set_user_attr(SECONDS, time.monotonic() - one.begun)
                    if reason is not None:
                        one.trial.set_user_attr(REASON, reason)
                    self.study.tell(frozen.number, values, state=state)
                return True

        mine = self.shared.retry(told)
        del self.open[name]
        self.rest = 0.0
        if mine:
            self.spent += 1
            self.peers.not_theirs.add(one.trial.number)
            self.changed()
        else:
            self.say(name, "another process carries it out, which took this one for dead", 0)


def _spent(found: list[FrozenTrial]) -> int:
    return sum(one.state in FINISHED_STATES for one in found)


def _begun(found: list[FrozenTrial]) -> int:
    """Trials that count against the budget; those that wait were never carried out."""
    return sum(one.state != TrialState.WAITING for one in found)

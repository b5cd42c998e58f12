"""Studies that say which cell to train next, and are told what became of it."""

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

import optuna
from optuna.trial import TrialState

from lm.config.tree import InputError, canonical, override
from lm.execution.source import Planned, Source
from lm.search.spec import SweepSpec
from lm.search.study import CELLS, REASON, left_running, spent
from lm.store.record import Ending
from lm.store.store import Store
from lm.training.cell import Cell, check, with_seed

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


class Search:
    """One study. It knows nothing of processes: `ask` for a cell, then say how it went with `ended`.

    Args:
        spec: what is searched.
        study: where trials are kept; this process must own it.
        store: a cell that is finished there is not trained again.
        say: told of cells that need no training.
        label: put before the names of trials, where several studies share the workers.
        called: put before the numbers of trials in what loggers call their runs.
        changed: told that a trial has begun or ended.
    """

    def __init__(
        self,
        spec: SweepSpec,
        study: optuna.Study,
        store: Store,
        say: Say,
        label: str = "",
        called: str = "",
        changed: Callable[[], None] = lambda: None,
    ) -> None:
        self.spec = spec
        self.study = study
        self.store = store
        self.say = say
        self.label = label
        self.called = called or f"{spec.name}/trial_"
        self.changed = changed
        self.spent = spent(study)
        self.open: dict[str, Open] = {}
        self.queue: list[Planned] = []
        self.points = spec.space.grid() if spec.sampler.name == "grid" else None
        self.unfinished = left_running(study)
        self.spent = spent(study)  # some of those may have been given up

    @property
    def left(self) -> int:
        """Cells to come, had every trial one for each seed."""
        to_begin = self.spec.trials - self.spent - len(self.open)
        return len(self.queue) + max(0, to_begin) * len(self.spec.seeds)

    def ask(self) -> Planned | None:
        """A cell to train, or None where none is due: before another ends, or for good."""
        while not self.queue:
            if self.unfinished:
                self._begin(self.unfinished.pop(0))
            elif self.spent + len(self.open) < self.spec.trials:
                self._begin(self._next())
            else:
                return None
        planned = self.queue.pop(0)
        self.open[planned.arm].training.add(planned.seed)
        return planned

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
        if step not in self.study.get_trials(deepcopy=False)[one.trial.number].intermediate_values:
            one.trial.report(value, step)
        one.stopped = one.trial.should_prune()
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

    def _next(self) -> optuna.trial.Trial:
        waiting = self.study.get_trials(deepcopy=False, states=(TrialState.WAITING,))
        if self.points is not None and not waiting:
            tried = {canonical(trial.params) for trial in self.study.get_trials(deepcopy=False)}
            untried = [point for point in self.points if canonical(point) not in tried]
            self.study.enqueue_trial(untried[0])
        return self.study.ask()

    def _begin(self, trial: optuna.trial.Trial) -> None:
        """Makes a suggestion a trial of cells, and settles it at once where nothing is to be trained."""
        name = f"{self.label}trial {trial.number}"
        one = self.open[name] = Open(trial)
        changes = self.spec.space.suggest(trial)
        try:
            first = check(override(self.spec.tree, {**changes, "seed": self.spec.seeds[0]}))
        except InputError as error:
            self._fail(name, str(error))
            self.say(name, f"failed: {error}", len(self.spec.seeds))
            return
        one.cells = {seed: with_seed(first, seed) for seed in self.spec.seeds}
        trial.set_user_attr(CELLS, {str(seed): cell.id for seed, cell in one.cells.items()})
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
        self.open[name].trial.set_user_attr(REASON, reason)
        self._tell(name, TrialState.FAIL)

    def _tell(self, name: str, state: TrialState, values: list[float] | None = None) -> None:
        self.study.tell(self.open.pop(name).trial.number, values, state=state)
        self.spent += 1
        self.changed()


class Searches(Source):
    """Several studies that share the workers, asked in turn; a cell that two trials want is trained once."""

    def __init__(self, searches: list[Search], store: Store) -> None:
        self.searches = list(searches)
        self.store = store
        self.waiting: dict[str, list[tuple[Search, Planned]]] = {}

    def take(self) -> Planned | None:
        idle = 0
        while idle < len(self.searches):
            search = self.searches.pop(0)
            self.searches.append(search)
            planned = search.ask()
            if planned is None:
                idle += 1
                continue
            idle = 0
            waiting = self.waiting.get(planned.cell.id)
            if waiting is not None:
                waiting.append((search, planned))
                search.say(planned.name, "is being trained for another trial", 1)
            elif self.store.finished(planned.cell.id):  # since it was asked for
                search.say(planned.name, "trained already", 1)
                search.ended(planned, self.store.record(planned.cell.id))
            else:
                self.waiting[planned.cell.id] = [(search, planned)]
                return planned
        return None

    def left(self) -> int:
        return sum(search.left for search in self.searches)

    def judge(self, planned: Planned, step: int, measured: Mapping[str, float]) -> bool:
        """Goes on while any trial that waits for the cell wants it to."""
        wishes = [search.judge(own, step, measured) for search, own in self.waiting[planned.cell.id]]
        return any(wishes)

    def ended(self, planned: Planned, record: Ending | None) -> None:
        for search, own in self.waiting.pop(planned.cell.id):
            search.ended(own, record)

"""Trials of a study: which cell to train next, the outcome of each trial, and what other processes do."""

import math
import time
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import optuna
from optuna.exceptions import UpdateFinishedTrialError
from optuna.trial import FrozenTrial, TrialState

from lm.config.tree import InputError, canonical, override
from lm.execution.scheduler import CellQueue, Planned
from lm.search.spec import SweepSpec
from lm.search.study import CELLS, FINISHED_STATES, HOLDER, REASON, SECONDS, SharedStudy, resume_trial
from lm.search.workers import format_process
from lm.store.locks import Holder
from lm.store.record import Ending
from lm.store.redaction import redacted
from lm.store.store import Store
from lm.training.cell import check, with_seed
from lm.training.identified import Cell

OUTCOMES = {TrialState.COMPLETE: "complete", TrialState.PRUNED: "pruned", TrialState.FAIL: "failed"}


REST_SECONDS = 2.0  # delay before another look for a trial when there was none to start
Say = Callable[[str, str, int], None]  # called for cells that need no training: name, outcome and number of cells


@dataclass
class OpenTrial:
    """A running trial of this process, with a cell for each seed."""

    trial: optuna.trial.Trial
    cells: dict[int, Cell] = field(default_factory=dict)
    records: dict[int, Ending] = field(default_factory=dict)
    training: set[int] = field(default_factory=set)
    stopped: bool = False
    started: float = field(default_factory=time.monotonic)


class Search:
    """One study, without processes: `ask` for a cell, then call `ended` with its record."""

    def __init__(
        self,
        spec: SweepSpec,  # of the search
        shared: SharedStudy,  # study of the trials, and the processes that work on it
        store: Store,  # of the cells; a finished one is not trained again
        say: Say,  # called for cells that need no training, and when another process comes, goes, or has ended a trial
        label: str = "",  # prefix of the names of trials, where several studies share the workers
        called: str = "",  # prefix of the numbers of trials in the names of runs in loggers
        changed: Callable[[], None] = lambda: None,  # called when a trial has started or ended
    ) -> None:
        self.spec, self.shared, self.store, self.say = spec, shared, store, say
        self.study, self.workers = shared.study, shared.workers
        self.label, self.called, self.changed = label, called or f"{spec.name}/trial_", changed
        self.open: dict[str, OpenTrial] = {}
        self.queue: list[Planned] = []
        self.points = spec.space.grid() if spec.sampler.name == "grid" else None
        self.rest = 0.0
        self.alive: dict[str, Holder] = self.workers.peers()
        self.reported: dict[str, Holder] = {}  # other processes that were reported, by token, as in `alive`
        self.at_work: Counter[str] = Counter()  # number of trials that each process runs, by token
        trials = shared.trials()
        # trials that are not reported: ended before this process came, by it, or reported already
        self.ended_trials = {trial.number for trial in trials if trial.state in FINISHED_STATES}
        self.unfinished = sum(map(self._is_free, trials))

    @property
    def spent(self) -> int:
        """Number of trials that have ended."""
        return len(self.ended_trials)

    @property
    def left(self) -> int:
        """Cells to come, here or elsewhere, if every trial has one for each seed."""
        to_begin = self.spec.trials - self.spent - len(self.open)
        return len(self.queue) + max(0, to_begin) * len(self.spec.seeds)

    def ask(self) -> Planned | None:
        """Return a cell to train, None if none is due until another ends, or ever."""
        while not self.queue:
            if time.monotonic() < self.rest or not self._start_trial():
                return None
        planned = self.queue.pop(0)
        self.open[planned.arm].training.add(planned.seed)
        return planned

    def refresh(self) -> list[FrozenTrial]:
        """Read and report what other processes have done; return all trials."""
        trials = self.shared.trials()
        self.alive = self.shared.retry(self.workers.peers)
        running = [_token(trial) for trial in trials if trial.state == TrialState.RUNNING]
        self.at_work = Counter(token for token in running if token in self.alive)
        for trial in trials:
            if trial.state in FINISHED_STATES and trial.number not in self.ended_trials:
                self.ended_trials.add(trial.number)
                outcome = f"{OUTCOMES[trial.state]}, by {trial.user_attrs.get(HOLDER, {}).get('by', 'another process')}"
                self.say(f"{self.label}trial {trial.number}", outcome, len(self.spec.seeds))
        for holder in [holder for token, holder in self.alive.items() if token not in self.reported]:
            self.say(self.spec.name, f"{holder} also works on it", 0)
        for holder in [holder for token, holder in self.reported.items() if token not in self.alive]:
            self.say(self.spec.name, f"{format_process(holder)} no longer works on it", 0)
        self.reported = dict(self.alive)
        if self._may_start(trials):
            self.rest = 0.0
        return trials

    def waiting_lines(self) -> list[str]:
        """Return a line for each process that this one waits for."""
        name, counts = self.spec.name, self.at_work.items()
        return [f"waiting for {n} trial{'s' * (n > 1)} of {name}: run by {self.alive[token]}" for token, n in counts]

    def _start_trial(self) -> bool:
        """Start a free trial, or a new one; return False if there was none."""
        while self._may_start(self.refresh()):
            started = self.shared.retry(self._draw_trial)
            if isinstance(started, int):
                self.say(f"{self.label}trial {started}", "failed: every process that ran it ended", 0)
            elif started is not None:
                self._create_cells(*started)
                return True
        self.rest = time.monotonic() + REST_SECONDS
        return False

    def _draw_trial(self) -> tuple[optuna.trial.Trial, dict[str, Any]] | int | None:
        """Draw a trial and its changes under the mutex; None if none is due, its number if it fails. Repeatable."""
        with self.workers.mutex():
            if self.workers.is_evicted():  # by other processes: its running trials are signed anew
                self.workers.register()
                for open_trial in self.open.values():
                    if self._is_own(self.study._storage.get_trial(open_trial.trial._trial_id)):
                        open_trial.trial.set_user_attr(HOLDER, self.workers.signature())
            self.alive = self.workers.peers()  # none registers or starts a trial meanwhile
            trials = self.study.get_trials(deepcopy=False)
            if (candidate := next(filter(self._is_free, trials), None)) is not None:
                trial = resume_trial(self.study, candidate, self.workers.signature(), self.workers.tokens)
                if trial is None:
                    return candidate.number
            else:
                if _num_started(trials) >= self.spec.trials:
                    return None
                if self.points is not None and not any(trial.state == TrialState.WAITING for trial in trials):
                    tried = {canonical({**t.system_attrs.get("fixed_params", {}), **t.params}) for t in trials}
                    self.study.enqueue_trial(next(point for point in self.points if canonical(point) not in tried))
                trial = self.study.ask()
                if _num_started(self.study.get_trials(deepcopy=False)) > self.spec.trials:  # drawn twice, or too late
                    self.study._storage.set_trial_state_values(trial._trial_id, TrialState.WAITING)
                    return None
                trial.set_user_attr(HOLDER, self.workers.signature())
            return trial, self.spec.space.suggest(trial)

    def _may_start(self, trials: list[FrozenTrial]) -> bool:
        """Return True if there may be a trial to start; only the mutex makes it certain."""
        return _num_started(trials) < self.spec.trials or any(map(self._is_free, trials))

    def _is_free(self, trial: FrozenTrial) -> bool:
        """Return True for a running trial that no living process runs."""
        is_taken = _token(trial) in self.alive or f"{self.label}trial {trial.number}" in self.open
        return trial.state == TrialState.RUNNING and not is_taken

    def _is_own(self, trial: FrozenTrial) -> bool:
        """Return True if this process runs the trial, or was the last to run it."""
        return _token(trial) in self.workers.tokens

    def judge(self, planned: Planned, step: int, measured: Mapping[str, float]) -> bool:
        """Report a validation of the first seed, which decides for all, to the pruner; return True to go on."""
        open_trial = self.open[planned.arm]
        objectives = list(self.spec.objectives)
        value = measured.get(objectives[0])
        if open_trial.stopped or len(objectives) > 1 or planned.seed != self.spec.seeds[0]:
            return not open_trial.stopped
        if value is None or not math.isfinite(value):
            return True  # the run ends as diverged by itself
        number = float(value)

        def stopped() -> bool:
            if step not in self.study._storage.get_trial(open_trial.trial._trial_id).intermediate_values:
                open_trial.trial.report(number, step)
            return open_trial.trial.should_prune()

        try:
            open_trial.stopped = self.shared.retry(stopped)
        except UpdateFinishedTrialError:  # ended by another process, which has taken it over
            return True
        if open_trial.stopped:
            self._skip_queued(planned.arm)
        return not open_trial.stopped

    def ended(self, planned: Planned, record: Ending | None) -> None:
        """Record the outcome of a cell; None leaves its trial open."""
        if record is None:
            self._skip_queued(planned.arm)
            return
        open_trial = self.open[planned.arm]
        open_trial.training.discard(planned.seed)
        open_trial.records[planned.seed] = record
        if record["status"] != "ok":
            self._skip_queued(planned.arm)
        self._settle(planned.arm)

    def _create_cells(self, trial: optuna.trial.Trial, changes: dict[str, Any]) -> None:
        """Create the cells of a trial, and settle it at once if there is nothing to train."""
        name = f"{self.label}trial {trial.number}"
        open_trial = self.open[name] = OpenTrial(trial)
        try:
            first = check(override(self.spec.tree, {**changes, "seed": self.spec.seeds[0]}))
        except InputError as error:
            self._tell(name, TrialState.FAIL, reason=str(error))
            self.say(name, f"failed: {error}", len(self.spec.seeds))
            return
        open_trial.cells = {seed: with_seed(first, seed) for seed in self.spec.seeds}
        cells = {str(seed): cell.id for seed, cell in open_trial.cells.items()}
        self.shared.retry(lambda: trial.set_user_attr(CELLS, cells))
        for seed, cell in open_trial.cells.items():
            self.store.recover(cell.id)
            if self.store.finished(cell.id):
                open_trial.records[seed] = self.store.record(cell.id)
                self.say(f"{name} seed {seed}", "trained already", 1)
            else:
                self.queue.append(Planned(name, seed, cell, f"{self.called}{trial.number}/{seed}"))
        self.changed()
        self._settle(name)

    def _skip_queued(self, name: str) -> None:
        remaining = [planned for planned in self.queue if planned.arm != name]
        if dropped := len(self.queue) - len(remaining):
            self.say(name, "its other seeds are skipped", dropped)
        self.queue = remaining

    def _settle(self, name: str) -> None:
        """Tell the study how a trial without cells to train ended: a bad seed fails it, a stopped one prunes it."""
        open_trial = self.open[name]
        if open_trial.training or any(planned.arm == name for planned in self.queue):
            return
        for seed, record in sorted(open_trial.records.items()):
            if record["status"] in ("failed", "diverged"):
                self._tell(name, TrialState.FAIL, reason=f"{record['status']}, seed {seed}: {record['error']}")
                return
        records = open_trial.records.values()
        if any(record["status"] == "pruned" for record in records) or len(records) < len(open_trial.cells):
            self._tell(name, TrialState.PRUNED)
            return
        measured = [{**record["metrics"], **record["cost"]} for record in records]
        values = []
        for quantity in self.spec.objectives:
            numbers = [float(of_seed[quantity]) for of_seed in measured if of_seed.get(quantity) is not None]
            if len(numbers) < len(measured):
                self._tell(name, TrialState.FAIL, reason=f"{quantity} was not measured")
                return
            values.append(sum(numbers) / len(numbers))
        self._tell(name, TrialState.COMPLETE, values)

    def _tell(self, name: str, state: TrialState, values: list[float] | None = None, reason: str | None = None) -> None:
        """Tell the study the outcome of a trial, unless another process has taken it over."""
        open_trial = self.open[name]

        def tell() -> bool:
            with self.workers.mutex():
                frozen = self.study._storage.get_trial(open_trial.trial._trial_id)
                if not self._is_own(frozen):
                    return False
                if frozen.state == TrialState.RUNNING:  # not told before the storage failed
                    open_trial.trial.set_user_attr(SECONDS, time.monotonic() - open_trial.started)
                    if reason is not None:
                        open_trial.trial.set_user_attr(REASON, redacted(reason))
                    self.study.tell(frozen.number, values, state=state)
                return True

        is_own = self.shared.retry(tell)
        del self.open[name]
        self.rest = 0.0
        if is_own:
            self.ended_trials.add(open_trial.trial.number)
            self.changed()
        else:
            self.say(name, "another process has taken it over, as this one missed its heartbeats", 0)


def _token(trial: FrozenTrial) -> str:
    return str(trial.user_attrs.get(HOLDER, {}).get("token", ""))


def _num_started(trials: list[FrozenTrial]) -> int:
    """Return the number of trials that count against the budget: all but waiting ones."""
    return sum(trial.state != TrialState.WAITING for trial in trials)


class Searches(CellQueue):
    """Queue of several studies that share the workers in turn; a cell of two trials is trained once."""

    def __init__(self, searches: list[Search], store: Store) -> None:
        self.searches = list(searches)
        self.store = store
        self.waiting: dict[str, list[tuple[Search, Planned]]] = {}

    def pop(self) -> Planned | None:
        """Return the next cell of any search; None where none has one now."""
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
            elif self.store.finished(planned.cell.id):  # meanwhile
                search.say(planned.name, "trained already", 1)
                search.ended(planned, self.store.record(planned.cell.id))
            else:
                self.waiting[planned.cell.id] = [(search, planned)]
                return planned
        return None

    def refresh(self) -> None:
        """Read what other workers did to each search."""
        for search in self.searches:
            search.refresh()

    def blocked_on(self) -> list[str]:
        """Return a line for each peer that a search waits for."""
        return [line for search in self.searches for line in search.waiting_lines()]

    def remaining(self) -> int:
        """Return the number of trials that are left."""
        return sum(search.left for search in self.searches)

    def judge(self, planned: Planned, step: int, measured: Mapping[str, float]) -> bool:
        """Let a cell go on while any of its trials wants it to."""
        wishes = [search.judge(own, step, measured) for search, own in self.waiting[planned.cell.id]]
        return any(wishes)

    def ended(self, planned: Planned, record: Ending | None) -> None:
        """Report the outcome of a cell to each search that waits for it."""
        for search, own in self.waiting.pop(planned.cell.id):
            search.ended(own, record)

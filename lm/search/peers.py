"""Other processes that work on a study, as one of them sees and reports them."""

from collections.abc import Callable

from optuna.trial import FrozenTrial, TrialState

from lm.search.spec import SweepSpec
from lm.search.study import FINISHED_STATES, HOLDER
from lm.search.workers import StudyWorkers, format_process
from lm.store.lease_holder import Holder

OUTCOMES = {TrialState.COMPLETE: "complete", TrialState.PRUNED: "pruned", TrialState.FAIL: "failed"}


class PeerWorkers:
    """Other processes that work on a study.

    Args:
        spec: of the search.
        workers: this process among the others.
        label: prefix of the names of trials.
        say: called when a process comes or goes, or has ended a trial: name, outcome and number of cells.
    """

    def __init__(
        self, spec: SweepSpec, workers: StudyWorkers, label: str, say: Callable[[str, str, int], None]
    ) -> None:
        self.spec, self.workers, self.label, self.say = spec, workers, label, say
        self.alive: dict[str, Holder] = workers.peers()
        self.reported: dict[str, Holder] = {}
        """Processes that were reported."""
        self.at_work: dict[str, int] = {}
        """Number of trials that each process runs, by token."""
        self.ended_trials: set[int] = set()
        """Trials that are not reported: ended before this process came, by it, or reported already."""

    def initialise(self, trials: list[FrozenTrial]) -> None:
        """Record the trials that had ended when this process came."""
        self.ended_trials = {trial.number for trial in trials if trial.state in FINISHED_STATES}

    def owns(self, trial: FrozenTrial) -> bool:
        """Return True if another living process runs the trial."""
        return _token(trial) in self.alive

    def is_own(self, trial: FrozenTrial) -> bool:
        """Return True if this process runs the trial, or was the last to run it."""
        return _token(trial) in self.workers.tokens

    def refresh(self, trials: list[FrozenTrial]) -> None:
        """Read all trials and the living processes, and report news."""
        self.alive = self.workers.peers()
        self.at_work = {}
        for trial in trials:
            if trial.state == TrialState.RUNNING and (token := _token(trial)) in self.alive:
                self.at_work[token] = self.at_work.get(token, 0) + 1
            elif trial.state in FINISHED_STATES and trial.number not in self.ended_trials:
                self.ended_trials.add(trial.number)
                who = trial.user_attrs.get(HOLDER, {}).get("by", "another process")
                self.say(
                    f"{self.label}trial {trial.number}", f"{OUTCOMES[trial.state]}, by {who}", len(self.spec.seeds)
                )
        for token, holder in self.alive.items():
            if token not in self.reported:
                self.say(self.spec.name, f"{holder} works on it too", 0)
        for token, holder in self.reported.items():
            if token not in self.alive:
                self.say(self.spec.name, f"{format_process(holder)} works on it no more", 0)
        self.reported = dict(self.alive)

    def waiting_lines(self) -> list[str]:
        """Return a line for each process that this one waits for."""
        return [
            f"waiting for {count} trial{'s' * (count > 1)} of {self.spec.name}: carried out by {self.alive[token]}"
            for token, count in self.at_work.items()
        ]


def _token(trial: FrozenTrial) -> str:
    """Return the token on a trial."""
    return str(trial.user_attrs.get(HOLDER, {}).get("token", ""))

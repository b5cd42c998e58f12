"""What other processes do with a study, as one of them sees and says it."""

from collections.abc import Callable

from optuna.trial import FrozenTrial, TrialState

from lm.search.spec import SweepSpec
from lm.search.study import FINISHED_STATES, HOLDER
from lm.search.workers import StudyWorkers, by
from lm.store.holders import Holder

OUTCOMES = {TrialState.COMPLETE: "complete", TrialState.PRUNED: "pruned", TrialState.FAIL: "failed"}


class PeerWorkers:
    """Those who work on a study beside this process.

    Args:
        spec: what is searched.
        workers: this process among the others.
        label: before the names of trials.
        say: told who comes and goes, and which trials they have ended: whose, how it went, and how many cells.
    """

    def __init__(
        self, spec: SweepSpec, workers: StudyWorkers, label: str, say: Callable[[str, str, int], None]
    ) -> None:
        self.spec, self.workers, self.label, self.say = spec, workers, label, say
        self.alive: dict[str, Holder] = workers.peers()
        self.known: dict[str, Holder] = {}
        """Of whom a word was said."""
        self.at_work: dict[str, int] = {}
        """How many trials each carries out, by its token."""
        self.not_theirs: set[int] = set()
        """Trials that need no word: ended before this process came, or by it."""

    def initialise(self, found: list[FrozenTrial]) -> None:
        """Takes in what there was when this process came."""
        self.not_theirs = {one.number for one in found if one.state in FINISHED_STATES}

    def owns(self, one: FrozenTrial) -> bool:
        """Whether a living process beside this one carries out a trial."""
        return _token(one) in self.alive

    def is_own(self, one: FrozenTrial) -> bool:
        """Whether this process carries out a trial, or did last."""
        return _token(one) in self.workers.tokens

    def refresh(self, found: list[FrozenTrial]) -> None:
        """Takes in all trials and who is alive, and says what is new."""
        self.alive = self.workers.peers()
        self.at_work = {}
        for one in found:
            if one.state == TrialState.RUNNING and (token := _token(one)) in self.alive:
                self.at_work[token] = self.at_work.get(token, 0) + 1
            elif one.state in FINISHED_STATES and one.number not in self.not_theirs:
                self.not_theirs.add(one.number)
                who = one.user_attrs.get(HOLDER, {}).get("by", "another process")
                self.say(f"{self.label}trial {one.number}", f"{OUTCOMES[one.state]}, by {who}", len(self.spec.seeds))
        for token, holder in self.alive.items():
            if token not in self.known:
                self.say(self.spec.name, f"{holder} works on it too", 0)
        for token, holder in self.known.items():
            if token not in self.alive:
                self.say(self.spec.name, f"{by(holder)} works on it no more", 0)
        self.known = dict(self.alive)

    def waiting_lines(self) -> list[str]:
        """Whom this process waits for when it has nothing left to do, a line each."""
        return [
            f"waiting for {count} trial{'s' * (count > 1)} of {self.spec.name}: carried out by {self.alive[token]}"
            for token, count in self.at_work.items()
        ]


def _token(one: FrozenTrial) -> str:
    return str(one.user_attrs.get(HOLDER, {}).get("token", ""))

"""Claims about several arms hold of other text too, where cells kept their losses by document."""

import math
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from messages import CheckMessage
from records import record
from scipy import stats
from statistics_audit.texts import drawn

from lm.analysis import texts
from lm.analysis.answers import Answer, answer_claim, decide
from lm.analysis.claims import Claim
from lm.analysis.results import Records
from lm.report.claims import answers, claims_section
from lm.report.render import escape, markdown_section
from lm.stats.tests import ALPHA, median_interval, sign_flip_interval, sign_flip_p, sign_test_p
from lm.stats.two_way import two_way
from lm.store.documents import KEPT, described, packed, read_documents
from lm.store.record import Record
from lm.store.store import Store

Array = np.ndarray

SEEDS, COUNT = 6, 50
ARMS = {"base": 0.0, "arm": -0.03, "other": -0.05}
LESS = Claim("x", "nll", "less", {"arm": 1.0, "base": -1.0})
CLAIM: Any = {"claim": "x", "kind": "ours", "metric": "nll", "contrast": LESS.contrast, "relation": "less"}


class World:
    """Arms whose losses by document are known; text varies by `spread` in what an arm is worth."""

    def __init__(self, spread: float) -> None:
        random = np.random.default_rng(2)
        self.tokens_d = np.ceil(random.lognormal(3, 0.6, COUNT)).astype(int)
        self.loss: dict[str, Array] = {}  # per token, seeds x documents, without noise of the mean of text
        shared_sd = 2 + 0.05 * random.normal(size=(SEEDS, 1)) + random.normal(size=COUNT)
        for arm, worth in ARMS.items():
            of_text_d = random.normal(size=COUNT) * spread * (arm != "base")
            of_text_d -= of_text_d @ self.tokens_d / self.tokens_d.sum()
            noise_sd = 0.004 * random.normal(size=(SEEDS, 1)) + 0.01 * random.normal(size=(SEEDS, COUNT))
            self.loss[arm] = shared_sd + worth + of_text_d + noise_sd

    def numbers(self, weights: Mapping[str, float]) -> tuple[Array, Array]:
        """A weighted sum of arms, by seed, and its sums by seed and document."""
        sums_sd = sum(weight * self.loss[arm] for arm, weight in weights.items()) * self.tokens_d
        return sums_sd.sum(axis=1) / self.tokens_d.sum(), sums_sd

    def p(self, weights: Mapping[str, float], bound: float, tail: float) -> float:
        """Student's over seeds and documents, written out; `tail` is -1, 1, or 0 for both."""
        number_s, sums_sd = self.numbers(weights)
        mean, (both, freedom) = number_s.mean(), crossed(sums_sd, self.tokens_d)
        t = (mean - bound) / math.sqrt(both)
        return float(2 * stats.t.sf(abs(t), freedom) if not tail else stats.t.sf(tail * t, freedom))


def crossed(sums_sd: Array, tokens_d: Array) -> tuple[float, float]:
    """The variance of the mean and its degrees of freedom, each seed's ratio taken anew without each document."""
    (n, m), total = sums_sd.shape, tokens_d.sum()
    mean_s = sums_sd.sum(axis=1) / total
    seeds = np.var(mean_s, ddof=1) / n
    without_sd = np.array([np.delete(sums_sd, d, axis=1).sum(axis=1) / (total - tokens_d[d]) for d in range(m)]).T
    moved_sd = without_sd - mean_s[:, None]
    text = (m - 1) / m * sum(moved_sd[:, d].mean() ** 2 for d in range(m))
    in_both = (m - 1) / m * sum(np.var(moved_sd[:, d], ddof=1) / n for d in range(m))
    both = max(seeds, text, seeds + text - in_both)
    alike = total**2 / sum(int(tokens) ** 2 for tokens in tokens_d)
    return both, max(both**2 / (seeds**2 / (n - 1) + text**2 / (alike - 1)), min(n, m) - 1)


LITTLE, MUCH = World(0.002), World(0.3)
Kept = Callable[..., Records]


@pytest.fixture(scope="module")
def kept(tmp_path_factory: pytest.TempPathFactory) -> Kept:
    """The results of a world whose cells keep their losses of either split, but for one; more of the manifest."""
    made = {id(world): results_of(world, Store(tmp_path_factory.mktemp("out"))) for world in (LITTLE, MUCH)}

    def of(world: World, without: tuple[str, int] | None = None, **manifest: Any) -> Records:
        found = made[id(world)]
        records = {key: blind(one) if key == without else one for key, one in found.records.items()}
        asked: Any = dict(found.manifest) | manifest
        return replace(found, manifest=asked, records=records)

    return of


def results_of(world: World, store: Store) -> Records:
    records: dict[tuple[str, int], Record | None] = {}
    for arm in ARMS:
        for seed, nll in enumerate(world.numbers({arm: 1.0})[0].tolist()):
            found: Any = record(f"{arm}-{seed}", nll, seed)
            found["metrics"]["test_nll"] = nll
            content = packed(world.loss[arm][seed] * world.tokens_d, world.tokens_d)
            for quantity, (part, _) in KEPT.items():
                path = store.documents(found["id"], quantity)
                path.parent.mkdir(parents=True, exist_ok=True)
                path.write_bytes(content)
                found[part] = described(content, "document", 1, COUNT)
            records[arm, seed] = found
    manifest: Any = {"baseline": "base", "seeds": list(range(SEEDS)), "arms": {arm: {} for arm in ARMS}}
    return Records(manifest, records, store)


def blind(one: Record | None) -> Any:
    """A record of a cell that kept no losses by document."""
    return {name: value for name, value in (one or {}).items() if name not in ("documents", "test_documents")}


@pytest.mark.parametrize("metric", ["nll", "test_nll"])
@pytest.mark.parametrize("weights", [{"arm": 1.0, "base": -1.0}, {"arm": 0.5, "other": 0.5, "base": -1.0}])
@pytest.mark.parametrize("margin", [0.0, -0.01])
def test_intervals_of_means_cover_both_and_p_is_larger(
    kept: Kept, weights: dict[str, float], margin: float, metric: str
) -> None:
    for world in (LITTLE, MUCH):
        found = answer_claim(kept(world), Claim("x", metric, "less", weights, margin=margin))
        number_s, sums_sd = world.numbers(weights)
        distances = (number_s - margin).tolist()
        assert found.p == pytest.approx(max(sign_flip_p(distances), world.p(weights, margin, 0)), rel=1e-4)
        both, freedom = crossed(sums_sd, world.tokens_d)
        reach = stats.t.ppf(1 - ALPHA / 2, freedom) * math.sqrt(both)
        low, high = (end + margin for end in sign_flip_interval(distances))
        ends = min(low, number_s.mean() - reach), max(high, number_s.mean() + reach)
        assert (found.low, found.high) == pytest.approx(ends, abs=1e-6)
        assert found.generalises_over == "seeds and text"


def test_bits_per_byte_are_a_multiple_of_the_loss(kept: Kept) -> None:
    nats, bits = (
        answer_claim(kept(MUCH), Claim("x", name, "less", LESS.contrast)) for name in ("nll", "bits_per_byte")
    )
    assert bits.generalises_over == "seeds and text"
    assert bits.p == pytest.approx(nats.p)
    assert (bits.low, bits.high) == pytest.approx((2 * nats.low, 2 * nats.high))  # as the made-up records have it


def test_equivalence_needs_both_tests(kept: Kept, check_message: CheckMessage) -> None:
    for world, verdict in ((LITTLE, "reproduced"), (MUCH, "inconclusive")):
        found = answer_claim(kept(world), Claim("x", "nll", "equivalent", LESS.contrast, margin=0.05))
        number_s, sums_sd = world.numbers(LESS.contrast)
        sides = [
            max(sign_test_p(number_s.tolist(), end, side), world.p(LESS.contrast, end, tail))  # type: ignore[arg-type]
            for end, side, tail in ((-0.05, "greater", 1), (0.05, "less", -1))
        ]
        assert found.verdict == verdict
        assert found.p == pytest.approx(max(sides), rel=1e-4)
        both, freedom = crossed(sums_sd, world.tokens_d)
        reach = stats.t.ppf(1 - ALPHA, freedom) * math.sqrt(both)
        low, high = median_interval(number_s.tolist())
        assert found.low == pytest.approx(min(low, number_s.mean() - reach), abs=1e-6)
        assert found.high == pytest.approx(max(high, number_s.mean() + reach), abs=1e-6)
    check_message(found.note)


def test_claims_that_hold_over_seeds_alone_are_inconclusive(kept: Kept, check_message: CheckMessage) -> None:
    little, much = (answer_claim(kept(world), LESS) for world in (LITTLE, MUCH))
    assert (little.verdict, little.note) == ("reproduced", "")
    assert much.verdict == "inconclusive"
    check_message(much.note)
    within_text = answer_claim(kept(MUCH, generalise="seeds"), LESS)
    assert (within_text.verdict, within_text.generalises_over) == ("reproduced", "seeds")
    beyond = answer_claim(kept(LITTLE), Claim("x", "nll", "range", LESS.contrast, low=0.0))
    assert (beyond.verdict, beyond.generalises_over) == ("not reproduced", "seeds and text")
    assert answer_claim(kept(MUCH), Claim("x", "nll", "range", LESS.contrast, low=0.0)).verdict == "inconclusive"


@pytest.mark.parametrize(
    ("claim", "manifest"),
    [
        (LESS, {"generalise": "seeds"}),
        (LESS, {"without": ("arm", 3)}),
        (Claim("x", "nll", "slope", over={"base": 1.0, "arm": 2.0}, low=0.0), {}),
        (Claim("x", "ece", "less", LESS.contrast), {}),
        (Claim("x", "nll / train_loss", "less", LESS.contrast), {}),
        (Claim("x", "nll", "range", {"base": 1.0}, low=0.0), {}),
        (Claim("x", "nll", "less", {"arm": 1.0, "other": 0.0}, margin=9), {}),
    ],
)
def test_otherwise_it_is_over_seeds_and_the_report_says_why(
    kept: Kept, claim: Claim, manifest: Any, check_message: CheckMessage
) -> None:
    found = answer_claim(kept(MUCH, **manifest), claim)
    assert found.generalises_over == "seeds"
    check_message(found.not_over_text_because)
    page = "\n".join(markdown_section(claims_section([("x", found)])))
    assert "over seeds |" in page
    assert escape(found.not_over_text_because) in page


def test_lines_of_claims_name_their_coverage(kept: Kept, check_message: CheckMessage) -> None:
    def of_claims(results: Records) -> list[str]:
        """Check the notes; return what each estimate is over."""
        section = claims_section([("x", one) for one in answers(results)])
        check_message([*section.notes])
        estimates = [str(row[section.columns.index("estimate [interval]")]) for row in section.rows]
        return [estimate.partition(" over ")[2] for estimate in estimates]

    described_claims = [CLAIM, {**CLAIM, "metric": "ece"}, {**CLAIM, "exact": True}]
    results = kept(LITTLE, claims=described_claims)
    assert of_claims(results) == ["seeds and text", "seeds", ""]
    plain = replace(results, records={key: blind(one) for key, one in results.records.items()})
    assert of_claims(plain) == ["", "", ""]


def test_joint_answers_read_each_file_once(kept: Kept, monkeypatch: pytest.MonkeyPatch) -> None:
    """The test split differs from the validation split, as it does in experience."""
    opened: list[Any] = []

    def reads(path: Any, one: Record, quantity: str) -> Any:
        opened.append((one["id"], quantity))
        found = read_documents(path, one, quantity)
        return replace(found, nll_d=found.nll_d[::-1]) if quantity == "test_nll" else found

    monkeypatch.setattr(texts, "read_documents", reads)
    others = {"contrast": {"arm": 1.0, "other": -1.0}}, {"metric": "test_nll"}, {"metric": "bits_per_byte"}
    claims: list[Any] = [CLAIM, *({**CLAIM, **changes} for changes in others)]
    together = answers(kept(MUCH, claims=claims))
    read = [(f"{arm}-{seed}", name) for arm in ARMS for seed in range(SEEDS) for name in KEPT]
    assert sorted(opened) == sorted(one for one in read if one[0] < "other" or one[1] == "nll")
    within_text = [answer_claim(kept(MUCH), Claim(**one)) for one in claims]
    assert [(one.p, one.low, one.high) for one in together] == [(one.p, one.low, one.high) for one in within_text]
    assert len({one.p for one in together[:3]}) == 3


def test_false_claims_about_other_text_are_rare() -> None:
    random, trials = np.random.default_rng(0), 160
    equal = Claim("x", "nll", "equivalent", LESS.contrast, margin=2.0)
    counts = {"less": [0, 0], "equivalent": [0, 0]}
    for _ in range(trials):
        sums_sd, tokens_d = drawn(random, 2.0)
        number_s, noise = sums_sd.sum(axis=1) / tokens_d.sum(), two_way(sums_sd, tokens_d)
        for place, known in enumerate((None, noise)):
            counts["less"][place] += decide(LESS, number_s.tolist(), known).verdict in ("reproduced", "not reproduced")
            counts["equivalent"][place] += decide(equal, (number_s + 2.0).tolist(), known).verdict == "reproduced"
    for within_text, both in counts.values():
        assert within_text > 0.1 * trials
        assert both <= stats.binom.isf(1e-5, trials, ALPHA)


def test_an_answer_without_documents_is_what_it_was() -> None:
    numbers = [-0.02, -0.05, -0.01, -0.03, -0.04, -0.02]
    assert replace(decide(LESS, numbers), mean=None) == Answer(LESS, "reproduced", *_plain(numbers))


def _plain(numbers: list[float]) -> tuple[Any, ...]:
    return float(np.mean(numbers)), *sign_flip_interval(numbers), 6, "", sign_flip_p(numbers)

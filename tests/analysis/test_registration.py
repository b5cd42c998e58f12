"""Claims that were written when results could be known are judged on other seeds, or counted apart as post hoc."""

from dataclasses import replace
from typing import Any

import pytest
from messages import CheckMessage
from records import MakeExperiment

from lm.analysis.answers import adjust_p, answer_claim
from lm.analysis.claims import Claim, fingerprint, finite_claim, register, seen_seeds
from lm.analysis.results import Records, load
from lm.report.claims import POST_HOC, answers, claims_section, tally

SEEDS = list(range(12))
BASE = [2.0 + 0.01 * seed for seed in SEEDS]
BETTER = [value - 0.1 - 0.001 * seed for seed, value in enumerate(BASE)]
CLAIM = Claim("better", "nll", "less", {"better": 1.0, "base": -1.0}, kind="published", seeds=SEEDS)


def results(experiment: MakeExperiment, seen: list[int], count: int = 12, **manifest: Any) -> Records:
    registered = {fingerprint(CLAIM): {"written": "2026-01-01T00:00:00+00:00", "seen": seen}}
    cells = {"base": BASE[:count], "better": BETTER[:count]}
    return load(experiment(cells, claims=[finite_claim(CLAIM)], registered=registered, **manifest))


def test_claims_registered_first_are_judged_on_all_seeds(experiment: MakeExperiment) -> None:
    given = answer_claim(results(experiment, []), CLAIM)
    assert (given.seeds, given.post_hoc, given.note) == (12, False, "")


def test_later_claims_are_judged_on_unseen_seeds(experiment: MakeExperiment, check_message: CheckMessage) -> None:
    given = answer_claim(results(experiment, [0, 1, 2, 3, 4, 5]), CLAIM)
    differences = [arm - base for arm, base in zip(BETTER[6:], BASE[6:], strict=True)]
    assert given.estimate == pytest.approx(sum(differences) / 6, rel=1e-12)
    assert (given.seeds, given.verdict, given.post_hoc) == (6, "reproduced", False)
    check_message(given.note)


def test_claims_with_few_unseen_seeds_are_post_hoc(experiment: MakeExperiment, check_message: CheckMessage) -> None:
    given = answer_claim(results(experiment, [0, 1, 2, 3, 4, 5, 8]), CLAIM)
    assert (given.seeds, given.verdict, given.post_hoc) == (12, "reproduced", True)
    check_message(given.note)
    before = replace(given, post_hoc=False)
    lines = tally(adjust_p([given, before]))
    check_message([line.split(":")[0] for line in lines])
    assert claims_section([("demo", given)]).rows[0][0] == f"published, {POST_HOC}"


def test_corrections_are_over_claims_written_equally_early(experiment: MakeExperiment) -> None:
    first = replace(answer_claim(results(experiment, []), CLAIM), p=0.04)
    later = [replace(first, post_hoc=True, p=p) for p in (0.02, 0.03)]
    assert [each.p_holm for each in adjust_p([first, *later])] == [0.04, 0.04, 0.04]
    assert [each.p_holm for each in adjust_p([first, *(replace(each, post_hoc=False) for each in later)])] == [0.06] * 3


def test_seeds_that_the_file_says_were_seen_count_as_seen(experiment: MakeExperiment) -> None:
    claim = replace(CLAIM, seen=[0, 1, 2, 3, 4, 5])
    found = load(experiment({"base": BASE, "better": BETTER}, claims=[finite_claim(claim)]))
    (given,) = answers(found)
    assert (given.seeds, given.post_hoc) == (6, False)
    assert seen_seeds(found.manifest, claim) == {0, 1, 2, 3, 4, 5}


def test_an_identity_holds_whatever_was_seen(experiment: MakeExperiment) -> None:
    given = answer_claim(results(experiment, SEEDS), replace(CLAIM, kind="identity"))
    assert (given.seeds, given.post_hoc) == (12, False)


def test_exact_claims_are_judged_on_two_unseen_seeds(experiment: MakeExperiment) -> None:
    claim = replace(CLAIM, exact=True)
    folder = experiment(
        {"base": BASE, "better": BETTER},
        claims=[finite_claim(claim)],
        registered={fingerprint(claim): {"written": None, "seen": SEEDS[:10]}},
    )
    assert answer_claim(load(folder), claim).seeds == 2


@pytest.mark.parametrize(
    "change",
    [
        {"claim": "worse"},
        {"metric": "accuracy"},
        {"relation": "greater"},
        {"margin": 0.1},
        {"contrast": {"better": 1.0, "other": -1.0}},
        {"exact": True},
        {"seeds": SEEDS[:6]},
    ],
)
def test_whatever_a_claim_says_is_part_of_its_fingerprint(change: dict[str, Any]) -> None:
    assert fingerprint(replace(CLAIM, **change)) != fingerprint(CLAIM)


def test_a_source_may_be_corrected_later() -> None:
    assert fingerprint(replace(CLAIM, source="a table")) == fingerprint(CLAIM)


def test_a_registration_stays_as_it_was_first_made() -> None:
    first = register([CLAIM], None, lambda claim: [])
    assert first[fingerprint(CLAIM)]["seen"] == []
    added = replace(CLAIM, margin=-0.05)
    later = register([CLAIM, added], {"registered": first, "claims": [], "seeds": SEEDS}, lambda claim: [0, 1])
    assert later[fingerprint(CLAIM)] == first[fingerprint(CLAIM)]
    assert later[fingerprint(added)]["seen"] == [0, 1]
    assert later[fingerprint(added)]["written"] is not None


def test_more_seeds_after_results_make_another_claim() -> None:
    six = replace(CLAIM, seeds=SEEDS[:6])
    first = register([six], None, lambda claim: [])
    later = register([CLAIM], {"registered": first, "claims": [], "seeds": SEEDS[:6]}, lambda claim: SEEDS[:6])
    assert later[fingerprint(CLAIM)]["seen"] == SEEDS[:6]


def test_claims_of_old_manifests_have_no_date() -> None:
    older = {"claims": [{**finite_claim(CLAIM), "seeds": []}], "seeds": SEEDS}
    registered = register([CLAIM, replace(CLAIM, margin=1.0)], older, lambda claim: SEEDS)
    assert registered[fingerprint(CLAIM)] == {"written": None, "seen": []}
    assert registered[fingerprint(replace(CLAIM, margin=1.0))]["seen"] == SEEDS

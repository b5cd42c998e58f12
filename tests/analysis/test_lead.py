"""The difference over training: which arm is ahead, from which step on, and claims about it."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from messages import CheckMessage, Refused
from records import MakeExperiment

from lm.analysis.answers import answer_claim
from lm.analysis.claims import Claim, ClaimNode, by_seed, read_claim
from lm.analysis.compare import compare
from lm.analysis.pace import Lead, differences_by_step, last_stretch, leads, steps_to_baseline_loss
from lm.analysis.results import load
from lm.config.nodes import read_section
from lm.report.sections import all_sections
from lm.report.tables import LEAD, more_metrics
from lm.stats.bands import simultaneous_band
from lm.store.files import write_atomic

STEPS = (100, 200, 300, 400)
BASE = [4.0, 3.0, 2.5, 2.0]


def with_curves(experiment: MakeExperiment, gaps: dict[str, Sequence[Sequence[float]]], own: float = 2.0) -> Path:
    """An experiment whose arms have these gaps to the baseline at each step, a list a seed, and at the end `own`."""
    seeds = len(next(iter(gaps.values())))
    folder = experiment({"base": [2.0] * seeds, **{arm: [own] * seeds for arm in gaps}})
    for arm, of_arm in {"base": [[0.0] * len(STEPS)] * seeds, **gaps}.items():
        for seed, of_seed in enumerate(of_arm):
            rows = [f"{step},{loss + gap}\n" for step, loss, gap in zip(STEPS, BASE, of_seed, strict=True)]
            path = folder.parent / "cells" / f"{arm}-{seed}" / "history.csv"
            write_atomic(path, "step,validation_nll\n" + "".join(rows))
    return folder


def words(experiment: MakeExperiment, gaps: Sequence[Sequence[float]]) -> str:
    (lead,) = leads(load(with_curves(experiment, {"arm": gaps})))
    return lead.words()


@pytest.mark.parametrize(
    "gaps",
    [[0.5, -0.1, -0.1, -0.2], [-0.5, 0.1, -0.1, 0.2], [-0.5, -0.1, -0.1, -0.2], [0.5, -0.1, 0.1, 0.0]],
)
def test_the_lead_counts_from_the_last_change_of_sign(
    gaps: list[float], experiment: MakeExperiment, check_message: CheckMessage
) -> None:
    check_message(words(experiment, [gaps]))


def test_a_late_step_is_a_whole_number(check_message: CheckMessage) -> None:
    by_seed = pd.DataFrame({0: [1.0, -1.0]}, index=[10, 1_234_567])
    check_message(Lead("arm", by_seed, np.full(2, np.nan), np.full(2, np.nan)).words())


def test_the_band_is_named_where_it_leaves_out_zero(experiment: MakeExperiment, check_message: CheckMessage) -> None:
    noise = (-0.02, -0.01, 0.0, 0.01, 0.02, 0.0)
    gaps = [[-0.01 + 5 * e, -0.02 + 5 * e, -0.5 + e, -0.5 - e] for e in noise]
    check_message(words(experiment, gaps))


def test_differences_are_paired_by_seed_and_step(experiment: MakeExperiment) -> None:
    folder = with_curves(experiment, {"arm": [[0.1, 0.2, 0.3, 0.4], [0.2, 0.2, 0.2, 0.2]]})
    path = folder.parent / "cells" / "arm-1" / "history.csv"
    write_atomic(path, "step,validation_nll\n200,3.2\n400,2.2\n")
    differences = differences_by_step(load(folder), "arm", "base")
    assert list(differences.index) == [200, 400]
    np.testing.assert_allclose(differences.to_numpy(), [[0.2, 0.2], [0.4, 0.2]], rtol=1e-9)


def test_the_band_is_that_of_the_differences(experiment: MakeExperiment) -> None:
    gaps = np.random.default_rng(0).standard_normal((6, 4)) / 100
    (lead,) = leads(load(with_curves(experiment, {"arm": gaps.tolist()})))
    band = simultaneous_band(gaps)
    np.testing.assert_allclose(lead.low, band[0], rtol=1e-6)
    np.testing.assert_allclose(lead.high, band[1], rtol=1e-6)


def test_arms_without_common_validations_have_no_lead(experiment: MakeExperiment) -> None:
    assert leads(load(experiment({"base": [2.0, 2.1], "lost": ["diverged", "failed"]}))) == []


def test_the_page_says_who_is_ahead(experiment: MakeExperiment, check_message: CheckMessage) -> None:
    results = load(with_curves(experiment, {"arm": [[0.5, -0.1, -0.1, -0.2]] * 2}))
    section = next(part for part in all_sections(results, steps_to_baseline_loss(results)) if LEAD in part.columns)
    check_message(section.rows[0][-1])


@pytest.mark.parametrize("own", [2.1, 1.9])
def test_a_lead_on_part_of_the_text_that_the_whole_contradicts_says_so(
    own: float, experiment: MakeExperiment, check_message: CheckMessage
) -> None:
    folder = with_curves(experiment, {"arm": [[-0.1] * 4] * 6}, own)
    results = load(folder)
    section = more_metrics(results, compare(results))
    row = next(row for row in section.rows if row[0] == "arm")
    check_message(row[[*section.columns].index(LEAD)])


@pytest.mark.parametrize(("holds", "start"), [([True, True], 0), ([True, False, True], 2), ([True, False], 2), ([], 0)])
def test_the_last_stretch_begins_behind_the_last_failure(holds: list[bool], start: int) -> None:
    assert last_stretch(np.array(holds, dtype=bool)) == start


def claim(**keys: Any) -> dict[str, Any]:
    return {"claim": "soon ahead", "kind": "ours", "metric": "steps ahead", "relation": "greater", **keys}


def read(tree: dict[str, Any]) -> Claim:
    return read_claim(read_section(tree, ClaimNode, "here"), ["base", "arm", "other"], "base", "here")


def test_a_claim_counts_the_steps_ahead_of_each_seed(experiment: MakeExperiment) -> None:
    gaps = [[0.5, -0.1, -0.1, -0.2], [-0.5, -0.1, -0.1, -0.2], [-0.5, -0.1, -0.1, 0.2]] * 3
    results = load(with_curves(experiment, {"arm": gaps, "other": [[-0.3] * 4] * 9}))
    own = read(claim(arm="arm", margin=50))
    assert by_seed(results, own) == {seed: (200.0, 300.0, 0.0)[seed % 3] for seed in range(9)}
    assert answer_claim(results, own).estimate == pytest.approx(500 / 3, rel=1e-12)
    against = read(claim(arm="other", against="arm"))
    assert by_seed(results, against) == {seed: (300.0, 200.0, 200.0)[seed % 3] for seed in range(9)}


@pytest.mark.parametrize(
    "keys",
    [
        {"contrast": {"arm": 1.0, "base": -0.5}},
        {"arm": "arm", "relation": "range", "low": 1.0},
        {"relation": "slope", "low": 0.0, "over": {"arm": 1.0, "base": 2.0}},
    ],
    ids=["weights", "alone", "slope"],
)
def test_steps_ahead_compare_two_arms(keys: dict[str, Any], refused: Refused) -> None:
    with refused():
        read(claim(**keys))

"""Arms compared over the items of a task: tests over items, noise of items, and what is not comparable."""

import itertools
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from helpers import Capture, Patch, refused
from messages import CheckMessage, Refused
from numpy.typing import NDArray
from records import BASE, BETTER, MakeExperiment
from scipy.stats import binomtest

from lm.ablation.experiment import _check_quantity
from lm.analysis.compare import compare
from lm.analysis.results import load
from lm.report.notes import notes
from lm.stats.tests import item_flip_p, sign_flip_p
from lm.stats.two_way import two_way
from lm.store.documents import write_items
from lm.store.metrics import describe
from lm.store.store import Store

QUANTITY = "acc@brackets"


def scores(arm: str, seed: int, items: int = 60) -> NDArray[np.float64]:
    """Which items are right: those of the arm more often."""
    level = 0.8 if arm == "arm" else 0.4
    of_item = np.random.default_rng(1).normal(0, 0.1, items)
    return (np.random.default_rng([seed, arm == "arm"]).random(items) < level + of_item).astype(np.float64)


def with_items(experiment: MakeExperiment, tmp_path: Path, seeds: int, hashes: dict[str, str] | None = None) -> Path:
    """An experiment judged by a task's accuracy."""
    store = Store(tmp_path / "out")

    def change(arm: str, seed: int, record: dict[str, Any]) -> None:
        scores_d = scores(arm, seed)
        record["metrics"][QUANTITY] = float(scores_d.mean())
        store.work(record["id"]).mkdir(parents=True, exist_ok=True)
        record["items"] = write_items(store.work(record["id"]), {QUANTITY: scores_d})
        record["evaluations"]["tasks"] = {"brackets": {"sha256": (hashes or {}).get(arm, "same")}}

    return experiment({"base": BASE[:seeds], "arm": BETTER[:seeds]}, change, metric=QUANTITY)


def row(folder: Path) -> Any:
    (found,) = [one for one in compare(load(folder)).itertuples() if (one.arm, one.metric) == ("arm", QUANTITY)]
    return found


def test_one_seed_has_mcnemars_exact_test(experiment: MakeExperiment, tmp_path: Path) -> None:
    found = row(with_items(experiment, tmp_path, 1))
    difference_d = scores("arm", 0) - scores("base", 0)
    better, worse = int((difference_d > 0).sum()), int((difference_d < 0).sum())
    assert found.p_items == pytest.approx(binomtest(better, better + worse).pvalue)
    assert found.verdict == "no verdict" or "significant" not in found.verdict


def test_seeds_and_items_are_both_covered(
    experiment: MakeExperiment, tmp_path: Path, check_message: CheckMessage
) -> None:
    folder = with_items(experiment, tmp_path, 6)
    found = row(folder)
    differences_sd = np.array([scores("arm", seed) - scores("base", seed) for seed in range(6)])
    noise = two_way(differences_sd, np.ones(60))
    assert (found.se_seeds, found.se_text) == pytest.approx((noise.seeds, noise.text))
    assert (found.interval, found.verdict) == ("seeds-and-text", "better")
    assert found.p_items == pytest.approx(item_flip_p(differences_sd.sum(axis=0)))
    results = load(folder)
    told = [note for note in notes(results, compare(results)) if "% CI" in note or "brackets" in note]
    check_message([note.replace(f"{found.p_items:.3g}", "P") for note in told])


def test_other_items_are_not_comparable(
    experiment: MakeExperiment, tmp_path: Path, check_message: CheckMessage
) -> None:
    found = row(with_items(experiment, tmp_path, 6, {"arm": "other"}))
    check_message(found.verdict)


@pytest.mark.parametrize("seeds", [1, 2, 6])
def test_flips_of_items_are_counted(seeds: int) -> None:
    random = np.random.default_rng(seeds)
    few_d = random.integers(-seeds, seeds + 1, 12).astype(float)
    sums = [abs(float((few_d * signs).sum())) for signs in itertools.product((-1, 1), repeat=12)]
    assert item_flip_p(few_d) == pytest.approx(np.mean(np.array(sums) >= abs(few_d.sum())))
    many_d = random.integers(-seeds, seeds + 1, 35).astype(float)
    assert item_flip_p(many_d) == pytest.approx(sign_flip_p(many_d.tolist()))
    assert item_flip_p(many_d / 7) == pytest.approx(sign_flip_p(many_d.tolist()))


def test_flips_of_many_items() -> None:
    random = np.random.default_rng(0)
    whole_d = random.integers(-2, 3, 3000).astype(float)
    normal = item_flip_p(whole_d[:400] / 7)
    assert item_flip_p(whole_d[:400]) == pytest.approx(normal, rel=0.1)
    assert item_flip_p(np.zeros(5)) == 1.0
    assert np.isnan(item_flip_p(np.zeros(0)))


def test_quantities_of_a_task_have_names(refused: Refused, check_message: CheckMessage) -> None:
    for name in (QUANTITY, "exact_match.strict-match@gsm8k", "bits_per_byte@wikitext"):
        _check_quantity(name, "metric")
        assert not describe(name).per_token
    assert (describe(QUANTITY).better, describe("ter@wmt").better, describe("own@x").better) == (
        "higher",
        "lower",
        None,
    )
    check_message(describe("perplexity@64").label)
    for name in ("acc@", "acc@64", "acc@a/b", "accuracy@brackets"):
        with refused():
            _check_quantity(name, "metric")


def test_a_missing_package_is_a_line(
    tmp_path: Path, experiment: MakeExperiment, monkeypatch: Patch, capsys: Capture
) -> None:
    import lm.training

    monkeypatch.setitem(sys.modules, "lm_eval", None)
    monkeypatch.delitem(sys.modules, "lm.training.harness.tasks", raising=False)
    monkeypatch.delattr(lm.training, "tasks", raising=False)
    (tmp_path / "run.yaml").write_text("base: char_tiny\nevaluate.tasks: [brackets.yaml]\n")
    refused(capsys, ["fit", tmp_path / "run.yaml", "--out", tmp_path / "out"], "pip install 'lm-ablations[eval]'")

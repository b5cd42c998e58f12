"""The noise of the text in an experiment's differences: read from cells, used in verdicts, told in notes."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from messages import CheckMessage
from statsmodels.stats.power import TTestPower

from lm.analysis.compare import compare
from lm.analysis.results import Records, load
from lm.analysis.texts import texts
from lm.report.notes import notes
from lm.stats.two_way import detectable_on_texts
from lm.store.documents import KEPT, described, packed
from lm.store.files import write_atomic
from lm.store.store import Store

BASE = [2.0, 2.1, 1.9, 2.05, 2.02, 1.97]
ARM = [nll - gain for nll, gain in zip(BASE, [0.02, 0.05, 0.01, 0.03, 0.04, 0.02], strict=True)]
CELLS: dict[str, list[Any]] = {"base": BASE, "arm": ARM}
Make = Callable[..., Path]


@pytest.fixture
def by_document(experiment: Make, tmp_path: Path) -> Make:
    """Makes an experiment whose cells keep `count` documents, on which the arm's gain varies by `spread`."""

    def make(spread: float, count: int = 40, without: tuple[str, ...] = (), **manifest: Any) -> Path:
        store, tokens = Store(tmp_path / "out"), np.full(count, 30)
        of_document = spread * np.random.default_rng(0).normal(size=count)
        of_document -= of_document.mean()

        def change(arm: str, seed: int, record: dict[str, Any]) -> None:
            if record["id"] in without or record["status"] != "ok":
                return
            nll = record["metrics"]["nll"] + (of_document if arm == "arm" else 0 * of_document)
            content = packed(nll * tokens, tokens)
            write_atomic(store.work(record["id"]) / "documents.npz", content)
            record["documents"] = described(content, "document", 1, count)

        return experiment(CELLS, change, **manifest)

    return make


def row(folder: Path) -> Any:
    (found,) = [one for one in compare(load(folder)).itertuples() if (one.arm, one.metric) == ("arm", "nll")]
    return found


@pytest.mark.slow
def test_large_text_noise_withdraws_the_verdict(
    by_document: Make, experiment: Make, check_message: CheckMessage
) -> None:
    alone = row(experiment(CELLS))
    little, much = row(by_document(0.001)), row(by_document(0.5))
    assert (alone.verdict, little.verdict) == ("better", "better")
    assert (alone.interval, little.interval, much.interval) == ("joint", "seeds-and-text", "seeds-and-text")
    assert little.low <= alone.low < alone.high <= little.high < 0
    check_message(much.verdict)
    assert much.low < 0 < much.high
    assert not much.significant
    assert not much.bold
    assert much.se_text > much.se_seeds == pytest.approx(little.se_seeds)


def noted(folder: Path) -> str:
    """Return the notes of an experiment on one line."""
    return " ".join(notes_with("", load(folder)))


def notes_with(key: str, results: Records) -> list[str]:
    """Return the notes in which a key stands."""
    return [note for note in notes(results, compare(results)) if key in note]


def test_the_test_split_has_documents_of_its_own(experiment: Make, tmp_path: Path, check_message: CheckMessage) -> None:
    store, tokens = Store(tmp_path / "out"), np.full(40, 30)
    off = 0.5 * np.random.default_rng(0).normal(size=40)
    off -= off.mean()

    def change(arm: str, seed: int, record: dict[str, Any]) -> None:
        record["metrics"]["test_nll"] = nll = record["metrics"]["nll"]
        for quantity, spread in (("nll", 0.0), ("test_nll", off if arm == "arm" else 0.0)):
            part, file = KEPT[quantity]
            content = packed((nll + spread) * tokens, tokens)
            write_atomic(store.work(record["id"]) / file, content)
            record[part] = described(content, "document", 1, 40)

    results = load(experiment(CELLS, change, metric="test_nll"))
    found = {one.metric: one for one in compare(results).itertuples() if one.arm == "arm"}
    check_message(found["test_nll"].verdict)
    assert found["test_nll"].se_text > found["nll"].se_text == pytest.approx(0, abs=1e-6)
    assert found["test_nll"].interval == "seeds-and-text"
    check_message(notes_with("% CI", results))


def test_generalising_over_seeds_alone_still_reports_text_noise(by_document: Make) -> None:
    folder = by_document(0.5, generalise="seeds")
    found, said = row(folder), noted(folder)
    assert (found.interval, found.verdict) == ("joint", "better")
    assert "generalise: seeds" in said
    assert found.se_text > found.se_seeds
    assert f"text {found.se_text:.4f} (SE)" in said


@pytest.mark.parametrize(
    "options", [{"without": ("arm-3",)}, {"count": 19}, {"adaptive": {"looks": [6], "maximum": 6}}]
)
def test_seeds_alone_decide_where_documents_are_lacking(
    by_document: Make, options: Any, check_message: CheckMessage
) -> None:
    folder = by_document(0.5, **options)
    assert row(folder).interval in ("joint", "repeated")
    assert row(folder).significant
    check_message(notes_with("CIs ", load(folder)))


def test_a_damaged_file_and_other_documents_are_named(by_document: Make, check_message: CheckMessage) -> None:
    folder = by_document(0.1)
    path = load(folder).store.documents("arm-2")
    path.write_bytes(path.read_bytes()[:-1] + b"\1")
    check_message(texts(load(folder)).lacking["arm"])


def test_cells_of_other_documents_are_not_compared_by_document(experiment: Make, check_message: CheckMessage) -> None:
    def change(arm: str, seed: int, record: dict[str, Any]) -> None:
        tokens = np.full(40, 30) + (arm == "arm")
        content = packed(tokens * record["metrics"]["nll"], tokens)
        write_atomic(Store(store).work(record["id"]) / "documents.npz", content)
        record["documents"] = described(content, "document", 1, 40)

    store = experiment({"base": [2.0]}).parent
    results = load(experiment(CELLS, change))
    check_message([f"{arm}: {reason}" for arm, reason in texts(results).lacking.items()])


def test_detectable_effects_include_text_noise_and_its_floor(by_document: Make, experiment: Make) -> None:
    alone, little, folder = row(experiment(CELLS)), row(by_document(0.001)), by_document(0.5)
    results, much = load(folder), row(folder)
    assert 1.0 <= little.detectable / alone.detectable < 1.1
    assert much.detectable == detectable_on_texts(6, texts(results).noise["arm"]) > 5 * alone.detectable
    # The arm's gain on a document is the same for every seed: more seeds leave all of its noise.
    of_document = 0.5 * np.random.default_rng(0).normal(size=40)
    size = TTestPower().solve_power(nobs=40, alpha=0.05, power=0.8)
    at_known_noise = size * of_document.std(ddof=1)
    assert at_known_noise < much.detectable_floor < 1.05 * at_known_noise
    assert f": {much.detectable:.4f}." in noted(folder)
    results.manifest["generalise"] = "seeds"
    (asked,) = [one for one in compare(results).itertuples() if (one.arm, one.metric) == ("arm", "nll")]
    assert asked.detectable == alone.detectable
    assert np.isnan(asked.detectable_floor)


def test_bits_per_byte_are_judged_over_text_like_loss(by_document: Make, check_message: CheckMessage) -> None:
    folder = by_document(0.5, metric="bits_per_byte")
    found = {one.metric: one for one in compare(load(folder)).itertuples() if one.arm == "arm"}
    bits, nats = found["bits_per_byte"], found["nll"]
    check_message(bits.verdict)
    assert (bits.se_seeds, bits.se_text) == pytest.approx((2 * nats.se_seeds, 2 * nats.se_text))
    check_message(notes_with("% CI", load(folder)))
    unlike = load(folder)
    metrics: Any = unlike.records["arm", 2]
    metrics["metrics"]["bits_per_byte"] = 1.0
    check_message(texts(unlike, "bits_per_byte").lacking["arm"])


def test_exploratory_verdicts_cover_text(by_document: Make, check_message: CheckMessage) -> None:
    little, much = (row(by_document(spread, confirmatory=[])) for spread in (0.001, 0.5))
    check_message(little.verdict)
    assert little.q == max(little.p, little.p_both) == 2 / 64
    check_message(much.verdict)
    assert much.q == much.p_both > 0.05 > much.p


def test_exploratory_equivalence_covers_text(by_document: Make) -> None:
    little, much = (row(by_document(spread, confirmatory=[], margin={"nll": 0.06})) for spread in (0.001, 0.5))
    assert little.p_equivalent <= 0.05 < much.p_equivalent


def test_notes_name_what_exploratory_q_covers(by_document: Make, experiment: Make, check_message: CheckMessage) -> None:
    check_message(notes_with("Benjamini", load(experiment(CELLS, confirmatory=[]))))
    check_message(notes_with("Benjamini", load(by_document(0.001, confirmatory=[]))))

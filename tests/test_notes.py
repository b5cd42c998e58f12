"""What notes and pages say of a course of training, or of a ratio, is what the committed runs show."""

import functools
import json
import math
import re
import statistics
from collections.abc import Callable
from pathlib import Path

import pandas as pd
import pytest

from lm.analysis.results import Records, curves, load, value
from lm.config.reading import shipped_files
from lm.config.tree import load_yaml
from lm.report.pack import unpack

ROOT = Path(__file__).resolve().parents[1]
REFERENCE = ROOT / "results" / "reference"

Committed = Callable[..., Records]


@pytest.fixture(scope="module")
def committed(tmp_path_factory: pytest.TempPathFactory) -> Committed:
    """Reads the results of a committed pack, each once, or a part of them such as `.shared`."""

    @functools.cache
    def read(name: str, part: str = "") -> Records:
        out = tmp_path_factory.mktemp(name)
        unpack(REFERENCE / f"{name}.lmpack", out)
        return load(out / f"{name}{part}")

    return read


def notes(name: str) -> str:
    """The notes of a shipped experiment, on one line."""
    return " ".join(str(load_yaml(shipped_files("experiment")[name])["notes"]).split())


def page(name: str) -> str:
    """A page of the documentation, on one line."""
    return " ".join((ROOT / name).read_text(encoding="utf-8").split())


def differences(results: Records, arm: str) -> pd.Series:
    """The mean difference of validation losses to the baseline, by step."""
    mine, base = (curves(results, side, "validation_nll") for side in (arm, results.manifest["baseline"]))
    return (mine - base).mean(axis=1)


def listed(parts: list[str]) -> str:
    return f"{', '.join(parts[:-1])} and {parts[-1]}"


def states(text: str, *numbers: str) -> bool:
    """Whether a text states these numbers one after the other, with no other number between them."""
    return re.search(r"\D*".join(map(re.escape, numbers)), text) is not None


def test_the_lead_of_post_norm_comes_late(committed: Committed) -> None:
    by_step = differences(committed("lr_curve_norm_placement"), "pre_norm")
    by_name = listed([f"{by_step[step]:+z.3f}" for step in range(50, 401, 50)])
    assert states(notes("lr_curve_norm_placement"), "50", "100", "400", by_name)
    assert by_step[50] < 0, "pre-LN leads at first"
    assert by_step.loc[[100, 150]].abs().max() < 0.01
    assert by_step.loc[200:].min() > 0.01, "post-LN leads from the middle on"
    assert by_step.loc[200:].is_monotonic_increasing


SETTINGS = ["", "_half", "_twice", "_long", "_normal", "_normal_quarter"]
"""Ends of the arms' names in `quickstart_settings`, in the order of its notes."""


@pytest.mark.slow
@pytest.mark.usefixtures("undrawn")
def test_the_quickstarts_answer_has_one_sign_at_all_settings(committed: Committed) -> None:
    results = committed("quickstart_settings")

    def by_seed(arm: str, other: str) -> list[list[float]]:
        """Differences in validation NLL, a list of seeds for each setting."""
        return [
            [
                value(x, "nll") - value(y, "nll")
                for x, y in zip(results.of(arm + end), results.of(other + end), strict=True)
            ]
            for end in SETTINGS
        ]

    text, tables = notes("quickstart_settings"), page("docs/reproduced.md")
    lead = by_seed("swiglu", "gelu")
    assert all(difference < 0 for setting in lead for difference in setting)
    assert all(len(setting) == 6 for setting in lead)
    means = {
        pair: [f"{statistics.mean(one):+.3f}" for one in by_seed(*pair)]
        for pair in (("swiglu", "gelu"), ("swiglu", "relu"), ("gelu", "relu"))
    }
    *rates, long, normal, quarter = means["swiglu", "gelu"]
    assert states(text, *rates, long, "1,000", normal, "N(0, .02)", quarter)
    for pair in (("swiglu", "relu"), ("gelu", "relu")):
        assert listed(means[pair]) in text
        assert {mean[0] for mean in means[pair]} == {"+", "-"}, "its sign changes"
    for row in zip(*means.values(), strict=True):
        assert f"| {' | '.join(row)} |" in tables


@pytest.mark.slow
def test_the_gated_layers_keep_their_lead_along_the_curves(committed: Committed) -> None:
    results = committed("glu")
    at = {step: [differences(results, arm)[step] for arm in ("reglu", "geglu", "swiglu")] for step in (512, 1024)}
    early, late = ([f"{difference:+z.3f}" for difference in at[step]] for step in (512, 1024))
    assert states(notes("glu"), listed(early), "512", listed(late), "1,024")
    assert max(abs(x - y) for x, y in zip(at[512], at[1024], strict=True)) < 0.005


@pytest.mark.slow
def test_the_lead_of_untied_embeddings_shrinks_all_along(committed: Committed) -> None:
    by_step = differences(committed("weight_tying", ".shared"), "tied")
    assert by_step.is_monotonic_decreasing
    assert by_step.iloc[0] > 4 * by_step.iloc[-1] > 0
    assert states(notes("weight_tying"), f"{by_step[256]:+z.3f}", "256", f"{by_step[2304]:+z.3f}", "2,304")


@pytest.mark.slow
def test_post_norm_without_warm_up_ends_at_character_frequencies(committed: Committed) -> None:
    """3.1146 nats are the loss of a unigram model of this text."""
    results = committed("norm_placement", ".shared")
    ends = [value(record, "nll") for record in results.of("post_norm_no_warmup")]
    assert sum(abs(end - 3.1146) < 0.05 for end in ends) == 7
    assert len(ends) == 8
    assert states(notes("norm_placement"), "3.1 nats", "7", "8 seeds")
    assert not any(committed("norm_placement").health.values()), "at rates of their own no block stops learning"


@pytest.mark.slow
def test_ratios_of_perplexity_are_medians_and_are_called_so(committed: Committed) -> None:
    def median(arm: str, part: str) -> str:
        records = committed("extrapolation", part).of(arm)
        ratios = (math.exp(value(one, "nll@512") - value(one, "nll@128")) for one in records)
        return f"{statistics.median(ratios):z.2f}"

    at_one, own = (
        {arm: median(arm, part) for arm in ("rope", "sinusoidal", "t5", "alibi")} for part in (".shared", "")
    )
    said = "{rope} in the median over seeds, sinusoids' {sinusoidal}, T5's {t5} and ALiBi's {alibi}".format(**at_one)
    assert said in notes("extrapolation")
    of_t5, of_sinusoids = f"{own['t5']} for T5 ({at_one['t5']} at .008)", f"{own['sinusoidal']} for sinusoids"
    said = f"{own['alibi']} for ALiBi, {of_t5}, {own['rope']} for RoPE and {of_sinusoids} ({at_one['sinusoidal']})"
    assert f"in the median over seeds, {said}" in page("docs/reproduced.md")


def test_the_readme_shows_the_committed_table() -> None:
    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    committed = (REFERENCE / "quickstart" / "table.md").read_text(encoding="utf-8").splitlines()
    first = next(place for place, line in enumerate(committed) if line.startswith("| arm | n |"))
    assert "\n".join(committed[first : first + 4]) in readme


def test_a_recipe_that_clips_most_steps_under_adamw_is_healthy(committed: Committed) -> None:
    results = committed("nanogpt_char")
    assert min(value(record, "clipped_share") for record in results.of("nanogpt")) > 0.5
    assert results.health == {"nanogpt": ""}
    paragraphs = (ROOT / "docs/reproduced.md").read_text(encoding="utf-8").split("\n\n")
    assert [part for part in paragraphs if "`nanogpt_char`" in part and "AdamW" in part]


def test_the_table_of_all_answers_is_that_of_the_packs() -> None:
    table = pd.read_csv(REFERENCE / "claims" / "table.csv")
    golden = json.loads((ROOT / "tests" / "golden.json").read_text(encoding="utf-8"))["claims"]
    found = {(row.experiment, row.claim): (row.verdict, row.seeds, row.post_hoc) for row in table.itertuples()}
    of_packs = {
        (name, claim): (verdict, seeds, post_hoc)
        for name, answers in golden.items()
        for claim, verdict, seeds, post_hoc, *_ in answers
        if not name.endswith(".s120k")
    }
    assert found == of_packs


def test_what_own_rates_change_is_counted_in_the_table_of_all_answers() -> None:
    table = pd.read_csv(REFERENCE / "claims" / "table.csv")
    judged = table[table.verdict_at_one_rate.notna() & (table.kind != "identity")]
    verdicts = ("reproduced", "not reproduced", "inconclusive")
    for before in verdicts:
        counts = [int(((judged.verdict_at_one_rate == before) & (judged.verdict == after)).sum()) for after in verdicts]
        assert f"| {before} | {' | '.join(map(str, counts))} |" in page("docs/reproduced.md")
    assert f"These are the {len(judged)} answers at own rates" in page("docs/reproduced.md")

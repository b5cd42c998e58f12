"""Arms that several experiments have in common are summarised over them."""

import itertools
import json
import re
import shutil
import statistics
from dataclasses import replace
from pathlib import Path
from typing import Any, cast

import numpy as np
import pytest
from conftest import make_experiment
from helpers import Capture, known
from messages import CheckMessage

from lm.analysis.answers import Answer, Mean, answer_claim
from lm.analysis.claims import Claim
from lm.analysis.compare import compare
from lm.analysis.results import load, value
from lm.cli import main
from lm.report.claims import AnswerOver, answer_over, answers, common_claims_section
from lm.report.pack import open_results
from lm.report.pooled import pooled_section, standard_error
from lm.report.render import emphasis
from lm.stats.meta import over_experiments

REFERENCE = Path(__file__).resolve().parents[2] / "results" / "reference"
BASE = [2.0, 2.1, 1.9, 2.05, 2.02, 1.97]
NOISE = [0.01, -0.012, 0.004, 0.0, -0.006, 0.009]


CLAIM: dict[str, Any] = {
    "claim": "it is better",
    "metric": "nll",
    "relation": "less",
    "contrast": {"better": 1.0, "base": -1.0},
}


def make(folder: Path, name: str, effect: float, arm: str = "better", seeds: int = 6, sick: bool = False) -> Path:
    """Make an experiment whose arm is off by about `effect`; its attention collapses if `sick`."""
    outcomes = [base + effect + noise for base, noise in zip(BASE, NOISE, strict=True)]

    def change(of: str, _: int, record: dict[str, Any]) -> None:
        if sick and of == arm:
            record.update(steps=100, final={"entropy": [[0.01, 0.01]]})

    made = make_experiment(folder / name, {"base": BASE[:seeds], arm: outcomes[:seeds]}, change, prefix=name)
    manifest = json.loads((made / "experiment.json").read_text())
    manifest |= {"name": name, "claims": [CLAIM] if arm == "better" else []}
    (made / "experiment.json").write_text(json.dumps(manifest))
    shutil.move(made, made.with_name(name))
    return made.with_name(name)


@pytest.mark.slow
@pytest.mark.usefixtures("undrawn")
def test_pooled_reports_have_a_row_for_each_shared_arm(
    tmp_path: Path, capsys: Capture, check_message: CheckMessage
) -> None:
    folders = [make(tmp_path, name, effect) for name, effect in (("prose", -0.3), ("code", -0.32), ("drama", -0.28))]
    lonely = make(tmp_path, "other", -0.3, arm="lonely")
    out = tmp_path / "report"
    formats = ["--format", "md,latex,html"]
    assert main(["report", *map(str, (*folders, lonely)), "--out", str(out), *formats]) == 0
    (row,) = [line for line in (out / "table.md").read_text().splitlines() if line.startswith("| better - base |")]
    tables = [compare(load(folder)) for folder in folders]
    rows = [next(table[(table.metric == "nll") & (table.arm == "better")].itertuples()) for table in tables]
    summary = over_experiments([one.difference for one in rows], [standard_error(one) for one in rows])
    assert f"**{summary.mean:+.4f} [{summary.low:+.4f}, {summary.high:+.4f}]**" in row
    lines = (out / "table.md").read_text().splitlines()
    below = lines[lines.index(row) + 1 :][:4]
    for line, name, one in zip(below, ("prose", "code", "drama"), rows, strict=False):
        assert line == f"| · {name} | **{one.difference:+.4f} [{one.low:+.4f}, {one.high:+.4f}]** |  |  | better |"
    assert below[3] == f"| · another experiment | {summary.next_low:+.4f} to {summary.next_high:+.4f} |  |  |  |"
    section = known(pooled_section([(load(folder), table) for folder, table in zip(folders, tables, strict=True)]))
    check_message([section.title, section.notes[0]])
    assert section.notes[0] in (out / "table.md").read_text()
    assert section.title in capsys.readouterr().out
    assert section.title in (out / "report.html").read_text()
    assert section.title in (out / "table.tex").read_text()
    (claim,) = [line for line in (out / "table.md").read_text().splitlines() if line.startswith("| it is better |")]
    of_each = [f"reproduced, {row.difference:.4g}" for row in rows]
    of_all = f"reproduced, {summary.mean:.4g} [{summary.low:.4g}, {summary.high:.4g}]"
    assert claim == f"| it is better | &lt; 0 | {' | '.join(of_each)} | 3 reproduced | {of_all} |"


def test_claims_that_experiments_share_stand_side_by_side(check_message: CheckMessage) -> None:
    claim, other = (Claim(words, "nll", "less", {"a": 1.0, "b": -1.0}) for words in ("it is better", "alone"))
    yes, no = Answer(claim, "reproduced", -0.1, -0.2, 0.0, 6), Answer(claim, "inconclusive", -0.1, -0.2, 0.0, 6)
    answered = [("t.code", yes), ("t.prose", no), ("t.drama", yes)]
    section = known(common_claims_section([*answered, ("t.code", replace(yes, claim=other))]))
    check_message([section.title, *section.columns, *section.notes])
    assert [list(map(str, row)) for row in section.rows] == [
        ["it is better", "< 0", *(f"{one.verdict}, -0.1" for _, one in answered), "2 reproduced, 1 inconclusive", "-"]
    ]
    assert known(common_claims_section([("x", yes), ("t.code", no)])).columns[2:4] == ["x", "t.code"]
    assert common_claims_section(answered[:1]) is None


def test_a_verdict_on_one_text_says_so(tmp_path: Path) -> None:
    results = [load(make(tmp_path, f"asked.{text}", -0.3)) for text in ("prose", "code", "drama")]
    for one in results:
        one.manifest["title"] = f"Asked ({one.manifest['name'].rpartition('.')[2]})"
    section = known(pooled_section([(one, compare(one)) for one in results]))
    assert [str(row[4]) for row in section.rows][1:4] == ["better on this text"] * 3


def test_a_claim_over_texts_is_judged_by_the_interval_of_its_mean() -> None:
    less, equivalent = (Claim("c", "nll", kind, {"a": 1.0, "b": -1.0}, margin=0.02) for kind in ("less", "equivalent"))

    def over(claim: Claim, differences: list[float], error: float = 0.001, **shift: float) -> AnswerOver | None:
        means = [Mean(difference, error, **shift) for difference in differences]
        return answer_over([Answer(claim, "inconclusive", 0.5, 0.0, 1.0, 8, mean=mean) for mean in means])

    for differences, of_less, of_equivalent in (
        ([-0.031, -0.03, -0.029], "reproduced", "not reproduced"),
        ([0.001, 0.0, -0.001], "reproduced", "reproduced"),  # less than the margin
        ([0.031, 0.03, 0.029], "not reproduced", "not reproduced"),
        ([0.1, 0.0, -0.1], "inconclusive", "inconclusive"),
    ):
        for claim, verdict in ((less, of_less), (equivalent, of_equivalent)):
            found = known(over(claim, differences))
            assert (found.verdict, found.summary) == (verdict, over_experiments(differences, [0.001] * 3))
    assert known(over(less, [-0.031, -0.03, -0.029], higher=0.1)).verdict == "inconclusive"
    assert over(less, [-0.03, -0.03]) is None
    unfit = Answer(less, "reproduced", -0.03, -0.04, -0.02, 8)
    assert answer_over([unfit, *(replace(unfit, mean=Mean(-0.03, 0.001)) for _ in range(2))]) is None


def test_an_answer_has_a_mean_only_where_a_summary_may_rest_on_it(tmp_path: Path) -> None:
    claim = Claim(**CLAIM)
    results = load(make(tmp_path, "sound", -0.3))
    found = known(answer_claim(results, claim).mean)
    row = next(row for row in compare(results).itertuples() if (row.arm, row.metric) == ("better", "nll"))
    assert found.mean == pytest.approx(row.difference)
    assert (found.lower, found.higher) == (0.0, 0.0)
    assert found.error == pytest.approx(standard_error(row))
    assert answer_claim(load(make(tmp_path, "few", -0.3, seeds=3)), claim).mean is None
    assert answer_claim(load(make(tmp_path, "sick", -0.3, sick=True)), claim).mean is None
    assert known(answer_over([answer_claim(results, claim)] * 3)).post_hoc is False
    assert known(answer_over([replace(answer_claim(results, claim), post_hoc=True)] * 3)).post_hoc is True
    losses = [2.0, 2.1, 1.9, 2.05, 2.02, 1.97, 2.03, 1.96]
    many = load(make_experiment(tmp_path / "many", {"base": losses, "better": [x**1.1 - 0.3 for x in losses]}))
    assert answer_claim(many, claim).mean is not None
    cast(dict[str, Any], many.records["better", 7])["status"] = "diverged"
    assert answer_claim(many, claim).seeds == 7
    assert answer_claim(many, claim).mean is None
    for (arm, seed), record in results.records.items():
        measured, changed = {"loss": 2.0 + NOISE[seed] * (arm == "better")}, cast(dict[str, Any], record)
        changed.update(initial=measured, final=measured)
    assert answer_claim(results, replace(claim, metric="final/loss")).mean is not None
    assert answer_claim(results, replace(claim, metric="initial/loss")).mean is None


def test_an_experiment_made_of_another_is_counted_once(tmp_path: Path, check_message: CheckMessage) -> None:
    names = {"prose": -0.3, "prose.shared": -0.3, "prose.lr_curve": -0.3, "code": -0.32, "code.shared": -0.32}
    results = [load(make(tmp_path, name, effect)) for name, effect in names.items()]
    section = known(pooled_section([(one, compare(one)) for one in results]))
    assert [str(row[0]) for row in section.rows] == ["better - base", "· prose", "· code"]
    check_message(list(section.notes[:2]))


def test_what_rates_leave_open_widens_the_mean(tmp_path: Path) -> None:
    results = [load(make(tmp_path, name, -0.3)) for name in ("prose", "code", "drama")]
    found = known(pooled_section([(one, compare(one)) for one in results]))
    rate = {"shared": 0.1, "best": 0.1, "end": "", "rates": [0.1], "lost": 0}
    for one in results:
        manifest: dict[str, Any] = one.manifest  # type: ignore[assignment]
        manifest["rates"] = {"base": {**rate, "regret": 0.02}, "better": {**rate, "regret": 0.01}}
    widened = known(pooled_section([(one, compare(one)) for one in results]))
    before, after = ([float(x) for x in re.findall(r"[-+][.0-9]+", str(one.rows[0][1]))] for one in (found, widened))
    assert np.subtract(after, before) == pytest.approx([0, -0.01, 0.02], abs=1e-9)
    assert {*widened.notes} > {*found.notes}


def test_two_experiments_are_never_bold(tmp_path: Path) -> None:
    results = [load(make(tmp_path, name, effect)) for name, effect in (("prose", -0.3), ("code", -0.3))]
    section = pooled_section([(one, compare(one)) for one in results])
    assert section is not None
    assert not any(emphasis(cell).bold for cell in section.rows[0])
    assert section.rows[0][-1] == "-"
    assert len(section.rows) == 3  # none of another experiment


def judged(folder: Path, **third: Any) -> tuple[bool, str, list[str]]:
    """Return whether the mean of three experiments, the `third` made otherwise, is bold; its verdict; the problems."""
    makes = [("prose", {}), ("code", {}), ("drama", third)]
    results = [load(make(folder, name, **{"effect": -0.3, **more})) for name, more in makes]
    section = pooled_section([(one, compare(one)) for one in results])
    assert section is not None
    row, problems = section.rows[0], [note for note in section.notes if note.startswith("!")]
    return emphasis(row[1]).bold, str(row[-1]), problems


@pytest.mark.usefixtures("undrawn")
def test_the_texts_of_one_file_are_called_by_their_names(tmp_path: Path, check_message: CheckMessage) -> None:
    texts, out = ("code", "drama", "prose"), tmp_path / "report"
    folders = [make(tmp_path, f"mine.{text}", effect) for text, effect in zip(texts, (-0.3, -0.32, -0.28), strict=True)]
    for folder, text in zip(folders, texts, strict=True):
        manifest = json.loads((folder / "experiment.json").read_text())
        (folder / "experiment.json").write_text(json.dumps({**manifest, "title": f"Is it better? ({text})"}))
    section = known(pooled_section([(one, compare(one)) for one in map(load, folders)]))
    assert [str(row[0]) for row in section.rows[1:]] == ["· code", "· drama", "· prose", "· another text"]
    check_message([section.title, str(section.rows[0][-1]), section.notes[0]])
    for wanted in (folders, [*folders, make(tmp_path, "other", -0.3)]):
        assert main(["report", *map(str, wanted), "--out", str(out), "--format", "md,html"]) == 0
        assert ("Is it better? Report on 3 texts: code, drama, prose" in (out / "report.html").read_text()) == (
            (out / "table.md").read_text().startswith("# Is it better? Report on 3 texts: code, drama, prose\n")
        )
        assert (out / "table.md").read_text().startswith("# Report of 4 experiments\n") == (len(wanted) == 4)


@pytest.mark.slow
@pytest.mark.usefixtures("undrawn")
def test_few_seeds_or_unhealthy_runs_anywhere_are_never_bold(tmp_path: Path, check_message: CheckMessage) -> None:
    is_bold, verdict, problems = judged(tmp_path / "sound")
    assert (is_bold, problems) == (True, [])
    check_message(verdict)
    assert judged(tmp_path / "odd", effect=0.9) == (False, "open", [])
    for name, third in (("seeds", 3), ("sick", True)):
        is_bold, verdict, problems = judged(tmp_path / name, **{name: third})
        assert (is_bold, verdict) == (False, "-")
        check_message(problems)


@pytest.mark.extra
def test_differences_by_seed_barely_correlate_between_sizes(tmp_path: Path) -> None:
    """As the summary supposes: correlations of differences by seed, over all committed studies at two sizes."""
    correlations = []
    for larger in sorted(REFERENCE.glob("*.s120k.lmpack")):
        sizes = [
            differences_by_seed(pack, tmp_path) for pack in (REFERENCE / f"{larger.name.split('.')[0]}.lmpack", larger)
        ]
        for arm in sizes[0].keys() & sizes[1].keys():
            pair = np.array([by_seed[arm] for by_seed in sizes])
            if pair.std(axis=1).min() > 1e-9:
                correlations.append(float(np.corrcoef(pair)[0, 1]))
    mean, error = np.mean(correlations), np.std(correlations, ddof=1) / len(correlations) ** 0.5
    print(f"{len(correlations)} differences: correlation {mean:.2f}, standard error {error:.2f}")
    assert len(correlations) > 20
    assert abs(mean) < 0.2


@pytest.mark.extra
def test_differences_by_seed_barely_correlate_between_texts(tmp_path: Path) -> None:
    """As the summary supposes, though a seed has the same initial values on each text: all committed experiments."""
    by_experiment: dict[str, list[float]] = {}
    for first in sorted(REFERENCE.glob("*_texts.python.lmpack")):
        name, of_texts = first.name.split(".")[0], list[dict[str, list[float]]]()
        if name in ("gradient_depth_texts", "attention_entropy_texts"):  # of initial values, which are the same
            continue
        for text in ("python", "drama", "captions"):
            of_texts.append(differences_by_seed(REFERENCE / f"{name}.{text}.lmpack", tmp_path))
        for one, other in itertools.combinations(of_texts, 2):
            for arm in one.keys() & other.keys():
                pair = np.array([one[arm], other[arm]])
                if np.isfinite(pair).all() and pair.std(axis=1).min() > 1e-9:
                    by_experiment.setdefault(name, []).append(float(np.corrcoef(pair)[0, 1]))
    means = [float(np.mean(correlations)) for correlations in by_experiment.values()]
    mean, error = np.mean(means), np.std(means, ddof=1) / len(means) ** 0.5
    number = sum(map(len, by_experiment.values()))
    print(f"{number} differences, {len(means)} experiments: correlation {mean:.2f}, standard error {error:.2f}")
    assert len(means) > 8
    assert abs(mean) < 0.25


def differences_by_seed(pack: Path, folder: Path) -> dict[str, list[float]]:
    """Return the differences to the baseline of each arm, seed by seed."""
    with open_results(pack, folder) as place:
        results = load(place.folder)
        losses = {arm: [value(record, "nll") for record in results.of(arm)] for arm in results.arms}
    base = losses.pop(results.manifest["baseline"])
    return {arm: [x - y for x, y in zip(of_arm, base, strict=True)] for arm, of_arm in losses.items()}


def test_one_experiment_twice_is_no_second_one(tmp_path: Path) -> None:
    results = load(make(tmp_path, "prose", -0.3))
    other = replace(results, manifest={**results.manifest, "name": "again"})
    assert pooled_section([(results, compare(results))] * 2) is None
    section = known(pooled_section([(one, compare(one)) for one in (results, other)]))
    left_out = "Not counted, as they share cells with others here: again."
    assert (section.rows, section.notes) == ((), [left_out])
    third = load(make(tmp_path, "code", -0.3))
    three, two = (
        known(pooled_section([(one, compare(one)) for one in of])) for of in ((results, other, third), (results, third))
    )
    assert [*map(str, three.rows[0])] == [*map(str, two.rows[0])]
    assert left_out in three.notes
    claimed = [(one.manifest["name"], answer) for one in (results, other, third) for answer in answers(one)]
    manifests = {one.manifest["name"]: one.manifest for one in (results, other, third)}
    common = known(common_claims_section(claimed, manifests))
    assert common.columns[2:4] == ["prose", "code"]
    assert left_out in common.notes


def test_the_plain_intervals_error_serves_where_none_is_known(tmp_path: Path) -> None:
    table = compare(load(make(tmp_path, "prose", -0.3)))
    row = next(table[(table.metric == "nll") & (table.arm == "better")].itertuples())
    assert standard_error(row) == pytest.approx(statistics.stdev(NOISE) / 6**0.5, rel=1e-6)

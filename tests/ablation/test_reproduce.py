"""`lm reproduce` runs the experiments that carry claims, and answers each in one table."""

import csv
import re
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
import yaml
from helpers import RUN, Capture, Patch, known
from messages import CheckMessage, Refused, RefusedCommand

from lm.ablation.experiment import load_experiment
from lm.ablation.reproduce import find_experiments
from lm.analysis.claims import KINDS
from lm.analysis.compare import compare
from lm.analysis.results import is_on_a_text, load
from lm.cli import main
from lm.report.pack import open_results
from lm.report.pooled import pooled_section
from lm.stats.tests import ALPHA, benjamini_hochberg, holm, seeds_needed, smallest_p

EXPERIMENTS = Path(__file__).resolve().parents[2] / "experiments"


def write(folder: Path, name: str, **keys: Any) -> None:
    folder.mkdir(exist_ok=True)
    (folder / "run.yaml").write_text(yaml.safe_dump({**RUN, "trainer": {**RUN["trainer"], "max_steps": 6}}))
    arms = {"layer": {"model.norm": "LayerNorm"}, "rms": {"model.norm": "RMSNorm"}}
    tree = {"base": "run.yaml", "baseline": "layer", "seeds": [0, 1], "arms": arms, "confirmatory": False, **keys}
    (folder / f"{name}.yaml").write_text(yaml.safe_dump(tree))


FEWER = {
    "claim": "RMSNorm has fewer parameters",
    "kind": "identity",
    "metric": "parameters",
    "relation": "less",
    "arm": "rms",
    "exact": True,
}


def test_experiments_are_those_with_claims(tmp_path: Path, refused: Refused) -> None:
    write(tmp_path, "with", claims=[FEWER])
    write(tmp_path, "without")
    assert find_experiments(tmp_path, []) == [tmp_path / "with.yaml"]
    with refused():
        find_experiments(tmp_path, ["wiht"])


def test_the_projects_own_claims_can_be_read() -> None:
    names = {path.stem for path in find_experiments(EXPERIMENTS, [])}
    assert {"gradient_depth", "attention_entropy", "extrapolation", "glu", "norm_type", "label_smoothing"} <= names


# Registered with eight seeds: enough by Benjamini and Hochberg, not by Holm, as its table and docs/reproduced.md say.
TOO_FEW_FOR_HOLM = ("glu_texts",)


def test_the_projects_claims_are_counted_and_have_enough_seeds() -> None:
    page = (EXPERIMENTS.parent / "docs" / "reproduced.md").read_text(encoding="utf-8")
    files, kinds = find_experiments(EXPERIMENTS, []), Counter[str]()
    for path in files:
        experiment = load_experiment(path, {})
        seeds = len(experiment.seeds)
        tested = [one for one in experiment.claims if not one.exact and one.tier in ("", "C")]
        for kind in KINDS:
            of_mean = [one.relation in ("less", "greater") for one in tested if one.kind == kind]
            corrected = benjamini_hochberg if path.stem in TOO_FEW_FOR_HOLM else holm
            best = corrected([smallest_p(seeds) / (1 if mean else 2) for mean in of_mean])
            assert max(best, default=0.0) <= ALPHA, f"{path.stem}: {kind}"
        assert not tested or seeds >= seeds_needed(1)
        of_file = Counter(claim.kind for claim in experiment.claims)
        large = sum(claim.tier == "G" for claim in experiment.claims)
        counts = [*(of_file[kind] for kind in KINDS), large, seeds]
        assert f"| `{path.stem}` | {' | '.join(map(str, counts))} |" in page, path.stem
        kinds.update(of_file)
    assert set(kinds) == set(KINDS)
    assert f"There are {kinds.total()} claims over {len(files)} experiments" in page


@pytest.mark.extra
@pytest.mark.usefixtures("undrawn")
def test_claims_are_answered_and_what_cannot_run_is_told(
    tmp_path: Path, capsys: Capture, monkeypatch: Patch, check_message: CheckMessage
) -> None:
    monkeypatch.chdir(tmp_path)
    more = {**FEWER, "claim": "RMSNorm has more parameters", "relation": "greater", "kind": "ours"}
    large = {**FEWER, "claim": "only of the large size", "tier": "G"}
    write(tmp_path / "experiments", "sound", claims=[FEWER, more, large])
    common = {"data.corpus": {"class_path": "LocalText", "init_args": {"path": "nowhere.txt"}}}
    write(tmp_path / "experiments", "textless", claims=[FEWER], common=common)
    assert main(["reproduce", "--workers", "1"]) == 0
    printed = " ".join(capsys.readouterr().out.split())
    with (tmp_path / "results" / "reproduce.C" / "table.csv").open() as file:
        rows = list(csv.DictReader(file))
    assert [(row["experiment"], row["kind"], row["verdict"]) for row in rows] == [
        ("sound", "identity", "reproduced"),
        ("sound", "ours", "not reproduced"),
    ]
    page = (tmp_path / "results" / "reproduce.C" / "table.md").read_text().splitlines()
    check_message(page)
    assert all(line.removeprefix("- ") in printed for line in page if line.startswith("- "))


def test_packs_are_answered_and_nothing_is_trained(
    tmp_path: Path,
    capsys: Capture,
    monkeypatch: Patch,
    refused_command: RefusedCommand,
    check_message: CheckMessage,
) -> None:
    monkeypatch.chdir(EXPERIMENTS.parent)
    packs = [f"results/reference/{name}.lmpack" for name in ("grouped_query", "quickstart", "dyt.s120k")]
    assert main(["reproduce", *packs, "--out", str(tmp_path)]) == 0
    with (tmp_path / "claims.C" / "table.csv").open() as file:
        rows = list(csv.DictReader(file))
    assert [(row["experiment"], row["verdict"]) for row in rows] == [("grouped_query", "reproduced")] * 4
    assert "verdict_at_one_rate" not in rows[0], "all at one rate"
    assert [path.name for path in tmp_path.iterdir()] == ["claims.C"]
    check_message(
        [line.strip() for line in capsys.readouterr().out.splitlines() if "without" in line or "tier" in line]
    )
    for beside in (["glu"], ["--plan"], ["--first-seeds", "6"], ["--tier", "L"], ["--set", "trainer.max_steps=3"]):
        refused_command(["reproduce", packs[0], *beside])
    refused_command(["reproduce", *packs[1:]])


@pytest.mark.slow
def test_claims_on_several_texts_stand_beside_their_first_answers(
    tmp_path: Path, capsys: Capture, monkeypatch: Patch, check_message: CheckMessage
) -> None:
    monkeypatch.chdir(EXPERIMENTS.parent)
    names = ("tying_texts.python", "tying_texts.drama", "tying_texts.captions", "weight_tying")
    packs = [f"results/reference/{name}.lmpack" for name in names]
    assert main(["reproduce", *packs, "--out", str(tmp_path)]) == 0
    page = (tmp_path / "claims.C" / "over_texts.md").read_text().splitlines()
    printed = " ".join(capsys.readouterr().out.split())
    assert all(line.removeprefix("- ") in printed for line in page if line.startswith("- "))
    check_message([line for line in page if line.startswith(("| experiment", "- O"))])
    with (tmp_path / "claims.C" / "over_texts.csv").open() as file:
        rows = {row["claim"]: row for row in csv.DictReader(file)}
    with (tmp_path / "claims.C" / "table.csv").open() as file:
        on_a_text = {(row["claim"], row["experiment"]): row for row in csv.DictReader(file)}
    (dropout, tied) = rows
    for claim, row in rows.items():
        verdicts = [on_a_text[claim, f"tying_texts.{text}"]["verdict"] for text in ("python", "drama", "captions")]
        assert [row[text] for text in ("python", "drama", "captions")] == verdicts
        assert row["on_each_text"] == (verdicts[0] if len({*verdicts}) == 1 else "open")
    assert (rows[dropout]["one_text_own_rates"], rows[dropout]["over_texts"]) == ("", "not reproduced")
    before = on_a_text[tied, "weight_tying"]
    assert rows[tied]["one_text_own_rates"] == before["verdict"]
    assert rows[tied]["one_text_one_rate"] == before["verdict_at_one_rate"]
    compared = []
    for pack in packs[:3]:
        with open_results(Path(pack)) as opened:
            results = load(opened.folder)
            compared.append((results, compare(results)))
    of_arms = known(pooled_section(compared))
    (mean,) = [str(row[1]) for row in of_arms.rows if str(row[0]).startswith("dropout -")]
    low, high = (float(rows[dropout][end]) for end in ("low", "high"))
    assert mean == f"{-float(rows[dropout]['mean']):+.4f} [{-high:+.4f}, {-low:+.4f}]"


def test_a_title_that_ends_in_its_own_name_is_on_no_text() -> None:
    for name, title, on_a_text in (("glu", "Gates (glu)", False), ("glu.prose", "Gates (prose)", True)):
        manifest: Any = {"name": name, "title": title}
        assert is_on_a_text(manifest) == on_a_text


def timeless(text: str) -> list[str]:
    """The lines of a text, in which lengths of time are written as TIME."""
    return [re.sub(r"\b(\d+ (h|min) )?\d+ (min|s)\b", "TIME", line) for line in text.splitlines()]


def test_what_is_named_and_cannot_be_run_is_an_error(
    tmp_path: Path,
    capsys: Capture,
    monkeypatch: Patch,
    refused_command: RefusedCommand,
    check_message: CheckMessage,
) -> None:
    monkeypatch.chdir(tmp_path)
    common = {"data.corpus": {"class_path": "LocalText", "init_args": {"path": "nowhere.txt"}}}
    write(tmp_path / "experiments", "textless", claims=[FEWER], common=common)
    for arguments in (["textless", "--plan"], ["--plan"], ["textless"], ["textless", "--tier", "G"]):
        refused_command(["reproduce", *arguments])
        assert not (tmp_path / "results").exists()
    write(tmp_path / "experiments", "sound", claims=[FEWER, {**FEWER, "tier": "G"}])
    assert main(["reproduce", "--plan"]) == 0
    check_message(timeless(capsys.readouterr().out))
    refused_command(["reproduce", "sound", "textless"])
    write(tmp_path / "experiments", "wider", claims=[FEWER], seeds=[0, 1, 2])
    assert main(["reproduce", "sound", "wider", "--plan"]) == 0
    check_message(timeless(capsys.readouterr().out))


@pytest.mark.usefixtures("undrawn")
@pytest.mark.extra
def test_some_seeds_come_first_and_the_others_train_later_alone(
    tmp_path: Path, capsys: Capture, monkeypatch: Patch, check_message: CheckMessage
) -> None:
    monkeypatch.chdir(tmp_path)
    write(tmp_path / "experiments", "wide", claims=[FEWER], seeds=3)
    write(tmp_path / "experiments", "narrow", claims=[FEWER], seeds=1)
    for options, cells, seeds in ((["--first-seeds", "2"], 4, [1, 2]), ([], 2, [1, 3])):
        assert main(["reproduce", "--workers", "1", "--set", "optim.lr=2e-3", *options]) == 0
        assert f"{cells} cells trained, " in capsys.readouterr().err
        with (tmp_path / "results" / "reproduce.C" / "table.csv").open() as file:
            assert [int(row["seeds"]) for row in csv.DictReader(file)] == seeds
    assert main(["reproduce", "--plan"]) == 0  # at the rate of the file nothing was trained
    check_message(timeless(capsys.readouterr().out))


@pytest.mark.parametrize(
    "options",
    [["--first-seeds", "0"], ["--first-seed=2"], ["--set", "seed=3"], ["--tier", "L", "--first-seeds", "2"]],
)
def test_portions_that_there_are_not_are_told_in_a_line(options: list[str], refused_command: RefusedCommand) -> None:
    refused_command(["reproduce", *options])


def answered(folder: Path, tier: str) -> list[str]:
    """The experiments in the table of claims."""
    with (folder / "results" / f"reproduce.{tier}" / "table.csv").open() as file:
        return [row["experiment"] for row in csv.DictReader(file)]


@pytest.mark.usefixtures("undrawn")
@pytest.mark.extra
def test_results_of_one_tier_never_stand_for_another(
    tmp_path: Path, capsys: Capture, monkeypatch: Patch, check_message: CheckMessage
) -> None:
    monkeypatch.chdir(tmp_path)
    write(tmp_path / "experiments", "small", claims=[FEWER])
    large = {"G": {"seeds": 1}}
    write(tmp_path / "experiments", "large", claims=[FEWER], tiers=large)
    assert main(["reproduce", "--workers", "1"]) == 0
    assert answered(tmp_path, "C") == ["large", "small"]
    capsys.readouterr()
    assert main(["reproduce", "--tier", "G", "--workers", "1"]) == 0
    check_message([line for line in capsys.readouterr().out.splitlines() if "small" in line])
    assert answered(tmp_path, "G") == ["large"]

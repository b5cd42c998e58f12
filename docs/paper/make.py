"""Write docs/paper.pdf from the committed packs alone: `make paper`.

Every number about results is a macro, a table or a figure that is made here; paper.tex has none of its own.
"""

import argparse
import contextlib
import functools
import itertools
import math
import os
import re
import shutil
import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from matplotlib.figure import Figure

import lm
from lm.analysis.answers import DECIDED, Answer, adjust_p
from lm.analysis.compare import compare
from lm.analysis.ladder import load_ladder
from lm.analysis.results import Records, is_on_a_text, load, read_manifest
from lm.report.claims import ClaimOverTexts, claims_over_texts, kind_of
from lm.report.ladder import trend_table, worth_table
from lm.report.pack import open_results
from lm.report.pooled import standard_error
from lm.report.render import escape_latex
from lm.report.transfer import OPEN, transfer_sections
from lm.report.tuning import claims_of, rates_of
from lm.stats.meta import OverExperiments, over_experiments
from lm.stats.tests import ALPHA

ROOT = Path(__file__).resolve().parents[2]
SOURCE, REFERENCE = ROOT / "docs/paper/paper.tex", ROOT / "results/reference"
REPEATABLE = {**os.environ, "SOURCE_DATE_EPOCH": "0", "FORCE_SOURCE_DATE": "1"}  # the same bytes at each call
TEXTS = {
    "python": "Python sources",
    "drama": "plays",
    "novel": "a novel",
    "articles": "an encyclopedia",
    "captions": "captions",
    "chain": "a Markov chain",
}
ASKED_ON = ("python", "drama", "captions")  # the texts on which claims were asked again
LADDERS = ("swiglu", "activation", "norm_type", "norm_placement", "position", "tying", "muon")
VERDICTS = ("reproduced", "not reproduced", "inconclusive")
ANSWERS = dict(zip((*VERDICTS, "not enough seeds"), ("yes", "no", "open", "open"), strict=True))
MARKS = {
    ("published", False): "",
    ("published", True): ", late",
    ("ours", False): ", ours",
    ("ours", True): ", ours, late",
}
OVERFULL = 5  # points from which on a line that leaves its column covers what is beside it
MANY = 10  # from here on a number has no decimals
RAGGED = r">{{\raggedright\arraybackslash}}p{{.{}\linewidth}}"


@dataclass
class Paper:
    """What paper.tex refers to: numbers by the name of their macro, tables and figures by the name of their file."""

    numbers: dict[str, str] = field(default_factory=dict)
    tables: dict[str, str] = field(default_factory=dict)
    figures: dict[str, Figure] = field(default_factory=dict)

    def write(self, folder: Path) -> None:
        """Write all of it into a folder."""
        lines = [rf"\newcommand{{\{name}}}{{{value}\xspace}}" for name, value in sorted(self.numbers.items())]
        (folder / "numbers.tex").write_text("\n".join(lines) + "\n", encoding="utf-8")
        for name, table in self.tables.items():
            (folder / f"{name}.tex").write_text(table, encoding="utf-8")
        for name, figure in self.figures.items():
            figure.savefig(folder / f"{name}.pdf", metadata={"CreationDate": None})


def number(value: float, digits: int = 3, sign: bool = True) -> str:
    """Format a number without its leading zero, a minus as LaTeX has it."""
    digits = digits if abs(value) < MANY else 0
    text = re.sub(r"^([+-]?)0[.]", r"\1.", f"{value:{'+' if sign else ''}z.{digits}f}")
    return f"${text}$"


def interval(low: float, high: float, digits: int = 3, sign: bool = True) -> str:
    """Format the ends of an interval."""
    return f"[{number(low, digits, sign)}, {number(high, digits, sign)}]"


def table(columns: Sequence[str], rows: Sequence[Sequence[str]], widths: str) -> str:
    """Format a table that is as wide as its column; columns and cells are LaTeX."""
    lines = [" & ".join(row) + r" \\" for row in (columns, *rows)]
    head, *body = lines
    begin = rf"\begin{{tabularx}}{{\linewidth}}{{@{{}}{widths}@{{}}}}"
    return "\n".join([begin, r"\toprule", head, r"\midrule", *body, r"\bottomrule", r"\end{tabularx}", ""])


def require(holds: bool, statement: str) -> None:
    """Raise ValueError if a statement of paper.tex does not hold of the packs."""
    if not holds:
        raise ValueError(f"paper.tex says what the packs do not: {statement}")


def judged(results: Records, arm: str) -> Any:
    """Return the row of an arm in the headline quantity."""
    rows = compare(results)
    return next(rows[(rows.metric == results.headline) & (rows.arm == arm)].itertuples())


@functools.cache
def answered(folder: Path) -> tuple[Answer, ...]:
    """Return the answers to the claims of an experiment, each with that at one rate where its arms have their own."""
    results = load(folder)
    return tuple(claims_of(results, rates_of(results, folder)))


# sections of the paper ------------------------------------------------------------------------------------------------


def one_question(paper: Paper, folder_of: Mapping[str, Path]) -> None:
    """Add the question asked on one text, with each arm's rate, and on six texts."""
    numbers, rows = paper.numbers, []
    quickstart = load(folder_of["quickstart"])
    first = judged(quickstart, "swiglu")
    numbers["quickSteps"] = str({record["steps"] for record in quickstart.records.values() if record is not None}.pop())
    numbers["quickDifference"] = f"{number(first.difference)} {interval(first.low, first.high)}"
    numbers["quickSeeds"] = str(first.pairs)
    numbers["quickPower"] = number(first.detectable, sign=False)
    at_own = load(folder_of["quickstart_rates"])
    own = judged(at_own, "swiglu")
    rates = at_own.manifest["rates"].values()
    require(all(rate["best"] == rate["shared"] for rate in rates), "the shared rate is best for both arms")
    numbers["ownRate"] = f"{number(own.difference)} {interval(own.low, own.high)}"
    numbers["ownSeeds"] = str(own.pairs)
    found = {}
    for name, text in TEXTS.items():
        results = load(folder_of[f"quickstart_texts.{name}"])
        row = found[name] = judged(results, "swiglu")
        unfit = results.health["swiglu"] or results.health[results.manifest["baseline"]]
        cells = [text, str(row.pairs), f"{number(row.difference)} {interval(row.low, row.high)}"]
        rows.append([*cells, escape_latex(row.verdict.partition(" (")[0]) + (", unfit" if unfit else "")])
    natural = [row for name, row in found.items() if name != "chain"]
    require(all(row.high < 0 for row in (first, own, *natural)), "SwiGLU is better at each arm's rate and on each text")
    summary = pooled(natural)
    rows.append(
        [r"\midrule five natural texts", "", f"{number(summary.mean)} {interval(summary.low, summary.high)}", ""]
    )
    rows.append(["a text to come", "", interval(summary.next_low, summary.next_high), ""])
    paper.tables["texts"] = table(["text", "$n$", r"difference [95\,\%]", "verdict"], rows, "Xrll")
    numbers["textsMean"] = rows[-2][2]
    numbers["textsNext"] = rows[-1][2]
    numbers["textsSpread"] = f"{100 * summary.i2:.0f}\\,\\%"
    numbers["textsSmallest"], numbers["textsLargest"] = (
        number(side(row.difference for row in natural)) for side in (max, min)
    )
    chain = load(folder_of["quickstart_texts.chain"]).health["swiglu"]
    require("collapse" in chain and "on 1 of" in chain, "on the chain attention collapsed in one run")
    numbers["chainDifference"] = number(found["chain"].difference)
    paper.figures["texts"] = forest([(TEXTS[name], row) for name, row in found.items()])


def pooled(rows: Sequence[Any]) -> OverExperiments:
    """Return the random-effects summary of the same difference in several experiments."""
    return over_experiments([row.difference for row in rows], [standard_error(row) for row in rows])


def forest(rows: Sequence[tuple[str, Any]]) -> Figure:
    """Draw differences with their intervals, the first on top."""
    figure = Figure(figsize=(3.3, 1.7), layout="constrained")
    axes = figure.subplots()
    for height, (_, row) in enumerate(reversed(rows)):
        axes.plot([row.low, row.high], [height, height], color="0.4")
        axes.plot(row.difference, height, "o", color="C0", markersize=4)
    axes.set_yticks(range(len(rows)), [name for name, _ in reversed(rows)], fontsize=7)
    axes.axvline(0, color="0.7", linewidth=0.8, zorder=0)
    axes.tick_params(axis="x", labelsize=7)
    axes.set_xlabel("SwiGLU minus GELU, nats per token", fontsize=7)
    axes.spines[["top", "right"]].set_visible(False)
    return figure


def published(paper: Paper, folder_of: Mapping[str, Path]) -> None:
    """Add the claims of all experiments of tier C: counts by experiment, and those that were not reproduced."""
    named: list[tuple[str, Answer]] = []
    runs, sizes = 0, list[float]()
    for name, folder in folder_of.items():
        if ("." not in name or name.partition(".")[0].endswith("_texts")) and (folder / "experiment.json").is_file():
            results = load(folder)
            given = answered(folder)
            named += [(name, answer) for answer in given]
            finished = [record for record in results.records.values() if record is not None] if given else []
            runs += len(finished)
            sizes += [size for record in finished if (size := record["cost"].get("parameters")) is not None]
    adjusted = [
        (name, answer) for (name, _), answer in zip(named, adjust_p([answer for _, answer in named]), strict=True)
    ]
    rows = []
    by_file: dict[str, list[Answer]] = {}
    for name, answer in adjusted:
        by_file.setdefault(name.partition(".")[0], []).append(answer)
    for name, of_file in by_file.items():
        counts = Counter(f"{answer.claim.kind}, {answer.verdict}" for answer in of_file)
        of_others = [str(counts[f"published, {verdict}"] or "") for verdict in VERDICTS]
        ours = [str(counts[f"ours, {verdict}"] or "") for verdict in VERDICTS]
        rows.append([escape_latex(name), str(max(answer.seeds for answer in of_file)), *of_others, *ours])
    head = ["experiment", "$n$", *(["yes", "no", "open"] * 2)]
    halves = rows[: math.ceil(len(rows) / 2)], rows[math.ceil(len(rows) / 2) :]
    beside = [left + right for left, right in itertools.zip_longest(*halves, fillvalue=[""] * len(head))]
    paper.tables["claims"] = table(head * 2, beside, "Xrrrrrrr@{\\hspace{1em}}Xrrrrrrr")
    numbers = paper.numbers
    numbers["claimExperiments"], numbers["claimRuns"] = str(len(rows)), f"{runs:,}"
    numbers["medianModel"], numbers["largeModel"] = (f"{np.quantile(sizes, q) / 1e3:,.0f}" for q in (0.5, 0.9))
    numbers["largestModel"] = f"{max(sizes) / 1e6:.1f}"
    for label, kind in (("before", "published"), ("after", "published, post hoc")):
        of_kind = [answer for _, answer in adjusted if kind_of(answer) == kind]
        by_verdict = Counter(str(answer.verdict) for answer in of_kind)
        numbers[f"{label}Claims"] = str(len(of_kind))
        numbers[f"{label}Yes"], numbers[f"{label}No"], numbers[f"{label}Open"] = (
            str(by_verdict[verdict]) for verdict in VERDICTS
        )
        for verdict, suffix in zip(VERDICTS[:2], ("YesLeft", "NoLeft"), strict=True):
            left = sum(answer.verdict == verdict and answer.q <= ALPHA for answer in of_kind)
            numbers[label + suffix] = str(left)
        numbers[f"{label}Distinct"] = str(len({answer.claim.claim for answer in of_kind}))
        numbers[f"{label}Holm"] = str(
            sum(answer.p_holm <= ALPHA for answer in of_kind if answer.verdict in VERDICTS[:2])
        )
    about_training = [answer for _, answer in adjusted if answer.claim.kind != "identity"]
    numbers["allAnswers"] = str(len(about_training))
    own_rates = sum(answer.at_one_rate is not None for answer in about_training)
    require(own_rates > len(about_training) / 2, "most answers are at learning rates of their own")
    numbers["ownAnswers"], numbers["sharedAnswers"] = str(own_rates), str(len(about_training) - own_rates)
    numbers["unfitAnswers"] = str(sum(bool(unfit_mark(a)) for a in about_training if a.verdict in VERDICTS[:2]))
    rows_by_name: dict[str, list[str]] = {}
    for name, answer in adjusted:
        if answer.claim.kind == "identity":
            continue
        mark = MARKS[answer.claim.kind, answer.post_hoc] + unfit_mark(answer)
        cells = [escape_latex(answer.claim.claim), found_text(answer), str(answer.seeds), p_text(answer)]
        row = " & ".join([*cells, ANSWERS[answer.verdict] + mark])
        rows_by_name.setdefault(name, []).append(row + r" \\")
    paper.tables["answers"] = "\n".join(
        "\n".join([rf"\textit{{{escape_latex(name)}}} & & & & & \\*", *of_name])
        for name, of_name in rows_by_name.items()
    )
    lion = judged(load(folder_of["optimizers"].with_name("optimizers.tuned")), "lion")
    numbers["lionOwn"] = f"{number(lion.difference)} {interval(lion.low, lion.high)}"


def over_texts(paper: Paper, folder_of: Mapping[str, Path]) -> None:
    """Add the claims that were asked again on several texts, with their answer before, at one rate and at own ones."""
    named, on_a_text = list[tuple[str, Answer]](), set[str]()
    for name, folder in folder_of.items():
        if not (folder / "experiment.json").is_file():
            continue
        if is_on_a_text(read_manifest(folder)):
            on_a_text.add(name)
        elif "." in name:  # of another tier
            continue
        named += [(name, answer) for answer in answered(folder)]
    claims = claims_over_texts(named, on_a_text)
    refuted = [claim for claim in sorted(claims, key=wording) if claim.on_each() == "not reproduced"]
    asked = [(claim, [claim.by_text[text] for text in ASKED_ON]) for claim in refuted]
    of_others = [
        [escape_latex(wording(claim)), *(found_text(answer) + unfit_mark(answer) for answer in given), source_of(given)]
        for claim, given in asked
        if given[0].claim.kind == "published"
    ]
    head = ["claim", "Python", "plays", "captions", "source"]
    paper.tables["refuted"] = table(head, of_others, RAGGED.format(29) + "lllX")
    paper.numbers["textNoOthers"] = str(len(of_others))
    rows = []
    for claim in sorted(claims, key=wording):
        verdicts = [said(answer) for answer in (claim.first_at_one_rate, claim.first)]
        verdicts += [said(claim.by_text.get(text)) for text in ASKED_ON]
        over = ANSWERS[claim.over.verdict] if claim.over else "-"
        rows.append(" & ".join([escape_latex(wording(claim)), *verdicts, over]) + r" \\")
    paper.tables["overtexts"] = "\n".join(rows)
    paper.numbers["textClaims"] = str(len(rows))
    on_each = Counter(claim.on_each() for claim in claims)
    over_all = Counter(claim.over.verdict if claim.over else "none" for claim in claims)
    for name, verdict in (("Yes", "reproduced"), ("No", "not reproduced"), ("Mixed", "mixed"), ("Open", "open")):
        paper.numbers[f"text{name}"] = str(on_each[verdict])
    for name, verdict in zip(("Yes", "No", "Open", "None"), (*VERDICTS, "none"), strict=True):
        paper.numbers[f"overTexts{name}"] = str(over_all[verdict])
    decided_before = [
        (claim.first.verdict, claim.on_each()) for claim in claims if claim.first and claim.first.verdict in DECIDED
    ]
    paper.numbers["asBefore"] = str(len(decided_before))
    paper.numbers["asBeforeSame"] = str(sum(first == later for first, later in decided_before))


def wording(claim: ClaimOverTexts) -> str:
    """Return the words of a claim that was asked on several texts."""
    return next(iter(claim.by_text.values())).claim.claim


def source_of(answers: Sequence[Answer]) -> str:
    """Return the source of a claim, without the places in it that it names in parentheses."""
    return escape_latex(re.sub(r" \(.*?\)", "", answers[0].claim.source))


def said(answer: Answer | None) -> str:
    """Return a word for an answer, with its mark; a dash without one."""
    return "-" if answer is None else ANSWERS[answer.verdict] + unfit_mark(answer)


def unfit_mark(answer: Answer) -> str:
    """Return the mark of an answer about an arm with a training problem."""
    return r"\textsuperscript{u}" if " unhealthy: " in answer.note else ""


def p_text(answer: Answer) -> str:
    """Format p by itself and corrected over its kind."""
    return f"{number(answer.p, sign=False)} & {number(answer.q, sign=False)}" if math.isfinite(answer.p) else "- & -"


def found_text(answer: Answer) -> str:
    """Format the estimate of a claim with its interval."""
    ends = "" if answer.low == answer.high else f" {interval(answer.low, answer.high)}"
    return f"{number(answer.estimate)}{ends}"


def scale(paper: Paper, folder_of: Mapping[str, Path]) -> None:
    """Add the ladders: the gain of each in compute over its rungs, and what becomes of it."""
    rows = []
    for name in LADDERS:
        ladder = load_ladder(folder_of[f"ladder_{name}"])
        worth = worth_table(ladder)
        trend = next(row for row in trend_table(ladder).itertuples() if row.of == "log gain")
        gains = [row for row in worth.itertuples() if math.isfinite(row.gain)]
        ends = [
            f"{number(row.gain, 2, sign=False)} {interval(row.gain_low, row.gain_high, 2, sign=False)}"
            for row in (gains[0], gains[-1])
        ]
        verdict = "no verdict" if trend.says.startswith("no verdict") else escape_latex(trend.says)
        title = escape_latex(ladder.manifest["title"].partition(" at ")[0])
        rows.append([title, str(len(gains)), *ends, verdict])
    head = ["component", "sizes", r"gain at the smallest [95\,\%]", r"at the largest [95\,\%]", "trend"]
    paper.tables["ladders"] = table(head, rows, "Xrlll")
    paper.figures["ladder"] = lm.figure(lm.load(folder_of["ladder_swiglu"]), "ladder")


def cheap(paper: Paper, folder_of: Mapping[str, Path]) -> None:
    """Add how often cheaper settings answer as the dearest one does."""
    questions, summary = transfer_sections(folder_of.values())
    columns = ["cheaper by", "compute", "answers", "same", OPEN, "other", "same sign"]
    kept = [0, 1, 2, 4, 5, 6, 8]
    decided = [row for row in summary.rows if row[4] != "-"]
    rows = [[escape_latex(str(row[index])) for index in kept] for row in decided]
    paper.tables["transfer"] = table(columns, rows, RAGGED.format(16) + "rrXXXX")
    paper.numbers["transferQuestions"] = str(sum(" → " in str(row[3]) for row in questions.rows))


def calibration(paper: Paper, folder_of: Mapping[str, Path]) -> None:
    """Add a table as a paper has it: loss, calibration and cost of the feed-forward layers."""
    results = load(folder_of["glu"])
    rows = compare(results)
    of_arm: dict[str, dict[str, Any]] = {}
    for row in rows.itertuples():
        of_arm.setdefault(str(row.arm), {})[str(row.metric)] = row
    lines = []
    for arm, metrics in sorted(of_arm.items(), key=lambda item: item[1][results.headline].mean):
        nll, ece, speed = (metrics[name] for name in (results.headline, "ece", "tokens_per_second"))
        difference = "-" if pd.isna(nll.difference) else f"{number(nll.difference)} {interval(nll.low, nll.high)}"
        lines.append([arm, number(nll.mean, sign=False), difference, number(ece.mean, 4, False), f"{speed.mean:,.0f}"])
    paper.tables["glu"] = table(["arm", "NLL", r"difference [95\,\%]", "ECE", "tokens/s"], lines, "Xrrrr")
    paper.numbers["gluSeeds"] = str(max(row.pairs for row in rows.itertuples()))
    paper.figures["glu"] = lm.figure(lm.load(folder_of["glu"]), "learning_curve")


SECTIONS = (one_question, published, over_texts, scale, cheap, calibration)


@contextlib.contextmanager
def references() -> Iterator[dict[str, Path]]:
    """Unpack all committed packs for a while; yield their folders by name."""
    with tempfile.TemporaryDirectory() as temporary, contextlib.ExitStack() as stack:
        folder_of = {}
        for pack in sorted(REFERENCE.glob("*.lmpack")):
            folder_of[pack.stem] = stack.enter_context(open_results(pack, Path(temporary))).folder
        yield folder_of


def lost_from_pages(log: Path) -> list[str]:
    """Return the lines of LaTeX's log on tables that are longer than a page, and on lines that leave their column."""
    text = log.read_text(encoding="utf-8", errors="replace")
    return re.findall(rf"LaTeX Warning: Float too large.*|Overfull \\hbox \((?:[1-9]\d+|[{OVERFULL}-9])\..*", text)


def main() -> int:
    """Write the tables and figures, then the PDF where LaTeX is installed; return the exit code."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--build", type=Path, default=ROOT / "docs/_build/paper", help="folder of tables and figures")
    parser.add_argument("--pdf", type=Path, default=ROOT / "docs/paper.pdf", help="the file to write")
    options = parser.parse_args()
    options.build.mkdir(parents=True, exist_ok=True)
    paper = Paper()
    with references() as folder_of:
        for section in SECTIONS:
            print(section.__name__.replace("_", " "), file=sys.stderr)
            section(paper, folder_of)
        paper.write(options.build)
    shutil.copy(SOURCE, options.build)
    if shutil.which("pdflatex") is None:
        print(f"{options.build} has the sources; pdflatex, which makes the PDF of them, is not installed")
        return 1
    command = ["pdflatex", "-interaction=nonstopmode", "-halt-on-error", SOURCE.name]
    for _ in range(2):  # the second time with the numbers of references
        done = subprocess.run(
            command, cwd=options.build, env=REPEATABLE, capture_output=True, text=True, errors="replace", check=False
        )
        if done.returncode:
            print(done.stdout[-2000:], file=sys.stderr)
            return 1
    if lost := lost_from_pages(options.build / "paper.log"):
        print("\n".join(["not written, as pages lose what is on them:", *lost]), file=sys.stderr)
        return 1
    shutil.copy(options.build / "paper.pdf", options.pdf)
    print(f"{options.pdf}: {options.pdf.stat().st_size // 1024} KB")
    return 0


if __name__ == "__main__":
    sys.exit(main())

"""The table of an experiment: in the terminal, as Markdown and as CSV."""

import html
import math
import re
from collections.abc import Sequence
from typing import Any

import pandas as pd
from rich.console import Console
from rich.table import Table
from rich.text import Text

from lm.analysis import HEADLINE, Results, circumstances, one_tokenizer, unpaired
from lm.results import QUANTITIES
from lm.statistics import ALPHA, seeds_needed, smallest_p

SHOWN = ("perplexity", "bits_per_byte", "accuracy", "ece", "gradient_norm", "tokens_per_second", "peak_memory")
DETAILED = (HEADLINE, *SHOWN, "train_loss", "train_seconds", "parameters", "tokens")


def number(value: float, digits: int) -> str:
    """A value with a fixed number of decimals; a dash where there is none."""
    return "-" if math.isnan(value) else f"{value:,.{digits}f}"


def significant(row: Any) -> bool:
    """Whether an adjusted test found a difference: the one reason for bold."""
    return bool(row.p_holm <= ALPHA)


def mean_and_sd(row: Any) -> str:
    """`mean ± sd` over seeds."""
    digits = QUANTITIES[row.metric].digits
    spread = "" if math.isnan(row.sd) else f" ± {number(row.sd, digits)}"
    return number(row.mean, digits) + spread


def difference(row: Any) -> str:
    """The paired difference with its 95 % interval."""
    digits = QUANTITIES[row.metric].digits
    if math.isnan(row.difference):
        return "-"
    interval = "" if math.isnan(row.low) else f" [{row.low:+,.{digits}f}, {row.high:+,.{digits}f}]"
    return f"{row.difference:+,.{digits}f}{interval}"


def cells(row: Any) -> str:
    """How many cells went well, and what became of the others."""
    others = [f"{getattr(row, kind)} {kind}" for kind in ("diverged", "failed", "missing") if getattr(row, kind)]
    return ", ".join([str(row.n), *others])


def heading(quantity: str) -> str:
    """Label, unit and direction of a quantity."""
    meaning = QUANTITIES[quantity]
    arrow = {"lower": " ↓", "higher": " ↑", None: ""}[meaning.better]
    return meaning.label + arrow


def summary(table: pd.DataFrame, headline: str = HEADLINE) -> tuple[list[str], list[list[str]], list[bool]]:
    """Column headings, rows of text, and for each row whether its headline difference is significant."""
    others_shown = [name for name in (HEADLINE, *SHOWN) if name != headline]
    columns = [
        "arm",
        "n",
        heading(headline),
        "difference [95 % interval]",
        "verdict",
        *map(heading, others_shown),
        "parameters",
    ]
    rows, bold = [], []
    for row in table[table.metric == headline].itertuples():
        of_arm = {r.metric: r for r in table[table.arm == row.arm].itertuples()}
        others = [number(of_arm[name].mean, QUANTITIES[name].digits) for name in others_shown]
        parameters = number(of_arm["parameters"].mean, 0)
        rows.append(
            [str(row.arm), cells(row), mean_and_sd(row), difference(row), str(row.verdict), *others, parameters]
        )
        bold.append(significant(row))
    return columns, rows, bold


def notes(results: Results, table: pd.DataFrame) -> list[str]:
    """What a reader must know to believe the table, a line each."""
    seeds, arms = len(results.manifest["seeds"]), len(results.arms) - 1
    found = [f"Mean ± standard deviation over seeds {', '.join(map(str, results.manifest['seeds']))}."]
    if arms:
        baseline = results.manifest["baseline"]
        found[0] += f" Differences are to {baseline}, paired by seed, with Student's 95 % interval."
    comparisons, least = f"{arms} comparison{'s' if arms > 1 else ''}", smallest_p(seeds)
    if arms and least > ALPHA / arms:
        found.append(
            f"{seeds} seeds cannot reach significance: an exact sign-flip test gives no p below {least:.3g}, "
            f"and with {comparisons} Holm's correction asks for {ALPHA / arms:.3g}. {seeds_needed(arms)} seeds could."
        )
    elif arms:
        found.append(
            f"Verdicts come from exact sign-flip tests at {ALPHA}, Holm-adjusted over {comparisons} for each metric."
        )
    for (arm, seed), record in sorted(results.records.items()):
        if record is None:
            found.append(f"{arm} seed {seed} is not trained yet.")
        elif record["status"] != "ok":
            found.append(f"{arm} seed {seed} {record['status']}: {record['error']}. It enters no mean.")
    for row in table[table.metric == results.headline].itertuples():
        if row.verdict != "baseline" and row.pairs < seeds:
            found.append(
                f"{row.arm} is compared on the {row.pairs} of {seeds} seeds on which it and the baseline both finished."
            )
    if not one_tokenizer(results):
        found.append(
            "Arms differ in tokenizer: NLL, perplexity, accuracy, ECE and training loss are per token and cannot be "
            "compared between them; bits per byte can."
        )
    found += [f"Not paired: {line}." for line in unpaired(results)]
    found += [f"Cells differ in {name}: {', '.join(values)}." for name, values in circumstances(results).items()]
    evaluated = {r["evaluated"]["tokens"] for r in results.records.values() if r is not None and r["status"] == "ok"}
    if evaluated:
        found.append(
            f"Evaluated on the whole validation split: {', '.join(f'{n:,}' for n in sorted(evaluated))} tokens."
        )
    return found


def changes(results: Results) -> list[str]:
    """The resolved differences of each arm from the baseline, a line each."""
    lines = []
    for arm in results.arms[1:]:
        parts = [
            f"{path}: {before} -> {after}" for path, (before, after) in results.manifest["arms"][arm]["changes"].items()
        ]
        lines.append(f"{arm}: {'; '.join(parts) or 'nothing'}")
    return lines


def terminal(results: Results, table: pd.DataFrame, console: Console) -> None:
    """Prints the table and its notes; narrower terminals get fewer columns."""
    columns, rows, bold = summary(table, results.headline)
    kept = len(columns) if console.width >= 170 else 5 if console.width < 120 else 8
    shown = Table(title=Text(results.manifest["title"]), title_justify="left", title_style="bold", highlight=False)
    for index, column in enumerate(columns[:kept]):
        shown.add_column(column, justify="left" if index in (0, 4) else "right", no_wrap=index == 0)
    for row, strong in zip(rows, bold, strict=True):
        shown.add_row(*map(Text, row[:kept]), style="bold" if strong else None)
    console.print(shown)
    for line in notes(results, table):
        console.print(line, highlight=False, markup=False)


def markdown(results: Results, table: pd.DataFrame, figures: list[str]) -> str:
    """The report as one page of Markdown."""
    columns, rows, bold = summary(table, results.headline)
    lines = [f"# {escape(results.manifest['title'])}", "", markdown_row(columns), markdown_row(["---"] * len(columns))]
    for row, strong in zip(rows, bold, strict=True):
        text = [escape(cell) for cell in row]
        if strong:
            text[3] = f"**{text[3]}**"
        lines.append(markdown_row(text))
    lines += ["", *(f"- {escape(line)}" for line in notes(results, table)), ""]
    if results.manifest["notes"]:
        lines += [escape(results.manifest["notes"].strip()), ""]
    lines += ["## Arms", "", *(f"- {escape(line)}" for line in changes(results)), ""]
    lines += ["## Figures", "", *(f"![{name.replace('_', ' ')}]({name}.png)" for name in figures), ""]
    lines += [
        "## All measurements",
        "",
        markdown_row(["metric", "arm", "n", "mean ± sd", "difference [95 % interval]", "p (Holm)", "verdict"]),
    ]
    lines.append(markdown_row(["---"] * 7))
    for name in DETAILED:
        unit = QUANTITIES[name].unit
        for row in table[table.metric == name].itertuples():
            label = escape(heading(name) + (f" ({unit})" if unit else ""))
            p = "-" if math.isnan(row.p_holm) else f"{row.p_holm:.3g}"
            lines.append(
                markdown_row(
                    [label, escape(row.arm), cells(row), mean_and_sd(row), difference(row), p, escape(row.verdict)]
                )
            )
    return "\n".join(lines) + "\n"


def escape(text: str) -> str:
    """`text` as Markdown shows it letter for letter, HTML included."""
    return html.escape(re.sub(r"([\\`*_\[\]|~])", r"\\\1", text), quote=False).replace("\n", " ")


def markdown_row(texts: Sequence[str]) -> str:
    """One line of a Markdown table."""
    return "| " + " | ".join(texts) + " |"

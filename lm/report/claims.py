"""The answers to an experiment's claims: in the terminal, and as Markdown."""

import math
from collections.abc import Sequence

from rich.console import Console
from rich.table import Table
from rich.text import Text

from lm.analysis import Results
from lm.claims import Answer, Claim, answer
from lm.report.tables import escape, markdown_row

COLUMNS = ("claim", "expected", "found [95 % interval]", "seeds", "verdict", "source")
STYLES = {"reproduced": "green", "not reproduced": "red", "inconclusive": "yellow"}


def answers(results: Results, tier: str = "") -> list[Answer]:
    """What the results say of the experiment's claims, those of another size left out."""
    claims = [Claim(**described) for described in results.manifest.get("claims", [])]
    tier = tier or results.manifest.get("tier") or "C"
    return [answer(results, claim) for claim in claims if claim.tier in ("", tier)]


def found(one: Answer) -> str:
    """The estimate with its interval; of an exact claim, the range over seeds."""
    if math.isnan(one.estimate):
        return "-"
    interval = "" if math.isnan(one.low) or one.low == one.high else f" [{one.low:z.4g}, {one.high:z.4g}]"
    return f"{one.estimate:z.4g}{interval}"


def row(one: Answer) -> list[str]:
    """An answer as the cells of a table."""
    verdict = one.verdict + (f" ({one.note})" if one.note else "")
    exact = ", every seed" if one.claim.exact else ""
    return [one.claim.claim, one.claim.expected() + exact, found(one), str(one.seeds), verdict, one.claim.source]


def show_claims(given: Sequence[tuple[str, Answer]], console: Console, title: str = "Claims") -> None:
    """Prints answers, each with the name of its experiment where there is more than one."""
    several = len({name for name, _ in given}) > 1
    table = Table(title=Text(title), title_justify="left", title_style="bold", highlight=False)
    for column in (("experiment",) if several else ()) + COLUMNS[:5]:
        table.add_column(column)
    for name, one in given:
        cells = ([name] if several else []) + row(one)[:5]
        table.add_row(*map(Text, cells[:-1]), Text(cells[-1], style=STYLES[one.verdict]))
    console.print(table)
    console.print(tally([one for _, one in given]), highlight=False)


def tally(given: Sequence[Answer]) -> str:
    """How many claims came out how."""
    counts = [f"{sum(one.verdict == verdict for one in given)} {verdict}" for verdict in STYLES]
    return f"{len(given)} claim{'' if len(given) == 1 else 's'}, each judged by itself at 5 %: {', '.join(counts)}."


def markdown_claims(given: Sequence[tuple[str, Answer]], several: bool = False) -> list[str]:
    """The lines of a Markdown table of answers."""
    columns = [*(["experiment"] if several else []), *COLUMNS]
    lines = [markdown_row(columns), markdown_row(["---"] * len(columns))]
    for name, one in given:
        lines.append(markdown_row([escape(cell) for cell in [*([name] if several else []), *row(one)]]))
    return [*lines, "", tally([one for _, one in given])]

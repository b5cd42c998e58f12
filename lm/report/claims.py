"""The answers to an experiment's claims: in the terminal, and as Markdown."""

import math
from collections.abc import Sequence

from rich.console import Console
from rich.text import Text

from lm.analysis.answers import Answer, answer, corrected
from lm.analysis.claims import KINDS, Claim
from lm.analysis.results import Results
from lm.analysis.texts import Read
from lm.report.grid import show_grid
from lm.report.tables import escape, markdown_row
from lm.stats.tests import ALPHA

COLUMNS = ("kind", "claim", "expected", "found [interval]", "seeds", "p", "p (Holm)", "verdict", "source")
STYLES = {"reproduced": "green", "not reproduced": "red", "inconclusive": "yellow", "not enough seeds": "yellow"}

NARROW, LEFT_OUT = 100, ("seeds", "p (Holm)")
"""Characters of a terminal, below which these columns give their place to the claims; the tally counts by Holm's p."""


def answers(results: Results, tier: str = "") -> list[Answer]:
    """What the results say of the experiment's claims, those of another size left out; corrected over these.

    Losses by document are read once for all claims.
    """
    claims = [Claim(**described) for described in results.manifest.get("claims", [])]
    tier = tier or results.manifest.get("tier") or "C"
    read: Read = {}
    return corrected([answer(results, claim, read) for claim in claims if claim.at(tier)])


def found(one: Answer) -> str:
    """The estimate with its interval, and what that covers; of an exact claim, the range over seeds."""
    if math.isnan(one.estimate):
        return "-"
    interval = "" if one.low == one.high else f" [{_end(one.low)}, {_end(one.high)}]"
    over = f" over {one.over}" if one.over else ""
    return f"{one.estimate:z.4g}{interval}{over}"


def _end(value: float) -> str:
    return f"{value:z.4g}".replace("inf", "∞")


def row(one: Answer) -> list[str]:
    """An answer as the cells of a table."""
    verdict = one.verdict + (f" ({one.note})" if one.note else "")
    exact = ", every seed" if one.claim.exact else ""
    p = [f"{value:z.3g}" if math.isfinite(value) else "-" for value in (one.p, one.p_holm)]
    claim = one.claim
    return [claim.kind, claim.claim, claim.expected() + exact, found(one), str(one.seeds), *p, verdict, claim.source]


def show_claims(given: Sequence[tuple[str, Answer]], console: Console, title: str = "Claims") -> None:
    """Prints answers, each with the name of its experiment where there is more than one."""
    several = len({name for name, _ in given}) > 1
    kept = [index for index, column in enumerate(COLUMNS[:-1]) if console.width >= NARROW or column not in LEFT_OUT]
    columns = [*(["experiment"] if several else []), *(COLUMNS[index] for index in kept)]
    rows: list[list[str | Text]] = []
    for name, one in given:
        *cells, verdict = [*([name] if several else []), *(row(one)[index] for index in kept)]
        rows.append([*cells, Text(verdict, style=STYLES[one.verdict])])
    console.print()
    show_grid(title, columns, rows, console)
    for line in (*tally([one for _, one in given]), *method([one for _, one in given])):
        console.print(line, highlight=False, markup=False)


def tally(given: Sequence[Answer]) -> list[str]:
    """How many claims of each kind came out how, a line a kind."""
    lines = []
    for kind in sorted({one.claim.kind for one in given}, key=lambda kind: [*KINDS, kind].index(kind)):
        of_kind = [one for one in given if one.claim.kind == kind]
        counts = [(verdict, sum(one.verdict == verdict for one in of_kind)) for verdict in STYLES]
        said = [f"{count} {verdict}{_still(of_kind, verdict)}" for verdict, count in counts if count]
        lines.append(f"{kind}: {len(of_kind)} claim{'' if len(of_kind) == 1 else 's'}: {', '.join(said)}.")
    return lines


def _still(given: Sequence[Answer], verdict: str) -> str:
    """How many of a verdict that a test gave are left by the correction."""
    tested = [one for one in given if one.verdict == verdict and math.isfinite(one.p) and one.p <= ALPHA]
    return f" ({sum(one.p_holm <= ALPHA for one in tested)} of {len(tested)} by Holm's p too)" if tested else ""


def method(given: Sequence[Answer]) -> list[str]:
    """What the answers rest on, as far as these need it."""
    relations = {"" if one.claim.exact else one.claim.relation for one in given}
    lines = [
        "Each claim is judged by its own p at 5 %; p (Holm) is corrected over the claims of its kind in this table. "
        "Published: by others. Ours: measured or derived by ourselves. Identity: true by construction, so that only an "
        "error in the code could refute it."
    ]
    if relations & {"less", "greater"}:
        lines.append("Less and greater: the mean over seeds, an exact sign-flip test, and its 95 % interval.")
    if relations & {"range", "slope", "equivalent"}:
        lines.append(
            "Ranges, slopes and equivalences: the median over seeds (the typical seed), sign tests that ask for no "
            "shape of the noise, and their interval, 95 % at each end."
        )
    if any(one.over == "seeds and text" for one in given):
        lines.append(
            "Over seeds and text: other seeds and other text of this kind. Student's test over seeds and documents as "
            "crossed random effects has to agree with the test over seeds; the interval holds those of both, and p is "
            "the larger."
        )
    if reasons := dict.fromkeys(one.alone for one in given if one.alone):
        lines.append(f"Over seeds: not over other text, because of one of these: {'; '.join(reasons)}.")
    if "" in relations:
        lines.append("Every seed: no test; the mean and the range over seeds. Any seed can refute it.")
    return lines


def markdown_claims(given: Sequence[tuple[str, Answer]], several: bool = False) -> list[str]:
    """The lines of a Markdown table of answers."""
    columns = [*(["experiment"] if several else []), *COLUMNS]
    lines = [markdown_row(columns), markdown_row(["---"] * len(columns))]
    for name, one in given:
        lines.append(markdown_row([escape(cell) for cell in [*([name] if several else []), *row(one)]]))
    of_all = [one for _, one in given]
    return [*lines, "", *(f"- {escape(line)}" for line in (*tally(of_all), *method(of_all)))]

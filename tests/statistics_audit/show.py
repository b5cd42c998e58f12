"""Results of the audit of the statistical method, as a table and as JSON."""

import json
from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict

from rich.console import Console
from rich.table import Column, Table

from statistics_audit.finding import Finding


def all_right(findings: Sequence[Finding]) -> bool:
    """Return True if every promise that the reports rely on is kept."""
    return all(finding.verdict != "NOT OK" for finding in findings)


def to_json(findings: Sequence[Finding]) -> str:
    """Format all findings as JSON."""
    rows = []
    for finding in findings:
        low, high = finding.interval
        numbers = {"events": int(finding.events), "found": float(finding.found), "low": low, "high": high}
        rows.append(asdict(finding) | numbers | {"verdict": finding.verdict})
    return json.dumps({"verified": all_right(findings), "rows": rows}, indent=2)


def show_audit(findings: Sequence[Finding], console: Console) -> None:
    """Print a row for each finding, and how many kept their promise."""
    right = ("found", "99 % interval", "expected")
    table = Table("share of simulated experiments", *(Column(name, justify="right") for name in right), "verdict")
    for finding in findings:
        interval = "[{:z.3f}, {:z.3f}]".format(*finding.interval)
        style = {"ok": None, "falls short": "yellow", "NOT OK": "bold red"}[finding.verdict]
        table.add_row(finding.name, f"{finding.found:z.3f}", interval, expected(finding), finding.verdict, style=style)
    console.print(table)
    counts = Counter(finding.verdict for finding in findings)
    counted = [f"{counts[verdict]} {verdict}" for verdict in ("ok", "falls short", "NOT OK") if counts[verdict]]
    console.print(f"{len(findings)} audits: {', '.join(counted)}", highlight=False)
    if counts["falls short"]:
        meaning = "What falls short is not promised: no verdict rests on it, and no headline interval."
        console.print(meaning, highlight=False)


def expected(finding: Finding) -> str:
    """Format the promised range of a finding."""
    if finding.at_least == 0:
        return f"at most {finding.at_most:z.3g}"
    if finding.at_most == 1:
        return f"at least {finding.at_least:z.3g}"
    return f"{finding.at_least:z.3g} to {finding.at_most:z.3g}"

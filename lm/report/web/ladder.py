"""The page of a ladder: its tables and its figure in one file without a script, and links to its rungs' reports."""

from collections.abc import Sequence

from lm.analysis.ladder import LadderResults
from lm.report.web.elements import tag
from lm.report.web.still import Shown, still


def ladder_html(results: LadderResults, parts: Sequence[Shown], figure: bytes) -> str:
    """The page as one file that needs no network, and whose policy forbids it any.

    Args:
        results: of the ladder.
        parts: its tables.
        figure: as PNG.
    """
    manifest = results.manifest
    links = [
        tag("li", tag("a", rung["name"], href=f"../{rung['experiment']}/report.html")) for rung in manifest["rungs"]
    ]
    notes = manifest["notes"].strip()
    return still(
        manifest["title"],
        _below(results),
        parts,
        [("loss and gain against compute", figure)],
        first=tag("p", notes, class_="notes") if notes else "",
        last=tag("section", tag("h2", "Reports of the rungs"), tag("ul", links)),
    )


def _below(results: LadderResults) -> str:
    manifest = results.manifest
    arms = len(manifest["arms"])
    return f"{manifest['name']}: {arms} arms on {len(manifest['rungs'])} rungs, baseline {manifest['baseline']}"

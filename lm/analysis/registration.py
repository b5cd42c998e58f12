"""Tell claims that were written before their seeds were trained from those written after results could be known.

A claim is registered in the manifest when its experiment first asks for it, with the seeds on which its number could be
computed by then. Its fingerprint holds all that it says and the seeds that its file declares, so that a claim which is
changed later, or gets more seeds later, is another claim.
"""

import hashlib
import json
from collections.abc import Callable, Iterable, Mapping
from dataclasses import asdict, replace
from datetime import UTC, datetime
from typing import Any

from lm.analysis.claims import Claim
from lm.store.record import Manifest, Registration

FINGERPRINTED = ("claim", "metric", "relation", "margin", "low", "high", "contrast", "over", "exact", "seeds")


def fingerprint(claim: Claim) -> str:
    """Return what a claim is known by: a hash of its text, number, relation, margins, arms and declared seeds."""
    content = {name: value for name, value in asdict(claim).items() if name in FINGERPRINTED}
    return hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()[:16]


def register(
    claims: Iterable[Claim], previous: Mapping[str, Any] | None, trained_seeds: Callable[[Claim], list[int]]
) -> dict[str, Registration]:
    """Return the registrations of an experiment's claims, by fingerprint; those that there are stay as they are.

    Args:
        claims: of the experiment, with their declared seeds.
        previous: the manifest that is there, None for the first one.
        trained_seeds: the seeds on which all arms of a claim have a finished cell.
    """
    registered: dict[str, Registration] = dict((previous or {}).get("registered") or {})
    if previous is not None and "registered" not in previous:  # of a version that registered none: when is not known
        for described in previous.get("claims") or []:
            undated = Claim(**described)
            undated = undated if undated.seeds else replace(undated, seeds=list(previous["seeds"]))
            registered[fingerprint(undated)] = {"written": None, "seen": []}
    now = datetime.now(UTC).isoformat(timespec="seconds")
    for claim in claims:
        registered.setdefault(fingerprint(claim), {"written": now, "seen": trained_seeds(claim)})
    return registered


def seen_seeds(manifest: Manifest, claim: Claim) -> set[int]:
    """Return the seeds whose results could be known when a claim was written, by its file and by its registration."""
    registration = manifest.get("registered", {}).get(fingerprint(claim))
    return {*claim.seen, *(registration["seen"] if registration else [])}

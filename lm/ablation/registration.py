"""Registrations: what an experiment asks, and how, written down before its results can be known (`lm register`)."""

import hashlib
import json
from collections.abc import Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from lm.config.tree import InputError, differences
from lm.store.files import read_json, to_json, write_atomic
from lm.store.formats import REGISTERED
from lm.store.record import ExperimentRegistration


def write_registrations(designs: Mapping[Path, tuple[dict[str, Any], int]]) -> None:
    """Write what experiments ask, each with the number of its finished runs. Raises InputError for a path in use.

    One of several that is there already, as it would be written now, is left: a command was killed before the others.
    """
    by_path = {path: registration_of(design, path) for path, (design, _) in designs.items()}
    written = [path for path, registration in by_path.items() if registration is not None]
    if len(written) == len(designs) or any(of is not None and of["changes"] for of in by_path.values()):
        remedy = "it is not written again, and reports list what has changed"
        raise InputError(f"{written[0]}: is a registration already; {remedy}")
    now = datetime.now(UTC).isoformat(timespec="seconds")
    for path, (design, finished) in designs.items():
        if path in written:
            continue
        content = {"registered": now, "finished": finished, "design": design}
        write_atomic(path, to_json(REGISTERED.stamped({**content, "sha256": _hash(content)})))


def registration_of(design: Mapping[str, Any], path: Path) -> ExperimentRegistration | None:
    """Return what a manifest says of the registration at a path, against the design now; None without one.

    Raises:
        InputError: where the file was changed by hand or is damaged.
    """
    if not path.is_file():
        return None
    content = REGISTERED.read(read_json(path), path)
    if content.get("sha256") != _hash({name: content.get(name) for name in ("registered", "finished", "design")}):
        raise InputError(f"{path}: is not what `lm register` wrote; put that back, or remove the file")
    changes = changed_parts(content["design"], design)
    when, finished, code = content["registered"], content["finished"], content["sha256"]
    return ExperimentRegistration(registered=when, finished=finished, sha256=code, changes=changes)


def changed_parts(registered: Mapping[str, Any], now: Mapping[str, Any]) -> list[str]:
    """Name the parts in which a design differs from the registered one; of runs those of seeds that both have.

    Seeds in stages that are not trained yet are no change, nor are those of a claim that are the experiment's. Older
    registrations do not say which other texts or orders of the data there were.
    """
    unsaid = {"texts", "orders"} - registered.keys()
    now = {name: part for name, part in now.items() if name not in unsaid}
    inherited = {f"claims.{text}.seeds" for text, claim in now["claims"].items() if claim["seeds"] == now["seeds"]}
    parts = [*(differences(_without_cells(registered), _without_cells(now)).keys() - inherited)]
    if registered["rules"]["looks"] and now["seeds"] == registered["seeds"][: len(now["seeds"])]:
        parts = [path for path in parts if path != "seeds"]
    for arm in registered["arms"].keys() & now["arms"].keys():
        old, new = (design["arms"][arm]["cells"] for design in (registered, now))
        if any(old[seed] != new[seed] for seed in old.keys() & new.keys()):
            parts.append(f"what the runs of {arm} compute")
    return sorted(parts)


def _without_cells(design: Mapping[str, Any]) -> dict[str, Any]:
    return {**design, "arms": {arm: {"changes": of_arm["changes"]} for arm, of_arm in design["arms"].items()}}


def _hash(content: Mapping[str, Any]) -> str:
    return hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()

"""Origin of a number in a table: cells, configuration, code, and the commands that reproduce it."""

import itertools
import math
import shlex
from pathlib import Path

from rich.console import Console

from lm.analysis.claims import measured
from lm.analysis.comparability import changes_in_words, commit_of
from lm.analysis.results import load
from lm.analysis.tidy import status_of
from lm.config.tree import InputError, nearest
from lm.config.usual_names import suggest
from lm.report.render import print_table
from lm.stats.tests import t_interval
from lm.store.metrics import describe

UNPACKED = "unpacked"  # folder into which the commands unpack a pack


def trace(folder: Path, arm: str, metric: str, console: Console, pack: Path | None = None) -> None:
    """Print the cells behind an arm's metric, its changes and commands. Raises InputError without such an arm."""
    results = load(folder)
    if arm not in results.arms:
        raise InputError(f"{folder}: no arm {arm!r}.{nearest(arm, results.arms)} It has {', '.join(results.arms)}")
    values = {key: math.nan if r is None else measured(r, metric) for key, r in results.records.items()}
    if all(math.isnan(value) for value in values.values()):
        names = sorted({name for r in results.records.values() if r for name in (*r["metrics"], *r["cost"])})
        hint = f"{suggest(metric, names, 'metrics')} They have {', '.join(names)}"
        raise InputError(f"{folder}: no cell measured {metric!r}.{hint}")
    baseline = results.manifest["baseline"]
    say = lambda text: console.print(text, highlight=False, markup=False, soft_wrap=True)  # noqa: E731
    say(f"{describe(metric).label} of {arm} in {results.manifest['title']}")
    rows, arms = [], dict.fromkeys((arm, baseline))
    for seed, name in itertools.product(results.manifest["seeds"], arms):
        record, cell = results.records[name, seed], results.manifest["arms"][name]["cells"][str(seed)]
        number = "-" if math.isnan(values[name, seed]) else f"{values[name, seed]:z.6g}"
        commit = "-" if record is None else commit_of(record["provenance"]["git"], 10)
        rows.append([str(seed), name, status_of(results, name, seed), number, commit, cell[:12]])
    print_table("", ["seed", "arm", "status", metric, "commit", "cell"], rows, console)
    if arm != baseline:
        pairs = [values[arm, seed] - values[baseline, seed] for seed in results.manifest["seeds"]]
        pairs = [pair for pair in pairs if math.isfinite(pair)]
        low, high = t_interval(pairs)
        mean = sum(pairs) / len(pairs) if pairs else math.nan
        interval = "" if math.isnan(low) else f" [{low:+z.6g}, {high:+z.6g}] (Student's 95 %)"
        say(f"difference to {baseline}, paired: {mean:+z.6g}{interval}, n = {len(pairs)}")
    changes = results.manifest["arms"][arm]["changes"]
    say("differs from the baseline in: " + ("nothing" if not changes else ""))
    for line in changes_in_words(changes):
        say(f"  {line}")
    say("each made again, in a folder of its own, by:")
    if pack is not None:
        say(f"  {shlex.join(['lm', 'unpack', str(pack), '--out', UNPACKED])}")
    for seed in results.manifest["seeds"]:
        cell = results.manifest["arms"][arm]["cells"][str(seed)]
        config_path = results.store.directory(cell) / "config.yaml"
        config = config_path if pack is None else Path(UNPACKED, "cells", cell, "config.yaml")
        again = shlex.join(["lm", "fit", str(config), "--out", "again"])
        say(f"  {again}" if config_path.is_file() else f"  (the configuration of seed {seed} is not there: {config})")
    if command := results.manifest["command"]:
        say("all of it again, training only what is missing, by the command that made it, where it was given:")
        say(f"  {shlex.join(['lm', *command])}")
    else:
        say("all of it again: the command that made it was not recorded")

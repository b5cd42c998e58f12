"""Single runs and configurations in the terminal: records, evaluations, differences, counts, automatic settings."""

import itertools
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from rich.console import Console

from lm.analysis.comparability import RunDiff, format_value
from lm.report.render import print_table
from lm.store.metrics import AT_LENGTH, METRICS, Metric, describe
from lm.store.record import Ending
from lm.store.store import LOG, Store

TRACEBACK = "Traceback (most recent call last)"

UNITS = ("B", "KiB", "MiB", "GiB", "TiB")


def _print(console: Console, text: str) -> None:
    console.print(text, highlight=False, markup=False, soft_wrap=True)


def show_run(store: Store, cell: str, console: Console) -> str:
    """Print metrics, flags and folder of a finished cell; return its status."""
    record = store.record(cell)
    _print(console, f"{record['status']}: {store.directory(cell)}")
    if record["status"] != "ok":
        _print(console, f"{record['error']}{whereabouts(store, record)}")
    for flag in record["flags"]:
        _print(console, f"flag: {flag}")
    measured = {**record["metrics"], **record["cost"]}
    own = (name for name in record["metrics"] if name not in METRICS)  # at a length, or known to no table
    names = [name for name in (*METRICS, *own) if measured.get(name) is not None]
    if names:
        rows = [[describe(name).label, shown(describe(name), float(measured[name] or 0.0))] for name in names]
        print_table("", ["metric", "value"], rows, console)
    return str(record["status"])


def summary_lines(record: Ending, folder: Path) -> list[str]:
    """Describe a run in five lines: outcome, quality, size, cost, folder."""
    measured = {**record["metrics"], **record["cost"]}
    outcome = str(record["status"]) + (f", {record['error']}" if record["error"] else "")
    flags = f", {len(record['flags'])} flags" if record["flags"] else ""
    lines = [f"run {record['id'][:12]}: {outcome}{flags}"]
    for names in (("nll", "perplexity", "accuracy"), ("parameters", "tokens"), ("train_seconds", "tokens_per_second")):
        values = {describe(name): measured[name] for name in names if measured.get(name) is not None}
        parts = [f"{meaning.label} {shown(meaning, float(value or 0.0))}" for meaning, value in values.items()]
        lines.append(f"  {', '.join(parts) or '-'}")
    return [*lines, f"  {folder}"]


def whereabouts(store: Store, record: Ending, folder: Path | None = None) -> str:
    """Return `; traceback in FOLDER/log.txt` of a failed cell, or where its log is; `folder` is shown for its own."""
    if record["status"] != "failed":
        return ""
    path = store.directory(record["id"])
    log, name = path / LOG, folder or path
    text = log.read_text(encoding="utf-8", errors="replace") if log.is_file() else ""
    if record.get("traceback"):
        return f"; traceback in {name / (LOG if TRACEBACK in text else 'record.json')}"
    return f"; last lines in {name / LOG}" if text else ""


def show_evaluations(evaluations: dict[str, dict[str, Any]], console: Console) -> None:
    """Print the evaluations of a finished run: a table a split, and one of lengths."""
    for name, evaluation in evaluations.items():
        if name == "lengths":
            _show_lengths(evaluation, "validation", console)
            continue
        if name == "tasks":
            _show_tasks(evaluation, console)
            continue
        _show_split(name, evaluation, console)
        if "lengths" in evaluation:
            _show_lengths(evaluation["lengths"], name, console)


def shown(meaning: Metric, value: float) -> str:
    """Format a value with its digits and unit."""
    return f"{value:z,.{meaning.digits}f} {meaning.unit}".rstrip()


def _show_split(name: str, evaluation: dict[str, Any], console: Console) -> None:
    scaled = evaluation["scaled"] or {}
    rows = []
    for quantity, meaning in METRICS.items():
        if evaluation.get(quantity) is not None:
            after = shown(meaning, scaled[quantity]) if quantity in scaled else ""
            rows.append([meaning.label.removeprefix("validation "), shown(meaning, evaluation[quantity]), after])
    if scaled:
        nll, temperature = METRICS["nll"], METRICS["temperature"]
        rows.append([nll.label, *(shown(nll, loss) for loss in scaled["validation_nll"])])
        rows.append([temperature.label, "1", shown(temperature, scaled["temperature"])])
        rows.append([METRICS["argmax_changed"].label, "", f"{scaled['argmax_changed']:,}"])
    if "text" in evaluation:
        rows.append(["unknown tokens", f"{evaluation['text']['unknown_share']:z.2%}", ""])
    width = 3 if scaled else 2
    print_table(name, ["metric", "as trained", "scaled"][:width], [row[:width] for row in rows], console)


def _show_tasks(by_task: dict[str, Any], console: Console) -> None:
    rows = []
    for task, measured in by_task.items():
        for metric, at in measured["metrics"].items():
            error = "-" if at["stderr"] is None else f"{at['stderr']:z.4f}"
            rows.append([f"{metric}@{task}", f"{at['value']:z.4f}", error, f"{measured['items']:,}"])
    print_table("tasks", ["metric", "value", "standard error", "items"], rows, console)


def _show_lengths(by_length: dict[str, Any], split: str, console: Console) -> None:
    rows = []
    for length, at in by_length.items():
        nll = [shown(AT_LENGTH[name], at[name]) for name in ("nll", "sliding_nll") if "error" not in at]
        rows.append([length, *nll, f"{at['tokens']:,}"] if nll else [length, str(at["error"]), "", ""])
    print_table(f"{split}, by tokens of context", ["context", "blocks", "sliding window", "tokens"], rows, console)


def show_diff(difference: RunDiff, names: tuple[str, str], console: Console, measured: bool) -> None:
    """Print the differences, a table a kind; `measured` where both sides are runs."""
    _print(console, f"A: {names[0]}")
    _print(console, f"B: {names[1]}")
    kinds: Mapping[str, Any] = {"configuration": difference.configuration}
    if measured:
        kinds = {**kinds, "text": difference.text, "code and circumstances": difference.circumstances}
    for title, pairs in kinds.items():
        rows = [[name, format_value(a), format_value(b)] for name, (a, b) in pairs.items()]
        if rows:
            print_table("", [title, "A", "B"], rows, console)
        else:
            _print(console, f"{title}: no difference")
    if not measured:
        return
    first = [name for name in METRICS if name in difference.metrics]
    rows = []
    for name in dict.fromkeys([*first, *difference.metrics]):
        a, b = difference.metrics[name]
        numbers = ["-" if number is None else f"{number:z.6g}" for number in (a, b)]
        rows.append([describe(name).label, *numbers, "-" if a is None or b is None else f"{b - a:+z.4g}"])
    if not rows:
        _print(console, "metrics: none were measured")
        return
    seeds = difference.seeds
    mean = f"metrics, means of {seeds[0]} and {seeds[1]} seeds" if seeds != (1, 1) else "metrics"
    print_table(mean, ["metric", "A", "B", "B - A"], rows, console)


LABELS = {
    "linear": "linear layers, forward",
    "attention": "attention, forward, every query with every key",
    "useful": "  of these, with keys that the query sees",
    "forward": "forward",
    "backward": "backward, twice that",
    "total": "both",
}


def grouped(parts: dict[str, dict[str, int]]) -> Iterator[tuple[str, dict[str, int]]]:
    """Merge consecutive blocks with equal counts into one entry: `blocks.0 to 5, each`."""
    for _, same in itertools.groupby(parts.items(), lambda item: (item[0].split(".")[0], item[1])):
        names = [name for name, _ in same]
        each = f" to {names[-1].split('.')[-1]}, each" if len(names) > 1 else ""
        yield names[0] + each, parts[names[0]]


def show_count(counts: dict[str, Any], console: Console) -> None:
    """Print the counts of `lm.count.count` as tables."""
    rows = []
    for part, kinds in sorted(grouped(counts["parameters"]["parts"]), key=lambda item: item[0] != ""):
        if part:
            rows.append([part, f"{sum(kinds.values()):,}"])
        for kind, number in kinds.items():
            rows.append([f"  {kind}" if part else kind, f"{number:,}" if number or kind != "head" else "tied"])
    total, active = (counts["parameters"][name] for name in ("total", "active"))
    rows.append(["total, shared ones once", f"{total:,}"])
    rows += [["active: of experts, those that a token passes", f"{active:,}"]] if active < total else []
    print_table("", ["", "parameters"], rows, console)
    context, batch, flops = counts["context"], counts["batch"], counts["flops_per_token"]
    rows = [[label, scaled(flops[name], 1000, ("", "k", "M", "G", "T"))] for name, label in LABELS.items()]
    rows.append(["attention's share of forward", f"{flops['attention'] / flops['forward']:z.1%}"])
    print_table("", [f"a token, context {context:,}", "FLOPs"], rows, console)
    rows = []
    for label, name in (("keys and values", "cache_bytes"), ("activations in training, estimate", "activation_bytes")):
        sizes = (counts[name].get(dtype) for dtype in counts["cache_bytes"])
        rows.append([label, *("" if size is None else scaled(size, 1024, UNITS) for size in sizes)])
    print_table("", [f"memory, context {context:,}, batch {batch:,}", *counts["cache_bytes"]], rows, console)


def scaled(number: float, step: int, units: tuple[str, ...]) -> str:
    """Format a number with four figures and the unit that fits."""
    power = 0
    while number >= step and power < len(units) - 1:
        number, power = number / step, power + 1
    return f"{number:z,.4g} {units[power]}".rstrip() if number < step else f"{number:z,.0f} {units[power]}"


def describe_autotune(decision: Mapping[str, Any]) -> str:
    """Describe in a line the settings that `lm.inference.autotune` chose, and the speed of each candidate."""
    chosen = decision["chosen"]
    texts = {name: value if isinstance(value, str) else str(value).lower() for name, value in chosen.items()}
    settings = ", ".join(f"{name} {text}" for name, text in texts.items())
    timed = "; ".join(_timed(timing, list(chosen)) for timing in decision["measured"])
    return f"auto: {settings}. A step takes {timed} ({decision['device']}, threads: {decision['threads']})."


def _timed(timing: Mapping[str, Any], names: list[str]) -> str:
    options = {name: timing["way"].get(name) for name in names}
    texts = (("compiled" if v else "") if name == "compile" else str(v) for name, v in options.items())
    setting = " ".join(filter(None, texts))
    compiled = f" after {timing['compiled_in']:z.0f} s of compiling" if timing.get("compiled_in") else ""
    return f"{timing['milliseconds']:z.4g} ms {setting or 'as written'}{compiled}"

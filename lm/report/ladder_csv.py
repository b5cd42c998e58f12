"""A ladder as long tables: differences and gains by rung, and their trends over compute."""

import math

import numpy as np
import pandas as pd

from lm.analysis.ladder import LadderResults, losses
from lm.report.ladder import exp
from lm.stats.trend import Estimate


def worth_table(results: LadderResults) -> pd.DataFrame:
    """Return a row for each rung and arm; gains are factors, compute is in FLOPs.

    The baseline has its loss alone.
    """
    rows = []
    for rung, rung_results in zip(results.manifest["rungs"], results.rungs, strict=True):
        for name in results.manifest["arms"]:
            values = losses(rung_results, name)
            finite = values[np.isfinite(values)]
            row: dict[str, object] = {"rung": rung["name"], "arm": name, "metric": results.manifest["metric"]}
            row |= {"compute": rung["compute"][name], "n": len(finite)}
            row |= {"mean": finite.mean() if len(finite) else math.nan}
            row |= {"sd": finite.std(ddof=1) if len(finite) > 1 else math.nan}
            rows.append(row | _worth(results, rung["name"], name))
    return pd.DataFrame(rows)


def _worth(results: LadderResults, rung: str, name: str) -> dict[str, object]:
    arm = next((arm for arm in results.arms if arm.name == name), None)
    place = next((k for k, at in enumerate(arm.at) if at.rung == rung), None) if arm else None
    if arm is None or arm.scaling is None or place is None:
        missing: Estimate | None = None
        return {
            "pairs": 0,
            **_columns("difference", missing),
            "over": "",
            **_columns("gain", missing),
            "beyond": "",
            "rate_bracketed": "",
            "verdict": "",
        }
    gain = arm.scaling.gains[place] if arm.scaling.gains else None
    logs = gain.log if gain else Estimate()
    of_gain = Estimate(*(exp(x) if not math.isnan(x) else x for x in (logs.value, logs.low, logs.high)))
    return {
        "pairs": arm.at[place].pairs,
        **_columns("difference", arm.scaling.differences[place]),
        "over": "seeds" if arm.at[place].noise is None else "seeds and text",
        **_columns("gain", of_gain),
        "beyond": gain.beyond if gain else "",
        "rate_bracketed": not arm.at[place].not_bracketed,
        "verdict": arm.at[place].verdict,
    }


def _columns(name: str, estimate: Estimate | None) -> dict[str, float]:
    values = estimate or Estimate()
    return {name: values.value, f"{name}_low": values.low, f"{name}_high": values.high}


def trend_table(results: LadderResults) -> pd.DataFrame:
    """Return a row for each arm and kind of trend; slopes of gains are of ln(gain) per decade of compute."""
    rows = []
    for arm in results.arms:
        kinds = (("difference", arm.scaling.of_difference), ("log gain", arm.scaling.of_gain)) if arm.scaling else ()
        for kind, trend in kinds:
            says = arm.withheld if arm.withheld and trend.kind != "none" else trend.kind
            row: dict[str, object] = {"arm": arm.name, "of": kind, "says": says, "margin": trend.margin}
            rows.append(row | _columns("slope", trend.slope) | _columns("middle", trend.middle))
    return pd.DataFrame(rows)

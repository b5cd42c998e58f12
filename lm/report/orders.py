"""The section on variance over initial values and over the order of the data."""

import math

from lm.analysis.orders import Orders
from lm.analysis.results import Results
from lm.report.tables import heading, number
from lm.store.metrics import describe

ORDERS = "Initial values and order of the data"
CAUSES = ("initial values", "order of the data", "neither alone")


def order_columns() -> list[str]:
    """Return the headings."""
    return ["cause", "standard deviation", "share of the variance [95 % interval]"]


def order_rows(results: Results, orders: Orders) -> list[list[str]]:
    """Return a row for each source of variance; none where too few cells ended well."""
    if orders.parts is None:
        return []
    digits = describe(results.headline).digits
    variances = (orders.parts.first, orders.parts.second, orders.parts.rest)
    return [
        [cause, number(math.sqrt(variance), digits), _share(*share)]
        for cause, variance, share in zip(CAUSES, variances, orders.parts.shares, strict=True)
    ]


def _share(share: float, low: float, high: float) -> str:
    return "-" if math.isnan(share) else f"{share:z.2f} [{low:z.2f}, {high:z.2f}]"


def order_notes(results: Results, orders: Orders) -> list[str]:
    """Explain the shares of variance and how they are estimated."""
    what = f"{heading(results.headline).rstrip(' ↓↑')} of {results.manifest['baseline']}"
    lines = [
        f"{what} with {len(orders.seeds)} seeds of the initial values (and of dropout), each in {orders.orders} orders "
        "of the data: two crossed random effects, by the method of moments.",
        "Neither alone: what a seed does in one order and not in another, and whatever else varies. The intervals "
        "(generalised, Weerahandi 1993) ask for normal effects; no verdict comes from them.",
    ]
    if orders.left_out:
        left = ", ".join(map(str, orders.left_out))
        lines.append(
            f"Left out, for not every order ended well or was trained: seed{'s' * (len(orders.left_out) > 1)} {left}."
        )
    if orders.parts is None:
        lines.append("Too few cells ended well to share out their variance: it takes two seeds in two orders.")
    return lines

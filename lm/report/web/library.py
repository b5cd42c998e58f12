"""Vega-Lite as one script, from the package vl-convert; it evaluates expressions without `eval`."""

import functools
import re

MISSING = "charts need vl-convert-python, which is not installed here: pip install vl-convert-python"

SNIPPET = "window.vegaEmbed = vegaEmbed;"
"""Entry point of the bundle; the bundler leaves out what it does not need."""


@functools.cache
def library() -> str:
    """Return the script, which defines `vegaEmbed`; empty where the package is not installed."""
    try:
        import vl_convert
    except ImportError:
        return ""
    return re.sub(r"</(?=script)", r"<\\/", vl_convert.javascript_bundle(SNIPPET), flags=re.IGNORECASE)

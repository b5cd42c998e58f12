"""Looks of names in charts: twelve colours that colour blindness leaves distinct, dashes and markers, for both drawers.

The colours are spread in OKLab, as seen with and without each kind of colour blindness, and have a contrast of 4.5 to
the page. `tests/report/test_palette.py` measures both.
"""

LIGHT = (
    "#1b1f24", "#c34c00", "#3976ab", "#7f53e7", "#846d64", "#671888", "#362cc6", "#8e390c", "#25404b", "#3f015b",
    "#5c5078", "#582804",
)  # fmt: skip
"""Colours on white paper and on the light page; the first is the baseline's."""

DARK = (
    "#e6e9ed", "#e9650d", "#1589ff", "#d086c3", "#f5ad0f", "#7cd9b6", "#b17b78", "#fadd02", "#90ff99", "#a4ac7b",
    "#6cacff", "#bac7fd",
)  # fmt: skip
"""Colours on the dark page."""

COLOURS = len(LIGHT)

SOLID = 6  # number of names with one kind of line: the first six lines are solid
DASHES = ([1, 0], [8, 3], [2, 2], [8, 3, 2, 3], [14, 4])  # lengths of dashes and gaps, in pixels of a page
MARKERS = ("o", "s", "D", "^", "P", "v", ">", "<")  # markers by Matplotlib's names

SHAPES = (
    "circle", "square", "diamond", "triangle-up", "cross", "triangle-down", "triangle-right", "triangle-left",
)  # fmt: skip
"""The same markers by Vega's names."""


def dash(place: int) -> list[int]:
    """Return the dashes of a name by its index; solid for the baseline and the first arms."""
    return DASHES[place // SOLID % len(DASHES)]


def marker(place: int) -> int:
    """Return the index of the marker of a name."""
    return (place + place // COLOURS) % len(MARKERS)


def style_sheet() -> str:
    """Return the colours as variables of a style sheet: in the light, in the dark, in print."""
    of_themes = ([f"--arm-{place}: {colour}; " for place, colour in enumerate(theme)] for theme in (LIGHT, DARK))
    light, dark = (f":root {{ {''.join(variables)}}}" for variables in of_themes)
    return f"{light}\n@media (prefers-color-scheme: dark) {{ {dark} }}\n@media print {{ {light} }}\n"

"""The pages of this folder as a site: `make docs`."""

project = "lm-ablations"
extensions = ["myst_parser"]
root_doc = "README"
exclude_patterns = ["_build"]
myst_heading_anchors = 3
suppress_warnings = [
    "myst.xref_missing",  # links out of this folder, such as to CONTRIBUTING.md
    "toc.not_included",  # the table of README.md leads to every page
]
html_theme = "alabaster"
html_show_sourcelink = False

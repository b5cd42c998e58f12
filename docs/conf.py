"""The pages of this folder as a site: `make docs`."""

project = "lm-ablations"
extensions = ["myst_parser"]
root_doc = "README"
exclude_patterns = ["_build"]
myst_heading_anchors = 3
suppress_warnings = ["myst.xref_missing"]  # links out of this folder, such as to CONTRIBUTING.md
html_theme = "alabaster"
html_show_sourcelink = False

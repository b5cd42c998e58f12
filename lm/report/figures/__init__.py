"""Figures of reports: each computes its data once, as a `Chart`, and is drawn as a picture and on the page."""

"""The files of a results folder: what they hold, and how they are written, read and found to be damaged."""

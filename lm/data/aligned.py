"""Aligned text files, such as sentences and their translations: line i of one belongs to line i of the other."""

import gzip
import os
import zlib

from lm.config.tree import InputError, nearest, require_regular
from lm.data.corpus import SPLITS, expanded
from lm.data.public import remedy

Pairs = dict[str, list[tuple[str, str]]]
"""Source and target of each pair, by split."""


class LocalPairs:
    """Two aligned text files a split, line i of one belonging to line i of the other; plain or .gz, in UTF-8.

    Args:
        train_source, train_target: to learn from.
        validation_source, validation_target: to evaluate on.
        test_source, test_target: what `lm translate` translates; may be left out.
    """

    def __init__(
        self,
        train_source: str,
        train_target: str,
        validation_source: str,
        validation_target: str,
        test_source: str | None = None,
        test_target: str | None = None,
    ) -> None:
        if (test_source is None) != (test_target is None):
            raise ValueError("test_source and test_target belong together: give both or neither")
        self.paths = {
            "train": (train_source, train_target),
            "validation": (validation_source, validation_target),
            "test": (test_source, test_target),
        }

    def lines(self, split: str) -> tuple[list[str], list[str]]:
        """All lines of both sides of a split, stripped, in order; none for a split that was not given.

        Raises:
            InputError: for files that cannot be read or differ in their number of lines.
        """
        source, target = self.paths[split]
        if source is None or target is None:
            return [], []
        sides = (
            read_lines(source, f"data.corpus.{split}_source"),
            read_lines(target, f"data.corpus.{split}_target"),
        )
        if len(sides[0]) != len(sides[1]):
            raise InputError(
                f"data.corpus: {source} has {len(sides[0])} lines and {target} {len(sides[1])}; "
                "line i of one must belong to line i of the other"
            )
        return sides

    def pairs(self) -> tuple[Pairs, dict[str, int]]:
        """The pairs of each split, and how many were left out because a side is empty."""
        kept, empty = {}, {}
        for split in SPLITS:
            found = list(zip(*self.lines(split), strict=True))
            kept[split] = [pair for pair in found if all(pair)]
            empty[split] = len(found) - len(kept[split])
        return kept, empty


def read_lines(path: str, name: str) -> list[str]:
    """The lines of a text file, plain or .gz, each stripped. Raises InputError, with `name` for where it was asked."""
    place = expanded(path)
    try:
        require_regular(place)
        data = place.read_bytes()
        text = (gzip.decompress(data) if place.suffix == ".gz" else data).decode("utf-8")
    except UnicodeDecodeError as error:
        raise InputError(f"{name}: {path} is not UTF-8 text (byte {error.start})") from None
    except (OSError, EOFError, zlib.error) as error:
        siblings = [str(p) for p in place.parent.iterdir()] if os.path.isdir(place.parent) else []
        hint = "" if os.path.exists(place) else remedy(path) or nearest(path, siblings)
        raise InputError(
            f"{name}: {path} cannot be read ({getattr(error, 'strerror', None) or error}).{hint}"
        ) from None
    lines = [line.strip() for line in text.split("\n")]  # not splitlines, which also cuts at rarer marks
    return lines[:-1] if lines[-1] == "" else lines

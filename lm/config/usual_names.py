"""Our names of settings, classes, metrics, commands, options and keys for those that papers and other programs use."""

import functools
import re
from collections.abc import Container, Sequence
from pathlib import Path

from lm.config.plain import parse_yaml
from lm.config.tree import nearest

FILE = Path(__file__).with_suffix(".yaml")


def _plain(name: object) -> str:
    """Return a name in lower case, without what joins its words."""
    return str(name).lower().translate({ord(joint): None for joint in "_- ."})


@functools.cache
def usual_names(kind: str) -> dict[str, list[str]]:
    """Return the usual names of settings, metrics, commands, options or keys by ours.

    A class is written `model.mlp: Experts`, a setting that not every class has `model.mlp.experts of Experts`.
    """
    return dict(parse_yaml(FILE.read_text(encoding="utf-8"))[kind])


def _ours(kind: str, word: object) -> str:
    """Return our name for a usual one, without regard to case and hyphens; empty for any other word."""
    plain = _plain(word)
    return next((name for name, usual in usual_names(kind).items() if plain in map(_plain, usual)), "")


def suggest(word: object, choices: Sequence[str], kind: str) -> str:
    """Return ` Did you mean X?` for what others call by this name, or else for the nearest choice; empty without."""
    name = _ours(kind, word)
    return f" Did you mean {name}?" if name in choices else nearest(word, choices)


def suggest_setting(word: object, choices: Sequence[str]) -> str:
    """Return the same for a setting or a class; one that does not belong here is named with its path."""
    meant = _ours("settings", word)
    path, _, name = meant.partition(": ")
    here = name or path.partition(" of ")[0].rpartition(".")[2]
    if here in choices:
        return f" Did you mean {here}?"
    return f" Did you mean {meant}?" if meant else nearest(word, choices)


def suggest_option(word: str, options: Container[str], settable: bool) -> str:
    """Return ` Did you mean X?` for an option, or a setting on the command line, that others call by this name."""
    name, path = _ours("options", word), re.split(": | of ", _ours("settings", word))[0]
    if name in options:
        return f" Did you mean {name}?"
    return f" Did you mean --{path}?" if path and settable else ""

"""What a shell completes after `lm`: commands and options by shtab, and here what stands for which argument."""

import argparse
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from shlex import join

from lm.cli.options import Parser
from lm.config.reading import SHIPPED_FOLDERS, shipped_files
from lm.config.tree import InputError

YAML = ("yaml", "yml")

Names = Callable[[], Sequence[str]]


def _shipped(*kinds: str) -> Names:
    return lambda: list(dict.fromkeys(name for kind in kinds for name in shipped_files(kind)))


def _commands() -> Sequence[str]:
    from lm.cli.commands import commands

    return list(commands())


def _data() -> Sequence[str]:
    from lm.data.public import PUBLIC

    return list(PUBLIC)


NAMED: Mapping[tuple[str, str], tuple[Names, bool]] = {
    ("ablate", "spec"): (_shipped("experiment"), True),
    ("sweep", "spec"): (_shipped("sweep"), True),
    ("fit", "config"): (_shipped("configuration"), True),
    ("count", "config"): (_shipped("configuration"), True),
    ("cp", "name"): (_shipped(*SHIPPED_FOLDERS), False),
    ("reproduce", "names"): (_shipped("experiment"), False),
    ("help", "about"): (_commands, False),
    ("data", "name"): (_data, False),
}
"""For arguments of commands that take one of several names: these, and whether a YAML file may stand there instead."""

RUNS = {("evaluate", "cell"), ("generate", "cell"), ("translate", "cell"), ("diff", "left"), ("diff", "right")}
"""Arguments that take a run, whose folders lie among the files."""

FOLDER = ("DIR", "EXPERIMENT")
"""What stands for an argument in its help where it is a folder, as it is for these:"""
OF_FOLDERS = ("out", "experiments", "folder", "folders")


def script(top: Parser, inner: Mapping[str, Parser], shell: str) -> str:
    """What a shell has to read to complete the command line of `top`, whose sub-commands are `inner`.

    Raises:
        InputError: where shtab is not installed.
    """
    try:
        import shtab
    except ImportError:
        raise InputError("lm completion: needs the package shtab; install it with: pip install shtab") from None
    for command, parser in inner.items():
        for action in parser._actions:
            completed = _completed(command, action)
            if completed is not None:
                action.complete = completed  # type: ignore[attr-defined]
    found: str = shtab.complete(top, shell)
    return found


def _completed(command: str, action: argparse.Action) -> dict[str, object] | None:
    """How shtab is to complete what an argument takes; None where that is nothing, or choices that it knows itself."""
    import shtab

    place = (command, action.dest)
    if place in NAMED:
        names, files = NAMED[place]
        return _either(f"{command}_{action.dest}", names(), files)
    if place in RUNS:
        return dict(shtab.FILE)
    if action.type is not Path:
        return None
    folder = action.metavar in FOLDER or (action.metavar is None and action.dest in OF_FOLDERS)
    return dict(shtab.DIRECTORY if folder and not _may_be_pack(place) else shtab.FILE)


def _may_be_pack(place: tuple[str, str]) -> bool:
    """Whether a pack, which is a file, may be given for a folder."""
    return place in {("report", "folders"), ("trace", "folder")}


def _either(called: str, names: Sequence[str], files: bool) -> dict[str, object]:
    """Completes one of `names`, or a YAML file where `files`; shtab tells by `_file` that folders get a slash."""
    function = f"_lm_{called}" + ("_or_file" if files else "")
    words = join(names)
    bash = [f'  compgen -W {join([" ".join(names)])} -- "$1"']
    zsh = [f"  compadd -- {words}"]
    fish = [f"  printf '%s\\n' {words}"]
    if files:
        bash += [*(f"  compgen -f -X '!*.{end}' -- \"$1\"" for end in YAML), '  compgen -d -- "$1"']
        zsh += [f"  _files -g '*.({'|'.join(YAML)})'"]
        ends = "|".join(YAML)
        fish += [f"  __fish_complete_path (commandline -ct) | string match -r '.*(?:\\.(?:{ends})|/)(?:\\t.*)?$'"]
    return {
        "bash": function,
        "zsh": function,
        "fish": f"({function})",
        "preamble": {
            "bash": "\n".join([f"{function}() {{", *bash, "}"]),
            "zsh": "\n".join([f"{function}() {{", *zsh, "}"]),
            "fish": "\n".join([f"function {function}", *fish, "end"]),
        },
    }

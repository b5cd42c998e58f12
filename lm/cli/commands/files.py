"""`lm init`, `lm cp`, `lm data`, `lm pack` and `lm unpack`: commands that write files and train nothing."""

import argparse
import os
import shlex
import sys
from pathlib import Path
from typing import Any

from lm.cli.options import Command, experiment_folder, flag, option, out_option
from lm.config.tree import InputError, require_place


def init(options: argparse.Namespace, overrides: dict[str, Any]) -> int:
    """Write a starter project into a folder."""
    from lm.ablation.project import put, starter

    put(starter(), options.folder, "DIR")
    change = "" if options.folder == Path() else f"cd {shlex.quote(str(options.folder))} && "
    print(f"written: {options.folder}: next, {change}lm ablate mine.yaml", file=sys.stderr)
    return 0


def cp(options: argparse.Namespace, overrides: dict[str, Any]) -> int:
    """Copy a shipped experiment, sweep or configuration with its base."""
    from lm.ablation.project import copies, put

    written = put(copies(options.name), options.folder, "DIR")
    print(f"written: {', '.join(map(str, written)) or 'nothing, all files exist already'}", file=sys.stderr)
    return 0


def data(options: argparse.Namespace, overrides: dict[str, Any]) -> int:
    """Download a text, list all that can be downloaded, or verify what was read and cached."""
    from lm.data.public import DATASETS, download_to

    if options.name == "verify":
        from lm.data.cache import verify

        checked = list(verify())
        for path, _, problem in checked:
            print(f"{path}: {problem or 'sound'}")
        wrong, size = sum(problem is not None for *_, problem in checked), sum(size for _, size, _ in checked) / 1e9
        print(f"{len(checked)} files and entries read, {size:z.2f} GB; {wrong} damaged or changed", file=sys.stderr)
        return 1 if wrong else 0
    if options.any and options.source is None:
        raise InputError("--any: is for files at hand; give --from DIR too")
    if options.name is None:
        if options.source is not None:
            raise InputError(f"lm data: expected a name before --from, one of {', '.join(DATASETS)}")
        for name, text in DATASETS.items():
            size = sum(file.size for file in text.files) / 1e6
            print(f"{name}: {text.about}")
            print(f"    {size:z.1f} MB; {text.licence}; {text.source}")
        return 0
    written = ", ".join(map(str, download_to(options.name, options.to, options.source, options.any)))
    print(f"written: {written or f'nothing, all of {options.to / options.name} exists already'}", file=sys.stderr)
    return 0


def pack(options: argparse.Namespace, overrides: dict[str, Any]) -> int:
    """Write an experiment, a search or a ladder as one file."""
    if options.out is not None:
        require_place(options.out, "--out")
    from lm.report.pack import pack as write_pack

    archive, expected = write_pack(experiment_folder(options.folder), options.out, options.thin)
    contents = f"{len(archive.cells)} of {expected} cells, {len(archive.members.get('curves', ()))} curves"
    print(f"packed: {archive.path}: {contents}, {os.path.getsize(archive.path):,} bytes", file=sys.stderr)
    return 0


def unpack(options: argparse.Namespace, overrides: dict[str, Any]) -> int:
    """Add the cells of a pack to a folder of results."""
    require_place(options.out, "--out", folder=True)
    from lm.report.pack import unpack as read_pack

    result = read_pack(options.file, options.out)
    counts = f"{len(result.added)} cells added, {len(result.already_present)} already present"
    print(f"unpacked: {result.folder}: {counts}", file=sys.stderr)
    for line in result.left_out:
        print(f"lm: {line}", file=sys.stderr)
    return 1 if result.conflicting or result.busy else 0


COMMANDS = {
    "init": Command(
        "write a small project: an experiment that runs at once, a base, a component of your own",
        ("lm init demo", "lm init ."),
        init,
        option("folder", "folder of the project; created if it does not exist", Path, "DIR"),
    ),
    "cp": Command(
        "copy a shipped experiment, sweep or configuration with its base",
        ("lm cp quickstart", "lm cp learning_rate mine"),
        cp,
        option("name", "name of the experiment, such as quickstart"),
        option("folder", "target folder (default: .)", Path, "DIR", nargs="?", default=Path()),
    ),
    "data": Command(
        "download public texts that experiments use, list them, or verify all text that was read and cached",
        ("lm data tinyshakespeare --to data", "lm data verify"),
        data,
        option("name", "name of a text, such as tinyshakespeare (default: list them), or verify", nargs="?"),
        option("--to", "folder that gets a folder of that name (default: data)", Path, "DIR", default=Path("data")),
        option("--from", "take the files from this folder; download nothing", Path, "DIR", dest="source"),
        flag("--any", "with --from: accept files with other checksums"),
    ),
    "pack": Command(
        "write an experiment, a search or a ladder as one file, without weights",
        ("lm pack results/quickstart", "lm pack results/quickstart --thin --out quickstart.lmpack"),
        pack,
        option("folder", "the folder of an experiment, a search or a ladder, or its name in results", Path),
        option("--out", "the pack (default: FOLDER.lmpack)", Path, "FILE"),
        flag("--thin", "shorten learning curves to loss, gradient norm and validations: a tenth of the size"),
    ),
    "unpack": Command(
        "add the cells of a pack to a folder of results",
        ("lm unpack quickstart.lmpack", "lm unpack quickstart.lmpack --out results"),
        unpack,
        option("file", "a pack that `lm pack` wrote, such as results/quickstart.lmpack", Path),
        out_option("folder of cells"),
    ),
}

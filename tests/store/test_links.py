"""A folder of results from a stranger: nothing outside is read or written by way of links in it."""

import json
import os
from collections.abc import Callable
from pathlib import Path

import pytest
from messages import Refused, RefusedCommand

import lm
from lm.report.pack import pack

Make = Callable[..., Path]

PLACES = ("cells", "cells/a-0", "cells/a-0/record.json", "cells/a-0/code", "demo/table.md", "demo/tune", "demo.tuned")
"""Where a link may lie."""


@pytest.fixture
def out(experiment: Make, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder of results, beside one that is nobody's business."""
    folder = experiment({"a": [2.0, 2.1], "b": [1.8, 1.9]}).parent
    (folder.parent / "secret").mkdir()
    (folder.parent / "secret" / "key").write_text("1234")
    monkeypatch.chdir(folder.parent)
    return Path("out")


def led_out(out: Path, place: str) -> None:
    """Puts what lies at a place, or nothing, into the other folder, and a link to it in its stead."""
    target = out.parent.absolute() / "secret" / "moved"
    if (out / place).exists():
        os.rename(out / place, target)
    (out / place).symlink_to(target)


COMMANDS = (
    ["report", "out/demo"],
    ["trace", "out/demo", "b", "nll"],
    ["status", "out"],
    ["status", "out/demo"],
    ["ls", "out"],
    ["diff", "demo/a/0", "demo/b/0", "--out", "out"],
    ["pack", "out/demo"],
)


@pytest.mark.parametrize("arguments", COMMANDS, ids=" ".join)
def test_every_reader_refuses_links_that_lead_out(
    out: Path, refused_command: RefusedCommand, arguments: list[str]
) -> None:
    led_out(out, "cells/a-0/record.json")
    outside = {path: path.read_bytes() for path in Path("secret").iterdir()}
    refused_command(arguments)
    assert {path: path.read_bytes() for path in Path("secret").iterdir()} == outside
    assert not Path("out/demo/table.md").exists()


@pytest.mark.parametrize("place", PLACES)
def test_wherever_the_link_lies_it_is_refused(out: Path, place: str, refused: Refused) -> None:
    led_out(out, place)
    with refused():
        lm.load("out/demo")


def test_inner_links_are_followed_and_checked(out: Path, refused: Refused) -> None:
    os.rename(out / "cells" / "a-0", out / "kept")
    (out / "cells" / "a-0").symlink_to("../kept")
    assert len(lm.load("out/demo").cells) > 0
    (out / "kept" / "code").symlink_to("../../secret")
    with refused():
        lm.load("out/demo")


def test_named_links_are_followed_and_cycles_end(out: Path) -> None:
    Path("elsewhere").symlink_to("out")
    (out / "cells" / "a-0" / "circle").symlink_to("..")
    assert lm.load("elsewhere/demo").arms == ["a", "b"]


def test_pipes_are_refused_without_waiting(out: Path, refused_command: RefusedCommand) -> None:
    (out / "cells" / ".leases" / "a-0").mkdir(parents=True)
    os.mkfifo(out / "cells" / ".leases" / "a-0" / "1")
    refused_command(["status", "out"])


def test_what_is_unpacked_is_not_put_where_a_link_leads(out: Path, refused_command: RefusedCommand) -> None:
    pack(out / "demo", Path("demo.lmpack"))
    for name in ("cells", "demo"):
        place = Path(f"mine-{name}")
        place.mkdir()
        (place / name).symlink_to("../secret")
        refused_command(["unpack", "demo.lmpack", "--out", place])
    assert [path.name for path in Path("secret").iterdir()] == ["key"]


def test_nothing_is_trained_where_its_report_would_be_refused(out: Path, refused_command: RefusedCommand) -> None:
    led_out(out, "cells")
    refused_command(["fit", "char_tiny", "--out", "out"])


def test_names_in_a_manifest_lead_nowhere(out: Path, refused_command: RefusedCommand) -> None:
    path = out / "demo" / "experiment.json"
    manifest = json.loads(path.read_text())
    for name in ("../../secret", "..", "/etc", "a/../../secret"):
        manifest["arms"]["a"]["cells"]["0"] = name
        path.write_text(json.dumps(manifest))
        for command in ("report", "pack"):
            refused_command([command, "out/demo"])

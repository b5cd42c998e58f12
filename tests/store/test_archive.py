"""A pack is the same bytes for the same files, gives them back bit for bit, and cannot do harm whoever made it."""

import json
import lzma
import random
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from messages import CheckMessage, Refused

from lm.config.tree import InputError
from lm.store import archive
from lm.store.archive import INDEX, LARGEST_FILE, check_index, read_archive, write_archive
from lm.store.formats import PACK

FILES = {
    "demo/experiment.json": ("manifests", b'{"format": 2}\n'),
    "cells/a/record.json": ("records", b'{"nll": 2.5}'),
    "cells/b/record.json": ("records", b'{"nll": 2.25}'),
    "cells/a/config.yaml": ("configurations", b""),
    "cells/a/history.csv": ("curves", b"step,loss\r\n1,0.1\xff\xfe"),
    "cells/b/code/module.own.py": ("others", b"x = 1\n" * 400_000),
}


def written(folder: Path, files: dict[str, tuple[str, bytes]] = FILES, name: str = "demo.lmpack") -> Path:
    places = {}
    for inside, (kind, content) in files.items():
        place = folder / "from" / inside
        place.parent.mkdir(parents=True, exist_ok=True)
        place.write_bytes(content)
        places[inside] = kind, place
    write_archive(folder / name, "demo", places)
    return folder / name


def made(path: Path, members: Any, contents: dict[str, bytes], name: str = "demo", **more: Any) -> Path:
    """A pack written by somebody else: whatever index, whatever members."""
    with zipfile.ZipFile(path, "w") as parts:
        for member, content in contents.items():
            parts.writestr(member, content)
        index = {"format": PACK.version, "name": name, "members": members, **more}
        parts.writestr(INDEX, json.dumps(index))
    return path


def whole(path: Path) -> dict[str, bytes]:
    return dict(read_archive(path).contents())


def test_contents_come_back_bit_for_bit(tmp_path: Path) -> None:
    path = written(tmp_path)
    assert whole(path) == {name: content for name, (_, content) in FILES.items()}
    assert read_archive(path).cells == ["a", "b"]
    read_archive(path).extract(tmp_path / "into")
    for name, (_, content) in FILES.items():
        assert (tmp_path / "into" / name).read_bytes() == content
    assert dict(read_archive(path).contents("curves")).keys() == {"cells/a/history.csv"}


def test_the_same_files_give_the_same_bytes(tmp_path: Path) -> None:
    first = written(tmp_path).read_bytes()
    again = written(tmp_path, dict(reversed(FILES.items())), "again.lmpack")
    assert again.read_bytes() == first
    other = written(tmp_path, {**FILES, "cells/a/config.yaml": ("configurations", b"seed: 1\n")}, "other.lmpack")
    assert other.read_bytes() != first


MANIFEST = ["demo/experiment.json", 0]


@pytest.mark.parametrize(
    "name",
    [
        "../evil",
        "/etc/passwd",
        "cells/../../evil",
        "cells/a/../b",
        "cells/a/.hidden",
        "cells/a\\b/record.json",
        "other/experiment.json",
        "demo.rung/experiment.json",
        "demo",
        "cells/a",
        "demo/tune/a/b/c",
        "cells//record.json",
        "demo/a\0b",
        "demo/" + "a" * 300,
    ],
    ids=lambda name: name[:30],
)
def test_a_path_that_leads_elsewhere_is_refused(tmp_path: Path, name: str, refused: Refused) -> None:
    members = {"manifests": [MANIFEST, [name, 0]]}
    path = made(tmp_path / "x.lmpack", members, {"manifests.xz": lzma.compress(b"")})
    with refused():
        read_archive(path)


@pytest.mark.parametrize(
    "members",
    [
        {"manifests": [MANIFEST, MANIFEST]},
        {"manifests": [MANIFEST], "records": [MANIFEST]},
        {"manifests": [MANIFEST, ["demo/tune", 0], ["demo/tune/tuned.json", 0]]},
        {"manifests": [["demo/seconds.json", 0]]},
        {"manifests": [MANIFEST], "curves": [["cells/a/history.csv", 0]]},
        {"manifests": [["demo/experiment.json", -1]]},
        {"manifests": [["demo/experiment.json", LARGEST_FILE + 1]]},
        {"manifests": [MANIFEST], "records": [[f"cells/{n}/record.json", LARGEST_FILE] for n in range(9)]},
        {"manifests": [["demo/experiment.json", True]]},
        {"manifests": 3},
        {"weights": [MANIFEST]},
        {"manifests": [["demo/ladder.json", 0], ["demos.rung/experiment.json", 0]]},
    ],
)
def test_an_index_that_no_pack_has_is_refused(tmp_path: Path, refused: Refused, members: Any) -> None:
    kinds = {f"{kind}.xz": lzma.compress(b"") for kind in members}
    with refused():
        read_archive(made(tmp_path / "x.lmpack", members, kinds))


@pytest.mark.slow
@pytest.mark.usefixtures("undrawn")
@pytest.mark.parametrize(
    "content",
    [
        lambda: lzma.compress(b"abc"),
        lambda: lzma.compress(b"abcdefg"),
        lambda: lzma.compress(bytes(1 << 26)),  # 10 kB that unfold to 64 MiB
        lambda: lzma.compress(b"abcde")[:-9],
        lambda: lzma.compress(b"abcde") + b"more",
        lambda: b"no xz at all",
    ],
)
def test_members_that_contradict_their_index_are_refused(
    tmp_path: Path, refused: Refused, content: Callable[[], bytes]
) -> None:
    path = made(tmp_path / "x.lmpack", {"manifests": [["demo/experiment.json", 5]]}, {"manifests.xz": content()})
    with refused():
        whole(path)


def test_members_and_index_must_agree(tmp_path: Path, refused: Refused) -> None:
    members = {"manifests": [MANIFEST]}
    with refused():
        read_archive(made(tmp_path / "a", members, {"manifests.xz": b"", "evil.py": b""}))
    with refused():
        read_archive(made(tmp_path / "b", members, {}))


@pytest.mark.filterwarnings("ignore:Duplicate name")
def test_zip_features_beyond_packs_are_refused(tmp_path: Path, refused: Refused, check_message: CheckMessage) -> None:
    path = tmp_path / "x.lmpack"
    for way in (zipfile.ZIP_DEFLATED, zipfile.ZIP_BZIP2, zipfile.ZIP_LZMA):
        with zipfile.ZipFile(path, "w", way) as parts:
            parts.writestr("manifests.xz", bytes(10_000))
            parts.writestr(INDEX, "{}")
        with refused():
            read_archive(path)
    with zipfile.ZipFile(path, "w") as parts:
        parts.writestr(INDEX, "{}")
        parts.writestr(INDEX, "{}")
    with refused():
        read_archive(path)
    for index in ("[" * 10**5, "{", "3", "\xff"):
        with zipfile.ZipFile(path, "w") as parts:
            parts.writestr(INDEX, index.encode("latin-1"))
        with pytest.raises(InputError) as caught:
            read_archive(path)
        assert "\n" not in str(caught.value)
        check_message(str(caught.value).split(": ")[:2])  # behind it, what Python says
    with refused():
        read_archive(made(path, {}, {}, format=2))
    with zipfile.ZipFile(path, "w") as parts:
        parts.writestr("a.txt", "")
    with refused():
        read_archive(path)


def test_oversized_indexes_are_refused_unread(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, refused: Refused
) -> None:
    monkeypatch.setattr(archive, "LARGEST_INDEX", 1000)
    path = tmp_path / "x.lmpack"
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as parts:
        parts.writestr(INDEX, " " * 10_000)
    with refused():
        read_archive(path)


@pytest.mark.slow
def test_damaged_packs_are_refused_in_one_line(tmp_path: Path) -> None:
    small = {name: (kind, content[:50]) for name, (kind, content) in FILES.items()}
    path = written(tmp_path, small)
    content = path.read_bytes()
    broken = [content[:length] for length in range(0, len(content), 7)]
    draw = random.Random(0)
    for place in range(len(content)):
        broken.append(content[:place] + bytes([content[place] ^ (1 << draw.randrange(8))]) + content[place + 1 :])
    kept, refused = {name: kept for name, (_, kept) in small.items()}, []
    for one in broken:
        path.write_bytes(one)
        try:
            found = whole(path)
        except InputError as error:
            refused.append(str(error))
        else:  # dates and the like, on which nothing rests
            assert found == kept
    assert all(line.startswith(f"{path}: ") and "\n" not in line for line in refused)
    assert len(broken) / 2 < len(refused) < len(broken)


@pytest.mark.parametrize(
    ("kind", "planted"),
    [
        ("manifests", "demo/report.html"),
        ("others", "cells/a/last.ckpt"),
        ("others", "cells/a/code/run.sh"),
        ("others", "cells/a/histori.csv"),
        ("manifests", "demo/study.journal"),
        ("manifests", "demo.tuned/lr_curve.json"),
        ("manifests", "demo/tune/report.html"),
        ("others", "cells/a/history.csv"),
    ],
)
def test_a_file_that_no_pack_holds_is_refused_by_name(
    tmp_path: Path, refused: Refused, kind: str, planted: str
) -> None:
    members: dict[str, Any] = {"manifests": [MANIFEST], "records": [["cells/a/record.json", 0]], "others": []}
    members[kind] = [*members[kind], [planted, 0]]
    with refused():
        read_archive(made(tmp_path / "x.lmpack", members, {f"{of}.xz": lzma.compress(b"") for of in members}))


def check(manifests: list[str], *others: str) -> None:
    members = {"manifests": manifests, "records": ["cells/a/record.json"], "others": [*others]}
    sized: Any = {kind: [(file, 0) for file in files] for kind, files in members.items()}
    check_index({"format": 1, "name": "demo", "members": sized}, Path("x"))


def test_each_kind_of_folder_has_files_of_its_own(refused: Refused) -> None:
    cell = ("documents.npz", "test_documents.npz", "log.txt", "bleu_test.json", "translation_test.txt")
    others = [f"cells/a/{inside}" for inside in (*cell, "code/module.own.parts.py", "code/changes.diff")]
    check(["demo/study.json", "demo/study.journal"], *others)
    tuned = ["demo/tune/tuned.json", "demo/tune/arm/study.json", "demo/tune/arm/study.journal", "demo/lr_curve.json"]
    made_of = ["demo.tuned/experiment.json", "demo.lr_curve/experiment.json", "demo.orders/experiment.json"]
    check(["demo/experiment.json", "demo/seconds.json", *tuned, *made_of])
    check(["demo/ladder.json", "demo.s1/experiment.json", "demo.s1/lr_curve.json", "demo.s1.tuned/experiment.json"])
    with refused():
        check(["demo/ladder.json", "demo/experiment.json"])


def test_what_cannot_be_read_is_not_written(tmp_path: Path, refused: Refused) -> None:
    for files in ({"demo/experiment.json": ("manifests", tmp_path)}, {"../a": ("manifests", tmp_path / "x")}):
        (tmp_path / "x").write_text("")
        with refused():
            write_archive(tmp_path / "new.lmpack", "demo", files)
        assert not (tmp_path / "new.lmpack").exists()

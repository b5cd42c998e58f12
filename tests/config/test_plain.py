"""What a YAML file may say, and how much."""

import errno
import os
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from messages import CheckMessage, Refused

from lm.config.plain import find_unusable, shown
from lm.config.tree import InputError, load_yaml, override, parse_value, path_name, require_place

BOMB = "a: &a [x]\n" + "".join(f"b{i}: &b{i} [{', '.join([f'*b{i - 1}' if i else '*a'] * 10)}]\n" for i in range(12))
CHAIN = "".join(f"k{i}: &k{i} [*k{i - 1}]\n" if i else "k0: &k0 [1]\n" for i in range(200))


def written(folder: Path, text: str | bytes) -> Path:
    path = folder / "some.yaml"
    path.write_bytes(text if isinstance(text, bytes) else text.encode())
    return path


@pytest.mark.slow
@pytest.mark.parametrize(
    "text",
    [
        "a: 0b_",
        "a: 1\nb: " + "9" * 5000,
        "a: " + ":".join(["1"] * 20000),
        "a: !!int abc",
        "a: !!bool maybe",
        "a: " + "[" * 3000,
        CHAIN,
        BOMB,
        "a: [" + "1," * 90000 + "]",
        "a: &a [*a]",
        "a: &a {<<: *a}",
        "a: {b: [1, .nan]}",
        "a: -.inf",
        "a: 1.0e+999",
        "a: 18446744073709551616",
        "? [a]\n: 1",
        '1: a\n"1": b',
        'a: "\\ud800"',
        "a: " + "x" * 1_000_001,
        b"a: \xff\n",
        "a:\n  b: 1\n  b: 2\n",
        "",
        "- a\n",
    ],
    ids=lambda text: str(text)[:20],
)
def test_what_no_setting_can_be_is_refused_quickly(tmp_path: Path, refused: Refused, text: str | bytes) -> None:
    start = time.process_time()
    with refused():
        load_yaml(written(tmp_path, text))
    assert time.process_time() - start < 10


@pytest.mark.slow
@pytest.mark.parametrize(
    ("text", "place"),
    [
        ("a: !!binary aGk=", "some.yaml:1"),
        ("a: !!set {b}", "some.yaml:1"),
        ("a: !!timestamp 2020-01-01", "some.yaml:1"),
        ("a: !!python/object/apply:os.getcwd []\n", "some.yaml:1"),
        ("a: 1\nb: [1, 2\nc: 3\n", "some.yaml:3"),
        ('a: "\\UFFFFFFFF"', "some.yaml"),
        ("%YAML " + "9" * 5000 + ".1\n---\na: b", "some.yaml"),
        (b"a: \0", "some.yaml"),
    ],
    ids=lambda value: str(value)[:20],
)
def test_what_the_parser_refuses_is_refused_quickly(tmp_path: Path, text: str | bytes, place: str) -> None:
    start = time.process_time()
    with pytest.raises(InputError, match=f"{place}: ") as caught:
        load_yaml(written(tmp_path, text))
    assert time.process_time() - start < 10
    assert len(str(caught.value)) < 1000


def test_merge_keys_work_as_yaml_says(tmp_path: Path) -> None:
    text = "a: &a {x: 1, y: 2}\nb: &b {<<: *a, y: 3}\nc: {<<: [*b, {x: 5, z: 6}], w: 7}\nd: *b\n"
    assert load_yaml(written(tmp_path, text)) == {
        "a": {"x": 1, "y": 2},
        "b": {"x": 1, "y": 3},
        "c": {"x": 1, "y": 3, "z": 6, "w": 7},
        "d": {"x": 1, "y": 3},
    }


def test_keys_and_dates_stay_text(tmp_path: Path) -> None:
    tree = load_yaml(written(tmp_path, "on: 1\n010: 2\n1.50: 3\n~: 2020-01-01\nc: 2020-13-45\n"))
    assert tree == {"on": 1, "010": 2, "1.50": 3, "~": "2020-01-01", "c": "2020-13-45"}


def test_what_is_no_plain_file_is_not_opened(tmp_path: Path, check_message: CheckMessage) -> None:
    os.mkfifo(tmp_path / "pipe.yaml")
    for path in (*(tmp_path / name for name in ("pipe.yaml", ".", "a\0b", "x" * 300)), Path("/dev/zero")):
        with pytest.raises(InputError) as caught:
            load_yaml(path)
        check_message(str(caught.value).partition(" Did you mean")[0])  # how near a path is depends on the folder


@pytest.mark.parametrize("text", [".nan", "1" + "0" * 400, "[1, .inf]", "a\udc80"])
def test_unusable_command_line_values_are_refused(text: str, refused: Refused) -> None:
    if text.startswith("10"):  # too long to be read as a number: text, which is no number either
        assert parse_value(text) == text
        return
    with refused():
        parse_value(text, "optim.lr")


@pytest.mark.parametrize(
    "name",
    ["..", "/../../x", "a/b", ".hidden", "-x", "", " ", "a\nb", "a\0", "\ud800", "é", "x" * 201, 3, None],
    ids=lambda name: repr(name)[:10],
)
def test_a_name_that_could_lead_elsewhere_names_no_file(check_message: CheckMessage, name: object) -> None:
    with pytest.raises(InputError) as caught:
        path_name(name, "--tier")
    assert str(caught.value).isprintable()
    assert len(str(caught.value)) < 300
    check_message(str(caught.value))


@pytest.mark.parametrize("name", ["a", "quickstart.G", "lr_1e-4+warm", "7", "x" * 200])
def test_a_plain_name_names_a_file(name: str) -> None:
    assert path_name(name, "--tier") == name


def test_a_place_that_cannot_be_made_is_refused(tmp_path: Path, refused: Refused) -> None:
    (tmp_path / "file").write_text("")
    require_place(tmp_path / "new" / "folder", "--out", folder=True)
    require_place(tmp_path / "file", "storage")
    for bad, folder in (("file", True), ("file/x", True), ("x" * 300, True), ("a\0b", True)):
        with refused():
            require_place(tmp_path / bad, "--out", folder)
    with refused():
        require_place(tmp_path, "storage")


def refusing(number: int) -> Callable[..., str]:
    """Return a stand-in for what makes a folder, which the system refuses."""

    def refuse(**_: object) -> str:
        raise OSError(number, os.strerror(number))

    return refuse


def test_unwritable_places_are_refused_in_one_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, refused: Refused
) -> None:
    require_place(tmp_path, "--out", folder=True)
    assert not list(tmp_path.iterdir())
    monkeypatch.setattr(tempfile, "mkdtemp", refusing(errno.ENOENT))  # as in /proc, for root
    for place, folder in ((tmp_path, True), (tmp_path / "new", True), (tmp_path / "file", False)):
        with refused():
            require_place(place, "--out", folder)
    monkeypatch.setattr(tempfile, "mkdtemp", refusing(errno.ENOSPC))  # which is said where something is written
    require_place(tmp_path / "new", "--out", folder=True)


def test_a_message_is_one_printable_line_of_bounded_length() -> None:
    message = str(InputError("a\nb\x1b[31m\0 " + "x" * 10**6))
    assert message.isprintable()
    assert message.startswith(r"a\nb\x1b[31m\x00 xxx")
    assert len(message) < 2500
    assert len(shown({"a": "b" * 10**6})) < 100


def test_a_path_of_very_many_names_is_refused(refused: Refused) -> None:
    with refused():
        override({}, {".".join("a" * 3000): 1})


def test_options_of_a_component_that_are_no_mapping_are_refused(refused: Refused) -> None:
    with refused():
        override({"a": {"class_path": "B", "init_args": [1]}}, {"a.c": 1})


def test_the_place_of_what_is_unusable_is_named(check_message: CheckMessage) -> None:
    check_message(find_unusable({"a": [1, {"b": float("nan")}]}))
    assert find_unusable({"a": [1, "é", 2**64 - 1, None, True]}) == ""

"""What a YAML file may say, and how much."""

import errno
import os
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from lm.config.plain import DEEPEST, find_unusable, shown
from lm.config.tree import InputError, load_yaml, override, parse_value, path_name, require_place

BOMB = "a: &a [x]\n" + "".join(f"b{i}: &b{i} [{', '.join([f'*b{i - 1}' if i else '*a'] * 10)}]\n" for i in range(12))
CHAIN = "".join(f"k{i}: &k{i} [*k{i - 1}]\n" if i else "k0: &k0 [1]\n" for i in range(200))


def written(folder: Path, text: str | bytes) -> Path:
    path = folder / "some.yaml"
    path.write_bytes(text if isinstance(text, bytes) else text.encode())
    return path


@pytest.mark.slow
@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("a: 0b_", ["some.yaml:1", "'0b_' is no int"]),
        ("a: 1\nb: " + "9" * 5000, ["some.yaml:2", "a number of 5000 characters"]),
        ("a: " + ":".join(["1"] * 20000), ["some.yaml:1", "characters"]),
        ("a: !!int abc", ["some.yaml:1", "'abc' is no int"]),
        ("a: !!bool maybe", ["'maybe' is no bool"]),
        ("a: " + "[" * 3000, [f"nested more than {DEEPEST} deep"]),
        (CHAIN, [f"nested more than {DEEPEST} deep"]),
        (BOMB, ["values, those behind aliases counted"]),
        ("a: [" + "1," * 90000 + "]", ["more than 20000 values"]),
        ("a: &a [*a]", [f"nested more than {DEEPEST} deep"]),
        ("a: &a {<<: *a}", [f"nested more than {DEEPEST} deep"]),
        ("a: {b: [1, .nan]}", ["some.yaml: a.b[1]: expected a finite number, found nan"]),
        ("a: -.inf", ["a: expected a finite number, found -inf"]),
        ("a: 1.0e+999", ["a: expected a finite number"]),
        ("a: 18446744073709551616", ["a: expected a number of 64 bits"]),
        ("a: !!binary aGk=", ["some.yaml:1", "binary"]),
        ("a: !!set {b}", ["set"]),
        ("a: !!timestamp 2020-01-01", ["timestamp"]),
        ("? [a]\n: 1", ["a key must be text"]),
        ('1: a\n"1": b', ["some.yaml:2", "key '1' given twice"]),
        ('a: "\\ud800"', ["a: expected text that UTF-8 can hold"]),
        ('a: "\\UFFFFFFFF"', ["not valid YAML"]),
        ("%YAML " + "9" * 5000 + ".1\n---\na: b", ["not valid YAML"]),
        ("a: " + "x" * 1_000_001, ["longer than 1,000,000 bytes"]),
        (b"a: \0", ["not valid YAML"]),
        (b"a: \xff\n", ["some.yaml: is not UTF-8 text"]),
        ("a: 1\nb: [1, 2\nc: 3\n", ["some.yaml:3: not valid YAML"]),
        ("a:\n  b: 1\n  b: 2\n", ["some.yaml:3", "key 'b' given twice"]),
        ("a: !!python/object/apply:os.getcwd []\n", ["some.yaml:1: not valid YAML"]),
        ("", ["some.yaml: expected a mapping of settings, found NoneType"]),
        ("- a\n", ["expected a mapping of settings, found list"]),
    ],
    ids=lambda value: str(value)[:20] if isinstance(value, str | bytes) else "",
)
def test_what_no_setting_can_be_is_refused_quickly(tmp_path: Path, text: str | bytes, words: list[str]) -> None:
    start = time.process_time()
    with pytest.raises(InputError) as caught:
        load_yaml(written(tmp_path, text))
    assert time.process_time() - start < 10
    assert len(str(caught.value)) < 1000
    for word in words:
        assert word in str(caught.value)


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


def test_what_is_no_plain_file_is_not_opened(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe.yaml")
    names = {"pipe.yaml": "not a plain file", ".": "a folder", "a\0b": "no name for a file", "x" * 300: "too long"}
    for name, reason in names.items():
        with pytest.raises(InputError, match=reason):
            load_yaml(tmp_path / name)
    with pytest.raises(InputError, match="not a plain file"):
        load_yaml(Path("/dev/zero"))


@pytest.mark.parametrize("text", [".nan", "1" + "0" * 400, "[1, .inf]", "a\udc80"])
def test_unusable_command_line_values_are_refused(text: str) -> None:
    if text.startswith("10"):  # too long to be read as a number: text, which is no number either
        assert parse_value(text) == text
        return
    with pytest.raises(InputError, match=r"^optim\.lr.*expected"):
        parse_value(text, "optim.lr")


@pytest.mark.parametrize(
    "name", ["..", "/../../x", "a/b", ".hidden", "-x", "", " ", "a\nb", "a\0", "\ud800", "é", "x" * 201, 3, None]
)
def test_a_name_that_could_lead_elsewhere_names_no_file(name: object) -> None:
    with pytest.raises(InputError, match=r"^--tier: ") as caught:
        path_name(name, "--tier")
    assert str(caught.value).isprintable()
    assert len(str(caught.value)) < 300


@pytest.mark.parametrize("name", ["a", "quickstart.G", "lr_1e-4+warm", "7", "x" * 200])
def test_a_plain_name_names_a_file(name: str) -> None:
    assert path_name(name, "--tier") == name


def test_a_place_that_cannot_be_made_is_refused(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    require_place(tmp_path / "new" / "folder", "--out", folder=True)
    require_place(tmp_path / "file", "storage")
    for bad, folder in (("file", True), ("file/x", True), ("x" * 300, True), ("a\0b", True)):
        with pytest.raises(InputError, match=r"^--out "):
            require_place(tmp_path / bad, "--out", folder)
    with pytest.raises(InputError, match="expected a plain file"):
        require_place(tmp_path, "storage")


def refusing(number: int) -> Callable[..., str]:
    """Return a stand-in for what makes a folder, which the system refuses."""

    def refuse(**_: object) -> str:
        raise OSError(number, os.strerror(number))

    return refuse


def test_unwritable_places_are_refused_in_one_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    require_place(tmp_path, "--out", folder=True)
    assert not list(tmp_path.iterdir())
    monkeypatch.setattr(tempfile, "mkdtemp", refusing(errno.ENOENT))  # as in /proc, for root
    for place, folder in ((tmp_path, True), (tmp_path / "new", True), (tmp_path / "file", False)):
        with pytest.raises(InputError, match=rf"^--out {place}: {tmp_path} cannot be written to \(No such file"):
            require_place(place, "--out", folder)
    monkeypatch.setattr(tempfile, "mkdtemp", refusing(errno.ENOSPC))  # which is said where something is written
    require_place(tmp_path / "new", "--out", folder=True)


def test_a_message_is_one_printable_line_of_bounded_length() -> None:
    message = str(InputError("a\nb\x1b[31m\0 " + "x" * 10**6))
    assert message.isprintable()
    assert message.startswith(r"a\nb\x1b[31m\x00 xxx")
    assert len(message) < 2500
    assert len(shown({"a": "b" * 10**6})) < 100


def test_a_path_of_very_many_names_is_refused() -> None:
    with pytest.raises(InputError, match="a path of 3000 names"):
        override({}, {".".join("a" * 3000): 1})


def test_options_of_a_component_that_are_no_mapping_are_refused() -> None:
    with pytest.raises(InputError, match="init_args"):
        override({"a": {"class_path": "B", "init_args": [1]}}, {"a.c": 1})


def test_the_place_of_what_is_unusable_is_named() -> None:
    assert find_unusable({"a": [1, {"b": float("nan")}]}) == "a[1].b: expected a finite number, found nan"
    assert find_unusable({"a": [1, "é", 2**64 - 1, None, True]}) == ""

"""The cache where something is wrong with it: made again, or one line."""

import errno
import json
import os
import re
import resource
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from helpers import Capture, Listed, Patch
from messages import CheckMessage, Refused

from lm.config.tree import InputError
from lm.data.cache import find_damage, keep_compiled_code, write_array
from lm.data.pairs import LocalPairs, PairTokens, prepare_pairs
from lm.data.tokenizer import BPE, Bytes, Characters
from lm.data.tokens import Tokens, is_usable, prepare

pytestmark = pytest.mark.usefixtures("cache")
FRACTIONS = (0.6, 0.2, 0.2)
TEXTS = [f"document {i}: {'xyz' * (i % 7)}\n" for i in range(40)]


def change(path: Path, edit: Callable[[bytes], bytes]) -> None:
    path.write_bytes(edit(path.read_bytes()))


def facts_with(folder: Path, **changes: object) -> None:
    stored = json.loads((folder / "facts.json").read_text())
    (folder / "facts.json").write_text(json.dumps({**stored, **changes}))


def foreign(folder: Path, name: str) -> None:
    """Puts a file of another text's entry in the place of this one's."""
    other = Path(prepare(Listed([text * 2 for text in TEXTS]), BPE(300), FRACTIONS).folder)
    shutil.copy(other / name, folder / name)


DAMAGE: dict[str, Callable[[Path], object]] = {
    "array cut": lambda folder: change(folder / "train.npy", lambda data: data[:-7]),
    "header cut": lambda folder: change(folder / "train.npy", lambda data: data[:20]),
    "array empty": lambda folder: (folder / "test.npy").write_bytes(b""),
    "array gone": lambda folder: (folder / "validation.npy").unlink(),
    "array of another text": lambda folder: foreign(folder, "train.npy"),
    "array of floats": lambda folder: np.save(folder / "train.npy", np.zeros(3)),
    "array of objects": lambda folder: np.save(folder / "train.npy", np.array([{}]), allow_pickle=True),
    "ids beyond the vocabulary": lambda folder: np.save(
        folder / "train.npy", np.full_like(np.load(folder / "train.npy"), 60_000)
    ),
    "bytes of another tokenizer": lambda folder: np.save(folder / "bytes.npy", np.ones(300, np.int64)),
    "facts cut": lambda folder: change(folder / "facts.json", lambda data: data[:30]),
    "facts empty": lambda folder: (folder / "facts.json").write_text("{}"),
    "facts of a list": lambda folder: (folder / "facts.json").write_text("[]"),
    "facts gone": lambda folder: (folder / "facts.json").unlink(),
    "facts of another text": lambda folder: foreign(folder, "facts.json"),
    "facts with another vocabulary": lambda folder: facts_with(folder, vocabulary=7),
    "facts with other counts": lambda folder: facts_with(folder, tokens={"train": 1, "validation": 1, "test": 1}),
    "facts without counts": lambda folder: facts_with(folder, tokens=None, unknown=3),
    "facts with more unknown": lambda folder: facts_with(folder, unknown={"train": 9, "validation": 0, "test": 0}),
    "tokenizer cut": lambda folder: change(folder / "tokenizer.json", lambda data: data[:99]),
    "tokenizer gone": lambda folder: (folder / "tokenizer.json").unlink(),
    "tokenizer of others": lambda folder: (folder / "tokenizer.json").write_text(Bytes().train([]).to_str()),
    "a letter changed": lambda folder: change(
        folder / "train.npy", lambda data: data[:-4] + bytes([data[-4] ^ 1]) + data[-3:]
    ),
}


@pytest.mark.slow
@pytest.mark.parametrize("damage", DAMAGE)
def test_a_damaged_entry_is_rebuilt_with_one_line(damage: str, capsys: Capture, check_message: CheckMessage) -> None:
    facts = prepare(Listed(TEXTS), BPE(300), FRACTIONS)
    folder = Path(facts.folder)
    before = {path.name: path.read_bytes() for path in folder.iterdir()}
    DAMAGE[damage](folder)
    assert not is_usable(facts)
    capsys.readouterr()
    assert prepare(Listed(TEXTS), BPE(300), FRACTIONS) == facts
    said = capsys.readouterr().err
    assert len(said.splitlines()) == 1
    check_message(said.replace(str(folder), "FOLDER"))
    assert {path.name: path.read_bytes() for path in folder.iterdir()} == before
    assert is_usable(facts)
    prepare(Listed(TEXTS), BPE(300), FRACTIONS)
    assert capsys.readouterr().err == ""


def test_an_unchanged_entry_is_opened_unread_and_verified_on_demand(
    monkeypatch: Patch, check_message: CheckMessage
) -> None:
    facts = prepare(Listed(TEXTS), BPE(300), FRACTIONS)
    folder = Path(facts.folder)
    path = folder / "train.npy"
    times = path.stat()
    change(path, lambda data: data[:-4] + bytes([data[-4] ^ 1]) + data[-3:])
    os.utime(path, ns=(times.st_atime_ns, times.st_mtime_ns))  # as a disk that loses a bit would leave it
    assert is_usable(facts)
    check_message(find_damage(folder, {}, thorough=True) or "")
    assert not is_usable(facts)
    facts = prepare(Listed(TEXTS), BPE(300), FRACTIONS)
    monkeypatch.setattr("lm.data.cache.check_sum", lambda path: pytest.fail("read"))
    assert is_usable(facts)


def test_a_copied_entry_is_read_once(tmp_path: Path, monkeypatch: Patch) -> None:
    facts = prepare(Listed(TEXTS), BPE(300), FRACTIONS)
    shutil.copytree(facts.folder, tmp_path / "copy", copy_function=shutil.copyfile)
    assert find_damage(tmp_path / "copy", facts.stored()) is None
    monkeypatch.setattr("lm.data.cache.check_sum", lambda path: pytest.fail("read"))
    assert find_damage(tmp_path / "copy", facts.stored()) is None


@pytest.mark.parametrize(
    "content",
    [b"", b"{", b'{"version": "1.0"}', b"\xff\xfe", Bytes().train([]).to_str().encode()],
    ids=["empty", "cut", "version alone", "no text", "of others"],
)
def test_a_damaged_tokenizer_is_trained_again(
    cache: Path, content: bytes, capsys: Capture, check_message: CheckMessage
) -> None:
    facts = prepare(Listed(TEXTS), BPE(300), FRACTIONS)
    (path,) = (cache / "tokenizers").glob("*/tokenizer.json")
    path.write_bytes(content)
    assert prepare(Listed(TEXTS), BPE(300), FRACTIONS) == facts
    said = capsys.readouterr().err
    assert len(said.splitlines()) == 1
    check_message(said.replace(str(path.parent), "FOLDER"))


def pairs(tmp_path: Path) -> LocalPairs:
    for split in ("train", "validation"):
        for side in ("source", "target"):
            (tmp_path / f"{split}.{side}").write_text("".join(f"{side} {i} {'ab' * (i % 5)}\n" for i in range(20)))
    return LocalPairs(
        *(str(tmp_path / f"{split}.{side}") for split in ("train", "validation") for side in ("source", "target"))
    )


@pytest.mark.parametrize(
    "name",
    ["train.source.npy", "train.target.ends.npy", "bytes.npy", "tokenizer.json", "facts.json", "test.target.npy"],
)
def test_damaged_pairs_are_made_again(tmp_path: Path, name: str, capsys: Capture, check_message: CheckMessage) -> None:
    facts = prepare_pairs(pairs(tmp_path), Characters())
    folder = Path(facts.folder)
    before = {path.name: path.read_bytes() for path in folder.iterdir()}
    change(folder / name, lambda data: data[: len(data) * 2 // 3])
    assert prepare_pairs(pairs(tmp_path), Characters()) == facts
    check_message(capsys.readouterr().err.replace(str(folder), "FOLDER"))
    assert {path.name: path.read_bytes() for path in folder.iterdir()} == before
    assert prepare_pairs(pairs(tmp_path), Characters()) == facts
    assert capsys.readouterr().err == ""


def test_entry_damaged_during_run_is_os_error(tmp_path: Path, check_message: CheckMessage) -> None:
    facts = prepare(Listed(TEXTS), Bytes(), FRACTIONS)
    change(Path(facts.folder) / "train.npy", lambda data: data[:-7])
    with pytest.raises(OSError, match=re.escape(facts.folder)) as caught:
        Tokens(facts)
    assert (caught.value.errno, caught.value.filename) == (errno.EIO, facts.folder)
    check_message(str(caught.value.strerror).partition(": ")[0])  # behind it, what Python says
    two = prepare_pairs(pairs(tmp_path), Characters())
    (Path(two.folder) / "bytes.npy").unlink()
    with pytest.raises(OSError, match=re.escape(two.folder)) as caught:
        PairTokens(two)
    check_message(str(caught.value.strerror))


def test_an_entry_is_sound_only_for_its_own_text() -> None:
    facts = prepare(Listed(TEXTS), Bytes(), FRACTIONS)
    assert is_usable(facts)
    assert not is_usable(replace(facts, folder=f"{facts.folder}-none"))
    assert not is_usable(replace(facts, fingerprint="another"))


def refusing(number: int) -> Callable[..., None]:
    def refuse(*_: object, **__: object) -> None:
        raise OSError(number, os.strerror(number), "somewhere")

    return refuse


def test_a_cache_that_is_a_file_is_one_line(tmp_path: Path, monkeypatch: Patch, check_message: CheckMessage) -> None:
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("LM_CACHE", str(tmp_path / "file"))
    with pytest.raises(InputError) as caught:
        prepare(Listed(TEXTS), Bytes(), FRACTIONS)
    assert "\n" not in str(caught.value)
    check_message(re.sub("[0-9a-f]{32}", "ENTRY", str(caught.value)))  # the name hashes what a library writes


@pytest.mark.parametrize("call", ["pathlib.Path.mkdir", "lm.data.cache.locked", "lm.data.tokens.write_atomic"])
@pytest.mark.parametrize("number", [errno.EACCES, errno.EROFS])
def test_a_cache_that_cannot_be_written_to_is_one_line(
    monkeypatch: Patch, call: str, number: int, refused: Refused
) -> None:
    monkeypatch.setattr(call, refusing(number))
    with refused():
        prepare(Listed(TEXTS), Bytes(), FRACTIONS)


def test_a_filled_cache_that_cannot_be_written_to_is_read(monkeypatch: Patch) -> None:
    facts = prepare(Listed(TEXTS), Bytes(), FRACTIONS)
    for call in ("pathlib.Path.mkdir", "lm.data.cache.locked", "lm.data.cache.write_atomic"):
        monkeypatch.setattr(call, refusing(errno.EROFS))
    assert prepare(Listed(TEXTS), Bytes(), FRACTIONS) == facts


@pytest.mark.parametrize(
    "call", ["lm.data.shards.write_array", "lm.data.tokens.write_atomic", "lm.data.cache.os.replace"]
)
def test_a_full_disk_leaves_no_partial_entry(cache: Path, monkeypatch: Patch, call: str) -> None:
    with monkeypatch.context() as patch:
        patch.setattr(call, refusing(errno.ENOSPC))
        with pytest.raises(OSError, match="No space left") as caught:
            prepare(Listed(TEXTS), Bytes(), FRACTIONS)
        assert not isinstance(caught.value, InputError)
    assert not [path for path in cache.glob("tokens/*") if path.is_dir()]
    facts = prepare(Listed(TEXTS), Bytes(), FRACTIONS)
    assert is_usable(facts)


def test_leftovers_of_killed_build_are_removed_by_next(cache: Path) -> None:
    made = Path(prepare(Listed(TEXTS), Bytes(), FRACTIONS).folder)
    shutil.rmtree(made)
    (left := made.parent / f".{made.name}.building").mkdir()
    (left / "train.npy").write_bytes(b"half")
    prepare(Listed(TEXTS), Bytes(), FRACTIONS)
    assert [path.name for path in made.parent.iterdir() if path.is_dir()] == [made.name]


def test_a_partly_written_array_is_a_full_disk() -> None:
    with pytest.raises(OSError, match="/dev/full") as caught:
        write_array(Path("/dev/full"), np.zeros(100_000))
    assert caught.value.errno == errno.ENOSPC


@pytest.mark.parametrize("lost", [1, 20_000])
def test_an_array_without_room_for_its_end_is_removed(tmp_path: Path, lost: int) -> None:
    ids = np.arange(8000)
    write_array(tmp_path / "whole.npy", ids)
    assert np.array_equal(np.load(tmp_path / "whole.npy"), ids)
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, ((tmp_path / "whole.npy").stat().st_size - lost, limits[1]))
    try:
        with pytest.raises(OSError, match=r"cut\.npy"):
            write_array(tmp_path / "cut.npy", ids)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)


KEPT = ("TORCHINDUCTOR_CACHE_DIR", "TORCHINDUCTOR_FX_GRAPH_CACHE")


@pytest.fixture
def unsaid(monkeypatch: Patch) -> None:
    """Nobody has said where compiled code is to lie; what is said in a test is forgotten after it."""
    for name in KEPT:
        monkeypatch.setenv(name, "")
        monkeypatch.delenv(name)


def test_compiled_code_lies_in_the_cache(tmp_path: Path, monkeypatch: Patch, unsaid: None) -> None:
    monkeypatch.setenv("LM_CACHE", str(tmp_path / "not" / "yet"))
    keep_compiled_code()
    assert [os.environ[name] for name in KEPT] == [str(tmp_path / "not" / "yet" / "inductor"), "1"]


def test_compiled_code_lies_where_the_user_says(monkeypatch: Patch, unsaid: None) -> None:
    monkeypatch.setenv(KEPT[0], "elsewhere")
    monkeypatch.setenv(KEPT[1], "0")
    keep_compiled_code()
    assert [os.environ[name] for name in KEPT] == ["elsewhere", "0"]


def test_compiled_code_is_not_kept_in_file_as_cache(tmp_path: Path, monkeypatch: Patch, unsaid: None) -> None:
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("LM_CACHE", str(tmp_path / "file"))
    keep_compiled_code()
    assert not set(KEPT) & set(os.environ)

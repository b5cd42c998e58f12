"""Translation from the command line, and against a dictionary."""

import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
import yaml
from helpers import RUN, Capture, Patch
from messages import CheckMessage, Refused, RefusedCommand

from lm.cli import main
from lm.config.components import build
from lm.config.tree import load_yaml, override
from lm.data.pairs import read_lines
from lm.inference.translate import bleu, load, translate, translate_lines
from lm.model.transformer import build_and_initialize
from lm.store.store import Store
from lm.training.cell import check
from lm.training.run import RunConfig
from lm.training.train import finish, write_work

ROOT = Path(__file__).resolve().parents[2]
STEMS = {"train": "train", "validation": "val", "test": "test_2016_flickr"}
LANGUAGES = {"source": "en", "target": "de"}

ONE_THREAD = {"OMP_NUM_THREADS": "1"}
"""Two threads that wait for each other on a busy machine are slower than one."""


def words(line: str) -> list[str]:
    """Words and marks."""
    return re.findall(r"\w+|[^\w\s]", line)


def numbered(lines: list[list[str]]) -> tuple[list[str], list[np.ndarray]]:
    vocabulary = sorted({word for line in lines for word in line})
    number = {word: index for index, word in enumerate(vocabulary)}
    return vocabulary, [np.array([number[word] for word in line]) for line in lines]


def dictionary(source: list[str], target: list[str], passes: int = 4) -> dict[str, str]:
    """For each source word the target word that IBM model 1 finds likeliest.

    Brown et al. 1993, https://aclanthology.org/J93-2003, without the empty word; expectation-maximisation from uniform.
    """
    from_words, from_lines = numbered([words(line) for line in source])
    to_words, to_lines = numbered([words(line) for line in target])
    pairs = list(zip(from_lines, to_lines, strict=True))
    place = np.cumsum([0] + [len(b) for b in to_lines])
    link_from = np.concatenate([np.repeat(a, len(b)) for a, b in pairs])
    link_to = np.concatenate([np.tile(b, len(a)) for a, b in pairs])
    link_place = np.concatenate([np.tile(np.arange(*place[i : i + 2]), len(a)) for i, a in enumerate(from_lines)])
    seen, link = np.unique(link_from * len(to_words) + link_to, return_inverse=True)
    entry_from, entry_to = np.divmod(seen, len(to_words))
    probability = np.ones(len(seen))  # of the target word, given the source word
    for _ in range(passes):
        share = probability[link] / np.bincount(link_place, probability[link])[link_place]
        count = np.bincount(link, share)
        probability = count / np.bincount(entry_from, count)[entry_from]
    order = np.lexsort((probability, entry_from))
    return {from_words[entry_from[entry]]: to_words[entry_to[entry]] for entry in order}  # the likeliest comes last


def by_the_word(table: dict[str, str], line: str) -> str:
    """Word for word in the order of the source; an unknown word stays as it is."""
    return re.sub(r" ([.,!?])", r"\1", " ".join(table.get(word, word) for word in words(line)))


def test_a_dictionary_is_learnt_from_pairs() -> None:
    source = ["a house", "the house", "a book", "the book."]
    target = ["ein Haus", "das Haus", "ein Buch", "das Buch."]
    table = dictionary(source, target, passes=20)
    assert by_the_word(table, "the book.") == "das Buch."
    assert by_the_word(table, "a new house") == "ein new Haus"


def test_bleu_is_that_of_its_definition() -> None:
    """One sentence: precisions 5/6, 4/5, 3/4, 2/3 of n-grams, and no brevity penalty."""
    pytest.importorskip("sacrebleu")
    found = bleu(["the cat sat on the mat"], ["the cat sat on the rug"])
    assert found["bleu"] == pytest.approx(100 * (5 / 6 * 4 / 5 * 3 / 4 * 2 / 3) ** 0.25)
    assert "tok:13a" in found["signature"]
    shorter = bleu(["the cat sat on the"], ["the cat sat on the rug"])
    assert shorter["bleu"] == pytest.approx(100 * np.exp(1 - 6 / 5))


def lm(*arguments: object, cwd: Path) -> str:
    command = [sys.executable, "-m", "lm", *map(str, arguments)]
    ran = subprocess.run(command, cwd=cwd, capture_output=True, text=True, env={**os.environ, **ONE_THREAD})
    assert ran.returncode == 0, ran.stderr
    return ran.stdout


@pytest.fixture(scope="module")
def run(shared: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of the tiny recipe's run, trained from the command line."""
    pytest.importorskip("sacrebleu")
    folder = tmp_path_factory.mktemp("translation")
    files = [
        f"--data.corpus.{split}_{side}={shared / 'multi30k' / f'{stem}.{language}.gz'}"
        for split, stem in STEMS.items()
        for side, language in LANGUAGES.items()
    ]
    lm("fit", ROOT / "experiments/bases/multi30k_tiny.yaml", *files, "--out", folder, cwd=ROOT)
    (cell,) = (path for path in (folder / "cells").iterdir() if path.name[0] != ".")
    return cell


@pytest.mark.extra
def test_a_minute_of_training_beats_a_dictionary(run: Path, shared: Path, capsys: Capture) -> None:
    capsys.readouterr()
    assert main(["translate", str(run), "--beam", "2"]) == 0
    printed = capsys.readouterr().out
    found = json.loads((run / "bleu_test.json").read_text())
    sides = {
        name: [read_lines(str(shared / "multi30k" / f"{stem}.{language}.gz"), "") for language in LANGUAGES.values()]
        for name, stem in STEMS.items()
    }
    source, target = sides["test"]
    translations = (run / "translation_test.txt").read_text(encoding="utf-8").splitlines()
    assert len(translations) == len(source) == found["sentences"]
    assert f"BLEU {found['bleu']:.2f}" in printed
    assert found["signature"] in printed
    assert bleu(translations, target)["bleu"] == found["bleu"]
    train_source, train_target = sides["train"]
    table = dictionary(train_source, train_target)
    baseline = bleu([by_the_word(table, line) for line in source], target)["bleu"]
    record = json.loads((run / "record.json").read_text())
    print(f"BLEU {found['bleu']:.2f}, word for word {baseline:.2f}, {record['cost']['train_seconds']:.0f} s")
    assert found["bleu"] > baseline > 10


@pytest.mark.extra
def test_lines_of_ones_own_are_translated_in_order(run: Path, tmp_path: Path) -> None:
    source = tmp_path / "mine.txt"
    source.write_text("A man is sitting on a bench.\n\nTwo dogs are running.\n" + "dog " * 200 + "\n")
    found = translate(run, beam=1, source=source)
    assert found.bleu is None
    lines = found.path.read_text(encoding="utf-8").split("\n")
    assert len(lines) == 5
    assert "Mann" in lines[0]
    assert "Hunde" in lines[2]


# a run that learnt nothing --------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def initialised(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of a finished run whose model is as it was initialised, with words of one letter as its text."""
    tmp_path, corpus = tmp_path_factory.mktemp("initialised"), {}
    for seed, (split, count) in enumerate({"train": 80, "validation": 8, "test": 5}.items()):
        draw = np.random.default_rng(seed)
        for side, letters in {"source": "abc", "target": "xyz"}.items():
            lines = [" ".join(draw.choice(list(letters), draw.integers(1, 7))) for _ in range(count)]
            path = tmp_path / f"{split}.{side}"
            path.write_text("".join(f"{line}\n" for line in lines))
            corpus[f"{split}_{side}"] = str(path)
    data = {"corpus": corpus, "tokenizer": "Bytes", "context": 16, "batch_tokens": 64}
    model = {"class_path": "EncoderDecoder", "init_args": RUN["model"]["init_args"] | {"position": "Sinusoidal"}}
    tree = {**RUN, "data": {"class_path": "PairData", "init_args": data}, "model": model}
    cell, store = check(override(tree, {"model.initializer.std": 0.5})), Store(tmp_path / "out")
    run: RunConfig = build(cell.config, RunConfig)
    made = build_and_initialize(run.model, cell.facts.vocabulary, run.data(0).context, run.seed).double()
    state = {f"model.{name}": value for name, value in made.state_dict().items()}
    torch.save({"state_dict": state}, write_work(cell, store) / "final.ckpt")
    outcome = {"status": "ok", "metrics": {"nll": 9.0}, "cost": {}}
    finish(cell, store, outcome, {"started": 0.0, "finished": 1.0, "resumed": False})
    return store.directory(cell.id)


@pytest.fixture
def untrained(initialised: Path, tmp_path: Path) -> Path:
    """A copy of that run."""
    shutil.copytree(initialised.parents[2], tmp_path, dirs_exist_ok=True)
    return tmp_path / "out" / "cells" / initialised.name


def test_a_split_is_translated_in_its_order_and_scored(
    untrained: Path, tmp_path: Path, check_message: CheckMessage
) -> None:
    pytest.importorskip("sacrebleu")
    found = translate(untrained, beam=2)
    lines = found.path.read_text(encoding="utf-8").split("\n")
    source, target = (read_lines(str(tmp_path / f"test.{side}"), "") for side in ("source", "target"))
    assert (found.path, len(lines)) == (untrained / "translation_test.txt", len(source) + 1)
    model, data = load(untrained)
    assert lines[:-1] == [translate_lines(model, data, [line], beam=2)[0] for line in source], "as each line by itself"
    assert len(set(lines)) > 2
    kept = json.loads((untrained / "bleu_test.json").read_text())
    assert kept == found.bleu == {"split": "test", **bleu(lines[:-1], target), "beam": 2, "alpha": 0.6}
    said = found.text.replace(f"{kept['bleu']:z.2f}", "N").replace(kept["signature"], "SIGNATURE")
    check_message(said.replace(str(found.path), "PATH"))


def test_a_file_is_translated_without_a_score(
    untrained: Path, tmp_path: Path, capsys: Capture, monkeypatch: Patch, check_message: CheckMessage
) -> None:
    (tmp_path / "mine.en.txt").write_text("a b\n\nc\n")
    monkeypatch.setattr("lm.inference.translate.REPORT_SECONDS", -1.0)
    assert main(["translate", str(untrained), "--beam", "1", "--input", str(tmp_path / "mine.en.txt")]) == 0
    said = capsys.readouterr()
    assert said.out == f"{untrained / 'translation_mine.en.txt'}\n"
    check_message(said.err.splitlines())
    assert (untrained / "translation_mine.en.txt").read_text().count("\n") == 3
    assert not list(untrained.glob("bleu_*"))
    (tmp_path / "mine.en.txt").rename(tmp_path / "test.en")
    assert main(["translate", str(untrained), "--beam", "1", "--input", str(tmp_path / "test.en")]) == 0
    assert (untrained / "translation_test.lines.txt").is_file(), "the test split keeps its translation"


@pytest.mark.parametrize("arguments", [["--beam", "0"], ["--alpha", "nan"]], ids=" ".join)
def test_a_search_that_cannot_be_is_one_line(
    untrained: Path, arguments: list[str], refused_command: RefusedCommand
) -> None:
    refused_command(["translate", untrained, *arguments])


def test_an_empty_file_has_no_lines_to_translate(untrained: Path, tmp_path: Path, refused: Refused) -> None:
    (tmp_path / "none").write_text("")
    with refused():
        translate(untrained, source=tmp_path / "none")


def test_text_missing_from_the_cache_is_prepared_again(
    untrained: Path, tmp_path: Path, monkeypatch: Patch, refused: Refused
) -> None:
    monkeypatch.setenv("LM_CACHE", str(tmp_path / "elsewhere"))
    _, data = load(untrained)
    assert data.facts is not None
    assert data.facts.folder.startswith(str(tmp_path / "elsewhere"))
    monkeypatch.setenv("LM_CACHE", str(tmp_path / "third"))
    config, another = untrained / "config.yaml", tmp_path / "another.source"
    another.write_text("b a\n" * 80)
    config.write_text(yaml.safe_dump(override(load_yaml(config), {"data.corpus.train_source": str(another)})))
    with refused():
        load(untrained)


def test_what_is_no_run_is_refused(tmp_path: Path, refused: Refused) -> None:
    with refused():
        translate(tmp_path)

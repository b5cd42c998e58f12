"""`lm generate`: the text of a finished run, as it comes, and one line for everything it cannot use."""

import re
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import tokenizers
import torch
import yaml
from helpers import RUN, Capture, Patch, known, refused
from messages import CheckMessage, RefusedCommand
from torch import Tensor

import lm.inference.generate
import lm.training.cell
from lm.cli import main
from lm.config.components import build
from lm.config.tree import override
from lm.data.corpus import StdlibText
from lm.data.tokenizer import BPE, CONTINUED, END_OF_TEXT, UNKNOWN, Bytes, Characters, Tokenizer, Unigram, WordPiece
from lm.inference.finished import FinishedRun, find
from lm.inference.generate import TextStream, load_tokenizer, prompt_ids, write_text
from lm.model.generation import greedy
from lm.model.transformer import Decoder, build_and_initialize
from lm.store.store import Store
from lm.training.cell import check
from lm.training.process import Execution
from lm.training.run import RunConfig
from lm.training.train import failure, finish, train, write_work

GOOD: dict[str, Any] = {"status": "ok", "error": None, "metrics": {}, "cost": {}}
LIVELY = {"model.initializer.std": 0.5, "model.embedding.tied": False}
MakeRun = Callable[..., Path]
Generated = Callable[..., tuple[str, str]]


def finished_run(out: Path, changes: dict[str, Any], outcome: dict[str, Any]) -> Path:
    """A finished run whose model is as it was initialised: quicker than training, and the same in kind."""
    cell, store = check(override(RUN, {**LIVELY, **changes})), Store(out)
    built: RunConfig = build(cell.config, RunConfig)
    model = build_and_initialize(built.model, cell.facts.vocabulary, built.data(0).context, built.seed).double()
    state = {f"model.{name}": value for name, value in model.state_dict().items()}
    torch.save({"state_dict": state}, write_work(cell, store) / "final.ckpt")
    finish(cell, store, outcome, {"started": 0.0, "finished": 1.0, "resumed": False})
    return store.directory(cell.id)


@pytest.fixture(scope="session")
def shared_run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return finished_run(tmp_path_factory.mktemp("shared"), {"data.tokenizer": "Characters"}, GOOD)


@pytest.fixture
def make(tmp_path: Path) -> MakeRun:
    """Makes a finished run under `out` in the test's folder."""
    return lambda outcome=GOOD, **changes: finished_run(
        tmp_path / "out", {key.replace("__", "."): value for key, value in changes.items()}, outcome
    )


@pytest.fixture
def generated(capsys: Capture) -> Generated:
    """Runs the command; what it printed, and what it told of itself."""

    def run(*arguments: object) -> tuple[str, str]:
        capsys.readouterr()
        assert main(["generate", *map(str, arguments)]) == 0
        shown = capsys.readouterr()
        return shown.out, shown.err

    return run


@pytest.fixture
def check_message(check_message: CheckMessage) -> CheckMessage:
    """Compare messages in which ids of runs are written as ID."""
    return lambda message: check_message(re.sub(r"\b[0-9a-f]{10,64}\b", "ID", str(message)))


# text ----------------------------------------------------------------------------------------------------------------


@pytest.mark.extra
def test_a_trained_run_says_what_its_checkpoint_says(
    tmp_path: Path, generated: Generated, check_message: CheckMessage
) -> None:
    cell, store = check(override(RUN, {"trainer.max_steps": 30})), Store(tmp_path)
    train(cell, store, lambda *_: None, Execution(threads=1))
    built: RunConfig = build(cell.config, RunConfig)
    model = built.model(cell.facts.vocabulary, built.data(0).context).double().eval()
    checkpoint = torch.load(store.directory(cell.id) / "last.ckpt", weights_only=True)["state_dict"]
    model.load_state_dict({name.removeprefix("model."): value for name, value in checkpoint.items()})
    tokenizer = tokenizers.Tokenizer.from_file(str(Path(cell.facts.folder) / "tokenizer.json"))
    ids = tokenizer.encode("import os").ids
    with torch.no_grad():
        for _ in range(40):
            ids.append(int(model(torch.tensor([ids]))[0, -1].argmax()))
    text, said = generated(cell.id[:8], "--out", tmp_path, "--prompt", "import os", "--tokens", 40, "--greedy")
    assert text == tokenizer.decode(ids) + "\n"
    # The cache: 2 layers x 2 x 48 rows x 16 numbers of 8 bytes
    check_message(re.sub(r"[\d.]+ s: \d+", "TIME s: SPEED", said))


@pytest.mark.slow
def test_every_cache_and_every_name_give_the_same_text(shared_run: Path, generated: Generated) -> None:
    told = ["--prompt", "def f", "--tokens", 30]
    for how in (["--greedy"], ["--temperature", 0.8, "--top-k", 20, "--top-p", 0.9, "--seed", 4]):
        texts = [
            generated(shared_run, *told, *how),
            generated(shared_run, *told, *how, "--cache", "none"),
            generated(shared_run.name[:10], "--out", shared_run.parents[1], *told, *how),
        ]
        assert len({text for text, _ in texts}) == 1
        assert texts[0][0].startswith("def f")
        assert len(texts[0][0]) == len("def f") + 30 + 1
        assert "no cache" in texts[1][1]


def test_a_seed_decides_the_text(shared_run: Path, generated: Generated, monkeypatch: Patch) -> None:
    monkeypatch.setattr(lm.inference.generate, "TOKENS", 20)
    texts = [generated(shared_run, "--prompt", "a", *seed)[0] for seed in ([], ["--seed", 0], ["--seed", 1])]
    assert texts[0] == texts[1] != texts[2]
    assert len(texts[0]) == 1 + 20 + 1


def test_a_token_is_printed_before_the_next_is_computed(shared_run: Path, capsys: Capture, monkeypatch: Patch) -> None:
    tokenizer = load_tokenizer(FinishedRun.at(shared_run))
    shown = ""

    def watched(*_: object) -> Iterator[Tensor]:
        nonlocal shown
        for character in "xyz":
            yield torch.tensor([tokenizer.token_to_id(character)])
            shown += capsys.readouterr().out
            assert shown.endswith(character)

    monkeypatch.setattr(lm.inference.generate, "generate", watched)
    write_text(shared_run, "def ", 3, greedy)
    assert shown == "def xyz"


def test_text_ends_where_the_run_says_it_ends(make: MakeRun, capsys: Capture) -> None:
    folder = make(data__tokenizer={"class_path": "BPE", "init_args": {"size": 300}})
    end = load_tokenizer(FinishedRun.at(folder)).token_to_id(END_OF_TEXT)
    calls: list[int] = []

    def choose(logits_bv: Tensor) -> Tensor:
        calls.append(1)
        return torch.tensor([end if len(calls) == 3 else 100])

    write_text(folder, "def", 50, choose)
    shown = capsys.readouterr()
    assert len(calls) == 3
    assert END_OF_TEXT not in shown.out
    assert shown.err.startswith("3 tokens")


KINDS = [Characters(), Bytes(), BPE(400), Unigram(400), WordPiece(700)]
STRANGE = "naïve café 日本 🙂 e\u0301\n\tdef f(x): return '…'\n"


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: type(kind).__name__)
def test_streamed_text_is_whole_characters_of_the_decoded_text(kind: Tokenizer) -> None:
    trained = kind.train([STRANGE * 3, *StdlibText(30000, 3000).documents()])
    ids = trained.encode(STRANGE).ids
    stream, seen = TextStream(trained), ""
    for index in ids:
        seen += stream.add(index)
        assert STRANGE.startswith(seen)
    assert (seen, stream.end()) == (STRANGE, "")
    assert seen == trained.decode(ids)
    unknown, generator = trained.token_to_id(UNKNOWN), torch.Generator().manual_seed(0)
    for _ in range(100):
        ids = torch.randint(trained.get_vocab_size(), (20,), generator=generator).tolist()
        ids = [index for index in ids if index != unknown]
        stream = TextStream(trained)
        assert "".join(map(stream.add, ids)) + stream.end() == trained.decode(ids)


def test_broken_characters_are_marked_and_special_tokens_are_silent() -> None:
    trained = Bytes().train([])
    first, second = trained.encode("é").ids
    stream = TextStream(trained)
    assert (stream.add(first), stream.add(second)) == ("", "é")
    assert (stream.add(first), stream.add(first), stream.end()) == ("", "\ufffd", "\ufffd")
    trained = Characters().with_specials().train(["abc"])
    stream = TextStream(trained)
    ids = [known(trained.token_to_id(name)) for name in ("a", UNKNOWN, "<|pad|>", "b")]
    assert "".join(map(stream.add, ids)) == "a\ufffdb"
    assert CONTINUED not in trained.get_vocab()


# where things lie ----------------------------------------------------------------------------------------------------


@pytest.mark.slow
def test_an_emptied_cache_is_filled_again(
    make: MakeRun, generated: Generated, tmp_path: Path, monkeypatch: Patch
) -> None:
    monkeypatch.setenv("LM_CACHE", str(tmp_path / "cache"))
    folder = make(data__tokenizer={"class_path": "BPE", "init_args": {"size": 300}})
    told = [folder, "--prompt", "import", "--tokens", 12]
    before = generated(*told)[0]
    shutil.rmtree(tmp_path / "cache")
    monkeypatch.setattr(lm.training.cell, "_prepared", {})
    assert generated(*told)[0] == before
    (tokenizer,) = (tmp_path / "cache/tokens").glob("*/tokenizer.json")
    tokenizer.unlink()  # a cache filled by an earlier version
    assert generated(*told)[0] == before
    assert tokenizer.is_file()
    tokenizer.write_text("{}")
    assert generated(*told)[0] == before
    assert tokenizer.read_text() != "{}"


def test_a_text_that_has_changed_since_is_refused(
    tmp_path: Path, make: MakeRun, generated: Generated, monkeypatch: Patch, refused_command: RefusedCommand
) -> None:
    monkeypatch.setenv("LM_CACHE", str(tmp_path / "cache"))
    text = tmp_path / "text.txt"
    text.write_text("".join(f"line {i} of a text\n" for i in range(200)))
    corpus = {"class_path": "LocalText", "init_args": {"path": str(text), "document": "line"}}
    folder = make(data__corpus=corpus, data__tokenizer="Characters", model__attention="LinearAttention")
    text.unlink()  # its tokens are cached
    generation, note = generated(folder, "--prompt", "line", "--tokens", 5)
    assert generation.startswith("line")
    assert "no cache" in note
    text.write_text("".join(f"line {i} of another text\n" for i in range(200)))
    shutil.rmtree(tmp_path / "cache")
    refused_command(["generate", folder, "--prompt", "line"])
    text.unlink()
    shutil.rmtree(tmp_path / "cache")
    refused_command(["generate", folder, "--prompt", "line"])


def test_the_weights_keep_the_precision_of_the_checkpoint(shared_run: Path) -> None:
    model = FinishedRun.at(shared_run).model(Decoder, "")
    assert isinstance(model, Decoder)
    assert not model.training
    assert {parameter.dtype for parameter in model.parameters()} == {torch.float64}


# what cannot be used -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "arguments",
    [
        ["--prompt", ""],
        ["--prompt", "日本x日"],
        ["--prompt", "\udcff"],
        ["--prompt", "a", "--tokens", "0"],
        ["--prompt", "a", "--tokens", "x"],
        ["--prompt", "a", "--temperature", "0"],
        ["--prompt", "a", "--temperature=-0.5"],
        ["--prompt", "a", "--top-k", "0"],
        ["--prompt", "a", "--top-p", "0"],
        ["--prompt", "a", "--top-p", "1.5"],
        ["--prompt", "a", "--greedy", "--top-k", "3", "--top-p", "0.5"],
        ["--prompt", "a", "--seed", "-1"],
        ["--prompt", "a", "--seed", "x"],
        [],
    ],
    ids=lambda value: " ".join(map(ascii, value)),
)
def test_a_request_that_has_no_meaning_is_one_line(
    shared_run: Path, arguments: list[str], refused_command: RefusedCommand
) -> None:
    refused_command(["generate", shared_run, *arguments])


def test_a_cache_that_there_is_not_is_one_line(shared_run: Path, capsys: Capture) -> None:
    refused(capsys, ["generate", shared_run, "--prompt", "a", "--cache", "half"], "--cache", "'half'")


def test_a_run_that_is_not_there_is_one_line(make: MakeRun, tmp_path: Path, refused_command: RefusedCommand) -> None:
    refused_command(["generate", "nowhere", "--out", tmp_path / "none", "--prompt", "a"])
    folder = make()
    refused_command(["generate", "zz", "--out", tmp_path / "out", "--prompt", "a"])
    refused_command(["generate", tmp_path, "--out", tmp_path / "out", "--prompt", "a"])
    assert find(folder.name[:20], tmp_path / "out") == folder
    shutil.copytree(folder, folder.with_name(folder.name[:10] + 54 * "0"))
    refused_command(["generate", folder.name[:10], "--out", tmp_path / "out", "--prompt", "a"])
    copied = tmp_path / "copied"
    shutil.copytree(folder, copied)
    refused_command(["generate", copied, "--prompt", "a"])


def test_a_run_without_a_model_is_one_line(make: MakeRun, refused_command: RefusedCommand) -> None:
    diverged = {"status": "diverged", "error": "loss not finite at step 3", "metrics": {}, "cost": {}}
    refused_command(["generate", make(diverged), "--prompt", "a"])
    refused_command(["generate", make(failure("OSError: disk full"), seed=1), "--prompt", "a"])
    folder = make(seed=2)
    checkpoint = folder / "last.ckpt"
    checkpoint.write_bytes(checkpoint.read_bytes()[:1000])
    refused_command(["generate", folder, "--prompt", "a"])
    checkpoint.unlink()
    refused_command(["generate", folder, "--prompt", "a"])


def test_weights_of_another_model_are_one_line(make: MakeRun, capsys: Capture, refused_command: RefusedCommand) -> None:
    folder = make()
    config = yaml.safe_load((folder / "config.yaml").read_text())
    config["model"]["init_args"]["width"] = 32
    (folder / "config.yaml").write_text(yaml.safe_dump(config))
    refused(capsys, ["generate", folder, "--prompt", "a"], "last.ckpt", "size mismatch")
    config["model"]["class_path"] = "EncoderDecoder"
    del config["model"]["init_args"]["causal"]
    (folder / "config.yaml").write_text(yaml.safe_dump(config))
    refused_command(["generate", folder, "--prompt", "a"])


def test_learned_positions_bound_the_text(make: MakeRun, generated: Generated, refused_command: RefusedCommand) -> None:
    folder = make(model__position="Learned", data__tokenizer="Characters")  # a context of 16
    assert len(generated(folder, "--prompt", "a" * 10)[0]) == 10 + 7 + 1, "the last token needs no position"
    assert len(generated(folder, "--prompt", "a" * 16)[0]) == 16 + 1 + 1
    assert len(generated(folder, "--prompt", "a" * 10, "--tokens", 7)[0]) == 10 + 7 + 1
    refused_command(["generate", folder, "--prompt", "a" * 10, "--tokens", 8])
    refused_command(["generate", folder, "--prompt", "a" * 17])


def test_a_prompt_that_spells_a_special_token_is_text() -> None:
    trained = BPE(300).train(["some text"])
    assert trained.token_to_id(END_OF_TEXT) not in (ids := prompt_ids(trained, END_OF_TEXT))
    assert trained.decode(ids) == END_OF_TEXT


def test_an_interrupted_text_says_so(
    shared_run: Path, capsys: Capture, monkeypatch: Patch, check_message: CheckMessage
) -> None:
    def interrupted(*_: object) -> Iterator[Tensor]:
        raise KeyboardInterrupt
        yield

    monkeypatch.setattr(lm.inference.generate, "generate", interrupted)
    assert main(["generate", str(shared_run), "--prompt", "a"]) == 130
    check_message(capsys.readouterr().err.strip())

"""An exported model is the run's own to the last digits, as a published family and as our own class, with its tokens.

Models of `transformers` run with every cast to float32 turned into one to float64, as in tests/parity.py.
"""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import tokenizers
import torch
from helpers import Capture, Patch, known
from messages import CheckMessage, Refused, RefusedCommand
from parity import EXAMPLES, TOLERANCE, VOCABULARY, built, exactly, padded, randomized, sample
from records import MakeExperiment
from small_runs import own_module, train_cell
from torch import Tensor, nn

from lm.cli import main
from lm.config.components import resolve
from lm.config.reading import load_config, shipped_files
from lm.config.tree import Tree, override
from lm.data.tokenizer import BPE, SPECIALS, Bytes, Characters, Sized, Tokenizer, Unigram, WordPiece
from lm.inference.conversion import OWN, ModelOnly
from lm.inference.export import choose_family, files_of, write_files
from lm.inference.families import FAMILIES
from lm.inference.finished import FinishedRun
from lm.model.generation import Ends, beam_search, caches_for, generate, greedy
from lm.model.transformer import EncoderDecoder
from lm.store.store import Store

transformers = pytest.importorskip("transformers", reason="needs transformers: pip install transformers")

TEXT = "Good text,\nand  odd: \u00e9\u00df\u6f22\u5b57 \U0001f600 e\u0301 \t\x00 <|endoftext|> <unk> \u2026 1234\r\n"


def tree_of(name: str, changes: Tree | None = None) -> Tree:
    """The resolved model of a family in small, changed."""
    model = load_config(shipped_files("configuration")[EXAMPLES[name]])["model"]
    changed = override({"model": model}, {f"model.{key}": value for key, value in (changes or {}).items()})
    return resolve(changed, ModelOnly)["model"]


def plain_tokenizer() -> tokenizers.Tokenizer:
    """A tokenizer without special tokens."""
    return Characters().learn(["abc"])


def written(folder: Path, form: str, tree: Tree, context: int = 24) -> Any:
    """Write a random model in a form; return it."""
    model = randomized(built({"model": tree}, context))
    config, tensors = files_of(form, tree, model, model.state_dict())
    write_files(folder, config, tensors, plain_tokenizer())
    return model


def read(folder: Path) -> Any:
    """Load a model as anybody does; those of `transformers` with casts to float64."""
    config = json.loads((folder / "config.json").read_text())
    seq2seq = config["architectures"][0].startswith(("T5", "Bart", "LMForSeq2Seq"))
    auto = transformers.AutoModelForSeq2SeqLM if seq2seq else transformers.AutoModelForCausalLM
    if config["model_type"] == OWN:
        return auto.from_pretrained(folder)
    with exactly():
        return randomized_not(auto.from_pretrained(folder, attn_implementation="eager"))


def randomized_not(model: Any) -> Any:
    """The model with the constants of activations as they are meant, and its weights as they were read."""
    state = {name: value.clone() for name, value in model.state_dict().items()}
    model = randomized(model)
    model.load_state_dict(state)
    return model


def both_logits(ours: Any, theirs: Any) -> tuple[Tensor, Tensor]:
    """Logits of both on the same tokens."""
    with exactly(), torch.no_grad():
        if isinstance(ours, EncoderDecoder):
            source, hidden, target = padded(24)
            other = theirs(input_ids=source, attention_mask=(~hidden).long(), decoder_input_ids=target)
            return ours(target, source, hidden), other.logits
        return ours(sample()), theirs(input_ids=sample()).logits


@pytest.mark.parametrize("form", ["family", OWN])
@pytest.mark.parametrize("name", FAMILIES)
def test_logits_are_equal(name: str, form: str, tmp_path: Path) -> None:
    """Of every family, in both forms, loaded by name of the folder alone; and every tensor is in one place."""
    ours = written(tmp_path / "model", name if form == "family" else OWN, tree_of(name))
    theirs = read(tmp_path / "model")
    expected, got = both_logits(ours, theirs)
    assert got.dtype == torch.float64
    assert expected.std() > 0.1
    torch.testing.assert_close(got, expected, rtol=0, atol=TOLERANCE)
    assert type(theirs).__name__ == (FAMILIES[name].model if form == "family" else type(theirs).__name__)
    from safetensors import safe_open

    with safe_open(tmp_path / "model" / "model.safetensors", "pt") as stored:
        numbers = sum(stored.get_tensor(key).numel() for key in list(stored.keys()) if key not in FAMILIES[name].zeros)
    assert numbers == sum(parameter.numel() for parameter in ours.parameters())


@pytest.mark.slow
@pytest.mark.parametrize("form", ["family", OWN])
@pytest.mark.parametrize("name", ["gpt2", "gemma2", "bloom"])
def test_generate_with_a_cache_is_ours(name: str, form: str, tmp_path: Path) -> None:
    """Greedy, with cache and without, and beams, whose rows the cache reorders."""
    ours = written(tmp_path / "model", name if form == "family" else OWN, tree_of(name), context=40)
    theirs, prompt = read(tmp_path / "model"), sample(8)
    expected = torch.stack(list(generate(ours, prompt, 20, greedy, caches_for(ours))), dim=1)
    with exactly():
        for use_cache in (True, False):
            options = {"max_new_tokens": 20, "do_sample": False, "use_cache": use_cache}
            torch.testing.assert_close(theirs.generate(prompt, **options)[:, 8:], expected)
        beams = [theirs.generate(prompt, **{**options, "num_beams": 3, "use_cache": kept}) for kept in (True, False)]
    torch.testing.assert_close(*beams)


def test_beams_of_an_encoder_decoder_are_ours(tmp_path: Path) -> None:
    """Our own class, whose encoder runs once and whose cache is that of the decoder."""
    ours = written(tmp_path / "model", OWN, tree_of("bart"))
    theirs, (source, hidden, _) = read(tmp_path / "model"), padded(24)
    ends = Ends(begin=1, end=2, longest=10)
    with exactly():
        tokens = theirs.generate(
            input_ids=source,
            attention_mask=(~hidden).long(),
            **{"num_beams": 1, "do_sample": False, "max_new_tokens": 10, "decoder_start_token_id": 1},
            **{"eos_token_id": 2, "pad_token_id": 0},
        )
    expected = [hypotheses[0].tokens for hypotheses in beam_search(ours, source, hidden, ends, width=1)]
    for row, own in zip(tokens[:, 1:].tolist(), expected, strict=True):
        assert row[: len(own)] == own


@pytest.mark.parametrize(
    "changes",
    [
        {"attention": "LinearAttention", "position": "Rope"},
        {"layers.0.attention": "MultiQuery", "block": "HyperConnections", "mlp": "SquaredReLU"},
        {"parametrization": {"class_path": "MuP", "init_args": {"base_width": 16}}, "position": "Sinusoidal"},
        {"attention.value_residual": "learned", "attention.gate": "headwise", "skips": True, "position": "Kerple"},
    ],
    ids=["linear attention", "streams", "muP", "gates"],
)
def test_any_parts_are_our_own_class(changes: Tree, tmp_path: Path) -> None:
    """Logits, and tokens one at a time and all at once, of parts that no family has."""
    tree = tree_of("gpt2", changes)
    family, reason = choose_family(tree, 24)
    assert family == OWN
    assert "class_path" not in reason, "a family of another kind is not the nearest"
    ours = written(tmp_path / "model", OWN, tree)
    theirs = read(tmp_path / "model")
    expected, got = both_logits(ours, theirs)
    torch.testing.assert_close(got, expected, rtol=0, atol=TOLERANCE)
    kept = [theirs.generate(sample(4), max_new_tokens=9, do_sample=False, use_cache=use) for use in (True, False)]
    torch.testing.assert_close(*kept)
    loss = nn.functional.cross_entropy(got[:, :-1].flatten(0, 1), sample()[:, 1:].flatten())
    torch.testing.assert_close(theirs(input_ids=sample(), labels=sample()).loss, loss.float())


def test_padding_is_on_the_right(tmp_path: Path, refused: Refused) -> None:
    written(tmp_path / "model", OWN, tree_of("gpt2"))
    theirs, mask = read(tmp_path / "model"), torch.ones(2, 24, dtype=torch.long)
    mask[0, -3:] = 0
    assert theirs(sample(), attention_mask=mask).logits.shape == (2, 24, VOCABULARY)
    with refused(ValueError):
        theirs(sample(), attention_mask=mask.flip(1))


def test_another_precision_is_asked_for_by_name(tmp_path: Path) -> None:
    written(tmp_path / "model", "llama", tree_of("llama"))
    model = transformers.AutoModelForCausalLM.from_pretrained(tmp_path / "model", dtype=torch.bfloat16)
    assert model.dtype == torch.bfloat16
    assert transformers.AutoModelForCausalLM.from_pretrained(tmp_path / "model").dtype == torch.float64


class OfMyOwn(nn.Module):
    """Logits of an embedding."""

    def __init__(self, vocabulary: int, context: int) -> None:
        super().__init__()
        self.table = nn.Embedding(vocabulary, vocabulary)

    def forward(self, tokens_bt: Tensor) -> Tensor:
        return self.table(tokens_bt)


def test_a_model_of_ones_own_has_to_be_imported_first(tmp_path: Path, monkeypatch: Patch, refused: Refused) -> None:
    (tmp_path / "mine_to_export.py").write_text(
        Path(__file__).read_text().split("class OfMyOwn")[0].split("import json")[0]
    )
    name = f"{OfMyOwn.__module__}.OfMyOwn"
    tree = {"class_path": name, "init_args": {}}
    ours = written(tmp_path / "model", OWN, tree)
    theirs = read(tmp_path / "model")
    expected, got = both_logits(ours, theirs)
    torch.testing.assert_close(got, expected)
    assert theirs.generate(sample(4), max_new_tokens=3, do_sample=False).shape == (2, 7)
    monkeypatch.delitem(sys.modules, OfMyOwn.__module__)
    with refused():
        read(tmp_path / "model")


# tokenizers ----------------------------------------------------------------------------------------------------------

TEXTS = ["Some text, and some more of it.\n" * 20, "def f(x):\n    return x  # \u00e9\n" * 20]
TOKENIZERS: list[Tokenizer] = [Characters(), Bytes(), BPE(300), Unigram(300), WordPiece(120)]


@pytest.mark.parametrize("ours", TOKENIZERS, ids=lambda ours: type(ours).__name__)
@pytest.mark.parametrize("pairs", [False, True], ids=["text", "pairs"])
def test_tokens_are_equal(ours: Tokenizer, pairs: bool, tmp_path: Path) -> None:
    """On odd text, names of special tokens in it included, and back."""
    trained = (ours.with_specials() if pairs else ours).train(TEXTS)
    tree = tree_of("gpt2")
    model = built({"model": tree}, 24)
    config, tensors = files_of("gpt2", tree, model, model.state_dict())
    write_files(tmp_path / "model", config, tensors, trained)
    theirs = transformers.AutoTokenizer.from_pretrained(tmp_path / "model")
    assert json.loads((tmp_path / "model" / "tokenizer.json").read_text()) == json.loads(trained.to_str())
    assert theirs.get_vocab() == trained.get_vocab()
    for text in (TEXT, TEXTS[0], "", " ", "\n\n", "<|begin|>a<|end|>"):
        trained.encode_special_tokens = True  # as text, as for training
        ids = trained.encode(text, add_special_tokens=False).ids
        assert theirs(text)["input_ids"] == ids
        for skip in (True, False):
            assert theirs.decode(ids, skip_special_tokens=skip) == trained.decode(ids, skip_special_tokens=skip)
    names = dict(zip(("bos_token", "eos_token", "pad_token"), SPECIALS, strict=True))
    end = "<|endoftext|>" if isinstance(ours, Sized) else None
    expected = names if pairs else {"bos_token": end, "eos_token": end, "pad_token": None}
    assert {name: getattr(theirs, name) for name in names} == expected
    ids = json.loads((tmp_path / "model" / "config.json").read_text())
    for name, token in expected.items():
        assert ids[f"{name}_id"] == (None if token is None else trained.token_to_id(token))


# the command ---------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of a small run in float64, whose parts are no family's, as its attention is grouped."""
    return train_cell(tmp_path_factory.mktemp("export"), {"data.tokenizer": "Characters"})[2]


def test_a_run_is_exported_with_a_card(run: Path, tmp_path: Path, capsys: Capture, check_message: CheckMessage) -> None:
    assert main(["export", str(run), "--to", str(tmp_path / "model")]) == 0
    check_message(capsys.readouterr().err.splitlines())
    files = {path.name for path in (tmp_path / "model").iterdir()}
    assert files == {
        *("README.md", "config.json", "generation_config.json"),
        *("model.safetensors", "tokenizer.json", "tokenizer_config.json"),
    }
    record, card = Store(run.parent.parent).record(run.name), (tmp_path / "model" / "README.md").read_text()
    for words in (record["id"], record["data"]["fingerprint"], "| steps | 12 |", "import lm"):
        assert words in card
    nll = known(record["metrics"]["nll"])
    low, high = map(float, card.split(f"{nll:.4f} nats/token | ")[1].split(" |")[0].split(" to "))
    assert low < nll < high
    model: Any = FinishedRun.at(run).model(nn.Module, "")
    torch.testing.assert_close(*both_logits(model, read(tmp_path / "model")), rtol=0, atol=TOLERANCE)


OWN_LAYER = "from lm.model.mlp import ReLU\n\nclass Mine(ReLU):\n    pass\n"


def test_the_card_of_a_model_with_a_class_of_ones_own_imports_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    module = own_module(tmp_path, monkeypatch, OWN_LAYER)
    of_run = train_cell(tmp_path / "out", {"data.tokenizer": "Characters", "model.mlp": f"{module}.Mine"})[2]
    assert main(["export", str(of_run), "--to", str(tmp_path / "model")]) == 0
    assert f"import {module}" in (tmp_path / "model" / "README.md").read_text()


def test_the_interval_of_a_card_is_that_of_a_ratio(run: Path) -> None:
    """Compared with resamples of documents."""
    import numpy as np

    from lm.inference.model_card import interval_over_texts
    from lm.store.documents import read_documents

    record = Store(run.parent.parent).record(run.name)
    losses = read_documents(run / "documents.npz", record)
    draws = np.random.default_rng(0).integers(0, len(losses.nll_d), (4000, len(losses.nll_d)))
    means = losses.nll_d[draws].sum(1) / losses.tokens_d[draws].sum(1)
    low, high = interval_over_texts(record, run, "nll")
    assert 0.8 < (high - low) / np.subtract(*np.quantile(means, (0.975, 0.025))) < 1.5
    assert (low + high) / 2 == pytest.approx(record["metrics"]["nll"], rel=1e-6)


def test_wrong_requests_are_a_line_and_write_nothing(
    run: Path, tmp_path: Path, refused_command: RefusedCommand
) -> None:
    for options in (["--family", "lama"], ["--family", "gpt2"], ["--dtype", "int8"]):
        refused_command(["export", run, "--to", tmp_path / "model", *options])
        assert list(tmp_path.iterdir()) == []
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "file").touch()
    refused_command(["export", run, "--to", tmp_path / "full"])


def test_a_cell_of_an_experiment_is_described_with_its_verdict(
    experiment: MakeExperiment, check_message: CheckMessage
) -> None:
    from lm.inference.model_card import _experiment

    folder = experiment({"base": [2.0, 2.1, 1.9], "arm": [1.7, 1.8, 1.6]})
    check_message(list(_experiment(folder.parent, "demo", ["arm"])))


@pytest.mark.parametrize("first", ["import lm", "from transformers import AutoModelForCausalLM"])
@pytest.mark.extra
def test_import_lm_is_enough_before_transformers_and_after(first: str, tmp_path: Path) -> None:
    written(tmp_path / "model", OWN, tree_of("gpt2"))
    program = (
        f"{first}\nimport lm, transformers\nprint(type(transformers.AutoModelForCausalLM.from_pretrained('model')))"
    )
    done = subprocess.run([sys.executable, "-c", program], cwd=tmp_path, capture_output=True, text=True, check=True)
    assert "lm.inference.registered.LMForCausalLM" in done.stdout


def test_the_end_of_documents_is_that_of_the_run(tmp_path: Path) -> None:
    trained = BPE(300).learn(TEXTS)
    trained.add_special_tokens(["</s>"])
    tree = tree_of("gpt2")
    config, tensors = files_of("gpt2", tree, model := built({"model": tree}, 24), model.state_dict())
    end = trained.token_to_id("</s>")
    write_files(tmp_path / "model", config, tensors, trained, end)
    for name in ("config", "generation_config"):
        assert json.loads((tmp_path / "model" / f"{name}.json").read_text())["eos_token_id"] == end
    assert transformers.AutoTokenizer.from_pretrained(tmp_path / "model").eos_token == "</s>"

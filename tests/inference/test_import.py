"""Checkpoints that `transformers` wrote, of random weights, become finished runs that compute the same."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch
import yaml
from helpers import Capture, Patch, known
from messages import CheckMessage, Refused, RefusedCommand
from parity import TOLERANCE, exactly, randomized, sample
from published import described, logits

import lm
from lm.analysis.curve import curve_table
from lm.cli import main
from lm.config.components import build
from lm.config.tree import InputError, Tree, override
from lm.data.tokenizer import BPE, SPECIALS, Pretrained, special_ids
from lm.inference.conversion import ModelOnly
from lm.inference.families import FAMILIES
from lm.inference.finished import FinishedRun, find
from lm.inference.importer import Checkpoint, import_run, read_tokenizer, tied
from lm.inference.translate import load as load_translator
from lm.inference.translate import translate_lines
from lm.store.store import Store
from lm.training.cell import check

transformers = pytest.importorskip("transformers", reason="needs transformers: pip install transformers")

DATA: Tree = {
    "data.corpus": {"class_path": "StdlibText", "init_args": {"size": 24000, "longest": 1000}},
    **{"data.split": [0.8, 0.1, 0.1], "data.batch_size": 8},
}
VOCABULARY = 320


def tokenizer(pairs: bool = False) -> Any:
    """A small tokenizer as `transformers` has them; of pairs with the special tokens of T5."""
    trained = BPE(300).learn(["def f(x):\n    return x\n" * 50, "Some words of a text. " * 50])
    if pairs:
        trained.add_special_tokens(["<pad>", "</s>"])
    special = {"pad_token": "<pad>", "eos_token": "</s>"} if pairs else {"eos_token": "<|endoftext|>"}
    return transformers.PreTrainedTokenizerFast(tokenizer_object=trained, **special)


def saved(folder: Path, name: str, seed: int = 0, dtype: torch.dtype = torch.float64, **change: Any) -> Any:
    """Save a random model of a family and its tokenizer; return the model."""
    torch.manual_seed(seed)
    config = described(name, {"vocab_size": VOCABULARY, **change})
    config._attn_implementation = "eager"
    with exactly():
        model = randomized(getattr(transformers, FAMILIES[name].model)(config))
    for parameter in model.parameters():
        parameter.data += 0.01 * seed
    model.to(dtype).save_pretrained(folder, **({"max_shard_size": "200KB"} if dtype == torch.bfloat16 else {}))
    tokenizer(name in ("t5", "bart")).save_pretrained(folder)
    return model


@pytest.mark.slow
@pytest.mark.parametrize("name", FAMILIES)
def test_a_checkpoint_of_every_family_is_read(name: str, tmp_path: Path) -> None:
    """As saved, in float64: logits agree."""
    theirs = saved(tmp_path, name)
    checkpoint = Checkpoint.at(tmp_path)
    weights, model = tied(checkpoint.weights(), checkpoint.model, tmp_path)
    ours = build({"model": model}, ModelOnly).model(checkpoint.vocabulary, checkpoint.context).double().eval()
    ours.load_state_dict(weights)
    with exactly(), torch.no_grad():
        got, expected = logits(ours), logits(theirs)
    torch.testing.assert_close(got, expected, rtol=0, atol=TOLERANCE)


def test_shards_in_half_precision_are_read_in_single(tmp_path: Path) -> None:
    theirs = saved(tmp_path, "llama", dtype=torch.bfloat16)
    assert (tmp_path / "model.safetensors.index.json").is_file()
    assert len(Checkpoint.at(tmp_path).files()) > 1
    weights = Checkpoint.at(tmp_path).weights()
    assert {value.dtype for value in weights.values()} == {torch.float32}
    assert torch.equal(weights["embedding.tokens.weight"], theirs.model.embed_tokens.weight.float())


def test_an_output_of_its_own_is_not_tied(tmp_path: Path) -> None:
    """As in T5 1.1, whatever `config.json` says."""
    model = saved(tmp_path, "gpt2", tie_word_embeddings=False)
    model.lm_head.weight.data.add_(1)
    model.save_pretrained(tmp_path)
    config = json.loads((tmp_path / "config.json").read_text())
    (tmp_path / "config.json").write_text(json.dumps({**config, "tie_word_embeddings": True}))
    checkpoint = Checkpoint.at(tmp_path)
    weights, tree = tied(checkpoint.weights(), checkpoint.model, tmp_path)
    assert tree["init_args"]["embedding"]["tied"] is False
    assert not torch.equal(weights["embedding.head.weight"], weights["embedding.tokens.weight"])


@pytest.fixture(scope="module")
def out(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder of results with an imported run, `imported/mine/0`, of the model in `gpt2` beside it."""
    folder = tmp_path_factory.mktemp("import")
    saved(folder / "gpt2", "gpt2")
    import_run(folder / "gpt2", folder / "results", DATA, "mine")
    return folder / "results"


def imported(out: Path) -> Path:
    """The folder of the run in a folder of results."""
    return find("imported/mine/0", out)


@pytest.mark.slow
def test_the_record_says_what_was_imported_and_what_was_measured(out: Path) -> None:
    """Against `transformers`, whose loss over blocks of the validation text is the record's."""
    run = imported(out)
    record = Store(out).record(run.name, needed=True)
    assert (record["status"], record["steps"], record["provenance"]["precision"]) == ("ok", 0, "64-true")
    origin = record["provenance"]["imported"]
    assert origin["model_type"] == "gpt2"
    assert set(origin["files"]) == {"model.safetensors", "config.json", "tokenizer.json"}
    assert "train_loss" not in record["metrics"]
    for name in ("nll", "ece", "test_nll", "temperature", "attention_entropy", "bits_per_byte"):
        assert record["metrics"][name] is not None, name
    assert record["documents"] is not None
    theirs = transformers.AutoModelForCausalLM.from_pretrained(out.parent / "gpt2")
    data = FinishedRun.at(run).data()
    data.setup("fit")
    losses, tokens = 0.0, 0
    for batch in data.evaluation_batches("validation"):
        with exactly(), torch.no_grad():
            rows = theirs(input_ids=batch.inputs[0]).logits.flatten(0, 1)
        losses += float(torch.nn.functional.cross_entropy(rows, batch.targets_bt.flatten(), reduction="sum"))
        tokens += batch.targets_bt.numel()
    assert record["metrics"]["nll"] == pytest.approx(losses / tokens, abs=1e-6)


@pytest.mark.extra
def test_commands_of_finished_runs_work_on_it(out: Path, capsys: Capture, undrawn: None) -> None:
    at = ["--out", str(out)]
    assert main(["evaluate", "imported/mine/0", "--lengths", "16,32", *at]) == 0
    assert "sliding window" in capsys.readouterr().out
    assert main(["generate", "imported/mine/0", "--prompt", "def ", "--tokens", "5", "--greedy", *at]) == 0
    assert capsys.readouterr().out.startswith("def ")
    assert main(["ls", str(out)]) == 0
    assert "imported" in capsys.readouterr().out
    assert main(["report", str(out / "imported")]) == 0
    assert "mine" in capsys.readouterr().out
    model, tokens = lm.load_model("imported/mine/0", out=out)
    theirs = transformers.AutoModelForCausalLM.from_pretrained(out.parent / "gpt2")
    with exactly(), torch.no_grad():
        torch.testing.assert_close(model(sample()), theirs(sample()).logits, rtol=0, atol=TOLERANCE)
    assert tokens.encode("def f").ids == tokenizer()("def f")["input_ids"]


def test_an_imported_run_is_exported_as_it_was(out: Path, tmp_path: Path) -> None:
    assert main(["export", "imported/mine/0", "--out", str(out), "--to", str(tmp_path / "again")]) == 0
    first, again = (
        transformers.AutoModelForCausalLM.from_pretrained(at) for at in (out.parent / "gpt2", tmp_path / "again")
    )
    assert type(first) is type(again)
    torch.testing.assert_close(again.state_dict(), first.state_dict(), rtol=0, atol=0)


def test_our_own_class_comes_back(out: Path, tmp_path: Path) -> None:
    assert main(["export", str(imported(out)), "--to", str(tmp_path / "own"), "--family", "lm"]) == 0
    assert import_run(tmp_path / "own", out, DATA) == imported(out)


@pytest.mark.slow
def test_training_goes_on_from_weights_that_the_id_holds(out: Path, tmp_path: Path) -> None:
    """By the base that is written beside the experiment of imported runs."""
    base = yaml.safe_load((out / "imported" / "mine.yaml").read_text())
    cell = check(base)
    run = imported(out)
    assert cell.config["trainer"]["init_from"]["folder"] == str(run)
    saved(tmp_path / "other", "gpt2", seed=1)
    other = import_run(tmp_path / "other", tmp_path / "results", DATA)
    assert other.name != run.name
    assert check(override(base, {"trainer.init_from": str(other)})).id != cell.id
    assert check(override(base, {"trainer.init_from": None})).id != cell.id


@pytest.mark.slow
def test_an_arm_starts_from_it(out: Path, tmp_path: Path, monkeypatch: Patch) -> None:
    """Its first validation is that of the imported run, on the same blocks."""
    monkeypatch.chdir(tmp_path)
    changes: Any = {"trainer.max_steps": 2, "trainer.val_check_interval": 1, "optim.lr": 1e-12}
    run = lm.fit(out / "imported" / "mine.yaml", out=tmp_path / "results", progress=False, **changes)
    expected = known(Store(out).record(imported(out).name)["metrics"]["nll"])
    assert run.record["metrics"]["nll"] == pytest.approx(expected, abs=1e-5)


@pytest.mark.extra
def test_checkpoints_by_step_are_a_curve(tmp_path: Path) -> None:
    """The last is the run's model."""
    for step in (0, 16, 4):
        saved(tmp_path / "pythia" / f"step{step}", "gpt_neox", seed=step)
    folder = import_run(tmp_path / "pythia", tmp_path / "results", DATA)
    record = Store(tmp_path / "results").record(folder.name)
    curve = curve_table(folder / "history.csv")
    assert (list(curve.index), record["steps"]) == ([0, 4, 16], 16)
    assert record["metrics"]["nll"] == pytest.approx(curve["validation_nll"][16])
    alone = [import_run(tmp_path / "pythia" / f"step{step}", tmp_path / "results", DATA) for step in (4, 16)]
    nll = [Store(tmp_path / "results").record(path.name)["metrics"]["nll"] for path in alone]
    assert list(curve["validation_nll"][1:]) == pytest.approx(nll)
    assert folder not in alone


@pytest.mark.slow
def test_a_model_of_pairs_translates_as_transformers_does(tmp_path: Path) -> None:
    """T5, whose first token of a target is the padding, on pairs of two files."""
    lines = [f"some words of a text {number} def return" for number in range(60)]
    for side in ("source", "target"):
        (tmp_path / f"{side}.txt").write_text("\n".join(reversed(lines) if side == "target" else lines) + "\n")
    sides = [(split, side) for split in ("train", "validation") for side in ("source", "target")]
    names = {f"data.corpus.{split}_{side}": str(tmp_path / f"{side}.txt") for split, side in sides}
    nothing = {"data.corpus.test_source": None, "data.corpus.test_target": None}
    pad, end = (tokenizer(True).convert_tokens_to_ids(name) for name in ("<pad>", "</s>"))
    ids = {"pad_token_id": pad, "eos_token_id": end, "decoder_start_token_id": pad}
    theirs = saved(tmp_path / "t5", "t5", **ids)
    folder = import_run(tmp_path / "t5", tmp_path / "results", {**names, **nothing, "data.context": 40}, "t5")
    model, data = load_translator(folder)
    assert (data.tokens.begin, data.tokens.end, data.tokens.padding) == (pad, end, pad)
    got = translate_lines(model, data, lines[:4], beam=1)
    words = tokenizer(True)
    batch = words(lines[:4], return_tensors="pt", padding=True, return_token_type_ids=False)
    inputs = torch.cat([batch.input_ids, torch.full((4, 1), end)], dim=1)
    with exactly():
        tokens = theirs.generate(input_ids=inputs, max_new_tokens=40, do_sample=False, num_beams=1, **ids)
    expected = [" ".join(words.decode(row, skip_special_tokens=True).split()) for row in tokens]
    assert got == expected


# refusals ------------------------------------------------------------------------------------------------------------


def test_what_is_no_checkpoint_is_a_line(tmp_path: Path, capsys: Capture, refused_command: RefusedCommand) -> None:
    results = tmp_path / "results"
    base = ["import", tmp_path / "m", "--out", results]
    refused_command(base)
    saved(tmp_path / "m", "gpt2")
    refused_command([*base, "--model.width", "3"])
    refused_command([*base, "--data.tokenizer", "Bytes"])
    refused_command([*base, "--as", "a/b"])
    (tmp_path / "m" / "tokenizer.json").rename(tmp_path / "tokenizer.json")
    refused_command(base)
    (tmp_path / "tokenizer.json").rename(tmp_path / "m" / "tokenizer.json")
    (tmp_path / "m" / "model.safetensors").rename(tmp_path / "m" / "pytorch_model.bin")
    refused_command(base)
    (tmp_path / "m" / "model.safetensors").write_bytes(b"no tensors")
    assert main([*map(str, base)]) == 2
    (line,) = capsys.readouterr().err.splitlines()  # with the reason in the words of safetensors
    assert "model.safetensors: " in line
    (tmp_path / "m" / "config.json").write_text("[1]")
    refused_command(base)
    assert not (results / "cells").exists()


def test_an_index_cannot_name_files_elsewhere(tmp_path: Path, refused: Refused) -> None:
    saved(tmp_path / "m", "gpt2")
    index = {"weight_map": {"wte.weight": "../other.safetensors"}}
    (tmp_path / "m" / "model.safetensors.index.json").write_text(json.dumps(index))
    with refused():
        Checkpoint.at(tmp_path / "m").files()


def test_weights_of_another_shape_are_named(tmp_path: Path, refused: Refused) -> None:
    saved(tmp_path / "m", "gpt2")
    config = json.loads((tmp_path / "m" / "config.json").read_text())
    (tmp_path / "m" / "config.json").write_text(json.dumps({**config, "n_inner": 99}))
    with refused():
        import_run(tmp_path / "m", tmp_path / "results", DATA)


def test_a_vocabulary_is_filled_up_and_never_cut(tmp_path: Path, check_message: CheckMessage) -> None:
    saved(tmp_path / "m", "gpt2")
    checkpoint = Checkpoint.at(tmp_path / "m")
    ours = read_tokenizer(checkpoint)
    assert ours.get_vocab_size() == VOCABULARY
    text = "def f(x): <|unused 0|> return"
    ours.encode_special_tokens = True
    assert ours.encode(text).ids == tokenizer()(text)["input_ids"]
    size = len(tokenizer())
    with pytest.raises(InputError) as caught:
        read_tokenizer(Checkpoint(checkpoint.folder, checkpoint.config, checkpoint.model, 64, size - 1))
    check_message(str(caught.value).replace(f"has {size}", "has SIZE").replace(f"expected {size - 1}", "expected LESS"))


def test_a_name_is_that_of_one_run(out: Path, tmp_path: Path, refused: Refused) -> None:
    saved(tmp_path / "m", "gpt2", seed=3)
    with refused():
        import_run(tmp_path / "m", out, DATA, "mine")
    assert import_run(out.parent / "gpt2", out, DATA, "mine").name in {path.name for path in (out / "cells").iterdir()}


def test_a_pretrained_tokenizer_says_which_special_tokens_it_has(tmp_path: Path) -> None:
    plain = BPE(300).learn(["words " * 99])
    plain.save(str(tmp_path / "tokenizer.json"))
    ours = Pretrained(str(tmp_path)).with_specials().train(())
    assert special_ids(ours) == tuple(ours.token_to_id(name) for name in SPECIALS)
    assert special_ids(plain) == ()

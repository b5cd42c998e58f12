"""What is measured of a finished model, against plain loops over the same tokens; and `lm evaluate`."""

import math
import re
import shutil
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import numpy as np
import pytest
import tokenizers
import torch
import yaml
from helpers import RUN, Capture, Patch, known
from messages import CheckMessage, Refused, RefusedCommand
from records import blank
from scipy.optimize import minimize_scalar
from small_runs import silent, train_cell
from torch import Tensor
from torch.nn.functional import cross_entropy

from lm.ablation.ablate import measure_missing_lengths
from lm.cli import main
from lm.config.components import build
from lm.config.tree import Tree, load_yaml, override
from lm.data import IGNORED
from lm.data.batch import Batch
from lm.data.tokenizer import UNKNOWN
from lm.execution.scheduler import Planned
from lm.inference.finished import FinishedRun
from lm.inference.remeasure import Request, cell_of, measure_lengths, remeasure
from lm.metrics.tokens import TokenStatistics, fit_temperature
from lm.model.transformer import Decoder, build_and_initialize
from lm.store.documents import read_documents
from lm.store.metrics import METRICS, describe
from lm.store.record import Record
from lm.store.store import Store
from lm.training.cell import check
from lm.training.evaluate import TrainedCell, add, evaluations, finite_perplexity, headline, missing
from lm.training.identified import Cell
from lm.training.process import Execution
from lm.training.run import RunConfig
from lm.training.train import failure, finish, train, write_work

ROOT = Path(__file__).resolve().parents[2]
LIVELY = {
    "model.initializer.std": 0.5,
    "model.embedding.tied": False,
    "data.corpus.size": 20000,
    "data.corpus.longest": 1000,  # so that no split is without text, whichever files a Python comes with
    "data.context": 8,
}
OTHER = {"data.corpus.size": 15000, "data.split": [0.6, 0.2, 0.2]}


def good() -> dict[str, Any]:
    return {"status": "ok", "error": None, "metrics": {"nll": 9.0}, "cost": {"parameters": 5}, "flags": []}


def finished_run(
    out: Path, changes: dict[str, Any] | None = None, outcome: dict[str, Any] | None = None
) -> tuple[Cell, Path]:
    """A finished run whose model is as it was initialised, and its folder."""
    cell, store = check(override(RUN, LIVELY | (changes or {}))), Store(out)
    model = built(cell).to(torch.float64 if "64" in cell.config["trainer"]["precision"] else torch.float32)
    state = {f"model.{name}": value for name, value in model.state_dict().items()}
    torch.save({"state_dict": state}, write_work(cell, store) / "final.ckpt")
    finish(cell, store, outcome or good(), {"started": 0.0, "finished": 1.0, "resumed": False})
    return cell, store.directory(cell.id)


def built(cell: Cell) -> torch.nn.Module:
    run: RunConfig = build(cell.config, RunConfig)
    return build_and_initialize(run.model, cell.facts.vocabulary, run.data(0).context, run.seed).eval()


def ids_of(cell: Cell, split: str) -> np.ndarray:
    return np.load(Path(cell.facts.folder) / f"{split}.npy").astype(np.int64)


@torch.no_grad()
def plain_logits(cell: Cell, split: str) -> tuple[Tensor, Tensor]:
    """Logits and targets of every block of a split, one block at a time."""
    ids, context = torch.from_numpy(ids_of(cell, split)), cell.config["data"]["init_args"]["context"]
    model = built(cell).double()
    rows = range(0, len(ids) - context, context)
    logits_nv = torch.cat([model(ids[None, i : i + context])[0] for i in rows])
    return logits_nv, torch.cat([ids[i + 1 : i + context + 1] for i in rows])


@pytest.fixture(scope="module")
def shared_run(tmp_path_factory: pytest.TempPathFactory) -> tuple[Cell, Path]:
    return finished_run(tmp_path_factory.mktemp("shared"))


@pytest.fixture(scope="module")
def trained(shared_run: tuple[Cell, Path]) -> TrainedCell:
    cell, folder = shared_run
    return TrainedCell(cell, folder / "last.ckpt")


def record_in(folder: Path) -> Record:
    return Store(folder.parents[1]).record(folder.name)


# a split, and its temperature ----------------------------------------------------------------------------------------


def test_the_test_split_and_its_temperature_equal_plain_calculations(
    shared_run: tuple[Cell, Path], trained: TrainedCell
) -> None:
    found, (validation, their_targets) = trained.split("test"), plain_logits(shared_run[0], "validation")
    logits_nv, targets_n = plain_logits(shared_run[0], "test")
    assert found["evaluated_tokens"] == len(targets_n)
    assert found["nll"] == pytest.approx(cross_entropy(logits_nv, targets_n).item(), rel=1e-12)

    def loss(log_temperature: float) -> float:
        return cross_entropy(validation / math.exp(log_temperature), their_targets).item()

    best = minimize_scalar(loss, bounds=(-3, 5), method="bounded", options={"xatol": 1e-10})
    temperature = found["scaled"]["temperature"]
    assert temperature == pytest.approx(math.exp(best.x), rel=1e-5)
    assert temperature > 1.2, "random logits of this size are far too sure"
    assert found["scaled"]["validation_nll"] == pytest.approx([loss(0.0), best.fun], rel=1e-9)
    scaled_nv = logits_nv / temperature
    assert found["scaled"]["nll"] == pytest.approx(cross_entropy(scaled_nv, targets_n).item(), rel=1e-12)
    assert found["scaled"]["ece"] == pytest.approx(plain_ece(scaled_nv, targets_n), abs=1e-9)
    assert found["ece"] == pytest.approx(plain_ece(logits_nv, targets_n), abs=1e-9)
    assert found["scaled"]["argmax_changed"] == 0


def plain_ece(logits_nv: Tensor, targets_n: Tensor) -> float:
    """Fifteen equal bins."""
    confidence_n, top_n = logits_nv.softmax(1).max(1)
    confidences, right = confidence_n.numpy(), (top_n == targets_n).numpy()
    bins = np.minimum((confidences * 15).astype(int), 14)
    gaps = [abs(right[bins == m].mean() - confidences[bins == m].mean()) * (bins == m).mean() for m in set(bins)]
    return float(sum(gaps))


@pytest.mark.slow
@pytest.mark.parametrize("softcap", [None, 2.0])
@pytest.mark.parametrize("hidden", [2**30, 0])
def test_logits_too_large_to_keep_are_computed_again(
    trained: TrainedCell, monkeypatch: Patch, hidden: int, softcap: float | None
) -> None:
    monkeypatch.setattr(trained.model.embedding, "softcap", softcap)
    monkeypatch.setattr(trained.model, "logit_softcap", softcap)
    kept = trained.split("test")
    monkeypatch.setattr("lm.training.evaluate.CACHED_LOGITS_MAX_BYTES", 0)
    monkeypatch.setattr("lm.training.evaluate.CACHED_HIDDEN_MAX_BYTES", hidden)
    calls: list[None] = []
    counting = cast(Decoder, trained.model).blocks[0].register_forward_hook(lambda *_: calls.append(None))
    assert trained.split("test") == kept
    counting.remove()
    validation, test = (len(trained.data.evaluation_batches(name)) for name in ("validation", "test"))
    if hidden:  # every batch passes the model once, and the first to see how large its logits are
        assert len(calls) == 1 + validation + test
    else:
        assert len(calls) > 3 * validation + test


@pytest.mark.parametrize("changes", [{}, {"trainer.val_check_interval": 6}, {"trainer.precision": "bf16-mixed"}])
def test_logits_of_the_last_validation_are_not_computed_again(
    tmp_path: Path, monkeypatch: Patch, changes: dict[str, Any]
) -> None:
    computed, logits = list[Batch](), TrainedCell.logits

    def counted(trained: TrainedCell, batch: Batch) -> tuple[Tensor, Tensor]:
        computed.append(batch)
        return logits(trained, batch)

    monkeypatch.setattr(TrainedCell, "logits", counted)
    cell, with_kept, folder = train_cell(tmp_path / "kept", changes)
    data = TrainedCell(cell, folder / "last.ckpt").data
    validation, test = (len(data.evaluation_batches(split)) for split in ("validation", "test"))
    assert len(computed) == test
    monkeypatch.setattr("lm.training.module.CACHED_LOGITS_MAX_BYTES", 0)
    computed.clear()
    again = train_cell(tmp_path / "again", changes)[1]
    assert len(computed) == validation + test + 1
    assert (again["evaluations"], again["metrics"]) == (with_kept["evaluations"], with_kept["metrics"])


def test_the_temperature_of_a_bfloat16_run_changes_no_best_guess(trained: TrainedCell, monkeypatch: Any) -> None:
    exactly = trained.logits

    def rounded(batch: Batch) -> tuple[Tensor, Tensor]:
        logits_nv, targets_n = exactly(batch)
        logits_nv = logits_nv.bfloat16()
        largest_n = logits_nv.amax(1)
        logits_nv[:, 0] = torch.nextafter(largest_n, torch.zeros_like(largest_n))  # the neighbour below
        return logits_nv, targets_n

    monkeypatch.setattr(trained, "logits", rounded)
    found = trained.split("test")["scaled"]
    pairs = [rounded(batch) for batch in trained.data.evaluation_batches("test")]
    logits_nv, targets_n = torch.cat([x for x, _ in pairs]), torch.cat([y for _, y in pairs])
    ties = (logits_nv / found["temperature"]).argmax(1) != logits_nv.argmax(1)
    assert ties.any(), "divided in bfloat16, some guesses would tie"
    assert found["argmax_changed"] == 0
    assert found["ece"] == pytest.approx(plain_ece(logits_nv.double() / found["temperature"], targets_n), abs=1e-6)


def test_validation_has_no_temperature_of_its_own(trained: TrainedCell) -> None:
    assert trained.split("validation")["scaled"] is None


def test_a_mixed_precision_run_is_measured_under_autocast(tmp_path: Path) -> None:
    cell, folder = finished_run(tmp_path, {"trainer.precision": "bf16-mixed"})
    trained = TrainedCell(cell, folder / "last.ckpt")
    batch = next(iter(trained.data.evaluation_batches("test")))
    model = built(cell)
    with torch.no_grad(), torch.autocast("cpu", torch.bfloat16):
        expected = model(*batch.inputs).flatten(0, 1)
    found = trained.logits(batch)[0]
    assert next(trained.model.parameters()).dtype == torch.float32
    assert found.dtype == torch.bfloat16
    assert torch.equal(found, expected)
    with torch.no_grad():
        assert not torch.equal(found.float(), model(*batch.inputs).flatten(0, 1))


# lengths -------------------------------------------------------------------------------------------------------------


@torch.no_grad()
def plain_losses(cell: Cell, count: int, length: int, sliding: bool) -> Tensor:
    """NLL of targets 0 to `count`, each on its own: after what came before in its block, or its window.

    Windows begin at multiples of half the length and score what no window before them did; the last ends at the end.
    """
    ids, model, stride = torch.from_numpy(ids_of(cell, "validation")), built(cell).double(), max(1, length // 2)
    losses = []
    for place in range(count if sliding else count // length * length):
        start = place // length * length
        if sliding:
            start = 0 if place < length else -(-(place - length + 1) // stride) * stride
            start = min(start, count - length)
        losses.append(cross_entropy(model(ids[None, start : place + 1])[0, -1], ids[place + 1]))
    return torch.stack(losses)


@pytest.mark.parametrize("length", [1, 4, 5, 8, 16])
def test_a_length_is_every_token_after_its_context(
    shared_run: tuple[Cell, Path], trained: TrainedCell, length: int
) -> None:
    found = trained.lengths([length, 16], "validation", 40)[str(length)]
    blocks_n, sliding_n = (plain_losses(shared_run[0], 32, length, sliding) for sliding in (False, True))
    assert len(sliding_n) == 32
    assert found["tokens"] == len(blocks_n)
    assert found["nll"] == pytest.approx(blocks_n.mean().item(), rel=1e-12)
    assert found["sliding_nll"] == pytest.approx(sliding_n.mean().item(), rel=1e-12)
    np.testing.assert_allclose(found["by_position"], blocks_n.view(-1, length).mean(0), rtol=1e-12)


def test_the_trained_length_over_whole_blocks_is_the_splits_nll(trained: TrainedCell) -> None:
    blocks = (len(trained.data.tokens.split["validation"]) - 1) // 8  # type: ignore[attr-defined]
    whole = trained.split("validation")["nll"]
    assert trained.lengths([8], "validation", 8 * blocks)["8"]["nll"] == pytest.approx(whole, rel=1e-12)


def test_how_many_rows_at_once_changes_nothing(trained: TrainedCell, monkeypatch: Patch) -> None:
    many = trained.lengths([4, 8], "validation", 64)
    monkeypatch.setattr("lm.training.evaluate.TOKENS_AT_ONCE", 1)
    one = trained.lengths([4, 8], "validation", 64)
    for length, at in many.items():
        np.testing.assert_allclose(one[length]["by_position"], at["by_position"], rtol=1e-12)
        assert one[length]["sliding_nll"] == pytest.approx(at["sliding_nll"], rel=1e-12)


def test_learned_positions_fail_only_beyond_the_trained_length(tmp_path: Path, check_message: CheckMessage) -> None:
    cell, folder = finished_run(tmp_path, {"model.position": "Learned"})
    found = TrainedCell(cell, folder / "last.ckpt").lengths([4, 16], "validation", 32)
    assert list(found["16"]) == ["error"]
    check_message(found["16"]["error"])
    record = good()
    add(record, "lengths", found)
    assert record["status"] == "ok"
    assert set(record["metrics"]) == {"nll", "nll@4", "perplexity@4", "sliding_nll@4"}


# records -------------------------------------------------------------------------------------------------------------


def test_every_number_of_a_table_has_a_name(trained: TrainedCell) -> None:
    numbers = headline("test", trained.split("test"))
    assert set(numbers) <= set(METRICS)
    lengths = headline("lengths", trained.lengths([4, 8], "validation", 32))
    assert describe("nll@4").label == "validation NLL, blocks of 4 tokens"
    for name, value in lengths.items():
        assert describe(name).label != name
        assert value is not None
    assert lengths["perplexity@8"] == pytest.approx(math.exp(lengths["nll@8"] or 0.0), rel=1e-12)
    assert finite_perplexity(800.0) is None
    assert finite_perplexity(math.nan) is None


def test_what_is_missing_are_lengths_asked_for_later() -> None:
    record = blank()
    assert not missing(record, {"evaluate": None})
    assert not missing(record, {})
    wanted = {"evaluate": {"lengths": [4, 8], "tokens": 64}}
    assert missing(record, wanted)
    record["data"]["tokens"] = {"validation": 1000}
    record["evaluations"] = {"lengths": {"4": {"nll": 1.0, "tokens": 64}}}
    assert missing(record, wanted)
    record["evaluations"]["lengths"]["8"] = {"error": "too long"}
    assert not missing(record, wanted)
    assert not missing({**record, "status": "diverged"}, wanted)
    assert missing(record, {"evaluate": {"lengths": [4, 8], "length_tokens": 128}}), "over more text"
    record["evaluations"]["lengths"]["512"] = {"nll": 1.0, "tokens": 512}
    assert not missing(record, wanted), "a longer one was measured by hand, over tokens that this budget has not"


def rows(test: float) -> Tree:
    return {
        "class_path": "PaddedRows",
        "init_args": {
            "corpus": {"class_path": "StdlibText", "init_args": {"size": 20000, "longest": 500}},
            "tokenizer": {"class_path": "BPE", "init_args": {"size": 260}},
            "context": 12,
            "rows": 8,
            "batch_size": 4,
            "split": [0.6, 0.4 - test, test],
        },
    }


def pairs(folder: Path, test: bool) -> Tree:
    corpus = {}
    for split in ("train", "validation", "test") if test else ("train", "validation"):
        for side in ("source", "target"):
            path = folder / f"{split}.{side}"
            path.write_text("".join(f"{side} line {i} of {split}\n" for i in range(12)))
            corpus[f"{split}_{side}"] = str(path)
    return {
        "class_path": "PairData",
        "init_args": {"corpus": corpus, "tokenizer": "Bytes", "context": 40, "batch_tokens": 160},
    }


TRANSLATOR = {"class_path": "EncoderDecoder", "init_args": RUN["model"]["init_args"] | {"position": "Sinusoidal"}}


@pytest.mark.slow
@pytest.mark.parametrize("share", [0.2, 0.0])
def test_rows_with_a_test_split_have_its_evaluation(tmp_path: Path, share: float, refused: Refused) -> None:
    cell, folder = finished_run(tmp_path, {"data": rows(share), "data.corpus.size": 20000, "data.context": 12})
    found = dict(evaluations(cell, folder / "last.ckpt"))
    assert list(found) == (["test"] if share else [])
    if share:
        trained = TrainedCell(cell, folder / "last.ckpt")
        batches = list(trained.data.evaluation_batches("test"))
        kept = sum(int((batch.targets_bt != IGNORED).sum()) for batch in batches)
        assert found["test"]["evaluated_tokens"] == kept > 0
        with torch.no_grad():
            model = built(cell).double()
            logits = torch.cat([model(*batch.inputs).flatten(0, 1) for batch in batches])
        targets = torch.cat([batch.targets_bt.flatten() for batch in batches])
        assert found["test"]["nll"] == pytest.approx(cross_entropy(logits, targets).item(), rel=1e-12)
        with refused():
            trained.lengths([4], "validation", 32)
    else:
        with refused():
            remeasure(folder, Request())


@pytest.mark.parametrize("test", [True, False])
def test_pairs_with_a_test_split_have_its_evaluation(tmp_path: Path, test: bool) -> None:
    tree = {key: value for key, value in RUN.items() if key not in ("data", "model")}
    cell, store = check({**tree, "data": pairs(tmp_path, test), "model": TRANSLATOR}), Store(tmp_path)
    state = {f"model.{name}": value for name, value in built(cell).double().state_dict().items()}
    torch.save({"state_dict": state}, write_work(cell, store) / "final.ckpt")
    finish(cell, store, good(), {"started": 0.0, "finished": 1.0, "resumed": False})
    found = dict(evaluations(cell, store.directory(cell.id) / "last.ckpt"))
    assert list(found) == (["test"] if test else [])
    if test:
        of, nll_d, tokens_d = found["test"].pop("clusters")
        assert (of.count, tokens_d.sum()) == (12, found["test"]["evaluated_tokens"])
        assert nll_d.sum() / tokens_d.sum() == pytest.approx(found["test"]["nll"], rel=1e-12)
        again = remeasure(store.directory(cell.id), Request())
        assert again["test"] == found["test"]
        assert found["test"]["evaluated_tokens"] == sum(len(f"target line {i} of test") + 1 for i in range(12))


# lm evaluate ---------------------------------------------------------------------------------------------------------


@pytest.fixture
def evaluated(capsys: Capture) -> Callable[..., str]:
    """Runs the command; what it printed."""

    def run(*arguments: object) -> str:
        capsys.readouterr()
        assert main(["evaluate", *map(str, arguments)]) == 0
        return capsys.readouterr().out

    return run


@pytest.mark.extra
def test_a_run_is_measured_again_and_its_record_keeps_it(tmp_path: Path, evaluated: Callable[..., str]) -> None:
    cell, folder = finished_run(tmp_path)
    shown = evaluated(cell.id[:9], "--out", tmp_path, "--lengths", "4,8", "--tokens", 64)
    first = record_in(folder)
    trained = TrainedCell(cell, folder / "last.ckpt")
    assert first["evaluations"]["test"] == trained.split("test")
    assert first["evaluations"]["lengths"] == trained.lengths([4, 8], "validation", 64)
    assert first["metrics"]["nll"] == 9.0, "what training measured stays"
    assert first["metrics"]["nll@8"] == first["evaluations"]["lengths"]["8"]["nll"]
    for text in ("temperature fitted on validation", f"{first['metrics']['scaled_nll']:.4f}", "sliding window"):
        assert text in shown
    before = (folder / "record.json").read_bytes()
    evaluated(folder, "--lengths", "4,8", "--tokens", 64)
    assert (folder / "record.json").read_bytes() == before
    evaluated(folder, "--lengths", "16", "--tokens", 64)
    assert record_in(folder)["evaluations"]["lengths"] == trained.lengths([4, 8, 16], "validation", 64)
    evaluated(folder, "--split", "train")
    last = record_in(folder)
    assert last["evaluations"]["train"] == trained.split("train")
    assert last["metrics"]["scaled_nll"] == first["metrics"]["scaled_nll"], "the table speaks of the test split"
    assert {*last["metrics"]} == {*first["metrics"], "nll@16", "perplexity@16", "sliding_nll@16"}
    measured_anew = ("metrics", "evaluations")
    assert {key: found for key, found in last.items() if key not in measured_anew} == {
        key: found for key, found in first.items() if key not in measured_anew
    }


@pytest.mark.slow
@pytest.mark.parametrize(
    "tokenizer",
    ["Bytes", "BPE", *(pytest.param(name, marks=pytest.mark.slow) for name in ("Characters", "Unigram", "WordPiece"))],
)
def test_another_text_is_cut_by_the_runs_own_tokenizer(tmp_path: Path, tokenizer: str) -> None:
    sized = {} if tokenizer in ("Characters", "Bytes") else {"data.tokenizer.init_args.size": 300}
    cell, folder = finished_run(tmp_path, {"data.tokenizer": tokenizer, **sized})
    texts = [f"{i} caf\u00e9 \u2603 text {i * i}\n" for i in range(400)]
    path = tmp_path / "other.txt"
    path.write_text("".join(texts), encoding="utf-8")
    corpus = {"class_path": "LocalText", "init_args": {"path": str(path), "document": "line"}}
    (name, found), *rest = remeasure(
        folder, Request(lengths=(4,), tokens=64, changes={"data.corpus": corpus, "data.split": [0.25, 0.25, 0.5]})
    ).items()
    record, own = record_in(folder), tokenizers.Tokenizer.from_file(str(Path(cell.facts.folder) / "tokenizer.json"))
    assert not rest
    assert name == f"test of {found['text']['fingerprint'][:12]}"
    assert record["evaluations"] == {name: found}
    assert record["metrics"] == good()["metrics"]
    total, half = sum(map(len, texts)), 0
    starts = np.cumsum([0, *map(len, texts)])
    half = int(np.argmax(starts >= total / 2))
    end = [] if own.token_to_id("<|endoftext|>") is None else [own.token_to_id("<|endoftext|>")]
    ids = torch.tensor([i for text in texts[half:] for i in [*own.encode(text, add_special_tokens=False).ids, *end]])
    assert found["text"]["tokens"] == len(ids)
    blocks = (len(ids) - 1) // 8
    inputs_bt, targets_n = ids[: blocks * 8].view(blocks, 8), ids[1 : blocks * 8 + 1]
    with torch.no_grad():
        logits_nv = built(cell).double()(inputs_bt).flatten(0, 1)
    assert found["nll"] == pytest.approx(cross_entropy(logits_nv, targets_n).item(), rel=1e-12)
    unknown = own.token_to_id(UNKNOWN)
    share = 0.0 if unknown is None else (targets_n == unknown).double().mean().item()
    assert found["text"]["unknown_share"] == pytest.approx(share, rel=1e-12)
    assert bool(share) is (tokenizer in ("Characters", "WordPiece"))
    assert found["lengths"]["4"]["tokens"] == 64
    assert found["text"]["data"]["corpus"] == corpus | {"init_args": {**corpus["init_args"], "field": "text"}}  # type: ignore[dict-item]


def test_the_text_is_prepared_again_where_the_cache_was_emptied(
    tmp_path: Path, monkeypatch: Patch, refused: Refused
) -> None:
    cell, folder = finished_run(tmp_path)
    monkeypatch.setenv("LM_CACHE", str(tmp_path / "elsewhere"))
    again = cell_of(FinishedRun.at(folder))
    assert again.facts.folder.startswith(str(tmp_path / "elsewhere"))
    assert again.facts.identity() == cell.facts.identity()
    monkeypatch.setenv("LM_CACHE", str(tmp_path / "third"))
    tree = load_yaml(folder / "config.yaml")
    (folder / "config.yaml").write_text(yaml.safe_dump(override(tree, {"data.corpus.size": 30000})))
    with refused():
        remeasure(folder, Request())


def test_lengths_asked_for_later_are_measured_without_training(tmp_path: Path) -> None:
    cell, folder = finished_run(tmp_path)
    with_lengths = check(override(RUN, {**LIVELY, "evaluate": {"lengths": [4, 8], "tokens": 64}}))
    assert with_lengths.id == cell.id
    assert missing(record_in(folder), with_lengths.config)
    measure_lengths(with_lengths, Store(tmp_path))
    assert not missing(record_in(folder), with_lengths.config)
    expected = TrainedCell(cell, folder / "last.ckpt").lengths([4, 8], "validation", 64)
    assert record_in(folder)["evaluations"]["lengths"] == expected


def test_an_ablation_measures_the_lengths_its_cells_lack(
    tmp_path: Path, capsys: Capture, check_message: CheckMessage
) -> None:
    wanted = {"evaluate": {"lengths": [4, 8], "tokens": 64}}
    cells, folders = [], []
    for changes in ({}, {"seed": 1}, {"seed": 2}):
        _, folder = finished_run(tmp_path, changes)
        cells.append(check(override(RUN, {**LIVELY, **wanted, **changes})))
        folders.append(folder)
    (folders[1] / "last.ckpt").unlink()
    store = Store(tmp_path)
    measure_lengths(cells[2], store)
    plan: Any = SimpleNamespace(distinct=[Planned("arm", seed, cell) for seed, cell in enumerate(cells)])
    capsys.readouterr()
    measure_missing_lengths(plan, store)
    check_message(capsys.readouterr().err.splitlines())
    assert [sorted(record_in(folder).get("evaluations", {}).get("lengths", {})) for folder in folders] == [
        ["4", "8"],
        [],
        ["4", "8"],
    ]


REFUSED: list[list[object]] = [
    ["--lengths", "four"],
    ["--lengths", "4,-1"],
    ["--lengths", "[4"],
    ["--lengths", "64", "--tokens", "32"],
    ["--tokens", "0"],
    ["--optim.lr", "1"],
    ["--set", "model.width=8"],
    ["--seed", "1"],
    ["--data.tokenizer", "Bytes"],
    ["--data.corpus.sise", "10"],
    ["--data.corpus.size", "10"],
    ["--data.split", "[0.5, 0.5, 0.0]"],
]


@pytest.mark.parametrize("arguments", REFUSED, ids=[" ".join(map(str, arguments)) for arguments in REFUSED])
def test_what_cannot_be_measured_is_one_line(
    shared_run: tuple[Cell, Path], arguments: list[object], refused_command: RefusedCommand
) -> None:
    refused_command(["evaluate", shared_run[1], *arguments])


def refusal_of(capsys: Capture, *arguments: object) -> str:
    """The one line of a refusal, numbers that hang on the interpreter's standard library written as N."""
    capsys.readouterr()
    assert main(["evaluate", *map(str, arguments)]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    return re.sub(r"(NLL of|expected|found) [\d.]+", r"\1 N", line)


def test_a_text_shorter_than_the_length_is_refused(
    shared_run: tuple[Cell, Path], capsys: Capture, check_message: CheckMessage
) -> None:
    check_message(refusal_of(capsys, shared_run[1], "--lengths", "9000"))


def test_an_unknown_split_is_named(shared_run: tuple[Cell, Path], capsys: Capture) -> None:
    """In the words of `argparse`, which differ between versions."""
    assert re.search("--split.*'tset'.*test", refusal_of(capsys, shared_run[1], "--split", "tset"))


def test_a_run_that_cannot_be_measured_is_one_line(tmp_path: Path, refused_command: RefusedCommand) -> None:
    _, folder = finished_run(tmp_path / "a")
    (folder / "last.ckpt").unlink()
    refused_command(["evaluate", folder])
    (folder / "last.ckpt").write_bytes(b"no checkpoint")
    refused_command(["evaluate", folder])
    _, diverged = finished_run(tmp_path / "b", outcome={**good(), "status": "diverged", "error": "loss not finite"})
    refused_command(["evaluate", diverged])
    _, failed = finished_run(tmp_path / "c", outcome=failure("RuntimeError: no"))
    refused_command(["evaluate", failed])
    refused_command(["evaluate", "abc", "--out", tmp_path / "a"])
    _, learned = finished_run(tmp_path / "d", {"model.position": "Learned"})
    refused_command(["evaluate", learned, "--data.context", 16])


def stored(folder: Path, nll: float, hashed: bool) -> None:
    """Writes another NLL into a record, as if training had measured it, with the hash of the checkpoint or without."""
    record = record_in(folder)
    record["metrics"]["nll"] = nll
    if not hashed:
        record["provenance"].pop("checkpoint", None)
    Store(folder.parents[1]).rewrite(folder.name, record)


def test_a_checkpoint_that_is_not_the_records_is_refused(
    tmp_path: Path, capsys: Capture, check_message: CheckMessage
) -> None:
    _, folder = finished_run(tmp_path / "a")
    _, other = finished_run(tmp_path / "b", {"seed": 1})
    checkpoint, before = folder / "last.ckpt", (folder / "record.json").read_bytes()
    whole = torch.load(checkpoint, weights_only=True)
    name, tensor = next((name, value) for name, value in whole["state_dict"].items() if value.is_floating_point())
    moved = {key: value + 0.3 for key, value in whole["state_dict"].items()}
    content = bytearray(checkpoint.read_bytes())
    content[len(content) // 2] ^= 1
    lines = set()
    for state in (moved, {**whole["state_dict"], name: torch.full_like(tensor, math.nan)}, None, bytes(content)):
        if isinstance(state, dict):
            torch.save({"state_dict": state}, checkpoint)
        else:
            checkpoint.write_bytes(state or (other / "last.ckpt").read_bytes())
        for more in ([], ["--lengths", "4"], ["--data.split", "[0.5, 0.25, 0.25]"]):
            lines.add(refusal_of(capsys, folder, *more))
    (line,) = lines
    check_message(line)
    assert (folder / "record.json").read_bytes() == before


@pytest.mark.slow
@pytest.mark.parametrize("more", [["--split", "validation"], [], ["--lengths", "4", "--tokens", "64"]])
def test_weights_without_a_hash_must_reproduce_their_loss(
    tmp_path: Path,
    capsys: Capture,
    trained: TrainedCell,
    shared_run: tuple[Cell, Path],
    more: list[str],
    check_message: CheckMessage,
) -> None:
    right = float(trained.split("validation")["nll"])
    folder = tmp_path / "cells" / shared_run[1].name
    shutil.copytree(shared_run[1], folder)
    stored(folder, right * 1.01, hashed=False)
    before = (folder / "record.json").read_bytes()
    check_message(refusal_of(capsys, folder, *more))
    assert (folder / "record.json").read_bytes() == before
    stored(folder, right * 1.0001, hashed=False)
    assert main(["evaluate", str(folder), *more]) == 0
    assert "last.ckpt" not in capsys.readouterr().err


def test_a_loss_that_differs_from_the_record_is_reported(
    tmp_path: Path, capsys: Capture, trained: TrainedCell, shared_run: tuple[Cell, Path]
) -> None:
    folder = tmp_path / "cells" / shared_run[1].name
    shutil.copytree(shared_run[1], folder)
    right = float(trained.split("validation")["nll"])
    for wrong, lines in ((right * 1.01, 1), (right * 1.0001, 0)):
        stored(folder, wrong, hashed=True)
        assert main(["evaluate", str(folder), "--split", "validation"]) == 0
        warnings = [line for line in capsys.readouterr().err.splitlines() if "last.ckpt" in line]
        assert len(warnings) == lines


def test_a_length_beyond_the_positions_is_shown_as_an_error(tmp_path: Path, evaluated: Callable[..., str]) -> None:
    _, folder = finished_run(tmp_path, {"model.position": "Learned"})
    shown = " ".join(evaluated(folder, "--lengths", "4,16", "--tokens", 64).split())
    assert record_in(folder)["status"] == "ok"
    error = record_in(folder)["evaluations"]["lengths"]["16"]["error"]
    assert error.split()[0] in shown
    assert "nll@16" not in record_in(folder)["metrics"]


# a model that can be known to be right --------------------------------------------------------------------------------


@pytest.mark.extra
def test_tripled_logits_of_a_markov_chain_are_miscalibrated(tmp_path: Path) -> None:
    cell, store = check(load_yaml(ROOT / "experiments" / "bases" / "markov.yaml")), Store(tmp_path)
    train(cell, store, lambda *_: None, Execution(threads=1))
    record = store.record(cell.id)
    test = record["evaluations"]["test"]
    assert 0 < known(record["metrics"]["excess_nll"]) < 0.02
    assert abs(test["ece"] - test["ece_floor"]) < 0.01
    assert test["scaled"]["temperature"] == pytest.approx(1.0, abs=0.05)
    trained = TrainedCell(cell, store.directory(cell.id) / "last.ckpt")
    pairs = list(trained.passes("test")())
    tripled = TokenStatistics(trained.data.bytes_per_token())
    for logits_nv, targets_n in pairs:
        tripled.update(3 * logits_nv, targets_n)
    measured = tripled.compute()
    assert measured["ece"] > 0.1
    assert measured["ece"] > 10 * measured["ece_floor"]
    assert measured["accuracy"] == pytest.approx(test["accuracy"], rel=1e-12)
    validation = list(trained.passes("validation")())
    plain = fit_temperature(lambda: validation)
    assert plain == test["scaled"]["temperature"]
    hot = fit_temperature(lambda: [(3 * logits_nv, targets_n) for logits_nv, targets_n in validation])
    assert hot == pytest.approx(3 * plain, rel=1e-6)
    assert hot == pytest.approx(3.0, rel=0.02)


@pytest.mark.extra
@pytest.mark.parametrize("precision", ["64-true", "bf16-mixed"])
def test_a_trained_run_reproduces_its_evaluations(tmp_path: Path, precision: str) -> None:
    changes = {"trainer.precision": precision, "model.position": "Learned"}
    wanted = {"evaluate": {"lengths": [8, 16, 32], "tokens": 256}}
    cell, record, folder = train_cell(tmp_path, {**changes, **wanted})
    assert (record["status"], record["flags"]) == ("ok", [])
    assert list(record["evaluations"]) == ["test", "lengths"]
    assert list(record["evaluations"]["lengths"]["32"]) == ["error"]
    assert "nll@16" in record["metrics"]
    assert "nll@32" not in record["metrics"]
    found = remeasure(folder, Request(lengths=(8, 16, 32)))
    assert found == record["evaluations"]
    assert record_in(folder) == record
    validation = TrainedCell(cell, folder / "last.ckpt").split("validation")
    assert {name: validation[name] for name in ("nll", "ece", "brier")} == {
        name: record["metrics"][name] for name in ("nll", "ece", "brier")
    }


# documents -----------------------------------------------------------------------------------------------------------

LINES = {"class_path": "StdlibText", "init_args": {"size": 60000, "longest": 200}}
MARKED = {"data.corpus": LINES, "data.tokenizer": {"class_path": "BPE", "init_args": {"size": 300}}}


@pytest.mark.slow
@pytest.mark.parametrize(
    ("changes", "kind"),
    [
        ({**MARKED, "trainer.limit_val_batches": 1.0}, "document"),
        ({**MARKED, "trainer.val_check_interval": 5}, "document"),
        ({"trainer.precision": "32-true"}, "stretch"),
    ],
)
def test_documents_add_up_to_the_recorded_loss(tmp_path: Path, changes: dict[str, Any], kind: str) -> None:
    cell, store = check(override(RUN, changes)), Store(tmp_path)
    train(cell, store, silent, Execution(threads=1))
    record = store.record(cell.id, needed=True)
    documents = read_documents(store.documents(cell.id), record)
    evaluated, nll = record["evaluated"], record["metrics"]["nll"]
    assert evaluated is not None
    assert nll is not None
    assert documents.kind == kind
    assert documents.tokens_d.sum() == evaluated["tokens"]
    assert documents.nll_d.sum() / documents.tokens_d.sum() == pytest.approx(nll, rel=1e-6)
    if kind == "document":
        assert abs(len(documents.tokens_d) - cell.facts.documents["validation"]) <= 1
    test, test_nll = (
        read_documents(store.documents(cell.id, "test_nll"), record, "test_nll"),
        record["metrics"]["test_nll"],
    )
    assert test.kind == kind
    assert test.tokens_d.sum() == record["evaluations"]["test"]["evaluated_tokens"]
    assert test.nll_d.sum() / test.tokens_d.sum() == pytest.approx(test_nll, rel=1e-6)
    assert "clusters" not in record["evaluations"]["test"]


def test_rows_drawn_for_evaluation_are_part_of_the_id() -> None:
    def cell(tokens: int) -> str:  # 8 rows of 1,000 tokens, of which most are padding
        return check(override(RUN, {"data": rows(0.2), "data.context": 1000, "evaluate": {"tokens": tokens}})).id

    assert cell(8000) == cell(10**6) != cell(7999), "7 rows are another measurement"

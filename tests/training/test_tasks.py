"""Tasks of lm-evaluation-harness: against direct computation with the model, in records, ids and messages."""

import importlib.util
import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from helpers import RUN, Capture, Patch
from messages import CheckMessage, RefusedCommand
from small_runs import train_cell

from lm.cli import main
from lm.config.tree import InputError, Tree, override
from lm.store.documents import read_documents
from lm.store.store import Store
from lm.training.cell import check
from lm.training.evaluate import TrainedCell
from lm.training.train import UNEVALUATED

pytestmark = [
    pytest.mark.slow,
    pytest.mark.extra,
    pytest.mark.skipif(importlib.util.find_spec("lm_eval") is None, reason="needs lm_eval: pip install '.[eval]'"),
]

CHOICE = """
task: choice
dataset_path: json
dataset_kwargs: {{data_files: {{test: {folder}/choice.jsonl}}}}
test_split: test
output_type: multiple_choice
doc_to_text: "{{{{text}}}}"
doc_to_choice: [")", "]", "}}:"]
doc_to_target: gold
target_delimiter: ""
metric_list: [{{metric: acc}}, {{metric: acc_norm}}]
"""
WRITE = """
task: write
dataset_path: json
dataset_kwargs: {{data_files: {{test: {folder}/choice.jsonl}}}}
test_split: test
output_type: generate_until
doc_to_text: "{{{{text}}}}"
doc_to_target: "e"
generation_kwargs: {{until: ["\\n", "q"], max_gen_toks: 6}}
metric_list: [{{metric: exact_match}}]
"""
TEXTS = [
    f"{name} = {other}{opening}" for name in ("x", "value", "self.first_name") for other in "ab" for opening in "([{"
]


@pytest.fixture
def tasks(tmp_path: Path, monkeypatch: Patch) -> Path:
    """A folder with two tasks and their items, apart from the data sets of other tests."""
    monkeypatch.setattr("datasets.config.HF_DATASETS_CACHE", tmp_path / "datasets")
    rows = [{"text": text, "gold": index % 3} for index, text in enumerate(TEXTS)]
    (tmp_path / "choice.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    for name, content in (("choice", CHOICE), ("write", WRITE)):
        (tmp_path / f"{name}.yaml").write_text(content.format(folder=tmp_path))
    return tmp_path


def requests(*arguments: tuple[Any, ...]) -> list[Any]:
    """What the harness asks a model for."""
    return [SimpleNamespace(args=one) for one in arguments]


def directly(model: Any, before: list[int], after: list[int], context: int) -> tuple[float, bool]:
    """The log-likelihood of an answer, a token at a time."""
    total, greedy, row = 0.0, True, before + after
    start = max(0, len(row) - context - 1)
    for place in range(len(before), len(row)):
        with torch.no_grad():
            logits_v = model(torch.tensor([row[start:place]]))[0, -1]
        total += float(logits_v[row[place]] - logits_v.exp().sum().log())
        greedy = greedy and int(logits_v.argmax()) == row[place]
    return total, greedy


WITH_END: Tree = {"data.tokenizer": {"class_path": "BPE", "init_args": {"size": 300}}}  # which has an end of text


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> TrainedCell:
    """A model in float64."""
    cell, _, folder = train_cell(tmp_path_factory.mktemp("trained"), WITH_END)
    return TrainedCell(cell, folder / "last.ckpt")


def test_log_likelihoods_are_those_of_the_model(trained: TrainedCell) -> None:
    from lm.training.harness.tasks import HarnessModel

    model = HarnessModel(trained)
    pairs = [
        ("x = (", ")"),
        ("", "def"),
        ("a longer text than the context holds ", "in it"),
        ("x ", "y"),
        ("y = [", "]"),
    ]
    found = model.loglikelihood(requests(*pairs))
    for (context, answer), (total, greedy) in zip(pairs, found, strict=True):
        before = model.tok_encode(context.rstrip())  # the spaces belong to the answer
        after = model.tok_encode(context + answer)[len(before) :]
        expected = directly(trained.model, before or [model.eot_token_id], after, 16)
        assert total == pytest.approx(expected[0], abs=1e-12)
        assert greedy == expected[1]
    short, text = "def f(x):", "def f(x): return x + 1\n\nprint(f(2))"
    whole, windows = model.loglikelihood_rolling(requests((short,), (text,)))
    assert whole == pytest.approx(
        directly(trained.model, [model.eot_token_id], model.tok_encode(short), 16)[0], abs=1e-12
    )
    ids, expected_sum = [model.eot_token_id, *model.tok_encode(text)], 0.0
    expected_sum += directly(trained.model, ids[:1], ids[1:17], 16)[0]
    for place in range(17, len(ids), 16):  # each window is predicted after one token, as in the harness's own model
        end = min(place + 16, len(ids))
        expected_sum += directly(trained.model, ids[end - 17 : place], ids[place:end], 16)[0]
    assert windows == pytest.approx(expected_sum, abs=1e-12)


def test_generation_takes_the_likeliest_token_up_to_a_stop(trained: TrainedCell) -> None:
    from lm.training.harness.tasks import HarnessModel

    model = HarnessModel(trained)
    prompt, steps = "a prompt longer than the context", 6
    ids = model.tok_encode(prompt)[-10:]
    for _ in range(steps):
        with torch.no_grad():
            ids.append(int(trained.model(torch.tensor([ids]))[0, -1].argmax()))
    text = bytes(b for token in ids[10:] for b in model.bytes[token]).decode(errors="replace")
    (free,) = model.generate_until(requests((prompt, {"until": [], "max_gen_toks": steps})))
    assert free == text
    (stopped,) = model.generate_until(requests((prompt, {"until": [text[2]], "max_gen_toks": steps})))
    assert stopped == text[: text.index(text[2])]


def test_an_experiments_cells_are_measured(tasks: Path, tmp_path: Path) -> None:
    files = [str(tasks / "choice.yaml"), str(tasks / "write.yaml")]
    cell, record, folder = train_cell(tmp_path, {"evaluate.tasks": files})
    trained, measured = TrainedCell(cell, folder / "last.ckpt"), record["evaluations"]["tasks"]
    right = []
    for index, text in enumerate(TEXTS):
        before = list(text.encode())
        totals = [directly(trained.model, before, list(answer.encode()), 16)[0] for answer in (")", "]", "}:")]
        right.append(float(np.argmax(totals) == index % 3))
    scores_d = read_documents(folder / "acc@choice.npz", record, "acc@choice").nll_d
    assert scores_d.tolist() == right
    assert record["metrics"]["acc@choice"] == pytest.approx(np.mean(right))
    error = measured["choice"]["metrics"]["acc"]["stderr"]
    assert error == pytest.approx(np.std(right, ddof=1) / len(right) ** 0.5)
    assert set(record["metrics"]) >= {"acc@choice", "acc_norm@choice", "exact_match@write"}
    assert measured["write"]["items"] == len(TEXTS)
    assert not [flag for flag in record["flags"] if flag.startswith(UNEVALUATED)]
    assert Store(tmp_path).record(cell.id, needed=True)["metrics"] == record["metrics"]


def test_examples_before_an_item_are_the_same_for_every_run(tasks: Path, trained: TrainedCell) -> None:
    from lm.training.harness.tasks import load_tasks, measure_tasks, resolve_tasks

    path = tasks / "examples.yaml"
    path.write_text(CHOICE.format(folder=tasks) + "num_fewshot: 2\nfewshot_split: test\n")
    nodes, prompts = resolve_tasks([str(path)], None, 16), []
    for _ in range(2):
        measure_tasks(trained, nodes, None)
        prompts.append([request.args for request in load_tasks(str(path), None)["choice"].instances])
    assert prompts[0] == prompts[1]
    assert len({prompt[:20] for prompt, _ in prompts[0]}) > 1, "examples are drawn"


def test_ids_hold_what_is_computed_wherever_it_lies(tasks: Path, tmp_path: Path) -> None:
    def id_of(changes: Tree) -> str:
        return check(override(RUN, changes)).id

    plain, choice = id_of({}), tasks / "choice.yaml"
    measured = id_of({"evaluate.tasks": [str(choice)]})
    assert len({plain, measured, id_of({"evaluate": {"tasks": [str(choice)], "limit": 5}})}) == 3
    assert measured == id_of({"evaluate": {"tasks": [str(choice)], "limit": 500}}), "there are fewer items"
    moved = tmp_path / "moved"
    moved.mkdir()
    (moved / "choice.jsonl").write_text((tasks / "choice.jsonl").read_text())
    (moved / "other.yaml").write_text("# moved\n" + CHOICE.format(folder=moved))
    assert measured == id_of({"evaluate.tasks": [str(moved / "other.yaml")]})
    (moved / "third.yaml").write_text(CHOICE.format(folder=moved).replace('"]"', '"];"'))
    assert measured != id_of({"evaluate.tasks": [str(moved / "third.yaml")]})


def test_a_finished_run_is_measured(tasks: Path, tmp_path: Path, capsys: Capture) -> None:
    _, before, folder = train_cell(tmp_path)
    assert main(["evaluate", str(folder), "--tasks", str(tasks / "choice.yaml"), "--limit", "7"]) == 0
    shown = capsys.readouterr().out
    record = Store(tmp_path).record(folder.name)
    assert record["evaluations"]["tasks"]["choice"]["items"] == 7
    for text in ("acc@choice", "standard error", f"{record['metrics']['acc@choice']:.4f}"):
        assert text in shown
    assert {k: v for k, v in record["metrics"].items() if "@" not in k} == before["metrics"]
    assert main(["evaluate", str(folder), "--tasks", str(tasks / "write.yaml"), "--lengths", "4"]) == 0
    record = Store(tmp_path).record(folder.name)
    assert {"acc@choice", "exact_match@write", "nll@4"} <= set(record["metrics"])
    assert set(record["items"]) == {"acc@choice", "acc_norm@choice", "exact_match@write"}


def test_what_is_wrong_is_said_in_a_line(
    tasks: Path, tmp_path: Path, monkeypatch: Patch, capsys: Capture, refused_command: RefusedCommand
) -> None:
    _, _, folder = train_cell(tmp_path)
    (tasks / "list.yaml").write_text("- a list\n")
    remote = CHOICE.format(folder=tasks).replace("dataset_path: json", "dataset_path: nobody/nothing")
    (tasks / "remote.yaml").write_text(remote.replace("task: choice", "task: remote"))
    (tasks / "long.yaml").write_text(WRITE.format(folder=tasks).replace("max_gen_toks: 6", "max_gen_toks: 16"))
    sampled = WRITE.format(folder=tasks).replace("max_gen_toks: 6", "max_gen_toks: 6, temperature: 0.5")
    (tasks / "random.yaml").write_text(sampled)
    monkeypatch.setattr("datasets.config.HF_HUB_OFFLINE", True)
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    for name in ("chioce", "long", "random"):
        refused_command(["evaluate", folder, "--tasks", tasks / f"{name}.yaml"])
    for name, key in (("list", "list.yaml"), ("remote", "nobody/nothing")):
        assert main(["evaluate", str(folder), "--tasks", str(tasks / f"{name}.yaml")]) == 2
        (line,) = capsys.readouterr().err.splitlines()  # with the reason in the words of the harness
        assert key in line
    refused_command(["evaluate", folder, "--limit", 3])
    cell, _, planned = train_cell(tmp_path, {"evaluate.tasks": [str(tasks / "choice.yaml")]})
    assert cell.id == planned.name
    refused_command(["evaluate", planned, "--tasks", tasks / "choice.yaml", "--limit", 3])


def test_an_unknown_name_has_its_nearest(monkeypatch: Patch, check_message: CheckMessage) -> None:
    import lm_eval

    from lm.training.harness import tasks as module

    monkeypatch.setattr(module, "_harness", lambda: SimpleNamespace(all_tasks=["arc_easy", "hellaswag"]))
    with pytest.raises(InputError) as caught:
        module.resolve_tasks(["arc_eazy"], None, 16)
    check_message(str(caught.value).replace(lm_eval.__version__, "VERSION"))


def test_it_agrees_with_the_harnesss_own_model(tmp_path: Path) -> None:
    pytest.importorskip("accelerate", reason="the harness's own model needs it: pip install accelerate")
    transformers = pytest.importorskip("transformers", reason="needs transformers: pip install '.[hf]'")
    from lm_eval.models.huggingface import HFLM

    import lm.inference.registered  # noqa: F401
    from lm.training.harness.tasks import HarnessModel

    cell, _, folder = train_cell(tmp_path, WITH_END | {"trainer.precision": "32-true"})
    assert main(["export", str(folder), "--to", str(tmp_path / "exported")]) == 0
    theirs = HFLM(
        pretrained=transformers.AutoModelForCausalLM.from_pretrained(tmp_path / "exported"),
        tokenizer=transformers.AutoTokenizer.from_pretrained(tmp_path / "exported"),
        max_length=16,
        device="cpu",
    )
    ours = HarnessModel(TrainedCell(cell, folder / "last.ckpt"))
    pairs = requests(*((text, answer) for text in TEXTS for answer in (")", "]", "}:")))
    for (a, greedy), (b, likeliest) in zip(
        ours.loglikelihood(pairs), theirs.loglikelihood(pairs, disable_tqdm=True), strict=True
    ):
        assert a == pytest.approx(b, rel=1e-5)
        assert greedy == likeliest
    prompts = requests(*((text, {"until": ["\n"], "max_gen_toks": 6}) for text in TEXTS))
    assert ours.generate_until(prompts) == theirs.generate_until(prompts, disable_tqdm=True)

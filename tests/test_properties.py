"""What is made up of everything that a file may hold is refused in one line or accepted; what is accepted makes sense.

Each kind of file has a strategy that damages a valid one, and a property. Hypothesis draws the cases, always the same,
and makes one that fails as small as it can. Command lines are tried in tests/cli/test_fuzz.py.
"""

import copy
import gzip
import io
import itertools
import json
import math
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import fuzz
import optuna
import pandas as pd
import pytest
import torch
import yaml
from cases import SHARES, share
from helpers import RUN, Listed, joined
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from records import record

import lm
from lm.ablation.experiment import load_experiment
from lm.analysis.results import load
from lm.config.components import build, resolve
from lm.config.plain import find_unusable
from lm.config.tree import InputError, load_yaml, override, run_id
from lm.data.corpus import LocalText, fingerprint
from lm.data.splits import SplitText
from lm.data.tokenizer import Bytes, Characters
from lm.inference.finished import FinishedRun
from lm.model.transformer import Model
from lm.report.study import best_section, load_study, notes
from lm.search.spec import load_sweep
from lm.store.files import to_json
from lm.store.formats import MANIFEST
from lm.store.store import Store
from lm.training.run import RunConfig

SCALARS = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(),
    st.integers(-3, 12),
    st.floats(),
    st.text(max_size=12),
    st.sampled_from(fuzz.HOSTILE),
)
VALUES = st.one_of(
    SCALARS,
    st.lists(SCALARS, max_size=4),
    st.dictionaries(st.text(max_size=8) | st.sampled_from(fuzz.PATHS), SCALARS),
    st.sampled_from(fuzz.LARGE),
)
DAMAGES = st.lists(
    st.tuples(st.integers(0, 400), st.sampled_from(("set", "set", "set", "drop", "key", "path")), VALUES), max_size=3
)
"""What is done to a tree: at a place of it, counted in its order, a value is set, dropped, or another key is added."""


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty folder, which is the current one, with what configurations name."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "text.txt").write_text(fuzz.TEXT)
    (tmp_path / "base.yaml").write_bytes(fuzz.written("base.yaml", fuzz.BASE))
    optuna.logging.set_verbosity(optuna.logging.ERROR)
    return tmp_path


# properties ----------------------------------------------------------------------------------------------------------


def a_configuration_is_its_own_resolution(place: Path, changes: dict[str, Any]) -> None:
    tree = override(fuzz.BASE, changes)
    if problem := find_unusable(tree):
        raise InputError(problem)
    resolved = resolve(tree, RunConfig)
    assert resolve(copy.deepcopy(resolved), RunConfig) == resolved
    assert run_id(json.loads(json.dumps(resolved))) == run_id(resolved)
    (place / "resolved.yaml").write_text(yaml.safe_dump(resolved, sort_keys=False), encoding="utf-8")
    assert load_yaml(place / "resolved.yaml") == resolved
    assert isinstance(build(resolved, RunConfig), RunConfig)


def an_experiment_has_a_baseline_arms_and_seeds(place: Path, tree: Any) -> None:
    (place / "made.yaml").write_bytes(fuzz.written("made.yaml", tree))
    found = load_experiment(place / "made.yaml", {})
    assert found.baseline in found.arms
    assert found.seeds
    assert len(set(found.seeds)) == len(found.seeds)
    assert all(type(seed) is int and 0 <= seed < 2**64 for seed in found.seeds)
    assert all(isinstance(arm, str) and isinstance(changes, dict) for arm, changes in found.arms.items())
    assert load_experiment(place / "made.yaml", {}) == found


def a_search_draws_what_its_space_holds(place: Path, tree: Any) -> None:
    (place / "made.yaml").write_bytes(fuzz.written("made.yaml", tree))
    spec = load_sweep(place / "made.yaml", {})
    assert spec.trials >= 1
    json.dumps(spec.space.described(), allow_nan=False)
    study = optuna.create_study(sampler=optuna.samplers.RandomSampler(seed=0))
    for _ in range(3):
        drawn = spec.space.suggest(study.ask())
        assert find_unusable(drawn) in ("", None)
        for dimension in spec.space.dimensions:
            low, high = getattr(dimension.values, "low", None), getattr(dimension.values, "high", None)
            if low is not None and high is not None:
                assert low <= drawn[dimension.path] <= high


def results_are_tables_of_numbers(folder: Path) -> None:
    found = lm.load(folder)
    assert not found.cells.value.map(lambda value: isinstance(value, float) and math.isinf(value)).any()
    assert set(found.comparisons.arm) <= set(found.arms)
    assert str(found)


def a_record_is_damaged_or_read(place: Path, tree: Any) -> None:
    store = Store(place / "out")
    store.directory("b-1").mkdir(parents=True, exist_ok=True)
    (store.directory("b-1") / "record.json").write_bytes(fuzz.written("record.json", tree))
    results_are_tables_of_numbers(place / "out" / "demo")
    if load(place / "out" / "demo").records["b", 1] is not None:
        assert store.record("b-1") == json.loads(json.dumps(store.record("b-1"), allow_nan=False))


def a_manifest_is_refused_or_read(place: Path, drawn: tuple[str, Any]) -> None:
    kind, tree = drawn
    folder = place / "out" / f"made-{kind}"
    folder.mkdir(exist_ok=True)
    (folder / f"{kind}.json").write_bytes(fuzz.written(f"{kind}.json", tree))
    if kind == "experiment":
        results_are_tables_of_numbers(folder)
        return
    study = load_study(folder)
    assert isinstance(notes(study), list)
    assert best_section(study)


def a_checkpoint_gives_its_weights_or_none(place: Path, damage: tuple[float, int, bytes]) -> None:
    whole = (place / "whole.ckpt").read_bytes()
    where, length, instead = damage
    start = int(where * len(whole))
    (place / "last.ckpt").write_bytes(whole[:start] + instead + whole[start + length :])
    found = FinishedRun(place, record("a-0", 2.0, 0), json.loads((place / "config.json").read_text()))
    kind: Any = Model
    state, kept = found.model(kind, "a {} is no model").state_dict(), torch.load(place / "whole.ckpt")["state_dict"]
    assert state.keys() == {name.removeprefix("model.") for name in kept}
    assert all(torch.equal(value, kept[f"model.{name}"]) for name, value in state.items())


def a_text_loses_nothing_on_its_way(place: Path, drawn: tuple[bytes, str, str, str]) -> None:
    content, ending, field, document = drawn
    for old in place.glob("corpus*"):
        old.unlink()
    path = place / f"corpus{ending}"
    path.write_bytes(content)
    corpus: Any = LocalText
    documents = list(corpus(str(path), field, document).documents())
    assert all(isinstance(one, str) for one in documents)
    if not ending.startswith((".jsonl", ".parquet")):
        whole = gzip.decompress(content) if ending.endswith(".gz") else content
        assert "".join(documents).encode() == whole
    kept = [one for one in documents if one]
    if not kept:
        return
    text = SplitText(Listed(kept), (0.8, 0.1, 0.1))
    splits = joined(text)
    assert "".join(itertools.chain.from_iterable(splits.values())) == "".join(kept)
    assert fingerprint(splits) == text.facts().fingerprint
    for tokenizer in (Characters().train(kept), Bytes().train(kept)):
        for one in kept[:3]:
            assert tokenizer.decode(tokenizer.encode(one).ids) == one


# strategies ----------------------------------------------------------------------------------------------------------


def packed(content: bytes, ending: str) -> bytes:
    return gzip.compress(content, mtime=0) if ending.endswith(".gz") else content


def parquet(texts: list[str], field: str) -> bytes:
    file = io.BytesIO()
    pd.DataFrame({field: texts}).to_parquet(file)
    return file.getvalue()


@st.composite
def corpora(draw: Any) -> tuple[bytes, str, str, str]:
    """The content of a file, how its name ends, the field of its texts, and what a document is."""
    ending, field = draw(st.sampled_from((".txt", ".txt.gz", ".jsonl", ".jsonl.gz", ".parquet", ".md"))), "text"
    texts = draw(st.lists(st.text(max_size=30), max_size=6))
    if ".jsonl" in ending:
        content = "\n".join(json.dumps(draw(st.just({field: one}) | VALUES)) for one in texts).encode()
    elif ending == ".parquet":
        content = parquet(
            [one.encode("utf-8", "replace").decode() for one in texts], draw(st.just(field) | st.just("b"))
        )
    else:
        content = draw(st.just("\n".join(texts).encode("utf-8", "surrogatepass")) | st.binary(max_size=60))
    content = packed(content, ending)
    if draw(st.integers(0, 4)) == 0:
        start = draw(st.integers(0, len(content)))
        content = content[:start] + draw(st.binary(max_size=4)) + content[start + draw(st.integers(0, 8)) :]
    return content, ending, field, draw(st.sampled_from(("file", "line", "paragraph")))


def trees(*valid: Any) -> st.SearchStrategy[Any]:
    """Return a strategy of damaged copies of valid trees."""
    return st.builds(fuzz.damaged, st.sampled_from(valid), DAMAGES)


PLAUSIBLE = st.fixed_dictionaries(
    {},
    optional={
        "seed": st.integers(0, 2**32 - 1),
        "optim.lr": st.floats(1e-6, 1.0),
        "optim.optimizer": st.sampled_from(("AdamW", "SGD", "Lion", "Muon")),
        "model.width": st.integers(1, 16),
        "model.heads": st.integers(1, 4),
        "model.layers": st.integers(0, 3),
        "model.dropout": st.floats(-0.1, 1.1),
        "model.position": st.sampled_from(("Rope", "Alibi", "Learned", "Sinusoidal", "T5Bias")),
        "model.norm.eps": st.floats(0, 1e-3),
        "model.mlp": st.sampled_from(("GELU", "SwiGLU", "ReLU")),
        "model.attention.window": st.integers(0, 9),
        "data.context": st.integers(1, 64),
        "data.batch_size": st.integers(1, 64),
        "trainer.max_steps": st.integers(0, 10**6),
        "trainer.gradient_clip_val": st.none() | st.floats(0, 10),
    },
)
"""Changes of a configuration most of which a person might make."""

WILD: st.SearchStrategy[dict[str, Any]] = st.just({}) | st.dictionaries(
    st.sampled_from(fuzz.PATHS) | st.text(max_size=8), VALUES, max_size=2
)

WHOLE = MANIFEST.read(fuzz.MANIFEST, Path("experiment.json"))

KINDS: dict[str, tuple[st.SearchStrategy[Any], Callable[[Path, Any], None]]] = {
    "configurations": (st.builds(dict.__or__, PLAUSIBLE, WILD), a_configuration_is_its_own_resolution),
    "experiments": (trees(fuzz.EXPERIMENT, fuzz.TUNED, fuzz.DESIGNED), an_experiment_has_a_baseline_arms_and_seeds),
    "sweeps": (trees(fuzz.SWEEP), a_search_draws_what_its_space_holds),
    "records": (
        trees(record("b-1", 1.9, 1), record("b-1", "diverged", 1), record("b-1", "failed", 1)),
        a_record_is_damaged_or_read,
    ),
    "manifests": (
        st.tuples(st.just("experiment"), trees(fuzz.MANIFEST, WHOLE)) | st.tuples(st.just("study"), trees(fuzz.STUDY)),
        a_manifest_is_refused_or_read,
    ),
    "checkpoints": (
        st.tuples(st.floats(0, 1), st.sampled_from((0, 1, 8, 10**7)), st.binary(max_size=8)),
        a_checkpoint_gives_its_weights_or_none,
    ),
    "corpora": (corpora(), a_text_loses_nothing_on_its_way),
}


def prepare(place: Path) -> None:
    """What properties find in the folder: an experiment with its cells, and a checkpoint."""
    store = Store(place / "out")
    for arm in "ab":
        for seed in range(3):
            store.finish(f"{arm}-{seed}", record(f"{arm}-{seed}", 2.0 - 0.1 * seed, seed))
    (place / "out" / "demo").mkdir()
    (place / "out" / "demo" / "experiment.json").write_text(to_json(WHOLE))
    config = resolve(override(RUN, {"model.width": 4, "model.layers": 1, "trainer.precision": "32-true"}), RunConfig)
    (place / "config.json").write_text(json.dumps(config))
    model = build(config, RunConfig).model(100, 16)
    state = {f"model.{name}": value for name, value in model.state_dict().items()}
    torch.save({"state_dict": state}, place / "whole.ckpt")


def tried(strategy: st.SearchStrategy[Any], check: Callable[[Any], None], cases: int) -> None:
    """Draw so many cases and check each."""

    @settings(
        max_examples=cases,
        derandomize=True,
        database=None,
        deadline=None,
        print_blob=False,
        report_multiple_bugs=False,
        suppress_health_check=list(HealthCheck),
    )
    @given(strategy)
    def case(drawn: Any) -> None:
        check(copy.deepcopy(drawn))

    case()


@pytest.mark.extra
@pytest.mark.timeout(0)
@pytest.mark.parametrize("kind", KINDS)
def test_invented_inputs_are_refused_in_one_line_or_work(
    kind: str, place: Path, record_property: Callable[[str, object], None]
) -> None:
    prepare(place)
    strategy, holds = KINDS[kind]
    refused = list[bool]()

    def check(drawn: Any) -> None:
        lines = ["accepted"]
        try:
            with fuzz.alarm(fuzz.SECONDS), warnings.catch_warnings():
                warnings.simplefilter("ignore")
                holds(place, drawn)
        except InputError as error:
            lines = str(error).splitlines()
        except fuzz.TooSlow:
            raise AssertionError(f"took more than {fuzz.SECONDS} seconds") from None
        refused.append(lines != ["accepted"])
        assert len(lines) == 1, lines

    tried(strategy, check, share(kind))
    record_property("cases", len(refused))
    accepted = refused.count(False)
    assert len(refused) <= accepted * 20, f"only {accepted} of {len(refused)} were accepted: the strategy is too wild"


def test_the_shares_of_all_kinds_are_one() -> None:
    assert math.isclose(sum(SHARES.values()), 1)
    assert SHARES.keys() == {"commands", *KINDS}

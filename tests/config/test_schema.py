"""The JSON Schema of what files may say: true of every shipped file, and no stricter than the readers."""

import copy
import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any, TypedDict

import fuzz
import pytest
from helpers import RUN
from messages import CheckMessage, RefusedCommand

from lm.ablation.experiment import load_experiment
from lm.cli import main
from lm.cli.schema import schema
from lm.config.components import resolve
from lm.config.keys import Also, any_of, keys, required, schema_of
from lm.config.tree import InputError, Tree, load_yaml, override
from lm.search.spec import load_sweep
from lm.training.run import RunConfig

KINDS = ("configuration", "experiment", "sweep")
ROOT = Path(__file__).resolve().parents[2]
FOLDERS = {"experiments": "experiment", "experiments/bases": "configuration", "experiments/families": "configuration"}
SHIPPED = [
    (kind, path)
    for folder, kind in (FOLDERS | {"sweeps": "sweep"}).items()
    for path in sorted(ROOT.glob(f"{folder}/*.yaml"))
]
shipped = pytest.mark.parametrize(("kind", "path"), SHIPPED, ids=lambda value: getattr(value, "stem", value))

Problems = Callable[[str, Any], list[str]]


@pytest.fixture(scope="session")
def problems() -> Problems:
    """What a file of a kind does not comply with."""
    jsonschema = pytest.importorskip("jsonschema", reason="needs jsonschema, of the extra dev")
    validators = {kind: jsonschema.Draft202012Validator(schema(kind)) for kind in KINDS}
    return lambda kind, tree: [f"{one.json_path}: {one.message}"[:500] for one in validators[kind].iter_errors(tree)]


class Inner(TypedDict):
    """Another one."""

    this: Annotated[list[int], "Some numbers.", Also(minItems=1)]


class Outer(TypedDict, total=False):
    """A node."""

    inner: dict[str, Inner]
    same: "Outer"


def test_a_hint_becomes_what_it_accepts() -> None:
    nodes: dict[str, Any] = {}
    assert schema_of(int | str | None, nodes) == {"anyOf": [{"type": "integer"}, {"type": "string"}, {"type": "null"}]}
    pair = {"type": "array", "items": {"type": "integer"}, "minItems": 2, "maxItems": 2}
    assert schema_of(tuple[int, int], nodes) == pair
    assert schema_of(Path, nodes) == {"type": "string"}
    assert schema_of(int | type, nodes) == {}, "what only another library knows is any value"
    assert not nodes


def test_declared_nodes_are_collected_and_may_hold_themselves() -> None:
    nodes: dict[str, Any] = {}
    assert schema_of(Outer, nodes) == {"$ref": "#/$defs/Outer"}
    assert nodes["Inner"]["properties"]["this"] == {
        "type": "array",
        "items": {"type": "integer"},
        "minItems": 1,
        "description": "Some numbers.",
    }
    assert nodes["Outer"]["properties"]["same"] == {"$ref": "#/$defs/Outer"}
    assert keys(Outer) == ("inner", "same")
    assert required(Outer) == ()
    assert required(Inner) == ("this",)


def test_alternatives_are_said_once() -> None:
    either = {"anyOf": [{"type": "null"}, {"type": "integer"}]}
    assert any_of([{"type": "null"}, either]) == either


@pytest.mark.extra
def test_what_the_command_writes_accepts_every_shipped_file(tmp_path: Path) -> None:
    """In a process of its own: other tests may have loaded more optimisers."""
    jsonschema = pytest.importorskip("jsonschema", reason="needs jsonschema, of the extra dev")
    subprocess.run([sys.executable, "-P", "-m", "lm", "schema", "--write", str(tmp_path)], check=True, cwd=tmp_path)
    assert {path.stem for path in tmp_path.glob("*.json")} == set(KINDS)
    written = {kind: json.loads((tmp_path / f"{kind}.json").read_text(encoding="utf-8")) for kind in KINDS}
    for kind, path in SHIPPED:
        jsonschema.Draft202012Validator(written[kind]).validate(load_yaml(path))


def test_the_command_prints_the_kind_it_is_asked_for(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], refused_command: RefusedCommand
) -> None:
    assert main(["schema", "sweep"]) == 0
    assert json.loads(capsys.readouterr().out)["title"] == "lm: sweep"
    (tmp_path / "file").touch()
    refused_command(["schema", "--write", tmp_path / "file"])


@pytest.mark.parametrize("kind", KINDS)
def test_every_reference_leads_somewhere(kind: str) -> None:
    whole = schema(kind)
    references = {part.partition('"')[0] for part in json.dumps(whole).split('"$ref": "#/$defs/')[1:]}
    assert references <= whole["$defs"].keys()


@shipped
def test_every_shipped_file_complies_and_names_its_schema(kind: str, path: Path, problems: Problems) -> None:
    assert problems(kind, load_yaml(path)) == []
    first, start = path.read_text(encoding="utf-8").partition("\n")[0], "# yaml-language-server: $schema="
    assert first.startswith(start)
    assert (path.parent / first.removeprefix(start)).resolve() == ROOT / "docs" / "schema" / f"{kind}.json"


def test_what_the_readers_take_complies(problems: Problems) -> None:
    assert not any(problems("experiment", tree) for tree in (fuzz.EXPERIMENT, fuzz.TUNED, fuzz.DESIGNED))
    assert problems("sweep", fuzz.SWEEP) == problems("configuration", RUN) == []


def read(kind: str, tree: Tree, folder: Path) -> None:
    """Reads a tree as the command does. Raises InputError."""
    if kind == "configuration":
        resolve(tree, RunConfig)
        return
    (folder / "base.yaml").write_text(json.dumps(RUN), encoding="utf-8")
    (folder / "spec.yaml").write_text(json.dumps(tree), encoding="utf-8")
    load_sweep(folder / "spec.yaml", {}) if kind == "sweep" else load_experiment(folder / "spec.yaml", {})


SMALL = {
    "experiment": {"base": "base.yaml", "baseline": "a", "seeds": 6, "arms": {"a": {}, "b": {"model.norm": "RMSNorm"}}},
    "sweep": {"base": "base.yaml", "space": {"optim.lr": {"low": 1e-3, "high": 1e-2}}, "trials": 2},
    "configuration": RUN,
}

SPACE = {"optim.lr": {"low": "1e-3", "high": 1, "log": True, "step": None}}
OWN_CHOICE = {"class_path": "my.Own", "space": {"x": {"low": 0, "high": 1}}}
TAKEN: list[tuple[str, dict[str, Any]]] = [
    ("experiment", {"title": 1984, "notes": None, "claims": None, "margin": 0.1, "arms.b": None}),
    ("experiment", {"seeds": {"min": 6, "max": 12}, "common": None, "tiers": None, "secondary": ["ece", "nll@64"]}),
    ("experiment", {"common": {"model.mlp": "my_parts.Squared", "model.mlp.temperature": 3, "optim": {"lr": "1e-3"}}}),
    ("experiment", {"arms.b": {"data.corpus": {"class_path": "my.Text", "init_args": {"x": 1}}, "evaluate": None}}),
    ("sweep", {"space": SPACE, "objectives": {"ece": None}}),
    ("sweep", {"space": {"optim.schedule": {"choices": ["Constant", OWN_CHOICE]}}}),
    ("sweep", {"sampler": {"name": "cmaes", "sigma0": 0.1, "seed": 3}, "pruner": "median", "seeds": 3}),
    ("configuration", {"optim.lr": "1e-3", "evaluate": {}, "trainer.benchmark": None, "trainer.devices": [0]}),
    ("configuration", {"model.embedding": {}, "model.attention": {"class_path": "MultiHead", "init_args": None}}),
    ("configuration", {"trainer.val_check_interval": 0.5, "model.attention.scale": 2}),
]
"""Changes to a small file of each kind, all of which its reader takes."""


def changed(kind: str, changes: dict[str, Any]) -> Tree:
    tree = copy.deepcopy(SMALL[kind])
    if kind == "configuration":
        return override(tree, changes)
    for key, value in changes.items():
        name, _, inner = key.partition(".")
        if inner:
            tree[name][inner] = value
        else:
            tree[name] = value
    return tree


@pytest.mark.parametrize(("kind", "changes"), TAKEN)
def test_the_schema_refuses_nothing_that_the_reader_takes(
    kind: str, changes: dict[str, Any], tmp_path: Path, problems: Problems
) -> None:
    tree = changed(kind, changes)
    read(kind, tree, tmp_path)
    assert problems(kind, tree) == []


REFUSED: list[tuple[str, dict[str, Any]]] = [
    ("experiment", {"sedes": 6}),
    ("experiment", {"design": {"kind": "factorial", "factors": {}}}),
    ("experiment", {"seeds": {"min": 6, "max": 12, "stage": 3}}),
    ("experiment", {"seeds": 0}),
    ("experiment", {"metric": "loss"}),
    ("experiment", {"declared": {"b": ["money"]}}),
    ("experiment", {"claims": [{"claim": "so", "metric": "nll", "arm": "b", "relation": "less"}]}),
    ("experiment", {"tune": {"space": {"optim.lr": {"low": 1, "high": 2}}, "trails": 3}}),
    ("experiment", {"tiers": {"G": {"bsae": "x.yaml"}}}),
    ("sweep", {"trails": 3}),
    ("sweep", {"sampler": "tpee"}),
    ("sweep", {"sampler": {"name": "tpe", "sigma0": 1.0}}),
    ("sweep", {"space": {"optim.lr": {"low": 1.0e-3}}}),
    ("sweep", {"objectives": {"nll": "smaller"}}),
    ("configuration", {"optim.lrr": 0.1}),
    ("configuration", {"model.position": "Rpoe"}),
    ("configuration", {"model.position": {"class_path": "Rope", "init_args": {"bse": 3}}}),
    ("configuration", {"model.width": "wide"}),
    ("configuration", {"trainer.max_stesp": 3}),
    ("configuration", {"seeed": 3}),
]
"""Changes that make it wrong, which an editor is to show."""


@pytest.mark.parametrize(("kind", "changes"), REFUSED)
def test_schema_and_reader_refuse_the_same_mistakes(
    kind: str, changes: dict[str, Any], tmp_path: Path, problems: Problems
) -> None:
    tree = changed(kind, changes)
    with pytest.raises(InputError):
        read(kind, tree, tmp_path)
    assert problems(kind, tree) != []


def test_mistakes_in_an_arm_are_found(problems: Problems) -> None:
    wrong = dict.fromkeys(("optim.lrr", "trainer.max_stesp", "modle.norm", "evaluate.legnths"), 1)
    for path, value in {**wrong, "model.position": "Rpoe", "optim.lr": [1]}.items():
        assert problems("experiment", changed("experiment", {"arms.b": {path: value}})) != [], path


def test_options_have_description_and_default(check_message: CheckMessage) -> None:
    nodes = schema("configuration")["$defs"]
    stretch = nodes["Position.RopeYarn"]["properties"]["stretch"]
    assert stretch["default"] == 2.0
    assert stretch["description"]
    told = [("Optimizer.AdamW", "weight_decay"), ("Trainer", "max_steps")]
    check_message([nodes[name]["properties"][option]["description"] for name, option in told])
    assert "heads" in nodes["Model.Decoder"]["required"]

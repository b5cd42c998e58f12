"""What a configuration may hold, on the real root and on classes a user might bring."""

import json
import os
import shutil
import subprocess
import sys
import typing
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import yaml
from helpers import RUN
from messages import CheckMessage, Refused
from torch import nn

import lm
from lm.config.choices import Slot, choices, slot_of
from lm.config.components import build, describe, plain_options, resolve
from lm.config.tree import InputError, Tree, load_yaml, override, run_id
from lm.model.norm import Norm
from lm.model.position import Position
from lm.model.shape import Shape
from lm.training.optim import MuonAdamW
from lm.training.run import RunConfig
from lm.training.schedule import WarmupCosine

BASE = load_yaml(Path(__file__).resolve().parents[2] / "experiments" / "bases" / "char_tiny.yaml")


def resolved(changes: dict[str, Any] | None = None) -> Tree:
    return resolve(override(BASE, changes or {}), RunConfig)


def at(config: Tree, path: str) -> Any:
    """What stands at `path`, `init_args` left out of it as in an override."""
    node: Any = config
    for name in path.split("."):
        node = (node["init_args"] if "class_path" in node else node)[name]
    return node


def refusal(changes: dict[str, Any]) -> str:
    """The one line with which a configuration is refused."""
    with pytest.raises(InputError) as caught:
        build(resolved(changes), RunConfig)
    assert "\n" not in str(caught.value)
    return str(caught.value)


@pytest.fixture
def brought(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """The name of a module of a user's own with components in it."""
    source = """
from pathlib import Path

from lm.model.position import Position
from lm.model.shape import Shape
from lm.training.schedule import Schedule


class Spiral(Position):
    def __init__(self, shape: Shape, turns: float, tables: dict[str, tuple[int, int]] = {"a": (1, 2)},
                 pairs: list[tuple[int, int]] = [(3, 4)]) -> None:
        super().__init__()
        self.turns = turns


class Filed(Position):
    def __init__(self, shape: Shape, file: Path = Path("x")) -> None:
        super().__init__()


class Rope(Position):
    def __init__(self, shape: Shape, base: float = 3.0) -> None:
        super().__init__()


class Scaled(Position):
    def __init__(self, shape: Shape, scale: float = 1.0, scale_residual: int = 1) -> None:
        super().__init__()


class Halved(Schedule):
    def __init__(self, every: int = 1) -> None:
        if every < 1:
            raise ValueError(f"every={every}\\nmust be at least 1")

    def factor(self, t: int, total: int) -> float:
        return 0.5


"""
    name = f"brought_{tmp_path.name.replace('-', '_')}"
    (tmp_path / f"{name}.py").write_text(source)
    monkeypatch.syspath_prepend(tmp_path)
    return name


# refusing


@pytest.mark.parametrize("path", ["model.position", "model.position.class_path"])
def test_wrong_names_are_answered_with_choices(refused: Refused, path: str) -> None:
    with refused():
        build(resolved({path: "Rpoe"}), RunConfig)


@pytest.mark.parametrize(
    "path",
    [
        "model.positon",
        "data.seed",
        "modle.width",
        "model.position.bse",
        "optim.optimizer.beta",
        "trainer.max_stesp",
        "data.tokenizer.size",
    ],
)
def test_wrong_keys_are_answered_with_the_nearest(check_message: CheckMessage, path: str) -> None:
    message = refusal({path: 1})
    of_library = path.startswith(("optim.optimizer", "trainer"))
    check_message(message.partition(" It takes ")[0] if of_library else message)


@pytest.mark.parametrize(
    "changes",
    [
        {"trainer.max_steps": "many"},
        {"seed": 1.5},
        {"seed": -1},
        {"model.embedding.tied": 3},
        {"optim": [1]},
        {"optim.lr": "fast"},
        {"optim.lr": -1},
        {"optim.schedule.final": 2},
        {"data.split": [0.9, 0.1]},
        {"data.evaluation_batch_size": "x"},
        {"data.corpus.size": 0},
        {"model.mlp.approximate": "tahn"},
        {"model.attention.scale": "1/sqrt(dk)"},
        {"model.position": {"class_path": "Rope", "base": 3}},
        {"model.position": "json.JSONDecoder"},
        {"model.position": "json.dumps"},
        {"model.position": "lm.training.schedule.Constant"},
        {"model.position": "no_such_module.X"},
        {"model.position": "json.Nothing"},
        {"optim.schedule": "lm.training.schedule.Schedule"},
    ],
    ids=str,
)
def test_wrong_values_are_refused_in_one_line(refused: Refused, changes: dict[str, Any]) -> None:
    with refused():
        build(resolved(changes), RunConfig)


@pytest.mark.parametrize("path", ["seed", "optim.lr", "model.position", "data.corpus", "trainer"])
def test_a_setting_without_a_default_is_asked_for(refused: Refused, path: str) -> None:
    tree = override(BASE, {})
    above, _, name = path.rpartition(".")
    section = at(tree, above) if above else tree
    del (section["init_args"] if "class_path" in section else section)[name]
    with refused():
        resolve(tree, RunConfig)


@pytest.mark.parametrize("value", [3, ["Rope"], {"base": 3}, None], ids=str)
def test_components_without_class_name_are_answered_with_choices(refused: Refused, value: object) -> None:
    with refused():
        build(resolved({"model.position": value}), RunConfig)


def test_a_constructor_of_a_users_own_refuses_in_one_line(brought: str, check_message: CheckMessage) -> None:
    change = {"optim.schedule": {"class_path": f"{brought}.Halved", "init_args": {"every": 0}}}
    check_message(refusal(change).replace(brought, "own"))


def test_options_with_a_common_prefix_are_told_apart(brought: str, refused: Refused) -> None:
    options = {"scale": 1.0, "scale_residual": "x"}
    with refused():
        build(resolved({"model.position": {"class_path": f"{brought}.Scaled", "init_args": options}}), RunConfig)


# finding


def test_user_classes_are_found_by_dotted_path(brought: str) -> None:
    node = {"class_path": f"{brought}.Spiral", "init_args": {"turns": 2}}
    config = resolved({"model.position": node})
    assert at(config, "model.position")["class_path"] == f"{brought}.Spiral"
    position = build(config, RunConfig).model.keywords["position"](Shape(5, 4, 8, 2, 1))
    assert (type(position).__name__, type(position).__module__, position.turns) == ("Spiral", brought, 2.0)


def test_user_classes_do_not_shadow_built_in_ones(brought: str) -> None:
    own, ours = resolved({"model.position": f"{brought}.Rope"}), resolved({"model.position": "Rope"})
    assert at(own, "model.position") == {"class_path": f"{brought}.Rope", "init_args": {"base": 3.0}}
    assert at(ours, "model.position") == {"class_path": "Rope", "init_args": {"base": 10000.0}}
    assert choices(Position)["Rope"].__module__.startswith("lm.")


def test_one_class_has_one_name_however_it_was_given() -> None:
    dotted = f"{choices(Position)['Rope'].__module__}.Rope"
    names = ["Rope", dotted, {"class_path": "Rope"}, {"class_path": "Rope", "init_args": None}]
    assert len({run_id(resolved({"model.position": name})) for name in names}) == 1


NEW = {
    "model/cubed.py": "from lm.model.mlp import MLP\n\nclass Cubed(MLP):\n    activation = lambda self, x: x**3\n",
    "data/my_text.py": "from lm.data.corpus import Corpus, StdlibText\n\nclass MyText(StdlibText):\n    pass\n",
    "training/slow.py": "import torch\n\nclass SlowSGD(torch.optim.SGD):\n    pass\n",
    "model/cubed copy.py": "no Python",  # what an editor leaves is no module
}


@pytest.mark.extra
def test_classes_in_new_files_are_found(tmp_path: Path, check_message: CheckMessage) -> None:
    folder = tmp_path / "lm"
    shutil.copytree(Path(lm.__file__).parent, folder)  # with what is compiled of it
    for name, content in NEW.items():
        (folder / name).write_text(content)
    (tmp_path / "run.yaml").write_text(yaml.safe_dump(RUN))
    environment = {**os.environ, "PYTHONPATH": str(tmp_path)}

    def lm_command(*arguments: str) -> tuple[int, str, str]:
        command = [sys.executable, "-m", "lm", *arguments]
        done = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True)
        return done.returncode, done.stdout, done.stderr

    kinds = {
        kind: [member["name"] for member in members]
        for kind, members in json.loads(lm_command("list", "--json")[1]).items()
    }
    assert "Cubed" in kinds["model.mlp"]
    assert "MyText" in kinds["data.corpus"]
    assert "SlowSGD" in kinds["optim.optimizer"]
    chosen = ["--model.mlp", "Cubed", "--data.corpus.class_path", "MyText", "--optim.optimizer", "SlowSGD"]
    assert lm_command("count", "run.yaml", *chosen)[0] == 0
    (folder / "model" / "broken.py").write_text("\nunknown\n")
    code, out, said = lm_command("count", "run.yaml")
    assert (code, out) == (2, "")
    check_message(said)


def test_choices_are_the_concrete_public_subclasses_of_the_package() -> None:
    classes = choices(Position)
    assert list(classes) == sorted(classes)
    assert {"Alibi", "Learned", "NoPosition", "Rope", "Sinusoidal"} <= classes.keys()
    assert all(issubclass(cls, Position) and cls is not Position for cls in classes.values())
    assert all(cls.__module__.startswith("lm.") for cls in classes.values())
    assert choices(torch.optim.Optimizer)["MuonAdamW"] is MuonAdamW
    config = resolved({"optim.optimizer": "lm.training.optim.MuonAdamW"})
    assert config["optim"]["optimizer"]["class_path"] == "MuonAdamW"


@pytest.mark.parametrize(
    ("hint", "slot"),
    [
        (int, None),
        (str | int, None),
        (list[int], None),
        (Path, None),
        (WarmupCosine, Slot(WarmupCosine, 0)),
        (WarmupCosine | None, Slot(WarmupCosine, 0, optional=True)),
        (WarmupCosine | int, None),
        (Callable[[int, int], Position], Slot(Position, 2)),
        (Callable[..., Position], None),
        (typing.Callable, None),
        (Callable[[int], int], None),
    ],
)
def test_parameters_typed_as_classes_are_components(hint: Any, slot: Slot | None) -> None:
    assert slot_of(hint) == slot


def test_a_type_is_described_in_words(check_message: CheckMessage) -> None:
    check_message([describe(hint) for hint in (int | None, list[str], tuple[float, float])])


# filling in


def test_every_default_is_filled_in() -> None:
    config = resolved({"optim.schedule": "WarmupCosine", "optim.optimizer": "AdamW", "model.position": "Rope"})
    assert at(config, "optim.schedule") == {"class_path": "WarmupCosine", "init_args": {"warmup": 100, "final": 0.1}}
    assert at(config, "model.position") == {"class_path": "Rope", "init_args": {"base": 10000.0}}
    betas = torch.optim.AdamW([torch.zeros(1, requires_grad=True)]).defaults["betas"]
    assert at(config, "optim.optimizer.betas") == list(betas)
    assert at(config, "trainer.accumulate_grad_batches") == 1
    assert at(config, "data.evaluation_batch_size") is None


def test_numbers_are_converted_to_the_declared_type() -> None:
    assert type(resolved({"optim.lr": 1})["optim"]["lr"]) is float
    assert resolved({"optim.lr": "3e-4"})["optim"]["lr"] == 3e-4  # YAML 1.1 wants 3.0e-4
    assert run_id(resolved({"model.position.base": 500})) == run_id(resolved({"model.position.base": 500.0}))
    assert run_id(resolved({"model.position": "Rope"})) == run_id(resolved({"model.position.base": 10000}))


def test_an_option_added_later_is_named_only_where_set() -> None:
    class Older(nn.Module):
        def __init__(self, size: int = 1) -> None:
            super().__init__()

    class Newer(Older):
        ADDED = ("gate", "norm")

        def __init__(self, size: int = 1, gate: bool = False, norm: Callable[[Shape], Norm] | None = None) -> None:
            super().__init__(size)

    assert resolve({}, Newer) == resolve({"gate": False, "norm": None}, Newer) == resolve({}, Older) == {"size": 1}
    assert resolve({"gate": True}, Newer) == {"gate": True, "size": 1}
    assert resolve({"norm": "NoNorm"}, Newer) == {"norm": {"class_path": "NoNorm", "init_args": {}}, "size": 1}
    assert build(resolve({}, Newer), Newer)


@pytest.mark.parametrize("node", [{}, {"class_path": "Spiral", "init_args": {"turns": 1}}, {"class_path": "Filed"}])
def test_a_resolved_configuration_survives_json(brought: str, node: Tree) -> None:
    before = json.dumps(BASE)
    config = resolved({"model.position": {**node, "class_path": f"{brought}.{node['class_path']}"}} if node else {})
    assert resolve(json.loads(json.dumps(config)), RunConfig) == config
    assert json.loads(json.dumps(config)) == config
    assert json.dumps(BASE) == before


def test_the_settings_that_the_program_fixes_are_not_offered() -> None:
    trainer = resolved()["trainer"]
    assert not {"recorder", "logger", "max_epochs", "enable_checkpointing"} & trainer.keys()
    assert not {"lr", "params"} & plain_options(torch.optim.AdamW, 2).keys()


# building


def test_what_is_built_is_what_was_asked_for() -> None:
    run = build(resolved({"optim.schedule": {"class_path": "WarmupCosine", "init_args": {"warmup": 7}}}), RunConfig)
    assert (run.optim.lr, run.optim.schedule.warmup, run.optim.schedule.final) == (8e-3, 7, 0.1)
    model = run.model(11, 8)
    assert (model.shape, len(model.blocks)) == (Shape(11, 8, 64, 4, 4), 4)
    optimizer = run.optim.optimizer([torch.zeros(2, requires_grad=True)], 0.5)
    assert type(optimizer) is torch.optim.AdamW
    assert (optimizer.defaults["lr"], tuple(optimizer.defaults["betas"])) == (0.5, (0.9, 0.99))


def test_a_setting_passed_on_to_the_class_above_reaches_it() -> None:
    tree = resolved({"trainer.gradient_clip_val": 0.25, "trainer.accelerator": "cpu", "trainer.max_steps": 77})
    trainer = build(tree, RunConfig).trainer
    assert (trainer.keywords["gradient_clip_val"], trainer.keywords["max_steps"]) == (0.25, 77)


@pytest.mark.extra
def test_a_whole_number_stays_one_whatever_was_imported_first() -> None:
    code = (
        "from typing import Optional, Union\n"
        "Optional[Union[float, int]]\n"  # as other libraries have it
        "from lm.training.run import RunConfig\n"
        "from lm.config.components import resolve\n"
        "from helpers import RUN\n"
        "print(repr(resolve(RUN, RunConfig)['trainer']['limit_val_batches']))\n"
    )
    environment = {**os.environ, "PYTHONPATH": str(Path(__file__).parents[1])}
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, env=environment, check=True)
    assert done.stdout.strip() == "2"

"""A model of a user's own over a base: settings that it takes over, and options that its parents take."""

import inspect
from pathlib import Path
from typing import Any

import pytest
from helpers import RUN
from messages import CheckMessage, Refused

from lm.config.components import added_options, build, resolve
from lm.config.reading import load_config
from lm.config.tree import InputError, Tree, differences, override
from lm.training.run import RunConfig

SOURCE = """
from lm.model.attention import GroupedQuery
from lm.model.mlp import GELU
from lm.model.norm import RMSNorm
from lm.model.transformer import Decoder
from torch.optim import AdamW


class Deep(Decoder):
    def __init__(self, *args, extra: int = 1, **kwargs):
        super().__init__(*args, **kwargs)
        self.extra = extra


class Still(Deep):
    def __init__(self, more: int = 1, **kwargs):
        super().__init__(dropout=0.25, **kwargs)


class Other(Decoder):
    def __init__(self, vocabulary: int, context: int, heads: str = "many", **kwargs):
        super().__init__(vocabulary, context, heads=len(heads) // 2, **kwargs)


class Grouped(GroupedQuery):
    def __init__(self, *args, extra: int = 1, **kwargs):
        super().__init__(*args, **kwargs)
        self.extra = extra


class Hidden(GELU):
    def __init__(self, extra: int = 1, **kwargs):
        super().__init__(**kwargs)
        self.extra = extra


class Normed(RMSNorm):
    def __init__(self, *args, extra: int = 1, **kwargs):
        super().__init__(*args, **kwargs)
        self.extra = extra


class Stepped(AdamW):
    def __init__(self, extra: int = 1, **kwargs):
        super().__init__(**kwargs)
"""
BASE = override(
    RUN, {"model.dropout": 0.1, "model.attention": {"class_path": "MultiHead", "init_args": {"bias": False}}}
)


@pytest.fixture
def own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """The name of a module with a user's own classes."""
    name = f"own_{tmp_path.name.replace('-', '_')}"
    (tmp_path / f"{name}.py").write_text(SOURCE)
    monkeypatch.syspath_prepend(tmp_path)
    return name


def options(changes: dict[str, Any], tree: Tree = BASE) -> Tree:
    """The options of the model after changes, resolved."""
    resolved: Tree = resolve(override(tree, changes), RunConfig)["model"]["init_args"]
    return resolved


def test_an_own_model_takes_over_the_parts_of_its_base(own: str) -> None:
    node = {"class_path": f"{own}.Deep", "init_args": {"extra": 5, "mlp": "ReLU"}}
    base = options({})
    changed = options({"model": node})
    assert changed == {**base, "extra": 5, "mlp": options({"model.mlp": "ReLU"})["mlp"]}
    assert options({"model": f"{own}.Deep", "model.extra": 5, "model.mlp": "ReLU"}) == changed
    assert options({"model.class_path": f"{own}.Deep", "model.extra": 5, "model.mlp": "ReLU"}) == changed


def test_a_configuration_over_a_base_takes_its_parts_over(own: str) -> None:
    plain, changed = (
        resolve(load_config({"base": "char_tiny", **more}), RunConfig)["model"]["init_args"]
        for more in ({}, {"model": {"class_path": f"{own}.Deep"}})
    )
    assert changed == {**plain, "extra": 1}


def test_options_below_a_part_taken_over_can_be_changed(own: str) -> None:
    changes = {"model": f"{own}.Deep", "model.attention.window": 4, "model.embedding.tied": False}
    changed = options({"model": f"{own}.Still"}, override(BASE, changes))
    assert (changed["attention"]["init_args"]["window"], changed["attention"]["init_args"]["bias"]) == (4, False)
    assert changed["embedding"] == {"scaled": False, "tied": False}


def test_what_the_class_lacks_is_dropped_as_a_difference(own: str) -> None:
    base, changed = (resolve(override(BASE, more), RunConfig) for more in ({}, {"model": f"{own}.Still"}))
    assert differences(base, changed) == {
        "model": ("Decoder", f"{own}.Still"),
        "model.dropout": (0.1, None),
        "model.extra": (None, 1),
        "model.more": (None, 1),
    }


def test_a_setting_of_another_type_is_not_taken_over(own: str) -> None:
    assert options({"model": f"{own}.Other"})["heads"] == "many"


def test_the_packages_model_over_ones_own_takes_its_parts_over(own: str) -> None:
    changed = override(BASE, {"model": f"{own}.Deep", "model.extra": 3, "model.width": 32})
    assert options({"model": "Decoder"}, changed) == options({"model.width": 32})


@pytest.mark.parametrize(
    "changes", [{"model.init_args": {"dropout": 0.3}}, {"model.dropuot": 0.3}], ids=["lacks", "typo"]
)
def test_a_setting_that_the_class_lacks_is_refused(
    own: str, check_message: CheckMessage, changes: dict[str, Any]
) -> None:
    with pytest.raises(InputError) as caught:
        options({"model": f"{own}.Still", **changes})
    check_message(str(caught.value).replace(own, "own"))


def test_components_of_the_package_are_replaced_whole(refused: Refused) -> None:
    assert options({"model.attention": "GroupedQuery"})["attention"]["init_args"]["bias"] is True
    with refused():
        options({"model": "EncoderDecoder"})


@pytest.mark.parametrize("name", ["attention.Grouped", "mlp.Hidden", "norm.Normed"])
def test_an_own_part_has_the_options_of_its_parent(own: str, name: str) -> None:
    slot, _, cls = name.partition(".")
    changes = {f"model.{slot}": f"{own}.{cls}", f"model.{slot}.extra": 7}
    run: RunConfig = build(resolve(override(RUN, changes), RunConfig), RunConfig)
    part = next(module for module in run.model(11, 12).modules() if type(module).__name__ == cls)
    assert part.extra == 7
    kind: Any = type(part)
    parent = inspect.signature(kind.__mro__[1]).parameters.keys() - {"shape", "options"}
    assert parent < options(changes)[slot]["init_args"].keys() | added_options(kind)


@pytest.mark.parametrize("cls", ["Deep", "Still", "Other"])
def test_an_own_model_is_built_with_what_its_parent_takes(own: str, cls: str) -> None:
    run: RunConfig = build(resolve(override(BASE, {"model": f"{own}.{cls}"}), RunConfig), RunConfig)
    model = run.model(11, 12)
    assert (model.shape.vocabulary, model.shape.context, model.shape.width) == (11, 12, 16)


def test_an_optimizer_of_ones_own_takes_options_by_name(own: str) -> None:
    changes = {"optim.optimizer": f"{own}.Stepped", "optim.optimizer.weight_decay": 0.5}
    run: RunConfig = build(resolve(override(RUN, changes), RunConfig), RunConfig)
    run.optim.try_out(9)
    optimizer, _ = run.optim.build(run.model(11, 12).parameters(), 9)
    assert (type(optimizer).__name__, optimizer.defaults["weight_decay"]) == ("Stepped", 0.5)

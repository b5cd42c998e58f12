"""Initial values and order of the data varied apart: ids, cells, what is refused, what the report says."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml
from helpers import RUN

from lm.ablation.experiment import load_experiment
from lm.ablation.orders import ordered
from lm.ablation.plan import make_plan
from lm.analysis.orders import orders
from lm.analysis.results import load
from lm.cli import main
from lm.config.tree import InputError, override
from lm.report.sections import all_sections, orders_section
from lm.store.files import to_json, write_atomic
from lm.training.cell import check, seeded


def write(folder: Path, **changes: Any) -> Path:
    (folder / "base.yaml").write_text(yaml.safe_dump(RUN))
    arms = {"layer": {}, "rms": {"model.norm": "RMSNorm"}}
    tree = {"base": "base.yaml", "baseline": "layer", "arms": arms, "seeds": [0, 1, 2], **changes}
    path = folder / "small.yaml"
    path.write_text(yaml.safe_dump(tree, sort_keys=False))
    return path


def test_an_order_of_its_own_is_another_cell_and_the_seeds_own_order_is_the_same_one() -> None:
    plain = check(override(RUN, {"seed": 3}))
    assert "data_seed" not in plain.config
    assert check(override(RUN, {"seed": 3, "data_seed": 3})).id == plain.id
    other = check(override(RUN, {"seed": 3, "data_seed": 4}))
    assert other.id != plain.id
    ids = [cell.id for cell in seeded(other, [3, 4])]
    assert ids == [other.id, check(override(RUN, {"seed": 4})).id]


def test_the_order_comes_from_data_seed_and_the_initial_values_from_seed() -> None:
    def drawn(**seeds: int) -> tuple[list[int], float]:
        opened = check(override(RUN, seeds)).open()
        rows = next(iter(opened.data.training_batches(0, 1))).rows_b.tolist()
        return rows, float(next(opened.model().parameters()).detach().double().sum())

    plain, order, values = drawn(seed=3), drawn(seed=3, data_seed=4), drawn(seed=4, data_seed=3)
    assert plain[0] == values[0] != order[0]
    assert plain[1] == order[1] != values[1]
    assert drawn(seed=4)[0] == order[0]


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"data_seeds": 1}, "two orders or more"),
        ({"data_seeds": 2, "seeds": 1}, "found 2 and 1"),
        ({"data_seeds": 2, "seeds": {"min": 6, "max": 8}}, "found 2 and stages"),
        ({"data_seeds": "x"}, "data_seeds: expected a number of seeds"),
        ({"arms": {"layer": {}, "other": {"data_seed": 1}}}, "arms.other.data_seed: seeds belong to the experiment"),
    ],
)
def test_what_cannot_be_varied_apart_is_one_line(tmp_path: Path, changes: Any, words: str) -> None:
    with pytest.raises(InputError) as caught:
        load_experiment(write(tmp_path, **changes), {})
    assert words in str(caught.value)


def test_the_grid_is_the_baseline_in_each_order_and_shares_the_cells_whose_order_is_their_seeds(tmp_path: Path) -> None:
    experiment = load_experiment(write(tmp_path, data_seeds=[0, 2]), {})
    grid, plain = make_plan(ordered(experiment)), make_plan(experiment)
    assert list(grid.by_arm) == ["order_0", "order_2"]
    assert ordered(experiment).inference.confirmatory == []
    own = {planned.seed: planned.cell.id for planned in plain.by_arm["layer"]}
    assert [one.cell.id == own[one.seed] for one in grid.by_arm["order_0"]] == [True, False, False]
    assert len({one.cell.id for one in (*grid.cells, *plain.by_arm["layer"])}) == 3 + 4


@pytest.fixture
def crossed(experiment: Callable[..., Path]) -> Callable[..., Path]:
    """Makes an experiment whose baseline was trained in three orders."""

    def make(cells: dict[str, list[Any]]) -> Path:
        folder = experiment({"base": [2.0, 2.1], "arm": [1.9, 2.0], **cells})
        whole = json.loads((folder / "experiment.json").read_text())
        for name, arms in (("demo", ("base", "arm")), ("demo.orders", tuple(cells))):
            part = {**whole, "name": name, "arms": {arm: whole["arms"][arm] for arm in arms}, "baseline": arms[0]}
            write_atomic(folder.with_name(name) / "experiment.json", to_json(part))
        return folder

    return make


def test_the_report_shares_the_variance_out_among_seeds_that_ended_well(crossed: Callable[..., Path]) -> None:
    values = {"order_0": [2.0, 2.2, 2.1], "order_1": [2.01, 2.21, 2.1], "order_2": [2.0, 2.19, "diverged"]}
    results = load(crossed(values))
    found = orders(results)
    assert found is not None
    assert (found.seeds, found.left_out) == ([0, 1], [2])
    assert found.values_ij.tolist() == np.array([[2.0, 2.01, 2.0], [2.2, 2.21, 2.19]]).tolist()
    first = orders_section(results, found).rows[0]
    assert first[0] == "initial values"
    assert float(first[2].split()[0]) > 0.95
    assert "seed 2" in " ".join(orders_section(results, found).notes)
    assert any(section.title.startswith("Initial values") for section in all_sections(results, []))


def test_too_few_cells_are_said_to_be_and_an_experiment_without_orders_has_no_section(
    crossed: Callable[..., Path], experiment: Callable[..., Path]
) -> None:
    results = load(crossed({"order_0": [2.0, None], "order_1": [2.0, 2.1]}))
    found = orders(results)
    assert found is not None
    assert orders_section(results, found).rows == []
    assert "Too few runs" in orders_section(results, found).notes[-1]
    assert orders(load(experiment({"alone": [2.0, 2.1]}).with_name("demo.orders"))) is None


@pytest.mark.extra
@pytest.mark.slow
def test_an_experiment_trains_the_orders_of_its_baseline_and_reports_them(tmp_path: Path) -> None:
    out = tmp_path / "out"
    path = write(tmp_path, seeds=[0, 1], data_seeds=[0, 1])
    assert main(["ablate", str(path), "--out", str(out), "--workers", "1", "--underpowered"]) == 0
    grid = load(out / "small.orders")
    seen = {key: record["pairing"]["order"] for key, record in grid.records.items() if record and record["pairing"]}
    assert seen["order_0", 0] == seen["order_0", 1] != seen["order_1", 0] == seen["order_1", 1]
    assert grid.records["order_1", 1] == load(out / "small").records["layer", 1]
    assert "## Initial values and order of the data" in (out / "small" / "table.md").read_text()
    pack = str(tmp_path / "small.lmpack")
    assert main(["pack", str(out / "small"), "--out", pack]) == 0
    assert main(["unpack", pack, "--out", str(tmp_path / "again")]) == 0
    assert orders(load(tmp_path / "again" / "small")) is not None

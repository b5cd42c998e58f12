"""The maximal update parametrisation against the table of its paper, and by activations that are flat in the width."""

import math
import statistics
from typing import Any

import pytest
import torch
from helpers import RUN
from messages import Refused
from torch import Tensor, nn

from lm.config.components import build, resolve
from lm.config.tree import Tree, override
from lm.model.attention import SoftmaxAttention
from lm.model.initializers import FanIn, Normal, Xavier
from lm.model.mlp import MLP
from lm.model.parametrization import MuP, Standard
from lm.model.shape import Shape
from lm.model.transformer import Model, build_and_initialize
from lm.training.cell import check, identity
from lm.training.identified import Cell
from lm.training.optim import tables
from lm.training.run import RunConfig

VOCABULARY, CONTEXT, BASE = 11, 12, 16
MUP: Tree = {"class_path": "MuP", "init_args": {"base_width": BASE}}
ADAMW: Tree = {"class_path": "AdamW", "init_args": {"weight_decay": 0.1}}
RECIPE = override(
    RUN,
    {
        "model.width": BASE,
        "model.initializer": "FanIn",
        "model.embedding": {"tied": False, "scaled": True},
        "optim": {"lr": 0.01, "optimizer": ADAMW, "schedule": "Constant", "objective": "CrossEntropy"},
    },
)


def made(changes: dict[str, Any]) -> tuple[Model, torch.optim.Optimizer]:
    """A model with the first values of seed 0, and its optimiser."""
    run: RunConfig = build(resolve(override(RECIPE, changes), RunConfig), RunConfig)
    model = build_and_initialize(run.model, VOCABULARY, CONTEXT, 0)
    return model, run.optim.build(model.parameters(), 10, tables(model), model.map_rate)[0]


def tokens(rows: int = 4) -> Tensor:
    return torch.randint(VOCABULARY, (rows, CONTEXT), generator=torch.Generator().manual_seed(1))


def stepped(model: Model, optimizer: torch.optim.Optimizer, steps: int) -> Tensor:
    """The logits of a batch after some updates on it."""
    for _ in range(steps):
        loss = nn.functional.cross_entropy(model(tokens()).flatten(0, 1), tokens().roll(1, 1).flatten())
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    with torch.no_grad():
        return model(tokens())


@pytest.mark.parametrize(
    ("initializer", "optimizer", "tied"),
    [("FanIn", "AdamW", False), ("Normal", "AdamW", True), ("Xavier", "AdamW", False), ("FanIn", "MuonAdamW", True)],
)
def test_mup_at_base_width_equals_standard_bit_for_bit(initializer: str, optimizer: str, tied: bool) -> None:
    changes = {"model.initializer": initializer, "optim.optimizer": optimizer, "model.embedding.tied": tied}
    plain, scaled = (made({**changes, "model.parametrization": one}) for one in (None, MUP))
    assert torch.equal(stepped(*plain, 3), stepped(*scaled, 3))
    assert all(torch.equal(x, y) for x, y in zip(plain[0].parameters(), scaled[0].parameters(), strict=True))


def kind_of(name: str) -> str:
    """What table 8 of Yang et al. calls a parameter of the decoder."""
    if name.startswith("embedding.tokens") or not name.endswith("weight") or "norm" in name:
        return "input"
    return "output" if name.startswith("embedding.head") else "hidden"


TABLE_8 = {
    # variance of first values, multiplier and Adam's rate as powers of the inputs; tables and vectors have an input
    # of fixed size, so that their variance is a constant
    "input": (0, 0, 0),
    "output": (0, -1, 0),
    "hidden": (-1, 0, -1),
}


@pytest.mark.parametrize("wider", [2, 8])
def test_first_values_multipliers_and_rates_are_those_of_table_8(wider: int) -> None:
    (base, at_base), (wide, at_wide) = (
        made({"model.width": BASE * n, "model.parametrization": MUP}) for n in (1, wider)
    )
    rates = [
        {
            id(p): (group["lr"], group["lr"] * group["weight_decay"])
            for group in optimizer.param_groups
            for p in group["params"]
        }
        for optimizer in (at_base, at_wide)
    ]
    small = dict(base.named_parameters())
    for name, parameter in wide.named_parameters():
        variance, multiplier, rate = TABLE_8[kind_of(name)]
        before = rates[0][id(small[name])]
        assert rates[1][id(parameter)] == pytest.approx((before[0] * wider**rate, before[1]), rel=1e-12), name
        if parameter.ndim == 2:
            ratio = float(parameter.detach().std() / small[name].detach().std())
            assert ratio == pytest.approx(wider ** (variance / 2), rel=0.2), name
        if multiplier:
            x_btd = torch.ones(1, 1, BASE * wider)
            assert torch.equal(wide.embedding.scale_for_output(x_btd), x_btd * wider**multiplier)  # type: ignore[operator, union-attr]
    assert wide.embedding.factor == base.embedding.factor == BASE**0.5  # type: ignore[union-attr]


def test_first_values_of_any_initialisation_go_with_the_inputs() -> None:
    shape = MuP(BASE).shape(Shape(VOCABULARY, CONTEXT, 4 * BASE, 2, 1))
    for initializer in (FanIn(), Normal(), Xavier()):
        scaled = MuP(BASE).initializer(initializer, shape)
        for inputs, outputs in ((BASE, BASE), (BASE, 4 * BASE), (4 * BASE, BASE)):
            here = scaled.std(nn.Linear(4 * inputs, 4 * outputs, device="meta"))
            assert here == pytest.approx(initializer.std(nn.Linear(inputs, outputs, device="meta")) / 2, rel=1e-12)
        assert scaled.std(nn.Embedding(3, 4 * BASE)) == initializer.std(nn.Embedding(3, BASE))
        assert scaled.std(nn.Embedding(8, 2)) == initializer.std(nn.Embedding(8, 2))  # a bias for each head


@pytest.mark.parametrize(
    ("scale", "wide", "expected"),
    [
        ("1/sqrt(d_k)", 1, 8**-0.5),
        ("1/sqrt(d_k)", 4, 8**0.5 / 32),
        ("1/d_k", 4, 1 / 32),
        ("none", 4, 1 / 4),
        (0.5, 4, 0.125),
    ],
)
def test_scores_are_scaled_by_the_head_size(scale: Any, wide: int, expected: float) -> None:
    attention = {"class_path": "MultiHead", "init_args": {"scale": scale}}
    model, _ = made({"model.attention": attention, "model.width": BASE * wide, "model.parametrization": MUP})
    layers = [module for module in model.modules() if isinstance(module, SoftmaxAttention)]
    assert [layer.scale for layer in layers] == pytest.approx([expected] * len(layers), rel=1e-12)


def test_heads_that_keep_their_size_keep_their_scale() -> None:
    mup = override({"": MUP}, {})[""]
    mup["init_args"]["base_heads"] = 2
    model, _ = made({"model.width": 4 * BASE, "model.heads": 8, "model.parametrization": mup})
    assert next(m for m in model.modules() if isinstance(m, SoftmaxAttention)).scale == pytest.approx(8**-0.5)


def test_muon_keeps_the_spectral_norm_of_updates() -> None:
    rates = {}
    for width in (BASE, 4 * BASE):
        model, optimizer = made(
            {
                "model.width": width,
                "model.parametrization": MUP,
                "optim.optimizer": {"class_path": "MuonAdamW", "init_args": {"weight_decay": 0.0}},
            }
        )
        weight = model.blocks[0].mlp.up.weight  # type: ignore[index, union-attr]
        before = weight.detach().clone()
        stepped(model, optimizer, 1)
        rates[width] = float(torch.linalg.matrix_norm(weight.detach() - before, 2))
    assert rates[4 * BASE] == pytest.approx(rates[BASE], rel=0.25)  # five steps of Newton and Schulz are no exact root


@pytest.mark.parametrize(
    ("optimizer", "lr"), [("AdamW", 0.02), pytest.param("MuonAdamW", 0.1, marks=[pytest.mark.slow, pytest.mark.extra])]
)
def test_mup_activations_are_flat_in_width(optimizer: str, lr: float) -> None:
    grown = {}
    for name, parametrization in (("standard", None), ("mup", {"class_path": "MuP", "init_args": {"base_width": 32}})):
        sizes: dict[str, list[float]] = {}
        for width in (32, 128):
            changes = {"model.width": width, "model.parametrization": parametrization, "optim.lr": lr}
            model, steps = made({**changes, "optim.optimizer": optimizer})
            for index, block in enumerate(model.blocks):  # type: ignore[arg-type]
                for part in ("attention", "mlp"):
                    found = sizes.setdefault(f"{index} {part}", [])
                    getattr(block, part).register_forward_hook(
                        lambda *call, found=found: found.append(float(call[2].detach().abs().mean()))
                    )
            stepped(model, steps, 3)
        grown[name] = {part: found[-1] / found[3] for part, found in sizes.items()}
    assert max(grown["mup"].values()) < 2
    assert min(grown["mup"].values()) > 0.5
    assert statistics.geometric_mean(grown["standard"].values()) > 1.5


class Mixed(MLP):
    """A layer of a user's own with a matrix that is no map: a row for each of three experts."""

    table_parameters = ("experts",)

    def __init__(self, shape: Shape) -> None:
        super().__init__(shape)
        self.experts = nn.Parameter(torch.zeros(3, shape.width))
        self.gate = nn.Parameter(torch.zeros(shape.width, shape.width))

    def activation(self, x: Tensor) -> Tensor:
        return x.relu()


def test_own_matrix_is_scaled_unless_in_table_parameters() -> None:
    model, optimizer = made({"model.mlp": f"{__name__}.Mixed", "model.width": 4 * BASE, "model.parametrization": MUP})
    rates = {id(p): group["lr"] for group in optimizer.param_groups for p in group["params"]}
    layer = model.blocks[0].mlp  # type: ignore[index, union-attr]
    assert rates[id(layer.experts)] == 0.01
    assert rates[id(layer.gate)] == rates[id(layer.up.weight)] == 0.0025


def test_experts_scale_with_width_but_functions_of_distance_do_not() -> None:
    parts: dict[str, Any] = {"model.mlp": "Experts", "model.position": "Fire"}
    plain, scaled = (made({**parts, "model.parametrization": one}) for one in (None, MUP))
    assert torch.equal(stepped(*plain, 3), stepped(*scaled, 3))
    base, (wide, optimizer) = made(parts)[0], made({**parts, "model.width": 4 * BASE, "model.parametrization": MUP})
    rates = {id(p): group["lr"] for group in optimizer.param_groups for p in group["params"]}
    small = dict(base.named_parameters())
    for name, parameter in wide.named_parameters():
        if ("position" in name or ".mlp." in name) and parameter.ndim == 2:
            power = 0 if "position" in name else -1
            assert rates[id(parameter)] == 0.01 * 4**power, name
            ratio = float(parameter.detach().std() / small[name].detach().std())
            assert ratio == pytest.approx(4 ** (power / 2), rel=0.2), name


def test_the_loss_without_all_logits_is_that_of_the_logits() -> None:
    model, _ = made({"model.width": 4 * BASE, "model.parametrization": MUP})
    factors = model.hidden_and_weight(tokens())
    assert factors is not None
    torch.testing.assert_close(factors[0] @ factors[1].t(), model(tokens()))


def test_cells_of_the_standard_parametrisation_keep_their_ids() -> None:
    cell = check(RECIPE)
    before: Cell = cell
    without = {k: v for k, v in cell.config["model"]["init_args"].items() if k != "parametrization"}
    old = {**cell.config, "model": {**cell.config["model"], "init_args": without}}
    assert identity(old, before.facts) == cell.id
    assert check(override(RECIPE, {"model.parametrization": "Standard"})).id == cell.id
    assert check(override(RECIPE, {"model.parametrization": MUP})).id != cell.id


@pytest.mark.parametrize(
    "changes",
    [
        {"optim.optimizer": "SGD"},
        {"model.heads": 3, "model.width": 24},
        {"model.parametrization.base_width": 0},
        {"model.parametrization.base_heads": 0},
    ],
    ids=str,
)
def test_what_has_no_scaling_is_refused_in_a_line(changes: dict[str, Any], refused: Refused) -> None:
    with refused():
        check(override(RECIPE, {"model.parametrization": MUP, **changes}))


def test_standard_scales_nothing() -> None:
    shape = Shape(VOCABULARY, CONTEXT, BASE, 2, 1)
    assert Standard().shape(shape) is shape
    assert Standard().rate(shape, "AdamW") == Standard().rate(shape, "Muon") == 1
    assert math.isclose(MuP(BASE).rate(Shape(VOCABULARY, CONTEXT, 4 * BASE, 2, 1), "Muon"), 0.5)

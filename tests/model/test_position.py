import math

import pytest
import torch
from helpers import decoder

from lm.model.position import Alibi, Learned, Rope, Sinusoidal, alibi_slopes, sinusoids
from lm.model.shape import Shape

SHAPE = Shape(vocabulary=11, context=8, width=16, heads=2, layers=1)


def test_sinusoids_of_the_worked_example() -> None:
    expected = [[0, 1, 0, 1], [0.84147, 0.54030, 0.01000, 0.99995], [0.90930, -0.41615, 0.02000, 0.99980]]
    torch.testing.assert_close(sinusoids(3, 4), torch.tensor(expected, dtype=torch.float64), rtol=0, atol=5e-6)


def test_sinusoids_shift_by_a_fixed_rotation_of_each_pair() -> None:
    table, shift, width = sinusoids(40, 16), 7, 16
    for pair in range(width // 2):
        angle = shift * 10000 ** (-2 * pair / width)
        turn = torch.tensor([[math.cos(angle), math.sin(angle)], [-math.sin(angle), math.cos(angle)]]).double()
        moved = table[:-shift, 2 * pair : 2 * pair + 2] @ turn.T
        torch.testing.assert_close(moved, table[shift:, 2 * pair : 2 * pair + 2], rtol=0, atol=1e-7)


def test_products_of_sinusoids_depend_on_the_distance_alone() -> None:
    products = sinusoids(30, 16) @ sinusoids(30, 16).T
    for distance in range(30):
        along = products.diagonal(distance)
        torch.testing.assert_close(along, along[:1].expand_as(along), rtol=0, atol=1e-12)


def test_rope_products_depend_on_distance_and_norms_stay() -> None:
    rope = Rope(SHAPE)
    q, k = torch.randn(2, 8, dtype=torch.float64)
    turned_q = rope.apply_rotary(q.expand(1, 1, 30, 8))[0, 0]
    turned_k = rope.apply_rotary(k.expand(1, 1, 30, 8))[0, 0]
    torch.testing.assert_close(turned_q.norm(dim=-1), q.norm().expand(30), rtol=0, atol=1e-12)
    scores = turned_q @ turned_k.T
    for distance in range(-29, 30):
        along = scores.diagonal(distance)
        torch.testing.assert_close(along, along[:1].expand_as(along), rtol=0, atol=1e-12)
    assert (scores[0, 0] - scores[0, 5]).abs() > 1e-6


def exact(rope: Rope, time: int) -> tuple[torch.Tensor, torch.Tensor]:
    """The tables in float64, written out once more from the formula."""
    size = rope.head_size
    angle = torch.tensor(
        [[t * rope.base ** (-2 * (i % (size // 2)) / size) for i in range(size)] for t in range(time)],
        dtype=torch.float64,
    )
    return angle.cos(), angle.sin()


def test_rope_tables_follow_formula_with_head_size() -> None:
    rope = Rope(SHAPE, base=500.0)
    cosine, sine = exact(rope, 8)
    torch.testing.assert_close(rope.cosine_tk, cosine, rtol=0, atol=1e-14)
    signed = torch.cat([-sine[:, : sine.shape[1] // 2], sine[:, sine.shape[1] // 2 :]], dim=-1)
    torch.testing.assert_close(rope.sine_tk, signed, rtol=0, atol=1e-14)


def test_rope_refuses_an_odd_head_size() -> None:
    with pytest.raises(ValueError, match="head size 3"):
        Rope(Shape(vocabulary=2, context=2, width=6, heads=2, layers=1))


@pytest.mark.parametrize(
    ("heads", "slopes"),
    [
        (4, [0.25, 0.0625, 0.015625, 0.00390625]),
        (6, [0.25, 0.0625, 0.015625, 0.00390625, 0.5, 0.125]),
        (12, [*(2.0**-i for i in range(1, 9)), 2**-0.5, 2**-1.5, 2**-2.5, 2**-3.5]),
    ],
)
def test_alibi_slopes_of_the_worked_example(heads: int, slopes: list[float]) -> None:
    torch.testing.assert_close(alibi_slopes(heads), torch.tensor(slopes, dtype=torch.float64), rtol=1e-12, atol=0)


def test_alibi_bias_is_minus_slope_times_distance() -> None:
    bias = Alibi(SHAPE).bias(5, 5)
    for head, slope in enumerate([2.0**-4, 2.0**-8]):
        for i in range(5):
            for j in range(5):
                assert bias[head, i, j].item() == pytest.approx(-slope * abs(i - j), abs=1e-9)


def test_tables_grow_with_the_context_and_keep_their_values() -> None:
    short, x = Sinusoidal(SHAPE), torch.zeros(1, 20, 16)
    grown = short.embed(x)
    torch.testing.assert_close(grown[0], sinusoids(20, 16).float())


def test_learned_positions_end_at_the_trained_length() -> None:
    with pytest.raises(ValueError, match=r"9 is longer than the 8 learned positions"):
        Learned(SHAPE).embed(torch.zeros(1, 9, 16))


def test_models_differ_by_position_encoding_only_in_the_encoding() -> None:
    names = {name: set(dict(decoder({"position": name}).named_parameters())) for name in ("Rope", "Alibi", "Learned")}
    assert names["Rope"] == names["Alibi"]
    assert names["Learned"] - names["Rope"] == {"position.table.weight"}

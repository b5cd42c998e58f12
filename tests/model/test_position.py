import pytest
import torch

from lm.model.position import Alibi, Rope, Sinusoidal, sinusoids
from lm.model.shape import Shape

SHAPE = Shape(vocabulary=11, context=8, width=16, heads=2, layers=1)


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

"""What the benchmark of operations counts, and the shares that it makes of it."""

import pytest
import torch
from torch.nn.functional import scaled_dot_product_attention
from torch.utils.flop_counter import FlopCounterMode

from benchmarks.roofline import ATTENTION, MOST, REST, Spent, Watch, rows


def test_flops_and_bytes_of_a_product_are_exact() -> None:
    a, b = torch.randn(3, 5), torch.randn(5, 7)
    with Watch() as watch:
        a @ b
    spent = watch.spent["mm"]
    assert (spent.calls, spent.flops, spent.bytes) == (1, 2 * 3 * 5 * 7, 4 * (3 * 5 + 5 * 7 + 3 * 7))


def test_a_view_moves_no_bytes() -> None:
    with Watch() as watch:
        torch.randn(3, 5).t().reshape(15).add_(1)
    assert watch.spent["t"].bytes == 0
    assert watch.spent["add_"].bytes == 4 * 15


@pytest.mark.parametrize(("causal", "share"), [(False, 1.0), (True, 9 / 16)])  # a query sees 4.5 of 8 keys
def test_attention_forward_and_backward_counts_as_its_products(causal: bool, share: float) -> None:
    q, k, v = (torch.randn(2, 3, 8, 4, requires_grad=True) for _ in range(3))
    with FlopCounterMode(display=False) as plain:
        ((q @ k.mT).softmax(-1) @ v).sum().backward()
    with Watch() as watch:
        scaled_dot_product_attention(q, k, v, is_causal=causal).sum().backward()
    forward, backward = watch.spent[ATTENTION].flops, watch.spent[f"{ATTENTION}_backward"].flops
    scores = 2 * 2 * 3 * 8 * 8 * 4  # which the fused backward pass computes once more
    assert forward + backward == share * (plain.get_total_flops() + scores)


def test_rows_add_up_to_the_step_and_shares_are_of_the_roof() -> None:
    few = {"mm": Spent(0.5, 2, flops=40.0, bytes=10.0), "add": Spent(0.2, 1, bytes=100.0)}
    many = {f"op{i}": Spent(0.01, 1) for i in range(MOST)}
    step, *each, outside = rows("g", 1.0, {**few, **many}, peak=100.0, speed=1000.0)
    by_way = {one["way"]: one for one in each}
    assert by_way["mm"]["more"]["share_of_roof"] == pytest.approx(0.4 / 0.5)
    assert by_way["add"]["more"]["share_of_roof"] == pytest.approx(0.1 / 0.2)
    assert by_way[REST]["more"]["calls"] == 2
    assert step["more"]["share_of_roof"] == pytest.approx(0.4)
    assert sum(one["value"] or 0 for one in (*each, outside)) == pytest.approx(1.0)

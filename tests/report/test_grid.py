import io
import re

import pytest
from rich.console import Console

from lm.report.render import fits, print_table, widths

COSTS = ["arm", "parameters", "FLOPs per token", "tokens seen", "steps", "training seconds"]
ARMS = [
    ["post_norm", "306,112", "2,101,632", "409,600", "400", "31.2"],
    ["post_norm_no_warmup", "306,240 (+0.0 %)", "2,101,632 (same)", "409,600 (same)", "400 (same)", "28.0 (-10.2 %)"],
]


def printed(width: int, columns: list[str], rows: list[list[str]]) -> str:
    out = io.StringIO()
    print_table("a title", columns, rows, Console(file=out, width=width))
    return out.getvalue()


def words(text: str) -> set[str]:
    return set(re.sub("[━─┃│┏┓┗┛┡┩╇┳┴└┘]", " ", text).split())


@pytest.mark.parametrize("width", [80, 100, 160])
def test_no_number_is_cut_off_or_broken(width: int) -> None:
    text = printed(width, COSTS, ARMS)
    assert "…" not in text
    assert max(map(len, text.splitlines())) <= width
    assert {word for row in [COSTS, *ARMS] for cell in row for word in cell.split()} <= words(text)


def test_long_labels_give_way_to_numbers() -> None:
    label = "test ECE at that temperature if perfectly calibrated, which is a long name for a quantity"
    text = printed(80, ["metric", "A", "B", "B - A"], [[label, "0.00571234", "0.00561234", "-0.0001"]])
    assert {"0.00571234", "0.00561234", "-0.0001", "calibrated,"} <= words(text)


def test_words_wider_than_the_terminal_are_broken() -> None:
    name = "a_very_long_arm_name" * 5
    text = printed(60, ["arm", "n"], [[name, "6"]])
    assert max(map(len, text.splitlines())) <= 60
    assert "".join(re.findall("[a-z_]{6,}", text)) == name


def test_what_fits_keeps_its_width() -> None:
    assert widths(["ab", "c"], [["abcd", "12"]], 80) == [4, 2]


def test_the_widest_column_shrinks_first_to_its_longest_word() -> None:
    assert widths(["a", "b"], [["one two three four", "12345"]], 15) == [10, 5]
    assert widths(["a", "b"], [["one two three four", "12345"]], 10) == [5, 5]
    assert sum(widths(["a", "b"], [["x" * 50, "y" * 50]], 30)) == 30


def test_intervals_stay_on_one_line_while_names_may_wrap() -> None:
    interval, mean = "-0.0277 [-0.0337, -0.0217]", "1.4708 ± 0.0060"
    rows = [["a_long_name_of_an_arm", "9", mean, interval, "better (exploratory, q=.006)"]]
    lines = printed(80, ["arm", "n", "validation NLL", "difference [95 % CI]", "verdict"], rows).splitlines()
    assert any(interval in line and mean in line for line in lines)
    assert max(map(len, lines)) <= 80
    narrow = printed(67, ["arm", "n", "validation NLL", "difference [95 % CI]", "verdict"], rows)
    assert "[-0.0337, -0.0217]" in narrow


def test_one_line_rows_fit_though_their_heading_wraps() -> None:
    columns, rows = ["arm", "n", "a heading that may wrap", "verdict"], [["x" * 9, "9", "1.5", "y" * 20]]
    assert fits(columns, rows, 50)
    assert not fits(columns, rows, 49)
    assert any("x" * 9 in line and "y" * 20 in line for line in printed(50, columns, rows).splitlines())


@pytest.mark.parametrize("width", [60, 80])
def test_a_row_is_a_paragraph_where_its_words_would_be_broken(width: int) -> None:
    columns = ["kind", "claim", "expected", "estimate [interval]", "p", "verdict", "at one shared rate"]
    claim = "RMSNorm and LayerNorm are equivalent within .02 nats"
    row = ["published", claim, "within 0.02", "0.004567 [0.0003925, 0.008991]", "0.00391", "reproduced", "reproduced"]
    text = printed(width, columns, [row, row])
    assert "│" not in text
    assert max(map(len, text.splitlines())) <= width
    assert text.splitlines().count(claim) == 2
    folded = " ".join(text.split())
    assert (
        "kind: published; expected: within 0.02; estimate [interval]: 0.004567 [0.0003925, 0.008991]; p: 0.00391"
        in folded
    )
    assert "│" in printed(110, columns, [row, row])

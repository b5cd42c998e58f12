"""Tables of runs: what is read of them, and the one line for what cannot be."""

import json
from pathlib import Path

import pandas as pd
import pytest
from messages import CheckMessage, Refused

from lm.analysis.external.runs import CompareRequest as Request
from lm.analysis.external.runs import Runs, gather
from lm.analysis.external.table import flatten
from lm.analysis.external.trackers import read
from lm.config.tree import InputError

ASKED = Request("plain", ("loss",))
ROWS = "arm,seed,loss,lr\nplain,0,2.5,0.1\nplain,1,2,0.2\nnew,0,1.5,0.1\nnew,1,1e0,0.2\n"


def runs_of(folder: Path, text: str, asked: Request = ASKED, name: str = "runs.csv") -> Runs:
    (folder / name).write_text(text, encoding="utf-8")
    return gather(read(folder / name), asked)


def values(runs: Runs, quantity: str = "loss") -> dict[tuple[str, int | str], float]:
    return {key: run.values[quantity] for key, run in runs.runs.items()}


SAME = {("plain", 0): 2.5, ("plain", 1): 2.0, ("new", 0): 1.5, ("new", 1): 1.0}


PAIRS = SAME.items()


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("runs.csv", ROWS),
        ("runs.csv", "\ufeff" + ROWS.replace("\n", "\r\n")),
        ("runs.txt", ROWS.replace(",", "\t")),
        ("runs.csv", ROWS.replace(",", ";")),
        ("runs.csv", ROWS.replace(",0,", ",0.0,").replace("new", ' new ') + "\n,,,\n"),
        ("long.csv", "arm,seed,metric,value\nplain,0,loss,2.5\nplain,1,loss,2\nnew,0,loss,1.5\nnew,1,loss,1\n"),
        ("runs.json", json.dumps([{"arm": a, "seed": s, "loss": v} for (a, s), v in PAIRS])),
        ("runs.jsonl", "\n".join(json.dumps({"arm": a, "seed": s, "loss": v}) for (a, s), v in PAIRS)),
        (
            "runs.json",
            json.dumps([{"config": {"arm": {"value": a}, "seed": s}, "summary": {"loss": v}} for (a, s), v in PAIRS]),
        ),
    ],
    ids=["CSV", "of Excel", "tabs", "semicolons", "spaces", "long", "JSON", "JSON lines", "nested JSON"],
)  # fmt: skip
def test_a_table_is_known_by_what_it_holds(name: str, text: str, tmp_path: Path) -> None:
    runs = runs_of(tmp_path, text, name=name)
    assert values(runs) == SAME
    assert runs.arms == ["plain", "new"]
    assert runs.seeds == [0, 1]


def test_a_parquet_file_holds_the_same(tmp_path: Path) -> None:
    frame = pd.DataFrame([(a, s, v) for (a, s), v in PAIRS], columns=["arm", "seed", "loss"])
    frame.to_parquet(tmp_path / "runs")
    assert values(gather(read(tmp_path / "runs"), ASKED)) == SAME
    (tmp_path / "runs").write_bytes(b"PAR1 and no more")
    with pytest.raises(InputError, match="not valid parquet"):
        read(tmp_path / "runs")


def test_columns_may_be_called_otherwise_and_rows_chosen(tmp_path: Path) -> None:
    text = "model,replicate,loss,set\nplain,a,2,x\nnew,a,1,x\nnew,a,7,y\n"
    asked = Request("plain", ("loss",), "model", "replicate", only=(("set", "x"),))
    assert values(runs_of(tmp_path, text, asked)) == {("plain", "a"): 2.0, ("new", "a"): 1.0}


def test_other_number_columns_are_measured(tmp_path: Path) -> None:
    text = "arm,seed,loss,acc,lr,note,_step\nplain,0,2,.5,0.1,x,1\nnew,0,1,.6,0.1,y,2\n"
    assert runs_of(tmp_path, text).measured == ["loss", "acc"]


@pytest.mark.parametrize(
    ("cells", "status"),
    [
        ({"loss": "nan"}, "diverged"),
        ({"loss": "-inf"}, "diverged"),
        ({"loss": ""}, "diverged"),
        ({"loss": "1", "status": "ok"}, "ok"),
        ({"loss": "1", "status": "Crashed"}, "failed"),
        ({"loss": "1", "state": "RUNNING"}, "missing"),
        ({"loss": "", "state": "finished"}, "diverged"),
        ({"loss": "NaN", "state": "finished"}, "diverged"),
    ],
    ids=str,
)
def test_lost_runs_are_kept_and_enter_no_mean(cells: dict[str, str], status: str, tmp_path: Path) -> None:
    extra = [name for name in cells if name != "loss"]
    head = ",".join(["arm,seed,loss", *extra])
    rows = [",".join(["plain,0,2", *("finished" for _ in extra)]), ",".join(["new,0", *cells.values()])]
    runs = runs_of(tmp_path, "\n".join([head, *rows]))
    assert runs.runs["new", 0].status == status
    assert (runs.value("new", 0, "loss") == 1.0) == (status == "ok")


def test_a_column_of_states_that_is_not_understood_is_told(tmp_path: Path, check_message: CheckMessage) -> None:
    runs = runs_of(tmp_path, "arm,seed,loss,status\nplain,0,2,ok\nnew,0,1,odd\n")
    assert runs.runs["new", 0].status == "ok"
    check_message(runs.notes)


@pytest.mark.parametrize(
    ("text", "asked"),
    [
        (ROWS, Request("plane", ("loss",))),
        (ROWS, Request("plain", ("los",))),
        (ROWS, Request("plain", ("loss",), "arms")),
        (ROWS, Request("plain", ("loss",), "arm", "sed")),
        (ROWS, Request("plain", ("seed",))),
        (ROWS, Request("plain", ("loss",), only=(("lr", "3"),))),
        (ROWS + "new,1,3,0\n", ASKED),
        (ROWS + "new,1.0,3,0\n", ASKED),
        (ROWS + "new,2,high,0\n", ASKED),
        (ROWS + "new,2,1,0,9\n", ASKED),
        (ROWS + ",2,1,0\n", ASKED),
        ("arm,seed,loss\nplain,0,1\n", ASKED),
        ("arm,seed,loss,loss\nplain,0,1,1\n", ASKED),
        ("arm,seed,loss\n", ASKED),
        ("", ASKED),
        ('arm,seed,"loss\n', ASKED),
        ("arm,seed,metric,value\nplain,0,loss,1\nplain,0,loss,2\n", ASKED),
        ("{]", ASKED),
        ("[1]", ASKED),
    ],
    ids=lambda value: value[:30] if isinstance(value, str) else "",
)  # fmt: skip
def test_what_cannot_be_compared_is_one_line(text: str, asked: Request, refused: Refused, tmp_path: Path) -> None:
    with refused():
        runs_of(tmp_path, text, asked)


def test_what_holds_no_runs_is_one_line(tmp_path: Path, refused: Refused) -> None:
    with refused():
        read(tmp_path)
    with refused():
        read(tmp_path / "none")
    (tmp_path / "x").write_bytes(b"\xff\xfe\x00")
    with refused():
        read(tmp_path / "x")


def test_lists_are_left_out_of_a_row() -> None:
    assert flatten({"a": {"b": 1.5, "c": [1]}, "d": {"value": "x", "desc": None}, "e": None}) == {
        "a.b": "1.5",
        "d": "x",
    }

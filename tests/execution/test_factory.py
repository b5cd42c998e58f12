"""Executors as they are asked for: a wrong word is answered in a line, before anything starts."""

import importlib.util
import shutil
from pathlib import Path

import pytest
from helpers import Patch
from messages import Refused, RefusedCommand

from lm.config.tree import InputError
from lm.execution.executor import Executor
from lm.execution.factory import EXECUTORS, ExecutorSpec, capacity, parse_executor, threads, usable
from lm.execution.on_slurm import minutes


@pytest.fixture
def installed(monkeypatch: Patch) -> None:
    """Everything is there that an executor needs."""
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: name)
    monkeypatch.setattr(shutil, "which", lambda name: name)


@pytest.mark.parametrize(
    ("text", "name", "options"),
    [
        ("local", "local", {}),
        ("ray", "ray", {}),
        ("ray:memory=100", "ray", {"memory": "100"}),
        ("ray://head.example:10001", "ray", {"address": "ray://head.example:10001"}),
        ("ray:address=10.0.0.1:6379", "ray", {"address": "10.0.0.1:6379"}),
        ("ray:address=auto", "ray", {"address": "auto"}),
        ("slurm", "slurm", {}),
        ("slurm:partition=gpu,time=4:00:00,mem=8GB", "slurm", {"partition": "gpu", "time": "4:00:00", "mem": "8GB"}),
    ],
)
def test_executor_texts_are_parsed(installed: None, text: str, name: str, options: dict[str, str]) -> None:
    found = parse_executor(text)
    assert (found.name, dict(found.options)) == (name, options)


@pytest.mark.parametrize(
    "text",
    [
        "slrum",
        "",
        "local:threads=2",
        "slurm:partitoin=x",
        "slurm:partition",
        "slurm:time=1,time=2",
        "slurm:time=soon",
        "slurm:time=0",
        "slurm:cpus=0",
        "slurm:cpus=\u0662",
        "slurm:mem=much",
        "slurm:executor=pbs",
        "slurm:partition=a b",
        "slurm:account=a\n#SBATCH --uid=0",
        "ray://head",
        "ray:address=head",
        "ray:memory=10",
        "ray:memory=100,address=auto",
    ],
)
def test_wrong_executor_texts_are_answered_in_one_line(installed: None, refused: Refused, text: str) -> None:
    with refused():
        parse_executor(text)


def test_errors_begin_with_the_name_of_the_argument(installed: None) -> None:
    for text in ("slrum", "slurm:partitoin=x", "slurm:cpus=0", "slurm:time=soon", "ray://head", "ray://127.0.0.1:1"):
        with pytest.raises(InputError, match=r"^executor[: ]"):
            usable(text, [], "executor")


@pytest.mark.parametrize(
    ("text", "expected"),
    [("90", 90), ("90:30", 91), ("1:30:00", 90), ("1-0", 1440), ("1-2:30", 1590), ("2-00:00:01", 2881)],
)
def test_times_are_parsed_as_sbatch_parses_them(text: str, expected: int) -> None:
    assert minutes(text) == expected


@pytest.mark.parametrize("name", ["ray", "slurm"])
def test_a_missing_package_is_named_with_its_pip_command(name: str, monkeypatch: Patch, refused: Refused) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    monkeypatch.setattr(shutil, "which", lambda name: name)
    with refused():
        parse_executor(name)


def test_grpc_is_needed_for_ray_addresses_from_outside_alone(monkeypatch: Patch, refused: Refused) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None if name == "grpc" else name)
    assert parse_executor("ray:address=head:6379").options == {"address": "head:6379"}
    for text in ("ray://head:10001", "ray:address=ray://head:10001"):
        with refused():
            parse_executor(text)


def test_slurm_needs_sbatch_on_this_machine(monkeypatch: Patch, refused: Refused) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: name)
    monkeypatch.setattr(shutil, "which", lambda name: None)
    with refused():
        parse_executor("slurm")
    assert parse_executor("slurm:executor=local").options == {"executor": "local"}


@pytest.mark.parametrize(
    "arguments",
    [
        ["ablate", "quickstart", "--executor", "rya"],
        ["sweep", "learning_rate", "--executor", "rya"],
        ["ablate", "quickstart", "--executor", "ray://127.0.0.1:1"],
        ["ablate", "quickstart", "--executor", "ray", "--logger", "csv"],
    ],
    ids=" ".join,
)
def test_an_unusable_executor_ends_the_command_before_any_write(
    installed: None, arguments: list[str], tmp_path: Path, refused_command: RefusedCommand
) -> None:
    refused_command([*arguments, "--out", tmp_path / "out"])
    assert not (tmp_path / "out").exists()


def test_loggers_are_refused_with_ray(installed: None, refused: Refused) -> None:
    with refused():
        usable("ray", ["csv"], "executor", "loggers")


@pytest.mark.parametrize("name", EXECUTORS)
def test_each_line_of_the_table_names_an_executor(name: str) -> None:
    assert issubclass(ExecutorSpec(name).executor, Executor)


def test_a_cell_has_one_thread_per_core_of_its_job(installed: None, monkeypatch: Patch) -> None:
    monkeypatch.delenv("MKL_NUM_THREADS", raising=False)
    monkeypatch.setenv("OMP_NUM_THREADS", "3")
    assert threads("slurm:cpus=7", 1) == 7
    assert threads("slurm", 1) == threads("ray://head:1", 1) == 3


def test_slurm_queues_all_cells_but_a_search_needs_workers(installed: None, refused: Refused) -> None:
    assert capacity("local", 12) is None
    assert capacity("slurm", 12) == 12
    assert capacity("slurm", 5000) == 1000
    with refused():
        capacity("slurm", 12, search=True)

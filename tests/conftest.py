"""What every test runs under, and results made up for the tests that read them."""

import contextlib
import functools
import gc
import itertools
import json
import os
import re
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, cast

import pytest
from messages import CheckMessage, Message, Refused, RefusedCommand, read_messages, write_message
from records import MakeExperiment, make_manifest, record

from lm.cli import main
from lm.config.tree import InputError
from lm.store.files import to_json, write_atomic
from lm.store.formats import MANIFEST
from lm.store.store import Store

os.environ["HF_HUB_OFFLINE"] = "1"  # before anything imports huggingface_hub, which reads it once

ROOT = Path(__file__).resolve().parents[1]


@pytest.fixture(scope="session", autouse=True)
def _cache(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Prepared text goes to a folder of this session, not to the user's; workers of one session have it in common."""
    mine = tmp_path_factory.getbasetemp()
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("LM_CACHE", str((mine.parent if "PYTEST_XDIST_WORKER" in os.environ else mine) / "cache"))
        yield


@pytest.fixture(scope="session", autouse=True)
def _threads() -> None:
    """As many as are asked for; imported here, for the process that only hands tests out to others needs no torch."""
    import torch

    torch.set_num_threads(int(os.environ.get("OMP_NUM_THREADS", "1")))


@pytest.fixture(autouse=True)
def _seeded(_threads: None) -> None:
    """A test draws the same numbers whatever ran before it."""
    import torch

    torch.default_generator.manual_seed(0)  # torch.manual_seed writes the stack down where CUDA is asleep, for 1 ms
    if torch.cuda.is_initialized():
        torch.cuda.manual_seed_all(0)


@pytest.fixture(autouse=True)
def _same_places() -> Iterator[None]:
    """Folders in which modules are looked for are of one test alone: each of them makes every import slower."""
    before = list(sys.path)
    yield
    if sys.path != before:
        sys.path[:] = before


@pytest.fixture
def undrawn(monkeypatch: pytest.MonkeyPatch) -> None:
    """Reports are written with empty pictures: drawing them takes longer than all else of a report."""
    monkeypatch.setattr("lm.report.figures.picture.render", lambda _: {"png": b"", "svg": b""})


def pytest_itemcollected(item: pytest.Item) -> None:
    """An `extra` test is slow too."""
    if item.get_closest_marker("extra"):
        item.add_marker("slow")


@pytest.fixture(autouse=True)
def _undrawn(request: pytest.FixtureRequest) -> None:
    """Pictures themselves are looked at by slow tests."""
    if request.node.get_closest_marker("slow") is None:
        request.getfixturevalue("undrawn")


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> Any:
    """With `--dist loadscope`, tests of a file that makes something once go to one process, others to any."""
    if config.getvalue("dist") != "loadscope":
        return None
    from xdist.scheduler import LoadScopeScheduling

    def scope(nodeid: str) -> str:
        file = nodeid.partition("::")[0]
        return file if _makes_once(file) else nodeid

    scheduler = LoadScopeScheduling(config, log)
    scheduler._split_scope = scope
    return scheduler


@functools.cache
def _makes_once(file: str) -> bool:
    """Whether a file of tests holds a fixture that lives longer than a test."""
    text = (ROOT / file).read_text(encoding="utf-8")
    return any(f'@pytest.fixture(scope="{scope}"' in text for scope in ("module", "session"))


def pytest_collection_finish() -> None:
    """What was imported lives to the end: the garbage collector need not go through it, nor look after every test."""
    gc.collect()
    gc.freeze()
    gc.set_threshold(50_000, 20, 20)


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Says how many cases were made up, by tests that say so of themselves."""
    ended = [one for kind in ("passed", "failed") for one in terminalreporter.stats.get(kind, [])]
    made = [int(found) for one in ended for name, found in one.user_properties if name == "cases"]
    if made:
        terminalreporter.write_line(f"{sum(made):,} made-up cases tried")


@pytest.fixture(scope="session")
def shared() -> Path:
    """The reference data beside the repository."""
    folder = ROOT.parent / "shared" / "data"
    if not folder.is_dir():
        pytest.skip(f"needs the reference data in {folder}")
    return folder


Cells = Mapping[str, Sequence[float | str | None]]
"""For each arm, what became of each seed's cell: a validation NLL, `diverged`, `failed`, or None: not trained yet."""


def make_experiment(
    folder: Path,
    cells: Cells,
    change: Callable[[str, int, dict[str, Any]], None] = lambda *_: None,
    prefix: str = "",
    **manifest: Any,
) -> Path:
    """Make a store of invented cells and the experiment's folder in it; the first arm is the baseline.

    Cells are called ARM-SEED, after a `prefix`.

    `change(arm, seed, record)` may alter a record before it is stored, to what no writer would write too.
    """
    store = Store(folder / "out")
    seeds = list(range(max(map(len, cells.values()))))
    for arm, outcomes in cells.items():
        for seed, outcome in enumerate(outcomes):
            if outcome is None:
                continue
            stored = record(f"{prefix}{arm}-{seed}", outcome, seed)
            change(arm, seed, cast(dict[str, Any], stored))
            nll = stored["metrics"].get("nll")
            if stored["status"] == "ok" and nll is not None:
                lines = [f"{step},{nll + 10 / step},{step / 10}\n" for step in (10, 20, 30)]
                curve = "step,validation_nll,gradient_norm\n" + "".join(lines)
                write_atomic(store.work(stored["id"]) / "history.csv", curve)
            store.finish(stored["id"], stored)
    described = make_manifest("demo", "A demonstration", list(cells), seeds, **manifest)
    for arm in described["arms"].values():
        arm["cells"] = {seed: prefix + cell for seed, cell in arm["cells"].items()}
    path = store.out / "demo" / "experiment.json"
    write_atomic(path, to_json(MANIFEST.read(described, path) if described["format"] == 1 else described))
    return path.parent


@pytest.fixture
def experiment(tmp_path: Path) -> MakeExperiment:
    """`make_experiment` in the folder of the test."""
    return functools.partial(make_experiment, tmp_path)


@pytest.fixture
def budgeted(tmp_path: Path) -> Callable[[Mapping[int, Cells], Sequence[int]], Path]:
    """Makes an experiment of cells after shares of the training, in percent, of which it declares those below 100."""

    def make(cells_by_percent: Mapping[int, Cells], declared: Sequence[int]) -> Path:
        whole = make_experiment(tmp_path / "100", cells_by_percent[100], budgets=list(declared))
        for percent in cells_by_percent.keys() - {100}:
            share = make_experiment(tmp_path / str(percent), cells_by_percent[percent])
            whole.with_name(f"{whole.name}.budget_{percent}").symlink_to(share)
        return whole

    return make


@pytest.fixture(scope="module")
def module_experiment(tmp_path_factory: pytest.TempPathFactory) -> MakeExperiment:
    """Makes experiments that the tests of a file have in common, each in a folder of its own."""
    return lambda *given, **manifest: make_experiment(tmp_path_factory.mktemp("experiment"), *given, **manifest)


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add the option that rewrites the golden messages."""
    parser.addoption("--write-messages", action="store_true", help="keep the messages of this run as the golden ones")


@pytest.fixture
def check_message(request: pytest.FixtureRequest, tmp_path: Path) -> CheckMessage:
    """Compare messages with those of messages.golden.json, folders of tests written as TMP and hashes as HASH."""
    counter = itertools.count(1)

    def check(message: Message) -> None:
        number = next(counter)
        name = request.node.nodeid.removeprefix("tests/") + (f" {number}" if number > 1 else "")
        text = re.sub(rf"{re.escape(str(tmp_path.parent))}/\w+", "TMP", json.dumps(message))
        portable = json.loads(re.sub(r"\b[0-9a-f]{64}\b", "HASH", text))
        if request.config.getoption("--write-messages"):
            write_message(name, portable)
        assert portable == read_messages().get(name)

    return check


@pytest.fixture
def refused(check_message: CheckMessage) -> Refused:
    """Expect an error with the one line of messages.golden.json."""

    @contextlib.contextmanager
    def refusal(kind: type[Exception] = InputError) -> Iterator[None]:
        with pytest.raises(kind) as caught:
            yield
        assert "\n" not in str(caught.value)
        check_message(str(caught.value))

    return refusal


@pytest.fixture
def refused_command(check_message: CheckMessage, capsys: pytest.CaptureFixture[str]) -> RefusedCommand:
    """Expect exit code 2 and the one line of messages.golden.json on standard error."""

    def expect(arguments: Sequence[object], run: Callable[[list[str]], int] = main) -> None:
        capsys.readouterr()
        assert run([*map(str, arguments)]) == 2
        shown = capsys.readouterr()
        assert shown.out == ""
        (line,) = shown.err.strip().splitlines()
        check_message(line)

    return expect

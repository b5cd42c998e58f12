"""Datasets of the Hugging Face hub, through `datasets`: loaded whole, or streamed up to a number of tokens.

CACHE/hub/<dataset and revision>.json    the commit that a name such as main had when it was first read: the pin
"""

import contextlib
import itertools
import json
import os
import queue
import re
import subprocess
import sys
import threading
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import IO, Any

from lm.config.tree import InputError, nearest, run_id
from lm.data.corpus import SPLITS, Corpus
from lm.data.text_files import Piece, texts_of
from lm.store.files import read_json, to_json, write_atomic
from lm.store.user_cache import cache_folder

ANSWER_SECONDS = 4.0  # seconds in which the Hugging Face hub answers, or counts as out of reach
LOST_SECONDS = 3.5  # seconds without data or an answer after which a connection counts as lost
REOPENED = 5  # times that a stream which fails while the hub answers is opened again before it gives another document
COMMIT = re.compile(r"[0-9a-f]{40}")
REMEDY = "Without a network use data.corpus=StdlibText, or LocalText with data.corpus.path=FILE"

Rows = tuple[list[str], Any]  # documents, and the state of the stream after them


def answers(address: str, seconds: float | None = None) -> bool:
    """Return True if the hub at an address answers within so many seconds, by default ANSWER_SECONDS."""
    answered, finished, patience = threading.Event(), threading.Event(), seconds or ANSWER_SECONDS

    def send_request() -> None:
        from huggingface_hub.utils import get_session  # type: ignore[attr-defined]

        with contextlib.suppress(Exception):  # of whatever client the library uses
            get_session().head(address, timeout=patience)
            answered.set()
        finished.set()

    threading.Thread(target=send_request, daemon=True).start()  # looking up a name heeds no timeout
    finished.wait(patience)
    return answered.is_set()


@contextlib.contextmanager
def reachable_hub(path: str) -> Iterator[bool]:
    """Keep the hub's client offline in the block where the hub does not answer; gives whether a hub is out of reach."""
    import datasets
    from huggingface_hub import constants

    datasets.disable_progress_bars()
    before = datasets.config.HF_HUB_OFFLINE, constants.HF_HUB_OFFLINE
    is_remote = not (Path(path).exists() or any(before))
    unreachable = is_remote and not answers(datasets.config.HF_ENDPOINT)
    try:
        if unreachable:  # the hub's own client would try for half a minute
            datasets.config.HF_HUB_OFFLINE = constants.HF_HUB_OFFLINE = True
        yield unreachable
    finally:
        datasets.config.HF_HUB_OFFLINE, constants.HF_HUB_OFFLINE = before


def refuse(path: str, error: Exception, unreachable: bool, more: str = "") -> InputError:
    """Return the error of a dataset that cannot be had, in one line."""
    import datasets

    reason = str(error).splitlines()[0] if str(error) else type(error).__name__
    if unreachable:
        reason = f"{datasets.config.HF_ENDPOINT} does not answer, and without it: {reason}"
    return InputError(f"data.corpus: HubText cannot load {path!r} ({reason}). {more}{REMEDY}")


def pinned(kind: str, path: str, revision: str | None) -> str | None:
    """Return the commit of a revision of a dataset or model of the hub, as this machine first read it, if it can."""
    if Path(path).exists() or COMMIT.fullmatch(revision or ""):
        return revision
    pin = cache_folder() / "hub" / f"{run_id([kind, path, revision])[:32]}.json"
    with contextlib.suppress(InputError, OSError, KeyError, TypeError):
        return str(read_json(pin)["revision"])
    with contextlib.suppress(Exception), reachable_hub(path) as unreachable:  # reading then fails too, and says why
        if not unreachable:
            from huggingface_hub import HfApi

            commit = HfApi().repo_info(path, repo_type=kind, revision=revision, timeout=ANSWER_SECONDS).sha
            write_atomic(pin, to_json({kind: path, "revision": commit}))
            return commit
    return revision


PROBE, MIN_PROBE_IDS = "To be, or not: 12 + 3 = 15.", 2  # a text, and the fewest ids that a tokenizer has for it


def load_pretrained(path: str, revision: str | None) -> tuple[Any, dict[str, Any]]:
    """Return a tokenizer from its file, its folder or the hub, and its settings. Raises InputError in one line."""
    import tokenizers

    file, settings = Path(path).expanduser(), "tokenizer_config.json"
    try:
        if not file.exists():
            from huggingface_hub import hf_hub_download
            from huggingface_hub.errors import EntryNotFoundError

            revision = pinned("model", path, revision)
            with reachable_hub(path):
                with contextlib.suppress(EntryNotFoundError):
                    file = Path(hf_hub_download(path, "tokenizer.json", revision=revision))
                with contextlib.suppress(EntryNotFoundError):
                    hf_hub_download(path, settings, revision=revision)
        folder = file if file.is_dir() else file.parent
        if (folder / "tokenizer.json").is_file() if file.is_dir() else file.is_file():
            loaded = tokenizers.Tokenizer.from_file(str(folder / "tokenizer.json" if file.is_dir() else file))
            return loaded, dict(read_json(folder / settings)) if (folder / settings).is_file() else {}
        from transformers import AutoTokenizer

        with reachable_hub(path):
            auto = AutoTokenizer.from_pretrained(path, revision=revision or "main")
        if len({*auto.backend_tokenizer.encode(PROBE).ids}) < MIN_PROBE_IDS:  # transformers makes one of any folder
            raise ValueError("it turns text into nothing; save_pretrained of a fast tokenizer writes tokenizer.json")
        return auto.backend_tokenizer, {"eos_token": auto.eos_token}
    except Exception as error:  # of the hub, of its client, of a reader of a format, and of a missing package
        reason = " ".join(str(error).split()) or type(error).__name__
        expected = "expected a tokenizer.json, a folder that holds one, or a name on the Hugging Face hub"
        raise InputError(f"data.tokenizer.path: {path!r} cannot be loaded ({reason}); {expected}") from None


class HubText(Corpus):
    """A dataset of the Hugging Face hub, through `datasets`, with the hub's own splits where it has them.

    Args:
        path: the dataset, e.g. `Salesforce/wikitext`.
        name: its configuration, e.g. `wikitext-2-raw-v1`.
        field: the column that holds the text.
        data_dir: a folder of the dataset, e.g. `data/python`.
        revision: a commit, branch or tag; by default the commit that main had when this machine first read it.
        split: one split of the dataset, by default all; `data.split` divides it.
        streaming: whether documents are encoded as they arrive, from the split `train` by default, and no text is kept.
        tokens: of a stream, at most; the document that reaches them is the last.
    """

    ADDED = ("revision", "split", "streaming", "tokens", "data_dir")

    def __init__(
        self,
        path: str,
        name: str | None = None,
        field: str = "text",
        revision: str | None = None,
        split: str | None = None,
        streaming: bool = False,
        tokens: float | None = None,
        data_dir: str | None = None,
    ) -> None:
        if tokens is not None and not streaming:
            raise ValueError(f"tokens={tokens} ends a stream; it needs streaming: true")
        if tokens is not None and not 1 <= tokens <= 1e15:
            raise ValueError(f"tokens={tokens} must be at least 1")
        self.path, self.name, self.field, self.split = path, name, field, split
        self.revision, self.streaming, self.tokens, self.data_dir = revision, streaming, tokens, data_dir
        self._loaded: dict[str, Any] | None = None

    def pin(self) -> None:
        """Fix the revision: the commit of a name, from the hub or as this machine first read it."""
        self.revision = pinned("dataset", self.path, self.revision)
        if not self.streaming and not COMMIT.fullmatch(self.revision or ""):
            self._load()  # a copy on this machine names its commit

    def state(self) -> Any:
        """Return the commit, which always means the same text."""
        return [[self.path, self.revision, 0]] if COMMIT.fullmatch(self.revision or "") else None

    def _load(self) -> dict[str, Any]:
        """Load the dataset by split, from the copy on this machine where the hub does not answer."""
        if self._loaded is not None:
            return self._loaded
        import datasets

        with reachable_hub(self.path) as unreachable:
            try:
                options = {"data_dir": self.data_dir, "revision": self.revision, "split": self.split}
                loaded = datasets.load_dataset(self.path, self.name, **options)
            except Exception as error:  # of the hub, of its client, and of every reader of a file format
                raise refuse(self.path, error, unreachable) from None
        by_split = {str(self.split): loaded} if self.split is not None else {str(key): loaded[key] for key in loaded}
        for split, rows in by_split.items():
            if self.field not in rows.column_names:
                hint = f"{nearest(self.field, rows.column_names)} It has {', '.join(rows.column_names)}"
                raise InputError(f"data.corpus.field: {self.path!r} ({split}) has no column {self.field!r}.{hint}")
            for file in rows.cache_files:  # in a folder of the commit's name
                commit = Path(file["filename"]).parent.name
                if not COMMIT.fullmatch(commit):
                    continue
                if COMMIT.fullmatch(self.revision or "") and commit != self.revision:
                    problem = f"this machine has revision {commit} of {self.path!r}, and the hub does not answer"
                    raise InputError(f"data.corpus.revision: expected {self.revision}; {problem}")
                self.revision = commit
        self._loaded = by_split
        return by_split

    def pieces(self) -> Iterator[Piece]:
        """Yield the documents of all splits of the dataset."""
        loaded = self._load()
        return itertools.chain.from_iterable(_Texts(rows, self.field, self.path) for rows in loaded.values())

    def documents(self) -> Iterator[str]:
        """Yield the documents of all splits of the dataset."""
        return (text for text, _ in self.pieces())

    def split_pieces(self, fractions: Sequence[float]) -> Mapping[str, Iterable[Piece]] | None:
        """Return the dataset's own splits; None where it has no validation split."""
        loaded = self._load()
        if not {"train", "validation"} <= set(loaded):
            return None
        return {name: _Texts(loaded[name], self.field, self.path) for name in SPLITS if name in loaded}


class _Texts:
    """The texts of a loaded split as pieces, read anew at each pass."""

    def __init__(self, rows: Any, field: str, path: str) -> None:
        self.rows, self.field, self.path = rows, field, path

    def __iter__(self) -> Iterator[Piece]:
        for batch in self.rows.select_columns([self.field]).iter(batch_size=256):
            yield from ((text, True) for text in texts_of(batch[self.field], self.field, self.path))


class HubStream:
    """The documents of a stream from a state on, in portions of some `characters`, with the state after each.

    A process of its own reads, which can be ended at any time. A connection without data is probed: while the hub
    answers, the stream is waited for or opened again where it was; a hub that does not answer for LOST_SECONDS is an
    InputError.
    """

    def __init__(self, corpus: HubText, state: Any, characters: int) -> None:
        self.corpus, self.state, self.characters = corpus, state, characters
        self.remote = not Path(corpus.path).exists()

    def __iter__(self) -> Iterator[Rows]:
        import datasets

        failures = 0
        while True:
            try:
                yield from self._read(datasets.config.HF_ENDPOINT)
                return
            except (ConnectionError, TimeoutError) as error:
                failures += 1
                over = not self.remote or failures > REOPENED or isinstance(error, TimeoutError)
                if over or not waits_for(datasets.config.HF_ENDPOINT):
                    more = "What was read is kept, and the same command goes on from there. "
                    unreachable = self.remote and not answers(datasets.config.HF_ENDPOINT, 0.1)
                    raise refuse(self.corpus.path, error, unreachable, more if self.state else "") from None

    def _read(self, endpoint: str) -> Iterator[Rows]:
        """Read until the end; raise ConnectionError where the reader fails, TimeoutError after LOST_SECONDS."""
        corpus, arrived = self.corpus, queue.Queue[bytes](2)
        options = {"data_dir": corpus.data_dir, "revision": corpus.revision, "split": corpus.split or "train"}
        order = [corpus.path, corpus.name, corpus.field, options, self.state, self.characters]
        command = [sys.executable, "-c", f"from {__name__} import send_rows; send_rows()"]
        paths = [str(Path(__file__).parents[2]), *filter(None, [os.environ.get("PYTHONPATH")])]
        environment = {**os.environ, "PYTHONPATH": os.pathsep.join(paths)}
        pipe = subprocess.PIPE
        with subprocess.Popen(command, stdin=pipe, stdout=pipe, stderr=subprocess.DEVNULL, env=environment) as reader:
            assert reader.stdin is not None
            assert reader.stdout is not None
            try:
                reader.stdin.write(json.dumps(order).encode())
                reader.stdin.close()
                receiver = threading.Thread(target=_receive, args=(reader.stdout, arrived), daemon=True)
                receiver.start()
                while True:
                    kind, content, state = json.loads(self._next(arrived, endpoint) or '["lost", "it ended", null]')
                    if kind == "end":
                        return
                    if kind == "refused":
                        raise InputError(content)
                    if kind == "lost":
                        raise ConnectionError(content)
                    self.state = state
                    yield content, state
            finally:
                reader.kill()
                with contextlib.suppress(queue.Empty):  # so that the thread comes to its end
                    while True:
                        arrived.get(timeout=0.1)

    def _next(self, arrived: "queue.Queue[bytes]", endpoint: str) -> bytes:
        """Return the next line of the reader; raise TimeoutError where it and the hub are silent."""
        since = time.monotonic()
        while True:
            try:
                return arrived.get(timeout=0.25)
            except queue.Empty:
                silent = time.monotonic() - since
                if self.remote and silent > 1 and answers(endpoint, 1.0):
                    since = time.monotonic()
                elif self.remote and silent > LOST_SECONDS:
                    raise TimeoutError(f"no data for {silent:z.0f} s") from None


def _receive(stream: IO[bytes], arrived: "queue.Queue[bytes]") -> None:
    for line in stream:
        arrived.put(line)
    arrived.put(b"")


def waits_for(address: str) -> bool:
    """Return True once the hub answers; False if it does not for LOST_SECONDS."""
    end = time.monotonic() + LOST_SECONDS - 1
    while time.monotonic() < end:
        if answers(address, 1.0):
            return True
        time.sleep(0.25)
    return False


def send_rows() -> None:
    """Read the stream that standard input describes, and write its rows to standard output, a line a portion."""
    out = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)  # what libraries print

    def send(*line: Any) -> None:
        out.write(json.dumps(line).encode() + b"\n")
        out.flush()

    path, name, field, options, state, characters = json.load(sys.stdin)
    try:
        import datasets

        for kind in ("READ", "OPEN"):
            setattr(datasets.config, f"STREAMING_{kind}_MAX_RETRIES", 1)  # the other process opens the stream again
        rows = datasets.load_dataset(path, name, streaming=True, **options)
        if field in (rows.column_names or ()):
            rows = rows.select_columns([field])
        if state is not None:
            rows.load_state_dict(state)
        documents, held = list[str](), 0
        for row in rows:
            if field not in row:
                hint = f"{nearest(field, list(row))} It has {', '.join(row)}"
                send("refused", f"data.corpus.field: {path!r} has no column {field!r}.{hint}", None)
                return
            for text in filter(None, texts_of([row[field]], field, path)):
                documents.append(text)
                held += len(text)
            if held >= characters:
                send("rows", documents, rows.state_dict())
                documents, held = [], 0
        if documents:
            send("rows", documents, rows.state_dict())
        send("end", None, None)
    except InputError as error:
        send("refused", str(error), None)
    except Exception as error:  # of the hub, of its client, and of every reader of a file format
        send("lost", str(error).splitlines()[0] if str(error) else type(error).__name__, None)

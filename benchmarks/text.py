"""From a file of text to token ids on disk: `lm` beside numpy, `encode_batch_fast`, nanoGPT's way and `datasets.map`.

All begin with the same file of documents, a line each, in a fresh process, and end with ids in a file.
"""

import functools
import os
import resource
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import tokenizers

from benchmarks.asked import Asked
from benchmarks.memory import in_child, peak
from benchmarks.ratios import alternate
from benchmarks.rows import Row, rows_of

MEGABYTES, LEARNT, VOCABULARY = 64, 2_000_000, 4096
SHARES = (0.98, 0.01, 0.01)


def generate(path: Path, size: int) -> None:
    """Write about `size` bytes of words with a Zipf distribution, in lines of 300 words."""
    random = np.random.default_rng(0)
    words = np.array(["".join(random.choice(list("etaoinshrdlu"), random.integers(1, 10))) for _ in range(30_000)])
    share = 1 / np.arange(1, 30_001)
    with path.open("w", encoding="utf-8") as file:
        while file.tell() < size:
            chosen = random.choice(words, 300_000, p=share / share.sum())
            file.writelines(" ".join(line) + "\n" for line in chosen.reshape(-1, 300))


def learn(text: Path, path: Path) -> None:
    """Train a byte-level BPE on the beginning of a text."""
    from lm.data.tokenizer import BPE

    with text.open(encoding="utf-8") as file:
        BPE(VOCABULARY).train([file.read(LEARNT)]).save(str(path))


# The ways, each of the text, the tokenizer's file, a folder for the ids, and the processes. ---------------------------


def lm(text: Path, tokenizer: Path | None, folder: Path, _: int) -> None:
    """Prepare a corpus."""
    from lm.data.corpus import LocalText
    from lm.data.mixture import prepare
    from lm.data.tokenizer import Bytes, Pretrained

    os.environ["LM_CACHE"] = str(folder)
    prepare(LocalText(str(text), document="line"), Pretrained(str(tokenizer)) if tokenizer else Bytes(), SHARES)


def numpy_bytes(text: Path, _: Path | None, folder: Path, __: int) -> None:
    """Read all bytes and write them as uint16."""
    np.fromfile(text, dtype=np.uint8).astype(np.uint16).tofile(folder / "train.bin")


def nanogpt_characters(text: Path, _: Path | None, folder: Path, __: int) -> None:
    """Do what data/shakespeare_char/prepare.py does."""
    data = text.read_text(encoding="utf-8")
    index_of = {character: index for index, character in enumerate(sorted(set(data)))}
    np.array([index_of[character] for character in data], dtype=np.uint16).tofile(folder / "train.bin")


def batch_fast(text: Path, tokenizer: Path | None, folder: Path, _: int) -> None:
    """Encode all lines at once, a thousand at a time."""
    encode = tokenizers.Tokenizer.from_file(str(tokenizer)).encode_batch_fast
    lines = text.read_text(encoding="utf-8").splitlines(keepends=True)
    with (folder / "train.bin").open("wb") as file:
        for start in range(0, len(lines), 1000):
            for encoding in encode(lines[start : start + 1000]):
                np.array(encoding.ids, dtype=np.uint16).tofile(file)


def datasets_map(text: Path, tokenizer: Path | None, folder: Path, processes: int, one_by_one: bool = False) -> None:
    """Map lines to ids, in batches or one by one, and write these in 100 portions, as data/openwebtext/prepare.py."""
    import datasets

    datasets.disable_progress_bars()
    loaded = tokenizers.Tokenizer.from_file(str(tokenizer))
    one: Callable[[Any], Any] = lambda row: {"ids": loaded.encode(row["text"]).ids}  # noqa: E731
    many: Callable[[Any], Any] = lambda rows: {"ids": [of.ids for of in loaded.encode_batch_fast(rows["text"])]}  # noqa: E731
    rows = datasets.load_dataset("text", data_files=str(text), split="train", cache_dir=str(folder))
    mapped = rows.map(one if one_by_one else many, batched=not one_by_one, remove_columns=["text"], num_proc=processes)
    with (folder / "train.bin").open("wb") as file:
        for number in range(100):
            ids = mapped.shard(100, number, contiguous=True).with_format("numpy")["ids"]
            np.concatenate(list(ids)).astype(np.uint16).tofile(file)


WAYS: dict[str, dict[str, Callable[..., None]]] = {
    "bytes and characters": {
        "numpy, bytes at once": numpy_bytes,
        "lm, bytes": lm,
        "nanoGPT's way, characters": nanogpt_characters,
    },
    f"BPE of {VOCABULARY:,}": {
        "encode_batch_fast": batch_fast,
        "lm": lm,
        "datasets.map, batches": datasets_map,
        "nanoGPT's way: datasets.map, a line each": functools.partial(datasets_map, one_by_one=True),
    },
}


def measure_here(what: str, group: str, way: str, text: str, tokenizer: str | None, threads: int) -> float:
    """Return seconds, or MiB of this process and of its workers together, of preparing a text in a way."""
    os.environ["RAYON_NUM_THREADS"] = str(threads)
    work = WAYS[group][way]
    import lm.data.mixture  # noqa: F401  no way is timed with imports

    with tempfile.TemporaryDirectory() as folder:
        begun = time.perf_counter()
        work(Path(text), tokenizer and Path(tokenizer), Path(folder), threads)
        seconds = time.perf_counter() - begun
    workers = resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss / (2**20 if sys.platform == "darwin" else 2**10)
    return seconds if what == "seconds" else peak() + threads * workers


def text(asked: Asked) -> list[Row]:
    """Return seconds, MB/s and memory of each way."""
    rows = list[Row]()
    with tempfile.TemporaryDirectory() as name:
        path, tokenizer = Path(name) / "text.txt", Path(name) / "tokenizer.json"
        generate(path, 10**6 if asked.quick else MEGABYTES * 10**6)
        learn(path, tokenizer)
        for group, ways in WAYS.items():
            arguments = str(path), str(tokenizer) if group.startswith("BPE") else None, asked.threads
            call = {way: functools.partial(in_child, "text", "seconds", group, way, *arguments) for way in ways}
            taken = alternate(call, 1 if asked.quick else 3, warm=0)
            more: dict[str, dict[str, float | None]] = {
                way: {
                    "mb_per_second": path.stat().st_size / 1e6 / statistics.median(taken[way]),
                    "peak_mib": in_child("text", "memory", group, way, *arguments),
                }
                for way in ways
            }
            notes = {way: "memory: of all processes" for way in ways if "datasets" in way}
            rows += rows_of(f"{group}, {path.stat().st_size / 1e6:.0f} MB", taken, next(iter(ways)), "s", more, notes)
    return rows

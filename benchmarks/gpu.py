"""A training step on a CUDA device at sizes that fill it, beside nanoGPT's, which may be compiled."""

import functools
import json
import tempfile
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch

from benchmarks.asked import Asked
from benchmarks.loops import SKIPPED, bare, ours, steady
from benchmarks.peers import Contender, contenders
from benchmarks.ratios import Way, alternate
from benchmarks.rows import Row, row, rows_of
from benchmarks.sizes import AS_NANOGPT, SMALLEST, Size
from lm.config.tree import Tree
from lm.metrics.cost import matmul_peak, utilisation
from lm.model.flops import flops_per_token
from lm.store.files import write_atomic

NO_DEVICE = "torch can use no CUDA device of this machine"
CUDA: Tree = {"trainer.accelerator": "auto", "data.corpus.size": 1_000_000}
VOCABULARY = 50_304
"""Tokens of nanoGPT's recipe: GPT-2's, filled up to a multiple of 64."""

LARGE = (
    Size("nanoGPT's 124M", 12, 768, 12, 1024, 12, steps=31, rounds=1, parts={**AS_NANOGPT, **CUDA}),
    Size("tier G", 8, 512, 8, 512, 64, steps=31, rounds=1, parts={**AS_NANOGPT, **CUDA}),
)
FITTED: dict[str, dict[str, Any]] = {
    "lm fit, bf16": {"trainer.precision": "bf16-mixed"},
    "lm fit, bf16, deterministic: false": {"trainer.precision": "bf16-mixed", "trainer.deterministic": False},
    "lm fit, bf16, compiled": {"trainer.precision": "bf16-mixed", "trainer.compile": True},
    "lm fit, bf16, compiled, deterministic: false": {
        "trainer.precision": "bf16-mixed",
        "trainer.compile": True,
        "trainer.deterministic": False,
    },
}


def gpu(asked: Asked) -> list[Row]:
    """Rows of every size."""
    if not (torch.cuda.is_available() or asked.quick):
        return [row("a step on a CUDA device", "lm fit", None, note=NO_DEVICE)]
    sizes = (replace(SMALLEST, steps=2 * SKIPPED + 1),) if asked.quick else LARGE
    with tempfile.TemporaryDirectory() as folder:
        tokenizer = write_vocabulary(Path(folder), 512 if asked.quick else VOCABULARY)
        return [one for size in sizes for one in _steps(size, tokenizer, asked)]


def _steps(size: Size, tokenizer: Tree, asked: Asked) -> list[Row]:
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    text = {"data.tokenizer": tokenizer}
    cell = size.cell(text)
    on_device = functools.partial(bare, size=size, cell=cell, bfloat=True, device=device, skipped=SKIPPED)
    ways: dict[str, Way] = {"ours, bare loop, bf16": functools.partial(on_device, ours(cell))}
    for name, changes in FITTED.items():
        ways[name] = functools.partial(steady, size.cell({**text, **changes}), asked.threads)
    peer = contenders(asked.nanogpt)["nanoGPT"]
    if isinstance(peer, Contender):
        ways["nanoGPT, bf16"] = functools.partial(on_device, peer)
        ways["nanoGPT, bf16, compiled"] = functools.partial(on_device, peer, compiled=True)
    taken = alternate(ways, size.rounds)
    opened = cell.open()
    flops = flops_per_token(opened.model(), opened.data.context).total
    peak = matmul_peak(device, torch.bfloat16, torch.get_num_threads())
    shape = f"{size.layers} layers of width {size.width}, {size.batch} x {size.context} tokens"
    rows = rows_of(f"{size.name}: {shape}, {_name(device)}", taken, list(ways)[-1])
    for one in rows:
        assert one["value"] is not None
        speed = size.tokens / one["value"]
        one["more"] = {"tokens_per_second": speed, "matmul_peak_share": utilisation(speed, flops, [peak])}
    return rows + ([row(rows[0]["group"], "nanoGPT", None, note=peer)] if isinstance(peer, str) else [])


def _name(device: torch.device) -> str:
    return torch.cuda.get_device_name(device) if device.type == "cuda" else "the processor"


def write_vocabulary(folder: Path, size: int) -> Tree:
    """Write a byte-level vocabulary of `size` tokens in GPT-2's two files; return the tokenizer that reads them.

    The merges are all pairs of letters, then of such pairs. Nothing is learnt: a step takes as long whatever they are.
    """
    from tokenizers.pre_tokenizers import ByteLevel

    tokens = sorted(ByteLevel.alphabet())
    letters = [token for token in tokens if token.isascii() and token.isalpha()]
    pairs = [(left, right) for left in letters for right in letters]
    longer = ((a + b, c + d) for a, b in pairs for c, d in pairs)
    merges = [*pairs, *(pair for pair, _ in zip(longer, range(size), strict=False))][: size - 1 - len(tokens)]
    vocabulary = {token: index for index, token in enumerate([*tokens, *(a + b for a, b in merges)])}
    write_atomic(folder / "encoder.json", json.dumps(vocabulary))
    write_atomic(folder / "vocab.bpe", "#version: 0.2\n" + "".join(f"{a} {b}\n" for a, b in merges))
    files = {"vocab": str(folder / "encoder.json"), "merges": str(folder / "vocab.bpe")}
    return {"class_path": "GPT2", "init_args": files}

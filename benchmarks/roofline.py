"""Where a training step spends its time: each operation beside what the machine can do (Williams et al. 2009).

An operation can be no faster than its FLOPs at the machine's matrix peak, nor than its bytes at the speed at which the
machine copies memory. Its share of the roof is the longer of the two over the time that it took. Operations whose
data fit into a cache can pass the second bound, which is of main memory.
"""

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves
from torch.utils.flop_counter import flop_registry, sdpa_backward_flop_count, sdpa_flop_count

from benchmarks.asked import Asked
from benchmarks.loops import CLIP, RATE, loss_in
from benchmarks.peers import loss_of_logits
from benchmarks.ratios import timed
from benchmarks.rows import Row, row
from benchmarks.sizes import Size, sizes
from lm.config.tree import Tree
from lm.inference.autotune import as_in_training
from lm.metrics.cost import matmul_peak
from lm.model.attention import set_attention_impl
from lm.training.optim import decay_groups

STEPS = 10
MOST = 12
"""Operations with a row of their own; the rest are one row."""

ATTENTION = "_scaled_dot_product_flash_attention_for_cpu"
"""Torch's attention on a CPU, whose FLOPs its registry lacks: of the keys that a query sees, half of them if causal."""

COPIED = 2**26
"""Bytes of the copy that measures the memory, more than caches hold."""

STEP, OUTSIDE, REST = "the whole step", "outside operations", "other operations"


@dataclass
class Spent:
    """What an operation took over all steps."""

    seconds: float = 0.0
    calls: int = 0
    flops: float = 0.0
    bytes: float = 0.0


class Watch(TorchDispatchMode):
    """Times each operation of torch, and counts its FLOPs and the bytes of all tensors that it reads or writes."""

    def __init__(self) -> None:
        super().__init__()
        self.spent: dict[str, Spent] = {}

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Call the operation."""
        begun = time.perf_counter()
        result = func(*args, **(kwargs or {}))
        seconds, name = time.perf_counter() - begun, func.overloadpacket.__name__
        spent = self.spent.setdefault(name, Spent())
        spent.seconds += seconds
        spent.calls += 1
        if name == ATTENTION:
            spent.flops += sdpa_flop_count(*(x.shape for x in args[:3])) * visible(args[1], args[4:5])
        elif name == f"{ATTENTION}_backward":
            spent.flops += sdpa_backward_flop_count(*(x.shape for x in args[:4])) * visible(args[2], args[7:8])
        elif (count := flop_registry.get(func.overloadpacket)) is not None:
            spent.flops += count(*args, **(kwargs or {}), out_val=result)
        if not func.is_view:
            tensors = {id(x): x for x in tree_leaves((args, kwargs, result)) if isinstance(x, Tensor)}
            spent.bytes += sum(x.numel() * x.element_size() for x in tensors.values())
        return result


def visible(keys_bhtd: Tensor, is_causal: Sequence[bool]) -> float:
    """Return the share of the keys that a query sees, in the mean."""
    keys = keys_bhtd.shape[2]
    return (keys + 1) / (2 * keys) if any(is_causal) else 1.0


WAYS: dict[str, Tree] = {
    "fp32": {},
    "bf16": {"trainer.precision": "bf16-mixed"},
    "bf16, plain attention": {"trainer.precision": "bf16-mixed", "trainer.attention": "plain"},
}


def roofline(asked: Asked) -> list[Row]:
    """Rows of the operations of a step for every size: in fp32, under autocast, and with plain attention."""
    found: list[Row] = []
    for size in sizes(asked.quick):
        threads = size.threads or asked.threads
        with as_in_training(threads):
            for name, changes in WAYS.items():
                bfloat = "trainer.precision" in changes
                peak = matmul_peak(torch.device("cpu"), torch.bfloat16 if bfloat else torch.float32, threads)
                group = f"{size.name}, {name}, {threads} thread{'s' * (threads > 1)}"
                found += rows(group, *taken(size, changes, bfloat), peak, copy_speed())
    return found


def taken(size: Size, changes: Tree, bfloat: bool) -> tuple[float, Mapping[str, Spent]]:
    """Seconds of a step, and what each of its operations takes of one, measured in other steps."""
    cell = size.cell(changes)
    opened = cell.open()
    model = set_attention_impl(opened.model(), cell.config["trainer"]["attention"]).train()
    optimizer = torch.optim.AdamW(decay_groups(model.parameters()), lr=RATE, weight_decay=0.1, fused=True)
    batches = iter(opened.data.training_batches(0, 2 * STEPS + 1))

    def step() -> None:
        batch = next(batches)
        loss = loss_in(loss_of_logits, model, batch.inputs[0], batch.targets_bt, bfloat)
        optimizer.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), CLIP)
        optimizer.step()

    step()
    seconds = timed(step, STEPS)()
    with Watch() as watch:
        for _ in range(STEPS):
            step()
    each = {
        name: Spent(spent.seconds / STEPS, round(spent.calls / STEPS), spent.flops / STEPS, spent.bytes / STEPS)
        for name, spent in watch.spent.items()
    }
    return seconds, each


def copy_speed() -> float:
    """Bytes that a copy reads and writes in a second."""
    source = torch.zeros(COPIED // 4)
    target = torch.empty_like(source)
    return 2 * COPIED / min(timed(lambda: target.copy_(source))() for _ in range(6))


def rows(group: str, seconds: float, spent: Mapping[str, Spent], peak: float, speed: float) -> list[Row]:
    """A row for each of the longest operations, the others together, and what passes outside all of them."""
    by_time = sorted(spent, key=lambda name: -spent[name].seconds)
    shown = {name: spent[name] for name in by_time[:MOST]}
    others = [spent[name] for name in by_time[MOST:]]
    if others:
        total = [sum(getattr(one, part) for one in others) for part in ("seconds", "calls", "flops", "bytes")]
        shown[REST] = Spent(total[0], int(total[1]), *total[2:])
    outside = seconds - sum(one.seconds for one in spent.values())
    note = "time of Python and of torch between operations; less than 0 where timing single operations slows them down"
    return [
        row(group, STEP, seconds, more=_more(_sum(spent), peak, speed, seconds, seconds)),
        *(row(group, name, s.seconds, more=_more(s, peak, speed, s.seconds, seconds)) for name, s in shown.items()),
        row(group, OUTSIDE, outside, more={"share_of_step": outside / seconds}, note=note),
    ]


def _sum(spent: Mapping[str, Spent]) -> Spent:
    every = list(spent.values())
    return Spent(0.0, sum(e.calls for e in every), sum(e.flops for e in every), sum(e.bytes for e in every))


def _more(one: Spent, peak: float, speed: float, seconds: float, step: float) -> dict[str, float | None]:
    """Return calls, GFLOP and MB, and which share of the time the machine at its best would take."""
    roof = max(one.flops / peak, one.bytes / speed)
    return {
        "share_of_step": seconds / step,
        "calls": one.calls,
        "gflop": one.flops / 1e9,
        "mb": one.bytes / 1e6,
        "share_of_roof": roof / seconds if seconds else None,
    }

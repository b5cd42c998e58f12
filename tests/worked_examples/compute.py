"""What computes each worked example: a short name for each function, and the surroundings that it runs in."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor

from worked_examples import attention, optimisation, positions, softmax, training
from worked_examples.judge import Finding, failed, judge
from worked_examples.rows import Row, plain
from worked_examples.tensors import Given, Numbers

Function = Callable[[Given], Numbers]

FUNCTIONS: dict[str, Function] = {
    "softmax": softmax.softmax_of,
    "cross-entropy": softmax.cross_entropy_loss,
    "loss-gradient": softmax.loss_gradient,
    "loss-gradient-of-probabilities": softmax.loss_gradient_of_probabilities,
    "softmax-descent": softmax.softmax_descent,
    "softmax-jacobian": softmax.softmax_jacobian,
    "logsumexp": softmax.log_sum_exp,
    "ignore-index": softmax.ignore_index,
    "label-smoothing": softmax.label_smoothing,
    "sinusoids": positions.sinusoid,
    "sinusoid-shift": positions.sinusoid_shift,
    "rope": positions.rope_relative,
    "alibi": positions.slopes,
    "attend": attention.attend,
    "attend-back": attention.attend_back,
    "project": attention.project,
    "multi-head": attention.concatenated,
    "multi-head-norm": attention.normed,
    "feed-forward": attention.feed_forward,
    "decoder-attention": attention.decoder_attention,
    "scores-variance": attention.scores_variance,
    "mix": attention.mix,
    "attention-parameters": attention.attention_parameters,
    "cache-elements": attention.cache_elements,
    "descend-square": optimisation.descend_square,
    "clip": optimisation.clip,
    "adamw": optimisation.adamw,
    "adam-l2": optimisation.adam_l2,
    "warmup-cosine": optimisation.warmup_cosine_curve,
    "noam": optimisation.noam_curve,
    "layer-norm": training.layer_norm,
    "rms-norm": training.rms_norm,
    "dropout": training.dropout,
    "similarity": training.similarity,
    "xor": training.xor,
    "or-neuron": training.or_neuron,
    "mlp-parameters": training.mlp_parameters,
}


@contextmanager
def exact(seed: int = 0) -> Iterator[None]:
    """float64 by default, a random stream of its own and one thread, which is quickest for tensors as small as these.

    The caller's come back afterwards.
    """
    dtype, threads = torch.get_default_dtype(), torch.get_num_threads()
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        torch.set_default_dtype(torch.float64)
        torch.set_num_threads(1)
        try:
            yield
        finally:
            torch.set_default_dtype(dtype)
            torch.set_num_threads(threads)


def compute(row: Row) -> dict[str, Any]:
    """What the library computes for `row`: numbers and lists of numbers, by name."""
    with exact():
        found = FUNCTIONS[row.compute](plain(row.given))
    return {name: value.tolist() if isinstance(value, Tensor) else value for name, value in found.items()}


def verify(rows: Sequence[Row]) -> list[Finding]:
    """Every row, computed and judged; one that raises is off, and says why."""
    findings = []
    for row in rows:
        try:
            ours = compute(row)
        except Exception as error:
            findings.append(failed(row, error))
        else:
            findings.append(judge(row, ours))
    return findings

"""One of two processes that hold a shared-out decoder against the same decoder whole: `tensor_world.py FILE RANK`."""

import sys
from typing import Any

import torch
from helpers import decoder, tokens
from torch import distributed
from torch.distributed.device_mesh import init_device_mesh

from lm.data.batch import Batch
from lm.metrics.gradients import ParameterGroups, clip_by_norm, full_tensor, gradient_norm
from lm.metrics.probe import probe
from lm.model.attention import set_attention_impl
from lm.training.strategies import parallelize

GROUPED = {"class_path": "GroupedQuery", "init_args": {"key_value_heads": 2, "softcap": 5.0, "window": 5}}
GATED = {"class_path": "MultiHead", "init_args": {"bias": False, "gate": "headwise", "head_size": 6, "clip": 1.0}}

PARTS: list[dict[str, Any]] = [
    {},
    {"position": "Alibi", "heads": 4, "attention": GROUPED, "mlp": "ReGLU", "block": "PostNorm", "norm": "RMSNorm"},
    {"position": "Sinusoidal", "mlp": "SwiGLU", "embedding": {"tied": False}, "block": "Sandwich"},
    {"position": "Learned", "mlp": "ReLU", "attention": GATED},
]


def compare(changes: dict[str, Any], way: Any) -> None:
    """Raises AssertionError where the shares of a decoder compute something else than the whole."""
    whole, shared = (set_attention_impl(decoder(changes).double(), way) for _ in range(2))
    names = [name for name, _ in shared.named_parameters()]
    parallelize(shared, init_device_mesh("cpu", (2,)))
    assert [name for name, _ in shared.named_parameters()] == names
    read_bt = tokens()
    for model in (whole, shared):
        torch.nn.functional.cross_entropy(model(read_bt).flatten(0, 1), read_bt.roll(1).flatten()).backward()
    expected = dict(whole.named_parameters())
    for name, parameter in shared.named_parameters():
        close(full_tensor(parameter), expected[name], name)
        close(full_tensor(known(parameter.grad)), expected[name].grad, f"gradient of {name}")
    held, wholes = list(shared.parameters()), list(whole.parameters())
    assert any(hasattr(parameter, "full_tensor") for parameter in held), "nothing was shared out"
    close(gradient_norm(held), gradient_norm(wholes), "norm of all gradients")
    close(gradient_norm(held, torch.inf), gradient_norm(wholes, torch.inf), "largest gradient")
    close(ParameterGroups(shared).gradients(), ParameterGroups(whole).gradients(), "norms by part and kind")
    for parameters in (held, wholes):
        clip_by_norm(parameters, 0.1, gradient_norm(parameters))
    close(gradient_norm(held), gradient_norm(wholes), "norm after clipping")
    batch = Batch((read_bt,), read_bt.roll(1), torch.arange(len(read_bt)))
    seen, whole_seen = probe(shared, batch).of_heads(everywhere), probe(whole, batch)
    for name, value in whole_seen.measured().items():
        close(torch.tensor(getattr(seen, name)), torch.tensor(value), name)


def everywhere(seen_nlh: torch.Tensor) -> torch.Tensor:
    parts = [torch.empty_like(seen_nlh) for _ in range(2)]
    distributed.all_gather(parts, seen_nlh)
    return torch.cat(parts, dim=-1)


def close(found: torch.Tensor, expected: torch.Tensor | None, what: str) -> None:
    torch.testing.assert_close(found, expected, rtol=1e-9, atol=1e-12, msg=lambda said: f"{what}: {said}")


def known(found: torch.Tensor | None) -> torch.Tensor:
    assert found is not None
    return found


if __name__ == "__main__":
    meet, rank = sys.argv[1], int(sys.argv[2])
    torch.set_num_threads(1)
    distributed.init_process_group("gloo", init_method=f"file://{meet}", rank=rank, world_size=2)
    for index, changes in enumerate(PARTS):
        compare(changes, "folded" if index % 2 else "sdpa")
    distributed.destroy_process_group()

"""The encoder-decoder: what each token may see, padding, gradients, and torch's own transformer."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import pytest
import torch
from helpers import CONTEXT, MODEL, VOCABULARY, assert_gradients
from messages import Refused
from torch import Tensor, nn

from lm.config.components import build, resolve
from lm.config.tree import override
from lm.model.cache import Cache
from lm.model.transformer import EncoderDecoder, Model, build_and_initialize

TARGET, SOURCE = 7, 9


@dataclass
class Root:
    model: Callable[[int, int], Model]


def pair_model(changes: dict[str, Any] | None = None, seed: int = 0) -> EncoderDecoder:
    """A tiny encoder-decoder in float64 with `changes` to the parts, keyed as under `model`."""
    tree = override(
        {"model": {**MODEL, "class_path": "EncoderDecoder"}}, {f"model.{k}": v for k, v in (changes or {}).items()}
    )
    model = build_and_initialize(build(resolve(tree, Root), Root).model, VOCABULARY, CONTEXT, seed)
    assert isinstance(model, EncoderDecoder)
    return model.double().eval()


def ids(time: int, seed: int, batch: int = 3) -> Tensor:
    return torch.randint(VOCABULARY, (batch, time), generator=torch.Generator().manual_seed(seed))


def shown(source_bs: Tensor) -> Tensor:
    """No padding."""
    return torch.zeros(source_bs.shape, dtype=torch.bool)


POSITIONS = ("Rope", "Sinusoidal", "Learned", "Alibi", "T5Bias")
BLOCKS = ("PostNorm", "ReZero")
ATTENTIONS = ("GroupedQuery",)
CHANGES = [
    *({"position": name} for name in POSITIONS),
    *({"block": name} for name in BLOCKS),
    *({"attention": name} for name in ATTENTIONS),
]
every_part = pytest.mark.parametrize("change", CHANGES, ids=lambda change: next(iter(change.values())))


@every_part
@torch.no_grad()
def test_a_target_token_changes_no_output_before_it(change: dict[str, str]) -> None:
    model, source = pair_model(change), ids(SOURCE, 2, batch=1).repeat(TARGET, 1)
    before = ids(TARGET, 1, batch=1).repeat(TARGET, 1)
    after = before.clone()  # in row t token t is another
    after.diagonal().add_(1).remainder_(VOCABULARY)
    left, right = (model(target, source, shown(source)) for target in (before, after))
    for time in range(TARGET):
        torch.testing.assert_close(left[time, :time], right[time, :time], rtol=0, atol=0)
        assert (left[time, time] != right[time, time]).any(), "a token must change its own output"


@torch.no_grad()
def test_every_source_token_changes_every_output() -> None:
    model, target, before = pair_model(), ids(TARGET, 1), ids(SOURCE, 2)
    for time in range(SOURCE):
        after = before.clone()
        after[:, time] = (after[:, time] + 1) % VOCABULARY
        left, right = (model(target, source, shown(source)) for source in (before, after))
        assert (left != right).any(-1).all()


@every_part
@torch.no_grad()
def test_padding_of_the_source_changes_nothing(change: dict[str, str]) -> None:
    model, target, source = pair_model(change), ids(TARGET, 1), ids(SOURCE, 2)
    longer = torch.cat([source, ids(3, 3)], dim=1)
    hidden = torch.arange(longer.shape[1]) >= torch.full((3, 1), SOURCE)
    torch.testing.assert_close(model(target, longer, hidden), model(target, source, shown(source)), rtol=0, atol=1e-12)


@every_part
def test_every_parameter_gets_a_gradient(change: dict[str, str]) -> None:
    model, source = pair_model({"initializer.std": 0.3, **change}), ids(SOURCE, 2)
    with torch.no_grad():  # ReZero starts where no sublayer has any effect
        for parameter in model.parameters():
            parameter.add_((parameter.abs().max() == 0) * 0.1)
    model(ids(TARGET, 1), source, shown(source)).square().sum().backward()
    assert_gradients(model, ignored="key.bias")  # added to all scores of a row alike, unless turned


@every_part
@torch.no_grad()
def test_cached_decoding_equals_decoding_at_once(change: dict[str, str]) -> None:
    model, target, source = pair_model(change), ids(TARGET, 1), ids(SOURCE, 2)
    memory, caches = model.encode(source, shown(source)), [Cache() for _ in model.decoder]
    parts = [model.decode(target[:, t : t + 1], memory, shown(source), caches) for t in range(TARGET)]
    torch.testing.assert_close(torch.cat(parts, dim=1), model(target, source, shown(source)), rtol=0, atol=1e-12)


def test_the_three_embeddings_are_one() -> None:
    model = pair_model()
    assert [name for name, p in model.named_parameters() if p.shape[0] == VOCABULARY] == ["embedding.tokens.weight"]


def copy_attention(ours: nn.Module, theirs: nn.MultiheadAttention) -> None:
    maps: list[Any] = [ours.query, ours.key, ours.value]
    theirs.in_proj_weight.copy_(torch.cat([m.weight for m in maps]))
    theirs.in_proj_bias.copy_(torch.cat([m.bias for m in maps]))
    theirs.out_proj.load_state_dict(ours.output.state_dict())  # type: ignore[union-attr]


def copy_layer(ours: Any, theirs: Any) -> None:
    copy_attention(ours.attention, theirs.self_attn)
    norms = [ours.attention_residual.norm, ours.mlp_residual.norm]
    if hasattr(ours, "cross"):
        copy_attention(ours.cross, theirs.multihead_attn)
        norms.insert(1, ours.cross_residual.norm)
    for index, norm in enumerate(norms, 1):
        getattr(theirs, f"norm{index}").load_state_dict(norm.state_dict())
    theirs.linear1.load_state_dict(ours.mlp.up.state_dict())
    theirs.linear2.load_state_dict(ours.mlp.down.state_dict())


@torch.no_grad()
def test_post_norm_with_relu_is_the_transformer_of_torch() -> None:
    ours = pair_model({"block": "PostNorm", "mlp": "ReLU", "position": "NoPosition", "initializer.std": 0.3})
    for parameter in ours.parameters():  # gains and offsets of every kind
        parameter.add_(0.1 * torch.randn(parameter.shape, dtype=torch.float64))
    theirs = nn.Transformer(16, 2, 2, 2, 64, dropout=0.0, batch_first=True, dtype=torch.float64).eval()
    theirs.encoder.norm = theirs.decoder.norm = None
    for mine, other in zip(
        [*ours.encoder, *ours.decoder], [*theirs.encoder.layers, *theirs.decoder.layers], strict=True
    ):
        copy_layer(mine, other)
    target, source = ids(TARGET, 1), ids(SOURCE, 2)
    hidden = torch.arange(SOURCE) >= torch.tensor([[SOURCE], [5], [2]])
    table = ours.embedding.tokens.weight
    causal = nn.Transformer.generate_square_subsequent_mask(TARGET, dtype=torch.float64)
    mixed = theirs(
        table[source], table[target], tgt_mask=causal, src_key_padding_mask=hidden, memory_key_padding_mask=hidden
    )
    torch.testing.assert_close(ours(target, source, hidden), mixed @ table.T, rtol=0, atol=1e-10)


def test_attention_without_cross_attention_is_refused(refused: Refused) -> None:
    model, source = pair_model({"attention": "LinearAttention"}), ids(SOURCE, 2)
    with refused(ValueError):
        model(ids(TARGET, 1), source, shown(source))
    windowed = {"class_path": "MultiHead", "init_args": {"window": 3}}
    with refused(ValueError):
        pair_model({"attention": windowed})
    assert (
        pair_model({"attention": windowed, "cross": "MultiHead"})(ids(TARGET, 1), source, shown(source))
        .isfinite()
        .all()
    )


def test_a_wrong_part_is_answered_with_the_choices(refused: Refused) -> None:
    with refused():
        pair_model({"cross": "MultiHaed"})


def test_autocast_to_bfloat16_is_close_to_float32() -> None:
    model, source = pair_model().float(), ids(SOURCE, 2)
    exact = model(ids(TARGET, 1), source, shown(source))
    with torch.autocast("cpu", torch.bfloat16):
        logits = model(ids(TARGET, 1), source, shown(source))
    logits.float().sum().backward()
    torch.testing.assert_close(logits.float(), exact, rtol=0, atol=0.02 * float(exact.detach().abs().max()))

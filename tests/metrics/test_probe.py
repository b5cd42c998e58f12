"""What is seen inside a model, against a plain forward pass and against cases known beforehand."""

import functools
import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
import torch
from helpers import CONTEXT, MODEL, VOCABULARY, attentions, blocks, decoder
from messages import CheckMessage
from scipy.stats import entropy
from torch import Tensor

from lm.config.components import build, resolve
from lm.config.tree import override
from lm.data.batch import Batch
from lm.metrics.probe import ProbeResult, probe
from lm.model import attention_impl
from lm.model.block import Block, PostNorm, ReZero, ScaledResidual, Sublayer
from lm.model.norm import LayerNorm
from lm.model.transformer import Decoder, EncoderDecoder, build_and_initialize


@dataclass
class Translator:
    model: Callable[[int, int], EncoderDecoder]


def batch(rows: int = 3) -> Batch:
    tokens_bt = torch.randint(0, VOCABULARY, (rows, CONTEXT + 1), generator=torch.Generator().manual_seed(0))
    return Batch((tokens_bt[:, :-1],), tokens_bt[:, 1:], torch.arange(rows))


def translator() -> Any:
    tree = override({"model": {**MODEL, "class_path": "EncoderDecoder"}}, {"model.initializer": "Xavier"})
    return build_and_initialize(build(resolve(tree, Translator), Translator).model, VOCABULARY, CONTEXT, 0)


def batch_of_pairs(hidden: int) -> Batch:
    """Sources that are their targets, with the last `hidden` tokens of the first source hidden."""
    tokens_bt = batch().inputs[0]
    hidden_bt = torch.zeros(tokens_bt.shape, dtype=torch.bool)
    hidden_bt[0, CONTEXT - hidden :] = True
    return Batch((tokens_bt, tokens_bt, hidden_bt), *batch()[1:])


def weights_of(model: Decoder, tokens_bt: Tensor) -> list[Tensor]:
    """Attention weights (b, h, q, s) of each layer, from the plain form."""
    found: list[Tensor] = []
    plain = attention_impl.attention_weights

    def caught(*arguments: Any) -> Tensor:
        found.append(plain(*arguments).detach())
        return found[-1]

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(attention_impl, "attention_weights", caught)
        for attention in attentions(model):
            attention.impl = "plain"
        model(tokens_bt)
    for attention in attentions(model):
        attention.impl = "sdpa"
    return found


def test_a_sink_leaves_less_than_all_for_the_keys() -> None:
    model = decoder({"position": "NoPosition", "layers": 1, "attention.sinks": True})
    attention = attentions(model)[0]
    attention.query.weight.data.zero_()  # all scores are 0, as the sink's is
    rows = range(2, CONTEXT + 1)
    measured = probe(model, batch())
    assert np.allclose(measured.first_share, np.mean([1 / (n + 1) for n in rows]), atol=1e-6)
    entropies = [n / (n + 1) * math.log(n + 1) / math.log(n) for n in rows]
    assert np.allclose(measured.entropy, np.mean(entropies), atol=1e-6)
    assert np.allclose(measured.largest_logit, 0.0)


@pytest.mark.parametrize("attention", ["Differential", "Latent", "GatedLinear"])
def test_variants_of_attention_are_measured_or_left_out(attention: str) -> None:
    measured = probe(decoder({"attention": attention}), batch())
    assert len(measured.residual_norm) == 2
    assert np.shape(measured.entropy) == ((0,) if attention == "GatedLinear" else (2, 2))


@pytest.mark.parametrize(
    "changes",
    [
        {"position": "Rope", "attention.window": 3},
        {"position": "Alibi", "attention.sinks": True},
        {"position": "T5Bias", "attention.softcap": 2.0},
        {"causal": False},
        None,  # a translator, with a padded source
    ],
)
def test_long_rows_are_measured_some_at_a_time(changes: dict[str, Any] | None, monkeypatch: pytest.MonkeyPatch) -> None:
    model = (translator() if changes is None else decoder({**changes, "initializer": "Xavier"})).double()
    given = batch_of_pairs(2) if changes is None else batch()
    whole, shapes = probe(model, given), list[int]()
    weights = attention_impl.attention_weights

    def noted(q_bhqk: Tensor, *arguments: Any) -> Tensor:
        shapes.append(q_bhqk.shape[2])
        return weights(q_bhqk, *arguments)

    monkeypatch.setattr("lm.metrics.probe.attention_weights", noted)
    monkeypatch.setattr("lm.metrics.probe.SCORES_MAX", 0)
    monkeypatch.setattr("lm.metrics.probe.SCORES_AT_ONCE", 3 * 2 * CONTEXT * 3)  # three rows of two heads
    parts = probe(model, given)
    assert max(shapes) == 3
    for name in ("entropy", "largest_logit", "first_share"):
        assert np.allclose(getattr(parts, name), getattr(whole, name), rtol=1e-12), name


@pytest.mark.parametrize("position", ["Rope", "Alibi", "Sinusoidal", "T5Bias"])
def test_entropy_and_first_share_are_those_of_the_weights(position: str) -> None:
    model = decoder({"position": position, "initializer": "Xavier"}).double().eval()
    given = batch()
    inside = probe(model, given)
    for layer, weights in enumerate(weights_of(model, given.inputs[0])):
        rows = weights.numpy()[:, :, 1:, :]
        expected = entropy(rows, axis=-1) / np.log(np.arange(2, CONTEXT + 1))
        assert inside.entropy[layer] == pytest.approx(expected.mean((0, 2)).tolist(), rel=1e-9)
        assert inside.first_share[layer] == pytest.approx(rows[..., 0].mean((0, 2)).tolist(), rel=1e-9)


def test_equal_scores_have_the_entropy_of_all_keys() -> None:
    model = decoder({"position": "NoPosition"})
    for attention in attentions(model):
        attention.query.weight.data.zero_()
        attention.query.bias.data.zero_()
    inside = probe(model, batch())
    assert np.allclose(inside.entropy, 1.0, atol=1e-6)
    assert np.allclose(inside.largest_logit, 0.0)
    shares = np.mean([1 / n for n in range(2, CONTEXT + 1)])
    assert np.allclose(inside.first_share, shares, atol=1e-6)
    assert inside.flags() == []


def test_the_largest_logit_is_scaled_seen_and_before_the_softmax() -> None:
    model = decoder({"position": "NoPosition", "attention": {"class_path": "MultiHead", "init_args": {"scale": 0.5}}})
    attention, given = attentions(model)[0], batch(1)
    seen: list[Tensor] = []
    attention.register_forward_pre_hook(lambda module, given: seen.append(given[0]))
    model(*given.inputs)
    q_bhqk, k_bhsk, _ = attention.projected(seen[0], model.position)
    scores = 0.5 * q_bhqk @ k_bhsk.transpose(-1, -2)
    lower = torch.ones(CONTEXT, CONTEXT, dtype=torch.bool).tril()
    expected = scores[0].masked_fill(~lower, -math.inf).amax((1, 2))
    assert probe(model, given).largest_logit[0] == pytest.approx(expected.tolist(), rel=1e-5)


def test_the_residual_stream_is_measured_after_each_block() -> None:
    model = decoder({}).eval()
    given, seen = batch(), []
    for block in model.blocks:
        block.register_forward_hook(lambda module, given, x_btd: seen.append(float(x_btd.norm(dim=-1).mean())))
    inside = probe(model, given)
    assert inside.residual_norm == pytest.approx(seen, rel=1e-6)


def test_units_that_never_fire_are_dead() -> None:
    model = decoder({"mlp": "ReLU"})
    up = blocks(model)[1].mlp.up
    hidden = up.out_features
    up.weight.data[: hidden // 4].zero_()
    up.bias.data[: hidden // 4] = -1.0
    up.bias.data[hidden // 4 :] = 10.0
    inside = probe(model, batch())
    assert inside.dead_share[1] == pytest.approx(0.25)
    assert len(probe(decoder({"mlp": "SquaredReLU"}), batch()).dead_share) == 2
    mixture = {"class_path": "Experts", "init_args": {"expert": "ReLU"}}  # units of an expert see few tokens
    for mlp in ("GELU", mixture):
        assert probe(decoder({"mlp": mlp}), batch()).dead_share == []


def test_looking_changes_nothing() -> None:
    model = decoder({"dropout": 0.5, "mlp": "ReLU"}).train()
    state, before = torch.random.get_rng_state(), {name: p.clone() for name, p in model.named_parameters()}
    probe(model, batch())
    assert model.training
    assert torch.equal(torch.random.get_rng_state(), state)
    assert all(p.grad is None and torch.equal(p, before[name]) for name, p in model.named_parameters())
    assert not any(module._forward_hooks or module._forward_pre_hooks for module in model.modules())


def test_collapse_is_flagged_and_health_is_not(check_message: CheckMessage) -> None:
    healthy = ProbeResult(entropy=[[0.5, 0.05]], largest_logit=[[3.0, 40.0]], first_share=[[0.1, 0.2]])
    assert healthy.flags() == []
    sharp = ProbeResult(
        entropy=[[0.5, 0.6], [0.02, 0.04]], largest_logit=[[3.0, 4.0], [2e4, 1.0]], first_share=[[0.1], [0.2]]
    )
    check_message(sharp.flags())
    assert ProbeResult(entropy=[[0.5]], largest_logit=[[math.nan]], first_share=[[0.0]]).flags() != []


def test_a_model_without_a_softmax_has_no_entropy() -> None:
    inside = probe(decoder({"attention": "LinearAttention"}), batch())
    assert inside.entropy == []
    assert set(inside.headline()) == {"residual_norm"}


# the share of a block in the residual stream


@pytest.mark.parametrize(
    "block", ["PreNorm", "Sandwich", {"class_path": "ScaledResidual", "init_args": {"alpha": 0.3}}]
)
def test_block_share_is_added_norm_over_stream_norm(block: Any) -> None:
    """Without a norm of the stream itself, and with offsets at zero, that is output minus input."""
    model, given, shares = decoder({"block": block, "initializer": "Xavier"}).eval(), batch(), []
    for part in model.blocks:
        part.register_forward_hook(
            lambda module, inputs, x_btd: shares.append(
                float((x_btd - inputs[0]).norm(dim=-1).mean() / inputs[0].norm(dim=-1).mean())
            )
        )
    inside = probe(model, given)
    assert inside.block_share == pytest.approx(shares, rel=1e-5)
    assert min(shares) > 0.01


def test_block_share_of_post_norm_is_relative_to_normed_stream() -> None:
    model, given, shares = decoder({"block": "PostNorm", "initializer": "Xavier"}).double().eval(), batch(), []

    def seen(module: Block, inputs: tuple[Any, ...], x_btd: Tensor) -> None:
        without_btd = module.mlp_residual.norm(module.attention_residual.norm(inputs[0]))
        shares.append(float((x_btd - without_btd).norm(dim=-1).mean() / without_btd.norm(dim=-1).mean()))

    for part in blocks(model):
        part.register_forward_hook(seen)
    assert probe(model, given).block_share == pytest.approx(shares, rel=1e-9)
    assert min(shares) > 0.01


class Faint(PostNorm):
    """norm(x + 1e-9 f(x))."""

    def forward(self, x_btd: Tensor, sublayer: Sublayer) -> Tensor:
        return super().forward(x_btd, lambda x: 1e-9 * sublayer(x))


@pytest.mark.parametrize(
    "arrangement", [Faint, functools.partial(ScaledResidual, alpha=1e-9), ReZero], ids=["post", "pre", "rezero"]
)
def test_blocks_that_add_next_to_nothing_have_no_share(arrangement: Any) -> None:
    model = decoder({"initializer": "Xavier"})
    for block in blocks(model):
        for name in ("attention_residual", "mlp_residual"):
            setattr(block, name, arrangement(model.shape, LayerNorm, 0.0))
    assert max(probe(model, batch()).block_share) < 1e-6


def test_block_share_counts_cross_attention() -> None:
    """A decoder's first block whose other sublayers give zero, before and after its cross-attention gives zero too."""
    model, pairs = translator(), batch_of_pairs(0)
    first = model.decoder[0]
    for linear in (first.attention.output, first.mlp.down):
        for parameter in linear.parameters():
            parameter.data.zero_()
    shares = probe(model, pairs).block_share
    assert len(shares) == 2 * model.depth
    assert min(shares) > 0.01
    for parameter in first.cross.output.parameters():
        parameter.data.zero_()
    assert probe(model, pairs).block_share[model.depth] == 0.0


class OwnBlock(Block):
    """A block of a user's own, which may call its arrangements as it likes."""

    def forward(self, *inputs: Any, **named: Any) -> Tensor:
        return super().forward(*inputs, **named)


def test_a_block_of_a_users_own_is_left_out() -> None:
    model = decoder({})
    for block in blocks(model):
        block.__class__ = OwnBlock
    inside = probe(model, batch())
    assert inside.block_share == []
    assert "block_share" not in inside.measured()

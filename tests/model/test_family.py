"""Every kind of attention against an independent form of it, element by element, in float64; and what is refused."""

import itertools
from pathlib import Path
from typing import Any

import pytest
import torch
import yaml
from helpers import CONTEXT, RUN, VOCABULARY, Patch, decoder, example, noisy, tokens, weights_of
from messages import RefusedCommand
from torch import Tensor, nn

from lm.model import attention_impl
from lm.model.attention import (
    CHUNK,
    GroupedQuery,
    LinearAttention,
    Mask,
    MultiHead,
    MultiQuery,
    SoftmaxAttention,
    causal_products,
)
from lm.model.attention_impl import ATTENTION_IMPLS, attention_weights
from lm.model.attention_variants import DECAY_CHUNK, Differential, GatedLinear, Latent, decayed_products
from lm.model.block import PreNorm
from lm.model.mlp import GELU
from lm.model.norm import LayerNorm, RMSNorm
from lm.model.position import Alibi, NoPosition, Rope
from lm.model.shape import Shape
from lm.model.transformer import EncoderDecoder

TIME = 7
SHAPE = Shape(VOCABULARY, TIME, width=16, heads=4, layers=1)
EXACT: dict[str, Any] = {"rtol": 1e-12, "atol": 1e-12}


@pytest.mark.parametrize(
    ("heads", "named"), [(4, MultiHead), (1, MultiQuery)], ids=["all heads: MultiHead", "one head: MultiQuery"]
)
def test_grouped_queries_at_the_ends_are_the_named_layers(heads: int, named: type[MultiHead | MultiQuery]) -> None:
    grouped, other, x = noisy(GroupedQuery(SHAPE, heads)), named(SHAPE).double(), example(2, TIME, 16)
    other.load_state_dict(grouped.state_dict())
    torch.testing.assert_close(grouped(x, Rope(SHAPE), Mask()), other(x, Rope(SHAPE), Mask()), rtol=0, atol=0)


@pytest.mark.parametrize("shared", [1, 2, 4])
def test_grouped_queries_equal_heads_with_repeated_keys(shared: int) -> None:
    grouped, many, x = noisy(GroupedQuery(SHAPE, shared)), MultiHead(SHAPE).double(), example(2, TIME, 16)
    state = grouped.state_dict()
    for name in ("key.weight", "key.bias", "value.weight", "value.bias"):
        state[name] = state[name].unflatten(0, (shared, 4)).repeat_interleave(4 // shared, dim=0).flatten(0, 1)
    many.load_state_dict(state)
    torch.testing.assert_close(grouped(x, Rope(SHAPE), Mask()), many(x, Rope(SHAPE), Mask()), **EXACT)


OPTIONS: list[dict[str, Any]] = [
    *({}, {"window": 3}, {"softcap": 0.7}, {"qk_norm": True, "scale": "1/d_k"}),
    *({"sinks": True}, {"sinks": True, "window": 3, "head_size": 6}),
]


def by_hand(attention: SoftmaxAttention, q: Tensor, k: Tensor, v: Tensor, mask: Mask) -> tuple[Tensor, Tensor]:
    """Softmax over the keys that each query may see, one query at a time: what is mixed, and the weights."""
    weights = torch.zeros(*q.shape[:3], k.shape[2], dtype=q.dtype)
    for b, h, i in itertools.product(*map(range, q.shape[:3])):
        visible = [
            j
            for j in range(k.shape[2])
            if not (mask.causal and j > i)
            and not (attention.window is not None and abs(i - j) >= attention.window)
            and not (mask.hidden_bs is not None and mask.hidden_bs[b, j])
        ]
        scores = attention.scale * (k[b, h // attention.groups, visible] @ q[b, h, i])
        if attention.softcap is not None:
            scores = attention.softcap * (scores / attention.softcap).tanh()
        if mask.bias_hqs is not None:
            scores = scores + mask.bias_hqs[h, i, visible]
        sink = 0.0 if attention.sinks is None else attention.sinks[h].exp()
        weights[b, h, i, visible] = scores.exp() / (scores.exp().sum() + sink)
    return torch.stack([weights[:, h] @ v[:, h // attention.groups] for h in range(q.shape[1])], dim=1), weights


WAYS = [
    [way for way in ATTENTION_IMPLS if way != "flex"],
    pytest.param(["flex"], marks=pytest.mark.slow),  # traced by torch's compiler each time
]


@pytest.mark.extra
@pytest.mark.parametrize("ways", WAYS, ids=" ".join)
@pytest.mark.parametrize(("index", "options"), list(enumerate(OPTIONS)), ids=str)
@pytest.mark.parametrize("flipped", [False, True])
@pytest.mark.filterwarnings("ignore:flex_attention called without")
@torch.no_grad()
def test_every_way_of_attention_is_the_definition(
    flipped: bool, index: int, options: dict[str, Any], ways: list[Any], monkeypatch: Patch
) -> None:
    """Each pair of an option, causality, a bias and padding occurs in some case."""
    causal, biased, padded = (bool(index >> bit & 1) != flipped for bit in (0, 1, 2))
    monkeypatch.setattr(attention_impl, "BLOCK", 3)  # of 7 queries: two whole blocks and a rest
    attention, x = noisy((GroupedQuery if flipped else MultiHead)(SHAPE, **options)), example(2, TIME, 16)
    position = Alibi(SHAPE).double() if biased else Rope(SHAPE)
    hidden_bs = torch.zeros(2, TIME, dtype=torch.bool)
    hidden_bs[1, 3:] = True
    hidden_bs[1, 5] = False  # within every window there is a key to see
    mask = Mask(causal, position.bias(TIME, TIME, causal), hidden_bs if padded else None, position.slopes())
    q, k, v = attention.projected(x, position)
    expected, expected_weights = by_hand(attention, q, k, v, mask)
    weights = weights_of(attention, q, k, mask)
    torch.testing.assert_close(weights, expected_weights, **EXACT)
    if attention.sinks is None:
        torch.testing.assert_close(weights.sum(-1), torch.ones(2, 4, TIME, dtype=torch.float64), **EXACT)
    assert (weights[expected_weights == 0] == 0).all()
    by_hand_output = attention.output(expected.transpose(1, 2).flatten(2))
    for attention.impl in ways:
        torch.testing.assert_close(attention(x, position, mask), by_hand_output, **EXACT)


@pytest.mark.parametrize("gate", ["headwise", "elementwise"])
@torch.no_grad()
def test_a_gate_scales_what_heads_give(gate: Any) -> None:
    gated, plain, x = noisy(MultiHead(SHAPE, gate=gate)), MultiHead(SHAPE).double(), example(2, TIME, 16)
    plain.load_state_dict({name: value for name, value in gated.state_dict().items() if "gate" not in name})
    heads = plain.attend(*plain.projected(x, Rope(SHAPE)), Mask()).transpose(1, 2)
    scale = gated.gate(x).sigmoid().unflatten(-1, (4, -1))
    assert scale.shape[-1] == (1 if gate == "headwise" else 4)
    torch.testing.assert_close(gated(x, Rope(SHAPE), Mask()), plain.output((scale * heads).flatten(2)), **EXACT)
    gated.gate.weight.zero_()
    gated.gate.bias.fill_(1e3)
    torch.testing.assert_close(gated(x, Rope(SHAPE), Mask()), plain(x, Rope(SHAPE), Mask()), **EXACT)


@pytest.mark.parametrize("window", [1, 3, 5])
@pytest.mark.parametrize("position", ["Rope", "Alibi"])
@torch.no_grad()
def test_a_window_ends_where_it_says(window: int, position: str) -> None:
    model, before = decoder({"layers": 1, "attention.window": window, "position": position}).double(), tokens()
    for changed in range(CONTEXT - window):
        after = before.clone()
        after[:, changed] = (after[:, changed] + 1) % VOCABULARY
        moved = (model(before) != model(after)).any(-1)
        assert moved[:, changed + window - 1].all(), "the oldest key of the window counts"
        assert not moved[:, changed + window :].any(), "one older does not"


def test_a_softcap_bounds_the_scores() -> None:
    q, k = 50 * example(1, 1, 5, 4), 50 * example(1, 1, 9, 4, seed=1)
    raw = 0.5 * q @ k.transpose(-1, -2)
    scores = attention_weights(q, k, 0.5, softcap=2.0).log()
    spread = lambda x: (x.amax(-1) - x.amin(-1)).max().item()  # noqa: E731
    assert spread(raw) > 1000
    assert spread(scores) <= 4 + 1e-12
    torch.testing.assert_close(scores, (2 * (raw / 2).tanh()).log_softmax(-1), **EXACT)


@torch.no_grad()
def test_qk_norm_ignores_the_size_of_weights() -> None:
    for qk_norm, name in itertools.product((True, False), ("query", "key")):
        model = noisy(decoder({"attention.qk_norm": qk_norm}))
        for block in model.blocks:
            for norm in (block.attention.query_norm, block.attention.key_norm):
                norm.eps = 0.0
        before = model(tokens())
        for block in model.blocks:
            projection = getattr(block.attention, name)
            projection.weight *= 7
            projection.bias *= 7
        moved = (model(tokens()) - before).abs().max().item()
        assert moved < 1e-12 if qk_norm else moved > 1e-2


@pytest.mark.parametrize("softcap", [None, 5.0], ids=["fused", "plain"])
@torch.no_grad()
def test_outputs_do_not_depend_on_what_is_hidden(softcap: float | None) -> None:
    attention, x = noisy(MultiHead(SHAPE, softcap=softcap)), example(2, TIME, 16)
    hidden_bs = torch.zeros(2, TIME, dtype=torch.bool)
    hidden_bs[0, 4:], hidden_bs[1, 2] = True, True
    other = torch.where(hidden_bs[..., None], 100 * example(2, TIME, 16, seed=1), x)
    for causal in (True, False):
        left, right = (attention(y, NoPosition(SHAPE), Mask(causal, None, hidden_bs)) for y in (x, other))
        assert torch.equal(left[~hidden_bs], right[~hidden_bs])
        q, k, _ = attention.projected(x, NoPosition(SHAPE))
        weights = weights_of(attention, q, k, Mask(causal, None, hidden_bs))
        assert (weights.transpose(1, 3)[hidden_bs] == 0).all()


@pytest.mark.parametrize("position", ["Rope", "T5Bias", "Sinusoidal"])
@torch.no_grad()
def test_translation_logits_ignore_padding_of_source(position: str) -> None:
    plain = decoder({"position": position})
    model = noisy(
        EncoderDecoder(
            VOCABULARY, CONTEXT, 16, 2, 2, embedding=lambda _: plain.embedding, position=type(plain.position),
            block=PreNorm, norm=LayerNorm, attention=MultiHead, mlp=GELU, initializer=plain.initializer,
        )
    )  # fmt: skip
    source, target = tokens(), tokens(time=5, seed=1)
    hidden_bs = torch.zeros(3, CONTEXT, dtype=torch.bool)
    hidden_bs[:, 8:] = True
    other = source.masked_fill(hidden_bs, 0)
    assert torch.equal(model(target, source, hidden_bs), model(target, other, hidden_bs))
    shorter = model(target, source[:, :8], hidden_bs[:, :8])
    torch.testing.assert_close(model(target, source, hidden_bs), shorter, **EXACT)


@pytest.mark.parametrize("time", [1, CHUNK - 1, CHUNK, CHUNK + 1, 200])
def test_chunks_give_what_the_masked_square_gives(time: int) -> None:
    q, k, v = example(2, 3, time, 4), example(2, 3, time, 4, seed=1), example(2, 3, time, 5, seed=2)
    torch.testing.assert_close(causal_products(q, k, v), (q @ k.transpose(-1, -2)).tril() @ v, rtol=1e-11, atol=1e-11)


@pytest.mark.parametrize("time", [TIME, 2 * CHUNK + 3])
@torch.no_grad()
def test_linear_attention_is_the_mean_of_values_by_its_weights(time: int) -> None:
    attention, x = noisy(LinearAttention(SHAPE)), example(2, time, 16)
    q, k, v = (f(x).unflatten(-1, (4, 4)).transpose(1, 2) for f in (attention.query, attention.key, attention.value))
    phi = lambda y: torch.where(y > 0, y + 1, y.exp())  # noqa: E731
    weights = (phi(q) @ phi(k).transpose(-1, -2)).tril()
    weights = weights / weights.sum(-1, keepdim=True)
    expected = attention.output((weights @ v).transpose(1, 2).flatten(2))
    torch.testing.assert_close(attention(x, NoPosition(SHAPE), Mask()), expected, **EXACT)
    attention.value.weight.zero_()  # all values alike: weights that sum to 1 leave them as they are
    constant = attention.output(attention.value.bias).expand(2, time, 16)
    torch.testing.assert_close(attention(x, NoPosition(SHAPE), Mask()), constant, **EXACT)


@pytest.mark.parametrize("time", [1, DECAY_CHUNK, DECAY_CHUNK + 1, 3 * DECAY_CHUNK + 5])
def test_chunks_of_decays_give_what_the_recurrence_gives(time: int) -> None:
    q, k, v = example(2, 3, time, 4), example(2, 3, time, 4, seed=1), example(2, 3, time, 5, seed=2)
    log_decay = -5 * example(2, 3, time, 4, seed=3).sigmoid()
    state, rows = torch.zeros(2, 3, 4, 5, dtype=torch.float64), []
    for i in range(time):
        state = state * log_decay[:, :, i, :, None].exp() + k[:, :, i, :, None] * v[:, :, i, None]
        rows.append((q[:, :, i, None] @ state)[:, :, 0])
    actual = decayed_products(q, k, v, log_decay)
    torch.testing.assert_close(actual, torch.stack(rows, dim=2), rtol=1e-10, atol=1e-10)


@pytest.mark.parametrize("kind", ["entry", "head", "fixed"])
@torch.no_grad()
def test_gated_linear_attention_is_its_formula(kind: Any) -> None:
    layer, x = noisy(GatedLinear(SHAPE, rank=3, decay=kind)), example(2, TIME, 16)
    heads = lambda y: y.unflatten(-1, (4, -1)).transpose(1, 2)  # noqa: E731
    q, k, v = heads(layer.query(x)) / 2**0.5, heads(layer.key(x)), heads(layer.value(x))
    mixed, decay = torch.zeros_like(v), torch.tensor([31, 63, 127, 255]).double() / torch.tensor([32, 64, 128, 256])
    decay = decay[:, None, None].expand(2, 4, TIME, 1)
    if layer.decay is not None:
        logits = heads(layer.decay[0](x) @ layer.decay[1].weight.T + layer.decay[1].bias)
        assert logits.shape[-1] == (2 if kind == "entry" else 1)
        decay = logits.sigmoid() ** (1 / 16)
    for i, j in itertools.product(range(TIME), repeat=2):
        if j <= i:
            between = decay[:, :, j + 1 : i + 1].prod(dim=2)
            mixed[:, :, i] += (q[:, :, i] * between * k[:, :, j]).sum(-1, keepdim=True) * v[:, :, j]
    size = (mixed.square().mean(-1, keepdim=True) + 1e-6).sqrt()
    expected = (layer.head_norm.weight * mixed / size).transpose(1, 2).flatten(2) * nn.functional.silu(layer.gate(x))
    torch.testing.assert_close(layer(x, NoPosition(SHAPE), Mask()), layer.output(expected), **EXACT)


@pytest.mark.parametrize("ways", WAYS, ids=" ".join)
@pytest.mark.parametrize("make", [Differential, Latent])
@pytest.mark.parametrize("position", [Rope(SHAPE), Alibi(SHAPE).double()], ids=["Rope", "Alibi"])
@pytest.mark.filterwarnings("ignore:flex_attention called without")
@torch.no_grad()
def test_variants_are_the_same_by_every_implementation(
    make: Any, position: Any, ways: list[Any], monkeypatch: Patch
) -> None:
    monkeypatch.setattr(attention_impl, "BLOCK", 3)
    attention, x = noisy(make(SHAPE)), example(2, TIME, 16)
    mask, memory = Mask(True, position.bias(TIME, TIME), slopes_h=position.slopes()), example(2, 4, 16, seed=1)
    outputs, crossed = [], []
    for attention.impl in {"sdpa": 0, **dict.fromkeys(ways)}:
        outputs.append(attention(x, position, mask))
        crossed.append(attention(x, position, Mask(False), memory))
    for output in outputs[1:]:
        torch.testing.assert_close(output, outputs[0], **EXACT)
    for output in crossed[1:]:
        torch.testing.assert_close(output, crossed[0], **EXACT)


REFUSED: list[dict[str, Any]] = [
    {"model.attention": "GroupedQuery", "model.attention.key_value_heads": 3},
    {"model.position": "RopeLinear", "model.position.stretch": 0.5},
    {"model.position": "RopeYarn", "model.position.slow": 64.0},
    {"model.position": "T5Bias", "model.position.buckets": 6},
    {"model.width": 12},
    {"model.attention": "LinearAttention", "model.position": "Alibi"},
    {"model.attention": "LinearAttention", "model.position": "T5Bias"},
    {"model.attention": "LinearAttention", "model.causal": False},
    {"model.attention": "LinearAttention", "model.attention.window": 4},
    {"model.attention": "GatedLinear", "model.position": "Alibi"},
    {"model.attention": "GatedLinear", "model.width": 12, "model.position": "NoPosition"},
    {"model.attention": "Differential", "model.attention.key_value_heads": 1},
    {"model.attention": "Latent", "model.attention.rope_size": 3},
    {"model.width": 8, "model.position": "RopeNTK"},
    {"model.mlp.expansion": 0.01},
    {"model.attention.head_size": 5},
    {"model.attention.gate": "head"},
    {"model.attention.head_size": 8, "model.parametrization": "MuP", "model.parametrization.base_width": 8},
]


@pytest.mark.parametrize("settings", REFUSED, ids=str)
def test_what_cannot_be_built_is_refused_in_one_line(
    tmp_path: Path, monkeypatch: Patch, settings: dict[str, Any], refused_command: RefusedCommand
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("run.yaml").write_text(yaml.safe_dump(RUN))
    arguments = [part for key, value in {"model.heads": 4, **settings}.items() for part in (f"--{key}", str(value))]
    refused_command(["fit", "run.yaml", *arguments])
    assert [path.name for path in tmp_path.iterdir()] == ["run.yaml"]


def test_rms_norm_of_queries_and_keys_is_over_one_head() -> None:
    attention = MultiHead(SHAPE, qk_norm=True)
    assert attention.query_norm.weight.shape == attention.key_norm.weight.shape == (SHAPE.head_size,)
    assert isinstance(RMSNorm(SHAPE), nn.RMSNorm)


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs CUDA")
@pytest.mark.parametrize("way", ATTENTION_IMPLS)
@pytest.mark.parametrize("options", [{}, {"window": 40}, {"softcap": 5.0}, {"sinks": True}], ids=str)
@pytest.mark.parametrize("make_position", [Rope, Alibi])
def test_every_way_is_the_plain_one_on_cuda(way: Any, options: dict[str, Any], make_position: Any) -> None:
    shape = Shape(VOCABULARY, 256, width=128, heads=4, layers=1)
    attention, position = GroupedQuery(shape, 2, **options).cuda(), make_position(shape).cuda()
    x = example(2, 256, 128).float().cuda().requires_grad_()
    found = []
    for one in ("plain", way):
        attention.impl = one
        y = attention(x, position, Mask(True, position.bias(256, 256), slopes_h=position.slopes()))
        found.append((y, *torch.autograd.grad(y.square().sum(), (x, *attention.parameters()))))
    largest = [max(float(one.detach().abs().max()) for one in each) for each in found]
    for left, right in zip(*found, strict=True):  # the offset of keys has no gradient but rounding, without rotation
        off = max(1e-3 * float(right.detach().abs().max()), 1e-6 * max(largest))
        torch.testing.assert_close(left, right, rtol=1e-3, atol=off)


OFF_IN_BF16 = 0.02
"""Root mean square by which they may be off under autocast, as a share of their own: about five roundings."""


@pytest.mark.parametrize("way", ATTENTION_IMPLS)
@pytest.mark.parametrize("biased", [True, False], ids=["bias", "no bias"])
def test_every_implementation_under_autocast_is_near_float32(way: Any, biased: bool) -> None:
    if (
        way not in ("plain", "blocked")
        and torch.backends.cpu.get_cpu_capability() != "AVX512"
        and torch.cpu._is_avx512_supported()
    ):
        pytest.skip("torch's fused attention in bf16 asks the processor, which has more than torch is told to use")
    shape = Shape(VOCABULARY, 2 * attention_impl.BLOCK + 9, width=32, heads=4, layers=1)
    attention = MultiHead(shape)
    position = Alibi(shape) if biased else Rope(shape)
    x = example(2, shape.context, 32).float().requires_grad_()
    found = []
    ways: tuple[tuple[Any, bool], ...] = (("plain", False), (way, True))
    for one, bfloat in ways:
        attention.impl = one
        with torch.autocast("cpu", torch.bfloat16, enabled=bfloat):
            y = attention(
                x, position, Mask(True, position.bias(shape.context, shape.context), slopes_h=position.slopes())
            )
        found.append((y.float(), *torch.autograd.grad(y.float().square().sum(), (x, *attention.parameters()))))
    for name, exact, other in zip(["output", "input", *dict(attention.named_parameters())], *found, strict=True):
        if name == "key.bias":  # by which no weight changes: all of its gradient is rounding
            continue
        assert (other - exact).square().mean().sqrt() <= OFF_IN_BF16 * exact.square().mean().sqrt(), name

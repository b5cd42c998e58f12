"""Mixture of experts: a feed-forward layer of many MLPs, of which each token passes a few.

Legend: b batch, t time, d width, n tokens, e experts, k chosen ones of a token, m all choices (n times k).
"""

from collections.abc import Callable, Iterable
from fractions import Fraction
from typing import Any, Literal

import torch
from torch import Tensor, nn

from lm.config.domain import require_from, require_positive
from lm.model.mlp import MAX_HIDDEN, MLP, FeedForward, SwiGLU
from lm.model.shape import Shape

MAX_EXPERTS = 4096  # above which a layer could not be trained


class Experts(FeedForward):
    """Mixture of experts: sum of p_e MLP_e(x) over the k likeliest e, p = softmax(router x) (Fedus et al. 2021).

    https://arxiv.org/abs/2101.03961. No expert has a capacity and no token is dropped. All that a token passes is as
    wide as `expert` by itself, so that an arm with that layer alone has equal FLOPs, but for the router. The extra
    loss `expert_load`, the highest load over the mean, is recorded and not minimised.

    Args:
        expert: the class of experts; SwiGLU by default. Its expansion is that of all active and shared ones together.
        experts: from which each token chooses.
        active: experts that a token chooses, k.
        shared: experts that every token passes besides (Dai et al. 2024, https://arxiv.org/abs/2401.06066).
        hidden: hidden width of one expert, which the expansion then does not set.
        normalized: whether the weights of the chosen experts are divided by their sum, as in Mixtral.
        balance: `loss` minimises the extra loss `load_balance`, e times the sum of load_e mean(p_e), 1 where all loads
            are equal; `bias` adds a bias to p for the choice alone, which each step moves by `rate` towards equal loads
            (Wang et al. 2024, https://arxiv.org/abs/2408.15664; DeepSeek-V3, https://arxiv.org/abs/2412.19437).
        rate: change of the bias in a step.
    """

    def __init__(
        self,
        shape: Shape,
        expert: Callable[[Shape], MLP] | None = None,
        experts: int = 8,
        active: int = 2,
        shared: int = 0,
        hidden: int | None = None,
        normalized: bool = True,
        balance: Literal["loss", "bias"] = "loss",
        rate: float = 0.001,
    ) -> None:
        super().__init__()
        require_from(2, MAX_EXPERTS, experts=experts)
        require_from(1, experts, active=active)
        require_from(0, MAX_EXPERTS, shared=shared)
        require_positive(rate=rate)
        if normalized and active == 1:
            raise ValueError("active=1 gives its expert the weight 1, whatever the router; set normalized=False")
        make: Any = expert or SwiGLU
        if hidden is None:
            with torch.device("meta"):
                hidden = round(make(shape).up.out_features / (active + shared))
        require_from(1, MAX_HIDDEN, hidden=hidden)
        self.active, self.normalized, self.rate = active, normalized, rate
        self.router = nn.Linear(shape.width, experts, bias=False)
        self.experts = nn.ModuleList(make(shape, hidden=hidden) for _ in range(experts))
        self.shared: MLP | None = make(shape, hidden=shared * hidden) if shared else None
        self.extra_losses = dict[str, Tensor]()
        self.extra_weights = {"load_balance": 0.01 if balance == "loss" else 0.0, "expert_load": 0.0}
        # whole numbers, which are exact in every precision: the bias over `rate`, and the choices since the last step
        self.register_buffer("steps_e", torch.zeros(experts, dtype=torch.int64) if balance == "bias" else None)
        self.register_buffer("load_e", torch.zeros(experts, dtype=torch.int64), persistent=False)
        self.steps_e: Tensor | None
        self.load_e: Tensor

    @torch.compiler.disable  # type: ignore[untyped-decorator]  # the sizes of the products depend on the data
    def forward(self, x_btd: Tensor) -> Tensor:
        """Map (b, t, width) to (b, t, width): one product for each expert, over the tokens that chose it."""
        x_nd = x_btd.flatten(0, 1)
        logits_ne = self.router(x_nd)
        p_ne = logits_ne.softmax(-1, dtype=torch.promote_types(logits_ne.dtype, torch.float32))
        chosen_nk = (p_ne if self.steps_e is None else p_ne + self.rate * self.steps_e).topk(self.active).indices
        weight_nk = p_ne.gather(1, chosen_nk)
        if self.normalized:
            weight_nk = weight_nk / weight_nk.sum(-1, keepdim=True)
        chosen_m = chosen_nk.flatten()
        by_expert_m = chosen_m.argsort(stable=True)
        count_e = chosen_m.bincount(minlength=len(self.experts))
        if self.training:
            self._measure(p_ne, count_e)
        parts = x_nd[by_expert_m // self.active].split(count_e.tolist())
        y_md = torch.cat([expert(x[None])[0] for expert, x in zip(self.experts, parts, strict=True)])
        y_nkd = y_md[by_expert_m.argsort()].unflatten(0, (-1, self.active))
        y_btd = (weight_nk.to(y_nkd.dtype).unsqueeze(-1) * y_nkd).sum(1).view_as(x_btd)
        return y_btd if self.shared is None else y_btd + self.shared(x_btd)

    def _measure(self, p_ne: Tensor, count_e: Tensor) -> None:
        """Set the extra losses of a pass, and add its loads to those of the step."""
        share_e = count_e.to(p_ne.dtype) / count_e.sum()
        size = len(self.experts)
        self.extra_losses = {
            "load_balance": size * (share_e * p_ne.mean(0)).sum(),
            "expert_load": size * share_e.max(),
        }
        self.load_e += count_e


@torch.no_grad()
def update_biases(layers: Iterable[Experts]) -> None:
    """Move the biases of mixtures of experts towards equal loads, once all passes of a step are done."""
    for layer in layers:
        if layer.steps_e is not None:
            if torch.distributed.is_available() and torch.distributed.is_initialized():
                torch.distributed.all_reduce(layer.load_e)
            layer.steps_e += (layer.load_e.sum() - len(layer.load_e) * layer.load_e).sign()
        layer.load_e.zero_()


def token_shares(model: nn.Module) -> dict[nn.Module, Fraction]:
    """Return the share of tokens that passes each module within experts; every token passes other modules."""
    return {
        module: Fraction(layer.active, len(layer.experts))
        for layer in model.modules()
        if isinstance(layer, Experts)
        for module in layer.experts.modules()
    }

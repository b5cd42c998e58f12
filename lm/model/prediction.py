"""Heads that predict tokens after the next one, in training alone: auxiliary losses `token_2`, `token_3`, ...

Evaluation and generation use the model's own head. Legend: b batch, t time, d width.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable

import torch
from torch import Tensor, nn

from lm.config.domain import require_from, require_not_negative
from lm.model.block import Block
from lm.model.shape import Shape

MAX_HEADS = 64
RunBlock = Callable[[nn.Module, Tensor], Tensor]  # applies a block to (b, t, d), at the positions of the model


class Prediction(nn.Module, ABC):
    """Heads of a block each, which share the model's embedding, last norm and output layer.

    Args:
        heads: tokens after the next one that are predicted.
        weight: of their losses.
    """

    def __init__(self, shape: Shape, block: Callable[[], Block], heads: int = 1, weight: float = 1.0) -> None:
        super().__init__()
        require_from(1, min(MAX_HEADS, shape.context - 1), heads=heads)
        require_not_negative(weight=weight)
        self.blocks = nn.ModuleList(block() for _ in range(heads))
        self.extra_weights = dict.fromkeys((f"token_{head + 2}" for head in range(heads)), self.each(weight, heads))
        self.states: list[Tensor] = []  # of the last pass of training, (b, t, d) each, for the loss to take

    @staticmethod
    def each(weight: float, heads: int) -> float:
        """Return the weight of the loss of each head."""
        return weight

    @abstractmethod
    def forward(self, trunk_btd: Tensor, last_btd: Tensor, embedded_btd: Tensor, run: RunBlock) -> list[Tensor]:
        """Return the states of all heads, from the streams before and after the last block and the embeddings."""


class ParallelHeads(Prediction):
    """Head k predicts token t + k from f_k(z_t), z the stream before the last block, which is f_1.

    Gloeckle et al. 2024, https://arxiv.org/abs/2404.19737: the sum of the losses of all heads is minimised.
    """

    def forward(self, trunk_btd: Tensor, last_btd: Tensor, embedded_btd: Tensor, run: RunBlock) -> list[Tensor]:
        """Apply each head to the stream before the last block."""
        return [run(block, trunk_btd) for block in self.blocks]


class SequentialHeads(Prediction):
    """Head k + 1 is h^k = f_k(M_k [norm(h^(k-1)_t), norm(e_(t+k))]), which predicts token t + k + 1; h^0 the stream.

    DeepSeek-AI 2024, section 2.2, https://arxiv.org/abs/2412.19437: e are embeddings, and the mean of the losses has
    the weight .3.
    """

    def __init__(self, shape: Shape, block: Callable[[], Block], heads: int = 1, weight: float = 0.3) -> None:
        super().__init__(shape, block, heads, weight)
        self.state_norms = nn.ModuleList(nn.RMSNorm(shape.width) for _ in range(heads))
        self.token_norms = nn.ModuleList(nn.RMSNorm(shape.width) for _ in range(heads))
        self.joins = nn.ModuleList(nn.Linear(2 * shape.width, shape.width, bias=False) for _ in range(heads))

    @staticmethod
    def each(weight: float, heads: int) -> float:
        """Return the weight of the loss of each head, of whose losses the mean is taken."""
        return weight / heads

    def forward(self, trunk_btd: Tensor, last_btd: Tensor, embedded_btd: Tensor, run: RunBlock) -> list[Tensor]:
        """Apply the heads one after the other; the last k states of head k + 1 know no token and have no target."""
        states = [last_btd]
        layers = zip(self.state_norms, self.token_norms, self.joins, self.blocks, strict=True)
        for ahead, (state_norm, token_norm, join, block) in enumerate(layers, start=1):
            later_btd = embedded_btd.roll(-ahead, dims=1)
            states.append(run(block, join(torch.cat([state_norm(states[-1]), token_norm(later_btd)], dim=-1))))
        return states[1:]

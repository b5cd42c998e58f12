"""How many heads of keys and values there are: as many as queries, some, or one."""

from lm.model.attention import Scale, SoftmaxAttention
from lm.model.shape import Shape


class MultiHead(SoftmaxAttention):
    """Every query head has keys and values of its own (Vaswani et al. 2017, equation 1).

    Args:
        scale: what multiplies the scores: `1/sqrt(d_k)`, `1/d_k`, `none` (that is, 1), or a number.
        bias: whether the four projections have offsets.
        qk_norm: whether queries and keys are normed before they are turned.
        softcap: bounds the scores by tanh.
        window: how many keys a query sees, itself the last.
        dropout: on the weights.
    """

    def __init__(
        self,
        shape: Shape,
        scale: Scale = "1/sqrt(d_k)",
        bias: bool = True,
        qk_norm: bool = False,
        softcap: float | None = None,
        window: int | None = None,
        dropout: float = 0.0,
    ) -> None:
        super().__init__(shape, shape.heads, scale, bias, qk_norm, softcap, window, dropout)


class GroupedQuery(SoftmaxAttention):
    """Query heads share keys and values in groups (Ainslie et al. 2023, https://arxiv.org/abs/2305.13245).

    Args:
        key_value_heads: must divide the heads; half of them by default.
        scale, bias, qk_norm, softcap, window, dropout: as in MultiHead.
    """

    def __init__(
        self,
        shape: Shape,
        key_value_heads: int | None = None,
        scale: Scale = "1/sqrt(d_k)",
        bias: bool = True,
        qk_norm: bool = False,
        softcap: float | None = None,
        window: int | None = None,
        dropout: float = 0.0,
    ) -> None:
        shared = max(1, shape.heads // 2) if key_value_heads is None else key_value_heads
        super().__init__(shape, shared, scale, bias, qk_norm, softcap, window, dropout)


class MultiQuery(SoftmaxAttention):
    """All query heads share one head of keys and values (Shazeer 2019, https://arxiv.org/abs/1911.02150).

    Args:
        scale, bias, qk_norm, softcap, window, dropout: as in MultiHead.
    """

    def __init__(
        self,
        shape: Shape,
        scale: Scale = "1/sqrt(d_k)",
        bias: bool = True,
        qk_norm: bool = False,
        softcap: float | None = None,
        window: int | None = None,
        dropout: float = 0.0,
    ) -> None:
        super().__init__(shape, 1, scale, bias, qk_norm, softcap, window, dropout)

"""Optimisation of a model: objective, optimiser and schedule. Optimisers are torch's, named by their class."""

import math
import types
from collections.abc import Callable, Collection, Iterable
from typing import Any, Literal

import torch
from torch import nn
from torch.optim.lr_scheduler import LambdaLR

from lm.analysis.clipping import ignores_gradient_scale
from lm.config.choices import class_name
from lm.config.domain import require_from, require_not_negative, require_share
from lm.model.parametrization import Optimizer
from lm.model.transformer import Embedding
from lm.training.objective import Objective
from lm.training.schedule import Schedule

# optimisers of torch that cannot train a model here, and the reason
UNUSABLE: dict[Any, str] = {
    torch.optim.LBFGS: "evaluates the loss several times an update and takes no parameter groups",
    torch.optim.SparseAdam: "takes sparse gradients only, and these are dense",
    torch.optim.Rprop: "steps by the sign of the gradient of all data, which a batch does not give",
    torch.optim.Muon: "takes matrices only; MuonAdamW is Muon for the hidden ones and AdamW for the rest",
}
Rate = Callable[[Optimizer], float]  # function from an optimiser to the factor of the learning rate of hidden matrices


def tables(model: nn.Module) -> list[nn.Parameter]:
    """Return the parameters with a row a token or a position: embeddings, the output projection, and declared ones.

    A module declares those of its own matrices in a class attribute, `table_parameters = ("weight",)`.
    """
    parameters: list[nn.Parameter] = []
    for module in model.modules():
        if isinstance(module, (nn.Embedding, Embedding)):
            parameters += module.parameters()
        parameters += [module.get_parameter(name) for name in getattr(type(module), "table_parameters", ())]
    return list(dict.fromkeys(parameters))


def decay_groups(
    parameters: Iterable[nn.Parameter], tables: Collection[nn.Parameter] = (), decay_all: bool = False
) -> list[dict[str, Any]]:
    """Return groups: matrices, those of `tables` marked `table`, and vectors, which decay only if `decay_all`."""
    trainable = [p for p in parameters if p.requires_grad]
    marked = {id(p) for p in tables}
    groups: list[dict[str, Any]] = [
        {"params": [p for p in trainable if p.ndim >= 2 and id(p) not in marked]},
        {"params": [p for p in trainable if p.ndim >= 2 and id(p) in marked], "table": True},
        {"params": [p for p in trainable if p.ndim < 2], **({} if decay_all else {"weight_decay": 0.0})},
    ]
    return [group for group in groups if group["params"]]


class MuonAdamW(torch.optim.Optimizer):
    """Muon for hidden matrices, AdamW for vectors and tables (Jordan 2024, https://kellerjordan.github.io/posts/muon).

    Muon's updates are scaled to the size of AdamW's, so that both share one rate (Liu et al. 2025,
    https://arxiv.org/abs/2502.16982).

    Args:
        params: groups; those marked `table` go to AdamW.
        lr: learning rate of both.
        weight_decay: decoupled weight decay of both.
        momentum, nesterov, ns_steps: Muon's.
        betas, eps: AdamW's.
    """

    def __init__(
        self,
        params: Any,
        lr: float,
        weight_decay: float = 0.1,
        momentum: float = 0.95,
        nesterov: bool = True,
        ns_steps: int = 5,
        betas: tuple[float, float] = (0.9, 0.95),
        eps: float = 1e-8,
    ) -> None:
        require_not_negative(lr=lr, weight_decay=weight_decay, eps=eps)
        require_share(momentum=momentum, beta1=betas[0], beta2=betas[1])
        require_from(1, 99, ns_steps=ns_steps)
        shared: dict[str, Any] = {"lr": lr, "weight_decay": weight_decay}
        muon: dict[str, Any] = {"momentum": momentum, "nesterov": nesterov, "ns_steps": ns_steps}
        hidden, others = [], []
        for group in [{**group} for group in params]:  # groups alone are taken, not parameters
            matrices = [p for p in group["params"] if p.ndim == 2 and not group.get("table", False)]
            rest = [p for p in group["params"] if p.ndim != 2 or group.get("table", False)]
            hidden += [{**group, "hidden": True, "params": matrices}] if matrices else []
            others += [{**group, "hidden": False, "params": rest}] if rest else []
        self.parts: list[torch.optim.Optimizer] = []
        if hidden:
            self.parts.append(torch.optim.Muon(hidden, **shared, **muon, adjust_lr_fn="match_rms_adamw"))
        if others:
            self.parts.append(torch.optim.AdamW(others, **shared, betas=betas, eps=eps))
        super().__init__([group for part in self.parts for group in part.param_groups], {**shared, "betas": betas})

    @torch.no_grad()
    def step(self, closure: Any = None) -> Any:
        """Update all parameters; groups and state are this optimiser's, so that it is saved as one."""
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        for part in self.parts:
            is_muon = isinstance(part, torch.optim.Muon)
            part.param_groups = [group for group in self.param_groups if group["hidden"] is is_muon]
            part.state = self.state
            part.step()
        return loss


# optimisers of torch that add weight decay to the gradient; others have an option, or shrink the weights themselves
COUPLED = tuple(getattr(torch.optim, name) for name in ("SGD", "RMSprop", "Adagrad", "Adamax", "Adadelta", "ASGD"))


def make_cautious(optimizer: torch.optim.Optimizer) -> None:
    """Make each step of an optimiser drop the entries of its update u whose sign is that of the gradient's ascent.

    u is multiplied, matrix by matrix, by [-u g > 0] n / (count + 1) of its n entries, where `count` of them remain
    (Liang et al. 2024, algorithm 1, https://arxiv.org/abs/2411.16085). Decoupled weight decay is left as it is.
    """
    if switches_weights(optimizer):
        name = type(optimizer).__name__
        raise ValueError(
            f"cautious=True: {name} holds weights of its own, which would not follow; expected AdamW, Lion"
        )
    plain_step = optimizer.step

    @torch.no_grad()
    def step(_: torch.optim.Optimizer, closure: Any = None) -> Any:
        with torch.enable_grad():
            loss = None if closure is None else closure()
        before = []
        for group in optimizer.param_groups:
            decoupled = group.get("weight_decouple", not isinstance(optimizer, COUPLED))
            rate = 1.0 if group.get("fixed_decay") else group["lr"]
            decay = rate * group.get("weight_decay", 0.0) if group.get("decoupled_weight_decay", decoupled) else 0.0
            before += [(p, p.detach().clone(), p.grad.clone(), decay) for p in group["params"] if p.grad is not None]
        plain_step()
        for parameter, old, gradient, decay in before:
            update = parameter - (1 - decay) * old
            follows = (update * gradient < 0).to(update.dtype)
            scale = follows.numel() / (follows.sum() + 1)
            parameter.copy_((1 - decay) * old + update * follows * scale)
        return loss

    optimizer.step = types.MethodType(step, optimizer)  # type: ignore[method-assign]


def switches_weights(optimizer: torch.optim.Optimizer) -> bool:
    """Return True if an optimiser trains other weights than it gives for evaluation, as schedule-free ones do."""
    return all(callable(getattr(optimizer, name, None)) for name in ("train", "eval"))


class Beta2Warmup(LambdaLR):
    """The learning rate of a schedule, and at update t, from 1, a beta2 of at most 1 - t^-0.8.

    Shazeer and Stern 2018, section 7.2, https://arxiv.org/abs/1804.04235. torch's Adam still divides by 1 - beta2^t,
    which Adafactor has no need of: early updates are up to a tenth shorter.
    """

    def __init__(self, optimizer: torch.optim.Optimizer, factor: Callable[[int], float]) -> None:
        if "betas" not in optimizer.defaults:
            name = type(optimizer).__name__
            raise ValueError(f"beta2_warmup=True needs an optimiser with betas, such as AdamW; {name} has none")
        self.betas = [tuple(group["betas"]) for group in optimizer.param_groups]
        super().__init__(optimizer, factor)

    def get_lr(self) -> list[Any]:
        """Return the learning rates of update last_epoch + 1, and set its beta2 in the groups."""
        for group, (beta1, beta2) in zip(self.optimizer.param_groups, self.betas, strict=True):
            group["betas"] = (beta1, min(beta2, 1 - (self.last_epoch + 1) ** -0.8))
        return super().get_lr()


NOT_NEGATIVE = ("weight_decay", "lambd", "t0", "lr_decay", "initial_accumulator_value", "momentum_decay")
SHARES = ("momentum", "dampening", "alpha", "rho")  # options that some optimisers of torch do not check


class Optim:
    """Objective, optimiser and schedule of a run.

    Args:
        lr: the peak learning rate.
        optimizer: a torch optimiser; its own defaults apply to options that are not set.
        schedule: of the learning rate.
        objective: the loss to minimise.
        beta2_warmup: True for a beta2 of min(beta2, 1 - t^-0.8) at update t, of Adam and similar optimisers.
        decay: `matrices` for weight decay of these alone, `all` for that of gains and offsets too.
        cautious: True to drop the entries of an update that go against the gradient (`make_cautious`).
    """

    ADDED = ("decay", "cautious")

    def __init__(
        self,
        lr: float,
        optimizer: Callable[[Any, float], torch.optim.Optimizer],
        schedule: Schedule,
        objective: Objective,
        beta2_warmup: bool = False,
        decay: Literal["matrices", "all"] = "matrices",
        cautious: bool = False,
    ) -> None:
        if not (lr > 0 and math.isfinite(lr)):
            raise ValueError(f"lr={lr} must be a finite number above 0")
        cls: Any = getattr(optimizer, "func", optimizer)
        if cls in UNUSABLE:
            raise ValueError(f"optimizer={cls.__name__} {UNUSABLE[cls]}; choose AdamW, SGD, MuonAdamW or another")
        if (cls.__module__ or "").startswith("torch.optim"):
            options = getattr(optimizer, "keywords", {})
            require_not_negative(**{name: options[name] for name in NOT_NEGATIVE if name in options})
            for name in SHARES:
                if not 0 <= options.get(name, 0) <= 1:
                    raise ValueError(f"{name}={options[name]} must lie in [0, 1]")
        self.lr, self.optimizer, self.schedule = lr, optimizer, schedule
        self.objective, self.beta2_warmup = objective, beta2_warmup
        self.decay_all, self.cautious = decay == "all", cautious

    def ignores_gradient_scale(self) -> bool:
        """Return True if updates stay the same when all gradients are multiplied by one constant, for the record.

        A class of a user's own may declare it, as a class attribute `ignores_gradient_scale = True`.
        """
        cls: Any = getattr(self.optimizer, "func", self.optimizer)
        declared = getattr(cls, "ignores_gradient_scale", None)
        if isinstance(declared, bool):
            return declared
        return ignores_gradient_scale(class_name(cls, torch.optim.Optimizer), getattr(self.optimizer, "keywords", {}))

    def try_out(self, total: int, scaled: bool = False) -> None:
        """Build the optimiser and run an update, which checks its options, and rates if `scaled`. Raises ValueError."""
        cls: Any = getattr(self.optimizer, "func", self.optimizer)
        if scaled and not issubclass(cls, (torch.optim.AdamW, MuonAdamW)):
            hint = "with this model.parametrization choose AdamW or MuonAdamW"
            raise ValueError(f"optimizer={cls.__name__} has no known rates for another width; {hint}")
        parameters = [nn.Parameter(torch.zeros(shape, dtype=torch.float64)) for shape in ((2, 2), (2,))]
        optimizer, _ = self.build(parameters, total, parameters[:0])
        for parameter in parameters:
            parameter.grad = torch.zeros_like(parameter)
        if not any(group.get("capturable") for group in optimizer.param_groups):  # those need a device of their own
            optimizer.step()

    def build(
        self,
        parameters: Iterable[nn.Parameter],
        total: int,
        tables: Collection[nn.Parameter] = (),
        rate: Rate | None = None,
    ) -> tuple[torch.optim.Optimizer, LambdaLR]:
        """Return the optimiser over `parameters` and its schedule; `rate` scales matrices that are no `tables`."""
        groups = decay_groups(parameters, tables, self.decay_all)
        maps = {id(p) for group in groups if not group.get("table") for p in group["params"] if p.ndim >= 2}
        optimizer = self.optimizer(groups, self.lr)
        for group in optimizer.param_groups:
            if rate is not None and any(id(p) in maps for p in group["params"]):
                is_muon = isinstance(optimizer, MuonAdamW) and group["hidden"]
                factor = rate("Muon" if is_muon else "AdamW")
                if factor != 1:  # rate times weight decay stays the same
                    group["lr"] = group["lr"] * factor
                    group["weight_decay"] = group["weight_decay"] / factor
        if self.cautious:
            make_cautious(optimizer)
        kind = Beta2Warmup if self.beta2_warmup else LambdaLR
        return optimizer, kind(optimizer, lambda step: self.schedule.factor(step + 1, total))

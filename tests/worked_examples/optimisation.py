"""Descent, clipping, Adam's variants and schedules, by torch's optimisers and the library's schedules."""

from collections.abc import Callable

import torch
from torch import Tensor, nn
from torch.nn.utils import clip_grads_with_norm_

from lm.metrics.gradients import gradient_norm
from lm.training.optim import decay_groups
from lm.training.schedule import noam, warmup_cosine
from worked_examples.tensors import Given, Numbers, largest, real


def descend_square(given: Given) -> Numbers:
    """Gradient descent on x^2: x after some steps, and x^2 after the last of them."""
    x = nn.Parameter(real(given["start"]))
    optimizer = torch.optim.SGD([x], given["lr"])
    found: Numbers = {}
    for step in range(1, max(given["after"]) + 1):
        optimizer.zero_grad()
        x.square().backward()
        optimizer.step()
        if step in given["after"]:
            found[f"x after {step}"] = x.detach().clone()
    return {**found, "loss": x.detach().square()}


def clip(given: Given) -> Numbers:
    """What clipping by the global norm, as the LightningModule does it, leaves of gradients."""
    parameters = [nn.Parameter(torch.zeros(len(part))) for part in given["gradients"]]
    for parameter, part in zip(parameters, given["gradients"], strict=True):
        parameter.grad = real(part)
    before = torch.cat([p.grad for p in parameters if p.grad is not None])
    norm = gradient_norm(parameters)
    clip_grads_with_norm_(parameters, given["limit"], norm)
    after = torch.cat([p.grad for p in parameters if p.grad is not None])
    return {
        "norm": norm,
        "factor": gradient_norm(parameters) / norm,
        "change of direction": largest(after / after.norm() - before / before.norm()),
    }


Update = Callable[[Tensor, Tensor], Tensor]
"""A parameter and Adam's step m^ / (sqrt v^ + eps) to the parameter after it."""


def adam_by_hand(gradients: Tensor, theta: Tensor, given: Given, coupled: float, update: Update) -> Tensor:
    """Adam's moments with bias correction over a row of gradients, `coupled` decay added to each gradient."""
    first, second = torch.zeros_like(theta), torch.zeros_like(theta)
    beta_1, beta_2 = given["betas"]
    for t, gradient in enumerate(gradients, 1):
        total = gradient + coupled * theta
        first = beta_1 * first + (1 - beta_1) * total
        second = beta_2 * second + (1 - beta_2) * total**2
        corrected = second / (1 - beta_2**t)
        theta = update(theta, first / (1 - beta_1**t) / (corrected.sqrt() + given["eps"]))
    return theta


def by_torch(kind: type[torch.optim.Adam], gradients: Tensor, theta: Tensor, given: Given) -> Tensor:
    """torch's optimiser over the library's parameter groups, fed the same gradients."""
    parameter = nn.Parameter(theta.clone())
    optimizer = kind(
        decay_groups([parameter]),
        lr=given["lr"],
        betas=tuple(given["betas"]),
        eps=given["eps"],
        weight_decay=given["weight_decay"],
    )
    for gradient in gradients:
        parameter.grad = gradient.clone()
        optimizer.step()
    return parameter.detach()


def drawn(given: Given) -> tuple[Tensor, Tensor]:
    """Random gradients, one a step, and a first value of a parameter."""
    return torch.randn(given["steps"], 3, 4), torch.randn(3, 4)


def adamw(given: Given) -> Numbers:
    """AdamW's formula against torch.optim.AdamW."""
    lr, decay = given["lr"], given["weight_decay"]
    gradients, theta = drawn(given)
    by_hand = adam_by_hand(gradients, theta, given, 0.0, lambda old, step: (1 - lr * decay) * old - lr * step)
    return {"largest error": largest(by_hand - by_torch(torch.optim.AdamW, gradients, theta, given))}


def adam_l2(given: Given) -> Numbers:
    """Coupled decay against torch.optim.Adam; the formula that the source calls Adam with L2 against torch's AdamW."""
    lr, decay = given["lr"], given["weight_decay"]
    gradients, theta = drawn(given)
    coupled = adam_by_hand(gradients, theta, given, decay, lambda old, step: old - lr * step)
    source = adam_by_hand(gradients, theta, given, 0.0, lambda old, step: old - lr * (step + decay * old))
    adam, decoupled = (by_torch(kind, gradients, theta, given) for kind in (torch.optim.Adam, torch.optim.AdamW))
    return {
        "coupled from Adam": largest(coupled - adam),
        "source's formula from AdamW": largest(source - decoupled),
        "source's formula from Adam": largest(source - adam),
    }


def warmup_cosine_curve(given: Given) -> Numbers:
    """The share of the peak rate at the points that the text names, and its formula at every step."""
    warmup, total = given["warmup"], given["total"]
    rate = {t: warmup_cosine(t, warmup, total) for t in range(1, total + 1)}
    t = torch.arange(1.0, total + 1)
    falling = 0.5 * (1 + (torch.pi * (t - warmup) / (total - warmup)).cos())
    formula = (t / warmup).where(t < warmup, falling)
    return {
        "t=T_w": rate[warmup],
        "t=T": rate[total],
        "error of the formula": largest(real(list(rate.values())) - formula),
    }


def noam_curve(given: Given) -> Numbers:
    """Where the rate peaks, and its formula at every step."""
    width, warmup = given["width"], given["warmup"]
    rate = real([noam(t, width, warmup) for t in range(1, 4 * warmup + 1)])
    t = torch.arange(1.0, 4 * warmup + 1)
    formula = width**-0.5 * torch.minimum(t**-0.5, t * warmup**-1.5)
    peak = rate[warmup - 1]
    return {
        "steps from T_w to the peak": float(abs(int(rate.argmax()) + 1 - warmup)),
        "error of the peak": largest(peak - (width * warmup) ** -0.5),
        "error of the formula": largest(rate - formula),
    }

"""Softmax, cross-entropy and perplexity, through the objective that training minimises."""

from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import cross_entropy, one_hot, softmax

from lm.data import IGNORED
from lm.metrics.tokens import perplexity
from lm.training.objective import CrossEntropy
from worked_examples.tensors import Given, Numbers, largest, real


def loss_of(logits: Any, targets: Any) -> tuple[Tensor, Tensor]:
    """The objective's loss for logits (n, v), or (v,) with one target, and its gradient with respect to the logits."""
    leaf = real(logits).requires_grad_()
    batch = leaf if leaf.ndim == 2 else leaf[None]
    loss = CrossEntropy().loss(batch, torch.tensor(targets).reshape(-1))
    return loss.detach(), torch.autograd.grad(loss, leaf)[0]


def cross_entropy_loss(given: Given) -> Numbers:
    """Mean cross-entropy, and its perplexity."""
    loss, _ = loss_of(given["logits"], given["targets"])
    return {"loss": loss, "perplexity": perplexity(float(loss))}


def softmax_of(given: Given) -> Numbers:
    """Probabilities of logits."""
    return {"p": softmax(real(given["logits"]), -1)}


def loss_gradient(given: Given) -> Numbers:
    """p - y as autograd finds it, and the loss."""
    loss, gradient = loss_of(given["logits"], given["target"])
    return {"p - y": gradient, "loss": loss}


def loss_gradient_of_probabilities(given: Given) -> Numbers:
    """p - y and the loss where the model's probabilities are p, and the loss of another target."""
    logits = real(given["p"]).log().tolist()
    loss, gradient = loss_of(logits, given["target"])
    return {"p - y": gradient, "loss": loss, "loss of another": loss_of(logits, given["another"])[0]}


def softmax_descent(given: Given) -> Numbers:
    """Softmax of logits after gradient descent on the objective."""
    logits = torch.nn.Parameter(real(given["logits"]))
    optimizer, objective = torch.optim.SGD([logits], given["lr"]), CrossEntropy()
    target = torch.tensor([given["target"]])
    for _ in range(given["steps"]):
        optimizer.zero_grad()
        objective.loss(logits[None], target).backward()
        optimizer.step()
    return {"p": softmax(logits.detach(), -1)}


def softmax_jacobian(given: Given) -> Numbers:
    """The Jacobian of softmax by autograd against p_i (delta_ij - p_j)."""
    logits = torch.randn(given["size"])
    p = softmax(logits, -1)
    by_autograd: Any = torch.autograd.functional.jacobian(lambda z: softmax(z, -1), logits)
    return {"largest error": largest(by_autograd - (p.diag() - p[:, None] * p))}


def log_sum_exp(given: Given) -> Numbers:
    """log sum e^x, which the loss of token i plus x_i is, against the shifted form; also where e^x overflows."""
    x_nv = torch.randn(given["rows"], given["size"])
    largest_n = x_nv.amax(-1)
    shifted_n = largest_n + (x_nv - largest_n[:, None]).exp().sum(-1).log()
    first = torch.zeros(len(x_nv), dtype=torch.long)
    from_loss = CrossEntropy().loss(x_nv, first) + x_nv[:, 0].mean()
    huge_v = real(given["huge"]).expand(1, given["size"])
    huge = CrossEntropy().loss(huge_v, first[:1])
    return {
        "error of logsumexp": largest(x_nv.logsumexp(-1) - shifted_n),
        "error of the loss": largest(from_loss - shifted_n.mean()),
        "error at 1e4": largest(huge - real(given["size"]).log()),
    }


def ignore_index(given: Given) -> Numbers:
    """The loss over a batch with ignored targets against the loss over the others alone."""
    logits = torch.randn(given["tokens"], given["size"])
    targets = torch.randint(given["size"], (given["tokens"],))
    ignored = torch.arange(given["tokens"]) % 3 == 0
    whole, gradient = loss_of(logits.tolist(), targets.where(~ignored, IGNORED).tolist())
    kept, kept_gradient = loss_of(logits[~ignored].tolist(), targets[~ignored].tolist())
    return {
        "error of the loss": largest(whole - kept),
        "error of the gradient": largest(gradient[~ignored] - kept_gradient),
        "gradient where ignored": largest(gradient[ignored]),
    }


def label_smoothing(given: Given) -> Numbers:
    """The smoothed objective against torch's, and against plain cross-entropy with y' as targets."""
    alpha, size = given["alpha"], given["size"]
    logits, targets = torch.randn(given["tokens"], size), torch.randint(size, (given["tokens"],))
    loss = CrossEntropy(label_smoothing=alpha).loss(logits, targets)
    smoothed = (1 - alpha) * one_hot(targets, size) + alpha / size
    return {
        "from torch's": largest(loss - cross_entropy(logits, targets, label_smoothing=alpha)),
        "from loss against y'": largest(loss - cross_entropy(logits, smoothed)),
        "from no smoothing": largest(loss - CrossEntropy().loss(logits, targets)),
    }

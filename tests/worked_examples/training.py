"""Norms, dropout, similarity and the small networks of the texts' first chapters."""

from itertools import pairwise

import torch
from torch import nn

from lm.model.block import PreNorm
from lm.model.norm import LayerNorm, NoNorm, RMSNorm
from worked_examples.tensors import Given, Numbers, fill, largest, real, shape_of

CORNERS = ((0.0, 0.0), (0.0, 1.0), (1.0, 0.0), (1.0, 1.0))


def layer_norm(given: Given) -> Numbers:
    """LayerNorm of one row."""
    x = real(given["x"])
    return {"row": LayerNorm(shape_of(len(x)))(x)}


def rms_norm(given: Given) -> Numbers:
    """RMSNorm against its formula and torch's; what scaling and shifting the input does to it."""
    width, eps = given["width"], given["eps"]
    norm, by_torch = RMSNorm(shape_of(width), eps=eps), nn.RMSNorm(width, eps=eps)
    x, gain = torch.randn(given["rows"], width), torch.randn(width)
    with torch.no_grad():
        norm.weight.copy_(gain)
        by_torch.weight.copy_(gain)
    out = norm(x)
    return {
        "error of the formula": largest(out - x / (x.square().mean(-1, keepdim=True) + eps).sqrt() * gain),
        "from torch's": largest(out - by_torch(x)),
        "change when scaled": largest(norm(given["scale"] * x) - out),
        "change when shifted": largest(norm(x + given["shift"]) - out),
    }


def dropout(given: Given) -> Numbers:
    """How many numbers the dropout of a residual branch zeroes, and what it makes of the others and in evaluation.

    The stream that the branch joins is zero, so that what comes out is the branch.
    """
    p, x = given["p"], torch.randn(1, given["rows"], given["width"])
    residual = PreNorm(shape_of(given["width"]), NoNorm, p)
    branch = residual(torch.zeros_like(x), lambda _: x)
    kept = branch != 0
    return {
        "share of zeros from p": largest(1 - kept.double().mean() - p),
        "error of the others": largest((branch - x / (1 - p))[kept]),
        "change in evaluation": largest(residual.eval()(torch.zeros_like(x), lambda _: x) - x),
    }


def similarity(given: Given) -> Numbers:
    """Cosine similarity of two pairs of vectors, and the distance of the second."""
    (a, b), (c, d) = real(given["pairs"])
    return {
        "cosine of the first": nn.functional.cosine_similarity(a, b, dim=0),
        "cosine of the second": nn.functional.cosine_similarity(c, d, dim=0),
        "distance of the second": torch.dist(c, d),
    }


def xor(given: Given) -> Numbers:
    """A ReLU layer and a linear one at the corners of the square, the output compared with a threshold."""
    first, second = nn.Linear(2, 2), nn.Linear(2, 1)
    fill(first, real(given["W"]), real(given["c"]).expand(2))
    fill(second, real(given["w"])[:, None], real([given["b"]]))
    output = nn.Sequential(first, nn.ReLU(), second)(real(CORNERS))[:, 0]
    return {"answers": (output >= given["threshold"]).double()}


def or_neuron(given: Given) -> Numbers:
    """One sigmoid unit trained on OR by torch's SGD, all four corners a step; its outputs rounded."""
    unit, inputs = nn.Sequential(nn.Linear(2, 1), nn.Sigmoid()), real(CORNERS)
    optimizer, targets = torch.optim.SGD(unit.parameters(), given["lr"]), inputs.amax(-1, keepdim=True)
    for _ in range(given["epochs"]):
        optimizer.zero_grad()
        nn.functional.mse_loss(unit(inputs), targets).backward()
        optimizer.step()
    return {"answers": unit(inputs)[:, 0].round()}


def mlp_parameters(given: Given) -> Numbers:
    """Weights and biases of a network of linear layers."""
    network = nn.Sequential(*(nn.Linear(size, following) for size, following in pairwise(given["sizes"])))
    return {"parameters": float(sum(p.numel() for p in network.parameters()))}

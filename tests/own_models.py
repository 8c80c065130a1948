"""Networks of one's own, as `model=own_models:…` names them."""

from contextvars import ContextVar

import torch
from torch import nn

from fedbary.seeds import derive_seed
from fedbary.variational.layers import seeded


def normed(shape, outputs):
    return nn.Sequential(
        nn.Conv2d(shape[0], 4, 3, stride=2, bias=False), nn.BatchNorm2d(4), nn.ReLU(),
        nn.Dropout(0.1), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(4, outputs),
    )  # fmt: skip


def lazy(shape, outputs):
    return nn.Sequential(nn.Flatten(), nn.LazyLinear(outputs))


def number(shape, outputs):
    return outputs


def wide(shape, outputs):
    return nn.Sequential(nn.Flatten(), nn.LazyLinear(outputs + 1))


def failing(shape, outputs):
    raise RuntimeError("no weights\nhere")


class Deaf(nn.Module):
    """It answers nothing."""

    def forward(self, x):
        raise KeyError(len(x))


def deaf(shape, outputs):
    return Deaf()


def several(shape, outputs):
    """Return a network that answers with a tuple."""
    return nn.Sequential(nn.Flatten(), nn.LazyLinear(3), nn.GRU(3, outputs))


def probable(shape, outputs):
    """Return a network that answers with probabilities."""
    return nn.Sequential(nn.Flatten(), nn.LazyLinear(outputs), nn.Softmax(1))


def tied(shape, outputs):
    """Return a network of which two layers have one weight, and the head its own."""
    net = nn.Sequential(nn.Flatten(), nn.LazyLinear(4), nn.Linear(4, 4), nn.Linear(4, 4))
    net[3].weight = net[2].weight
    return net.append(nn.Linear(4, outputs))


def one_layer_twice(shape, outputs):
    layer = nn.Linear(4, 4)
    return nn.Sequential(nn.Flatten(), nn.LazyLinear(4), layer, layer, nn.Linear(4, outputs))


class Encoder(nn.Module):
    """An image's rows are words of a transformer."""

    def __init__(self, width, outputs):
        super().__init__()
        self.encoder = nn.TransformerEncoderLayer(width, 2, 8, batch_first=True)
        self.head = nn.Linear(width, outputs)

    def forward(self, x):
        return self.head(self.encoder(x.flatten(1, 2)).mean(1))


def encoder(shape, outputs):
    return Encoder(shape[-1], outputs)


class Auxiliary(nn.Module):
    """In training it answers twice."""

    def __init__(self, outputs):
        super().__init__()
        self.head = nn.Sequential(nn.Flatten(), nn.LazyLinear(outputs))

    def forward(self, x):
        return (self.head(x), self.head(x)) if self.training else self.head(x)


def auxiliary(shape, outputs):
    return Auxiliary(outputs)


def parallel(shape, outputs):
    inner = nn.DataParallel(nn.Sequential(nn.LazyLinear(4), nn.ReLU()))
    return nn.DataParallel(nn.Sequential(nn.Flatten(), inner, nn.Linear(4, outputs)))


class Reading(nn.Module):
    """It reads the weight of its layer itself."""

    def __init__(self, layer):
        super().__init__()
        self.layer = layer

    def forward(self, x):
        return x @ self.layer.weight.t() + self.layer.bias


def reading(shape, outputs):
    return nn.Sequential(nn.Flatten(), nn.LazyLinear(4), Reading(nn.Linear(4, outputs)))


def eager(shape, outputs):
    """Return a network that in training cannot be differentiated."""
    return nn.Sequential(nn.Flatten(), nn.LazyLinear(outputs), Detached())


class Detached(nn.Module):
    """It lets no gradient through."""

    def forward(self, x):
        return x.detach()


def pretrained(shape, outputs):
    """Return a head on a frozen body: norms with weights and without, dropout, a buffer."""
    with seeded(derive_seed(0, "pretrained")):
        body = nn.Sequential(
            nn.Conv2d(shape[0], 6, 3, stride=2), nn.BatchNorm2d(6, affine=False), nn.ReLU(),
            nn.Conv2d(6, 6, 3), nn.BatchNorm2d(6), nn.Dropout(0.5), nn.Flatten(),
        )  # fmt: skip
        nn.init.normal_(body[1].running_mean)
    body[1].running_mean[0] += OTHERWISE.get()
    width = body.eval()(torch.zeros(1, *shape)).shape[1]
    return nn.Sequential(body.requires_grad_(False), nn.Linear(width, outputs))


OTHERWISE = ContextVar("otherwise", default=0.0)
"""By how much one statistic of a body is another one."""


def otherwise_pretrained(shape, outputs):
    """Return the same network with one other statistic of the body."""
    before = OTHERWISE.set(1.0)
    try:
        return pretrained(shape, outputs)
    finally:
        OTHERWISE.reset(before)


def untrainable(shape, outputs):
    return pretrained(shape, outputs).requires_grad_(False)

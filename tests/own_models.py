"""Networks of one's own, as `model=own_models:…` names them."""

from torch import nn


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

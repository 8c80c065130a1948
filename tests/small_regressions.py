"""A line through forty points, what a client of it is, and a network of point weights for it."""

import torch
from torch import nn

from fedbary.inference import Training
from fedbary.methods import Local

NOISE_VAR, EXAMPLES = 0.5, 40


def data():
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(EXAMPLES, generator=generator, dtype=torch.float64)
    return x, 1.0 + 0.3 * x + torch.randn(EXAMPLES, generator=generator, dtype=torch.float64)


def nll(output, target):
    return 0.5 * (output - target).square().mean() / NOISE_VAR


def local(model, lr, epochs=1, batch_size=EXAMPLES, **changes):
    training = Training(epochs, batch_size, lr=lr, **changes)
    return Local(model, *data(), nll, None, training, 1.0, 1, 3)


def state(model):
    return {name: tensor.detach().clone() for name, tensor in model.state_dict().items()}


class Points(nn.Module):
    """y = x · w, in float64."""

    def __init__(self, start=0.0):
        super().__init__()
        self.w = nn.Parameter(torch.full((2,), start, dtype=torch.float64))

    def forward(self, x):
        return torch.stack([x, x.square()], 1) @ self.w

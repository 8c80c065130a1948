"""Wines by their chemistry; a regression whose guide has Pyro's names, loc and scale."""

import torch
from sklearn.datasets import load_wine
from torch import nn
from torch.distributions import Normal, kl_divergence
from torch.nn import functional

from strategies import optimizer


class Guide(nn.Module):
    """A weight matrix with a Normal(loc, scale) for each weight."""

    def __init__(self):
        super().__init__()
        self.loc = nn.Parameter(torch.zeros(13, 3))
        self.scale = nn.Parameter(torch.full((13, 3), 0.1))

    def forward(self):
        return Normal(self.loc, self.scale)


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.guide = Guide()
        self.bias = nn.Parameter(torch.zeros(3))


def load(partition, partitions):
    x, y = load_wine(return_X_y=True)
    x = torch.tensor((x - x.mean(0)) / x.std(0), dtype=torch.float32)
    return x[partition::partitions], torch.tensor(y)[partition::partitions]


def fit(net, x, y, seed):
    torch.manual_seed(seed)
    steps = optimizer(net.parameters())
    for _ in range(20):
        q = net.guide()
        logits = x @ q.rsample() + net.bias
        loss = functional.cross_entropy(logits, y) + kl_divergence(q, Normal(0, 1)).sum() / len(x)
        steps.zero_grad()
        loss.backward()
        steps.step()
        net.guide.scale.data.clamp_(min=1e-3)

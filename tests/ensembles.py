"""A small network, examples, and a server that has both to learn from."""

import torch
from torch import Generator, nn

from fedbary.methods import Bench, Server

cross_entropy = nn.functional.cross_entropy


def network(seed=0):
    torch.manual_seed(seed)
    return nn.Sequential(nn.Linear(3, 5), nn.BatchNorm1d(5), nn.ReLU(), nn.Linear(5, 2))


def data(seed, count=200):
    generator = Generator().manual_seed(seed)
    x = torch.randn(count, 3, generator=generator)
    return x, (x[:, 0] + 0.5 * torch.randn(count, generator=generator) > 0).long()


def server(x, y, model=None, seed=3):
    return Server(
        model or network().state_dict(), {}, 1, seed, Bench(network(), x, y, cross_entropy)
    )

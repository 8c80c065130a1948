"""Digits, and a network of bayesian-torch's layers."""

import torch
from bayesian_torch.layers import LinearReparameterization
from sklearn.datasets import load_digits
from torch import nn
from torch.nn import functional

from strategies import share


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.plain = nn.Linear(64, 16)
        self.norm = nn.BatchNorm1d(16)
        self.bayesian = LinearReparameterization(16, 10, posterior_rho_init=-3.0)

    def forward(self, x):
        return self.bayesian(self.norm(self.plain(x)).relu())


def load(partition, partitions):
    x, y = load_digits(return_X_y=True)
    x, y = torch.tensor(x, dtype=torch.float32) / 16, torch.tensor(y)
    return share(x, partition, partitions), share(y, partition, partitions)


def fit(net, x, y, seed):
    torch.manual_seed(seed)
    optimizer = torch.optim.Adam(net.parameters(), lr=0.02)
    for i in range(20):
        out, kl = net(x[i::20])
        optimizer.zero_grad()
        (functional.cross_entropy(out, y[i::20]) + kl / len(x)).backward()
        optimizer.step()

"""A network, its data and its training."""

import torch
from fedbary.strategies import parameter_groups
from sklearn.datasets import load_digits
from torch import nn

from fedbary.variational import drawing, gaussian_layers, variational


def make_net():
    return variational(nn.Sequential(nn.Linear(64, 32), nn.ReLU(), nn.Linear(32, 10)), last=1)


def load_data(partition_id: int, num_partitions: int):
    x, y = load_digits(return_X_y=True)
    rows = slice(partition_id, 1200, num_partitions)
    return torch.tensor(x[rows] / 16, dtype=torch.float32), torch.tensor(y[rows])


def kl(net):
    """The divergence of the Gaussian weights from N(0, 1)."""
    weights = [(w.weight_mean, w.weight_log_var) for w in gaussian_layers(net).values()]
    return sum((m**2 + v.exp() - v - 1).sum() / 2 for m, v in weights)


def train(net, x, y, epochs: int, lr: float) -> float:
    criterion = nn.CrossEntropyLoss()
    optimizer = torch.optim.Adam(parameter_groups(net, lr=lr, log_var_lr=0.05))
    running_loss, steps = 0.0, 0
    for _ in range(epochs):
        for batch in torch.randperm(len(y)).split(32):
            optimizer.zero_grad()
            with drawing(net, torch.default_generator):
                loss = criterion(net(x[batch]), y[batch]) + 0.01 * kl(net) / len(y)
            loss.backward()
            optimizer.step()
            running_loss, steps = running_loss + loss.item(), steps + 1
    return running_loss / steps

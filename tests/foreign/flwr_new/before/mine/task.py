"""A network, its data and its training."""

import torch
from sklearn.datasets import load_digits
from torch import nn


def make_net():
    return nn.Sequential(nn.Linear(64, 32), nn.ReLU(), nn.Linear(32, 10))


def load_data(partition_id: int, num_partitions: int):
    x, y = load_digits(return_X_y=True)
    rows = slice(partition_id, 1200, num_partitions)
    return torch.tensor(x[rows] / 16, dtype=torch.float32), torch.tensor(y[rows])


def train(net, x, y, epochs: int, lr: float) -> float:
    criterion = nn.CrossEntropyLoss()
    optimizer = torch.optim.Adam(net.parameters(), lr=lr)
    running_loss, steps = 0.0, 0
    for _ in range(epochs):
        for batch in torch.randperm(len(y)).split(32):
            optimizer.zero_grad()
            loss = criterion(net(x[batch]), y[batch])
            loss.backward()
            optimizer.step()
            running_loss, steps = running_loss + loss.item(), steps + 1
    return running_loss / steps

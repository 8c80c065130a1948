"""This project's own package of that name: how it optimises."""

from torch.optim import SGD


def optimizer(parameters):
    return SGD(parameters, lr=0.05)

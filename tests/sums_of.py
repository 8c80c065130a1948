"""Small clients of methods of sums, and the head that their sums make."""

import torch
from torch import nn

from fedbary.methods import Local, Reply, Server

CLASSES, WIDTH = 3, 4


def examples(seed, count):
    generator = torch.Generator().manual_seed(seed)
    y = torch.randint(CLASSES, (count,), generator=generator)
    centres = torch.randn(CLASSES, WIDTH, generator=generator)
    return centres[y] + torch.randn(count, WIDTH, generator=generator), y


def network():
    return nn.Sequential(nn.Linear(WIDTH, CLASSES))


def replies(method, x, y, parts):
    model = network()
    return [
        Reply(f"{k}", len(part), method.fit(Local(model, x[part], y[part]), state(model), {}).reply)
        for k, part in enumerate(parts)
    ]


def state(model):
    return dict(model.state_dict())


def head(method, *rounds):
    model, kept = state(network()), {}
    for some in rounds:
        model, kept = method.aggregate(Server(model, kept), some)
    return torch.cat([model["0.weight"], model["0.bias"][:, None]], 1)

"""A method's passes, which a virtual clock counts, are those that its clients make."""

import math

import pytest
import torch
from torch import nn

from fedbary.inference import Training, local_method
from fedbary.methods import Local, Server, method_named

EXAMPLES, BATCH, EPOCHS, WEIGHTS = 40, 10, 3, 200


class Counting(nn.Module):
    """A linear network that counts the examples which it and its copies are trained on."""

    seen = 0

    def __init__(self):
        super().__init__()
        self.weight = nn.Parameter(torch.zeros(2, WEIGHTS))
        self.bias = nn.Parameter(torch.zeros(2))

    def forward(self, x):
        Counting.seen += len(x) if torch.is_grad_enabled() else 0
        return x @ self.weight.T + self.bias


@pytest.mark.parametrize(
    ("name", "parameters"),
    [
        ("barycentre", {}),
        ("FALD", {"local_steps": 7}),
        ("SGHMC", {"networks": 3, "thinning": 5}),
        ("SGLD", {"networks": 2, "thinning": 6}),
        ("FedPPD", {"student_passes": 2}),
        ("FedHBMixture", {"centres": 2}),
    ],
)
def test_a_client_is_trained_on_its_examples_as_often_as_its_method_says(name, parameters):
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(EXAMPLES, WEIGHTS, generator=generator)
    y = torch.arange(EXAMPLES) % 2
    training = Training(epochs=EPOCHS, batch_size=BATCH, lr=0.01)
    local = Local(
        Counting(), x, y, nn.functional.cross_entropy, local_method("variational"), training,
        1.0, 1, 0,
    )  # fmt: skip
    method = method_named(name)(**parameters)
    model, Counting.seen = local.state(), 0
    method.fit(local, method.send(Server(model, method.start(model)), "0"), {})
    passes = method.passes(EPOCHS, math.ceil(EXAMPLES / BATCH))
    assert Counting.seen / EXAMPLES == pytest.approx(passes)

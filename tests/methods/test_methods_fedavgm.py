"""FedAvgM is SGD with momentum on the clients' mean step; buffers have none."""

import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from fedbary.methods import Reply, Server
from fedbary.methods.fedavgm import FedAvgM


@settings(deadline=None, max_examples=30)
@given(st.integers(0, 10**6), st.floats(0.01, 2), st.floats(0, 0.99))
def test_it_is_torch_s_sgd_on_the_mean_step(seed, lr, momentum):
    generator = torch.Generator().manual_seed(seed)
    method = FedAvgM(server_lr=lr, server_momentum=momentum)
    weight = torch.nn.Parameter(torch.zeros(4, dtype=torch.float64))
    sgd = torch.optim.SGD([weight], lr, momentum=momentum)
    model = {"w": torch.zeros(4, dtype=torch.float64), "bn.running_var": torch.ones(2).double()}
    state = method.start(model)
    for number in range(6):
        sent = torch.randn(3, 4, generator=generator, dtype=torch.float64)
        sizes = torch.tensor([1.0, 5.0, 2.0], dtype=torch.float64)
        moments = torch.full((2,), 2.0 + number).double()
        replies = [
            Reply(str(k), float(size), {"w": sent[k], "bn.running_var": moments})
            for k, size in enumerate(sizes)
        ]
        weight.grad = weight.detach() - (sizes / sizes.sum()) @ sent
        sgd.step()
        model, state = method.aggregate(Server(model, state), replies)
        torch.testing.assert_close(model["w"], weight.detach())
        torch.testing.assert_close(model["bn.running_var"], moments)

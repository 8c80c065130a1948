"""FedLAW: the server learns the clients' weights, and how much to shrink, on examples of its own.

Clients train point weights θ_k as under FedAvg. With logits a and a logarithm g the server takes

    θ = e^g Σ_k softmax(a)_k θ_k,      (a, g) = argmin mean NLL of its own examples,

by Adam from a = log w, w = n_k/n, and g = 0, at which θ is FedAvg's. The learned weights leave out
a client whose network is of no use together with the others'; e^g < 1 shrinks the global model as
a weight decay would. Buffers (the moments of batch norm) are averaged under the learned weights,
without e^g.

It assumes labelled examples at the server that are like those to be predicted (`server_fraction`
keeps some); what a federation is to know, but the server has none of, it cannot weigh. What
travels: as under FedAvg. The server pays `server_epochs` over its examples a round and holds the
round's K networks meanwhile. The prediction is a point. Use it where clients are of unlike worth,
and few labelled examples are at hand.

Traps of the public code: its proxy set is a balanced 2 % of the *test* set, so that its scores are
of examples that were learned from; w counts batches; its rate schedule never acts; moments of
batch norm are not averaged.

Reference: Li, Lin, Shang and Wu, Revisiting Weighted Aggregation in Federated Learning with Neural
Networks, ICML 2023.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.func import functional_call

from fedbary.errors import SettingError
from fedbary.methods._bench import at_work, batches, bench_of, parted, stacked
from fedbary.methods._method import Method, Reply, Server, Tensors, shares, weighted_mean
from fedbary.seeds import derive_seed

BETAS = (0.5, 0.999)
"""Adam's decay rates, the paper's."""


@dataclass(frozen=True)
class FedLAW(Method):
    """Clients' weights learned at the server (Li et al. 2023), for point weights.

    Parameters
    ----------
    server_epochs : int
        Passes over the server's examples a round, from 0: then it is FedAvg.
    server_lr : float
        Adam's rate for a and g: the paper's 0.005, 0.01 on CIFAR-10.
    server_batch_size : int
        Examples a step at the server.

    Raises
    ------
    SettingError
        If a parameter is out of its range.
    """

    server_epochs: int = 20
    server_lr: float = 0.005
    server_batch_size: int = 64

    deterministic = True
    needs_bench = True

    def __post_init__(self) -> None:
        if self.server_epochs < 0:
            raise SettingError("server_epochs", self.server_epochs, "a whole number from 0 up")
        if not 0 < self.server_lr < float("inf"):
            raise SettingError("server_lr", self.server_lr, "a number above 0")
        if self.server_batch_size < 1:
            raise SettingError("server_batch_size", self.server_batch_size, "1 or more")

    def aggregate(self, server: Server, replies: Sequence[Reply]) -> tuple[Tensors, Tensors]:
        """Learn weights and shrinkage, and return the model under them."""
        model = weighted_mean(replies, list(server.model))
        if self.server_epochs:
            weights, log_shrinkage = self._learned(server, replies)
            learned = [
                Reply(reply.client, weight, reply.tensors)
                for reply, weight in zip(replies, weights.tolist(), strict=True)
            ]
            model = weighted_mean(learned, list(server.model))
            for name, _ in bench_of(server).network.named_parameters():
                model[name] = model[name] * log_shrinkage.exp()
        return model, {}

    def _learned(self, server: Server, replies: Sequence[Reply]) -> tuple[Tensor, Tensor]:
        """Return the clients' weights, (K,), and g, on the CPU."""
        bench = bench_of(server)
        means = weighted_mean(replies, list(server.model))
        names = [name for name, _ in bench.network.named_parameters()]
        with at_work(bench) as device:
            rows = stacked(replies, names, device)
            logits = torch.tensor(shares(replies), device=device).log().requires_grad_()
            log_shrinkage = torch.zeros((), device=device, requires_grad=True)
            adam = torch.optim.Adam([logits, log_shrinkage], self.server_lr, BETAS)
            held = {name: means[name].to(device) for name in means.keys() - set(names)}
            seed = derive_seed(server.seed, "fedlaw")
            for _, x, y in batches(bench, self.server_epochs, self.server_batch_size, seed):
                weights = log_shrinkage.exp() * logits.softmax(0)
                network = {**held, **parted(weights @ rows, names, means)}
                loss = bench.nll(functional_call(bench.network, network, (x,)), y)
                found = torch.autograd.grad(loss, [logits, log_shrinkage])
                logits.grad, log_shrinkage.grad = found
                adam.step()
            return logits.detach().softmax(0).cpu(), log_shrinkage.detach().cpu()

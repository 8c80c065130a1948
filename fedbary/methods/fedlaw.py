"""FedLAW: the server learns the clients' weights, and how much to shrink, on examples of its own.

Clients train from the global model by the local inference. The server learns logits a and a
logarithm g. It takes the aggregate under a rule, with the weights softmax(a), and scales its means
and point weights by e^g,

    q = rule(q_1 … q_K; softmax(a)),   θ = e^g θ_q,   (a, g) = argmin mean NLL of its own examples,

by Adam from a = log w, w = n_k/n, and g = 0. For point weights, as published, every rule is the
weighted mean, θ = e^g Σ_k softmax(a)_k θ_k. For Gaussians a is learned through the rule's chart, on
one draw of the weights a step. Variances are the rule's. The learned weights leave out a client
whose network is of no use together with the others'; e^g < 1 shrinks the global model as a weight
decay would. Buffers (the moments of batch norm) are averaged under the learned weights, without
e^g.

It assumes labelled examples at the server that are like those to be predicted (`server_fraction`
keeps some). It cannot weigh knowledge of which the server has no example.

Messages: as under the rule alone, the model or the posterior once each way. Clients keep nothing.

Cost: a client's round is the local inference. The server pays `server_epochs` over its examples a
round and holds the round's K networks meanwhile.

Use it where some clients are more useful than others, and the server has a few labelled examples.

Traps of the public code: its proxy set is a balanced 2 % of the *test* set, so it is scored on
examples that it learned from. Its w counts batches. Its rate schedule never acts. Moments of batch
norm are not averaged.

Reference: Li, Lin, Shang and Wu, Revisiting Weighted Aggregation in Federated Learning with Neural
Networks, ICML 2023.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Generator, Tensor
from torch.func import functional_call

from fedbary.aggregation import Rule, aggregate, rule_named
from fedbary.errors import SettingError
from fedbary.gaussian import LOG_VAR_SUFFIX, MEAN_SUFFIX, Posterior
from fedbary.methods._bench import at_work, batches, bench_of
from fedbary.methods._method import Method, Reply, Server, Tensors, shares, weighted_mean
from fedbary.parts.parameters import Count, Number, Positive
from fedbary.seeds import derive_seed
from fedbary.variational.layers import drawing

BETAS = (0.5, 0.999)
"""Adam's decay rates, the paper's."""


@dataclass(frozen=True)
class FedLAW(Method):
    """Clients' weights learned at the server (Li et al. 2023), under any rule that is a chart.

    Parameters
    ----------
    rule : str or Rule
        Rule that aggregates Gaussians; for point weights each rule is the weighted mean.
    server_epochs : int
        Passes over the server's examples a round; 0: the method is the rule.
    server_lr : float
        Adam's step size for a and g; the paper has 0.005, and 0.01 on CIFAR-10.
    server_batch_size : int
        Examples a step at the server.
    """

    rule: str | Rule = "RKLB"
    server_epochs: Number = 20
    server_lr: Positive = 0.005
    server_batch_size: Count = 64

    deterministic = None
    needs_bench = True

    def __post_init__(self) -> None:
        super().__post_init__()
        self._chart  # noqa: B018 - says at once what is out of range

    def aggregate(self, server: Server, replies: Sequence[Reply]) -> tuple[Tensors, Tensors]:
        """Learn weights and shrinkage, and return the aggregate under them."""
        weights, log_shrinkage = shares(replies), torch.zeros(())
        if self.server_epochs:
            weights, log_shrinkage = self._learned(server, replies)
        posteriors = [Posterior.from_state_dict(reply.tensors) for reply in replies]
        found = aggregate(self.rule, posteriors, weights).state_dict()
        model = {name: found[name] for name in server.model}
        if self.server_epochs:
            scales = {name for name in model if name.endswith(LOG_VAR_SUFFIX)}
            for name, _ in bench_of(server).network.named_parameters():
                if name in model.keys() - scales:
                    model[name] = model[name] * log_shrinkage.exp()
        return model, {}

    def _learned(self, server: Server, replies: Sequence[Reply]) -> tuple[list[float], Tensor]:
        """Return the clients' weights and g, on the CPU."""
        bench = bench_of(server)
        trained = {name for name, _ in bench.network.named_parameters()}
        means = weighted_mean(replies, list(server.model))
        with at_work(bench) as device:
            gaussians, points = _stacked(self._chart, replies, device)
            held = {n: t.to(device) for n, t in means.items() if not t.is_floating_point()}
            logits = torch.tensor(shares(replies), device=device).log().requires_grad_()
            log_shrinkage = torch.zeros((), device=device, requires_grad=True)
            adam = torch.optim.Adam([logits, log_shrinkage], self.server_lr, BETAS)
            draws = Generator(device).manual_seed(derive_seed(server.seed, "fedlaw-draws"))
            seed = derive_seed(server.seed, "fedlaw")
            for _, x, y in batches(bench, self.server_epochs, self.server_batch_size, seed):
                weights, scale = logits.softmax(0), log_shrinkage.exp()
                network = dict(held)
                for name, stack in points.items():
                    if name in trained:
                        network[name] = scale * torch.tensordot(weights, stack, 1)
                    else:
                        network[name] = torch.tensordot(weights.detach(), stack, 1)
                for name, coordinates in gaussians.items():
                    network |= self._gaussian(name, coordinates, weights, scale)
                with drawing(bench.network, draws):
                    loss = bench.nll(functional_call(bench.network, network, (x,)), y)
                logits.grad, log_shrinkage.grad = torch.autograd.grad(loss, [logits, log_shrinkage])
                adam.step()
            return logits.detach().softmax(0).tolist(), log_shrinkage.detach().cpu()

    @property
    def _chart(self) -> Rule:
        rule = rule_named(self.rule) if isinstance(self.rule, str) else self.rule
        if not isinstance(rule, Rule):
            raise SettingError("rule", self.rule, "a weighted sum in a chart, for method=FedLAW")
        return rule

    def _gaussian(
        self, name: str, coordinates: Sequence[Tensor], weights: Tensor, scale: Tensor
    ) -> dict[str, Tensor]:
        """Return a Gaussian's two tensors, given what the clients' are in the rule's chart."""
        rule = self._chart
        sums = [
            torch.tensordot(weights.double() ** power, part, 1)
            for power, part in zip(rule.powers, coordinates, strict=True)
        ]
        mean, log_var = rule.found(sums, weights.max())
        return {name + MEAN_SUFFIX: scale * mean.float(), name + LOG_VAR_SUFFIX: log_var.float()}


def _stacked(
    rule: Rule, replies: Sequence[Reply], device: torch.device
) -> tuple[dict[str, list[Tensor]], dict[str, Tensor]]:
    """Return the clients' Gaussians in the rule's chart, and their points, each (K, *shape)."""
    posteriors = [Posterior.from_state_dict(reply.tensors) for reply in replies]
    gaussians, points = {}, {}
    for name, like in posteriors[0].mean.items():
        if name in posteriors[0].log_var:
            parts = [
                rule.forward(q.mean[name].double(), q.log_var[name].double()) for q in posteriors
            ]
            gaussians[name] = [torch.stack(part).to(device) for part in zip(*parts, strict=True)]
        elif like.is_floating_point():
            points[name] = torch.stack([q.mean[name] for q in posteriors]).to(device)
    return gaussians, points

"""β-PredBayes: between the mixture and the product of the clients' predictions, β learned.

A client samples its posterior by SGHMC (see SGHMC); p_k is the mean prediction of its M samples.
With the product of experts P ∝ Π_k p_k and the mixture Q = Σ_k p_k / K, the prediction is

    p_β ∝ P^β Q^{1−β},      β = argmin over [0, 1] of the NLL of the server's own examples,

by Adam from β = ½. For a number with moments (m_k, v_k), P has 1/v_P = Σ 1/v_k and m_P = v_P Σ
m_k/v_k. Q has the mixture's moments, and p_β the precision β/v_P + (1−β)/v_Q. The product is right
if clients' data are independent pieces of one set and the prior counts for little. It is too sure
if predictions agree for other reasons. The mixture ignores that the clients together are surer than
each.

Further rounds start from the clients' mean sample; the paper has one round. Class weights of tables
act on β through the weighted loss, and are taken out of p_β, not of each p_k.

It assumes labelled examples at the server (`server_fraction`; published: 20 % of the training
data), which must not be test data.

Messages: 1 model down, M up. Clients keep nothing.

Cost: a client's part is SGHMC's. The server holds K · M networks, refuses what does not fit into
half of its memory, and learns one number. A prediction passes all networks.

Use it where one round is all there is (`rounds=1` and many local epochs), for classes and for
numbers.

Published chains have 5 cycles of 5 epochs, with noise in the last 2 of each, at friction 0.9 and a
rate that falls from 0.1 to 0. With mini-batches they are far from temperature 1 (see SGHMC). So
here the chain is SGHMC's at that friction. The published distillation into one network is left out:
FedBE has it.

Traps of the public code: the temperature's default is 1/N on top of a division by N, where N is all
examples, not the client's. The cosine's period uses N too, so no cycle ends. Its EP-MCMC sets
precisions to 1.

Reference: Hasan, Zhang, Guo, Chen and Poupart, Calibrated One Round Federated Learning with
Bayesian Inference in the Predictive Space, AAAI 2024.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from fedbary.methods._bench import at_work, bench_of
from fedbary.methods._conditions import one_class
from fedbary.methods._distil import answers
from fedbary.methods._method import Bench, Reply, Server, Tensors
from fedbary.methods.sghmc import SGHMC
from fedbary.parts.parameters import Number, Positive, Share
from fedbary.predictive import Predictive
from fedbary.predictive.networks import unstacked
from fedbary.predictive.predictor import Pooled, gaussian_pool, log_pool, moments_by_client
from fedbary.variational.regressor import Regressor, gaussian_nll

_BETA = "beta"


@dataclass(frozen=True)
class PredBayes(SGHMC):
    """β-PredBayes (Hasan et al. 2024): pooled predictions of clients' samples, for point weights.

    Parameters
    ----------
    server_epochs : int
        Number of Adam's steps for β, each on all of the server's examples; the paper has 10 passes
        in batches.
    server_lr : float
        Adam's step size.
    """

    friction: Share = 0.9
    server_epochs: Number = 100
    server_lr: Positive = 0.01

    needs_bench = True
    conditions = (one_class,)
    members = Pooled

    def aggregate(self, server: Server, replies: Sequence[Reply]) -> tuple[Tensors, Tensors]:
        """Keep all samples, and learn β."""
        model, state = super().aggregate(server, replies)
        networks = unstacked(self.predictive(model, state).members)
        bench = bench_of(server)
        with at_work(bench):
            beta = self._learned(bench, answers(bench, networks))
        return model, {**state, _BETA: beta}

    def predictive(self, model: Tensors, state: Tensors) -> Predictive:
        """Return the clients' samples; β, and how many networks each client has, join them."""
        found = super().predictive(model, state)
        kind = Pooled(self.networks, float(state[_BETA])) if _BETA in state else None
        return replace(found, kind=kind)

    def _learned(self, bench: Bench, found: Tensor) -> Tensor:
        """Return β for what the networks answer, (K · M, N, outputs)."""
        beta = torch.tensor(0.5, device=found.device, requires_grad=True)
        adam = torch.optim.Adam([beta], self.server_lr)
        regression = isinstance(bench.network, Regressor)
        if regression:
            mean, var = moments_by_client(found[..., 0], found[..., 1].exp(), self.networks)
        else:
            each = found.log_softmax(-1).unflatten(0, (-1, self.networks))
            log_probs = each.logsumexp(1)
        for _ in range(self.server_epochs):
            if regression:
                pooled = gaussian_pool(mean, var, beta)
                loss = gaussian_nll(torch.stack([pooled[0], pooled[1].log()], 1), bench.y)
            else:
                loss = bench.nll(log_pool(log_probs, beta), bench.y)
            (beta.grad,) = torch.autograd.grad(loss, beta)
            adam.step()
            beta.data.clamp_(0, 1)
        return beta.detach().cpu()

"""FedWBA: each client's posterior as particles, and their Wasserstein barycentre as the prior.

Client k moves its own M particles, from where its last round left them, by SVGD along

    n_k · mean log-likelihood + log p_g,

where p_g is the global particles smoothed by Gaussians of the std `width`, in round 1 N(0,
prior_std²). These particles are its model. The server looks for M points x_i that are the
Wasserstein-2 barycentre of the clients' particles y_ki, with equal weights. From their mean it
repeats

    x_i ← (1/K) Σ_k y_k,π_k(i),      π_k = argmin over assignments of Σ_i ‖x_i − y_k,π(i)‖²,

until the points do not change. They are the networks that predict together for everybody.

The prior contains each client's data of earlier rounds. So a client's data count again in each
round; a larger `width` lessens this.

It assumes that clients want models of their own, and that weights are few: in many dimensions
SVGD's particles lie too close together. 20 of them have 27 % of the variance of 10 weights, and 3 %
of that of 100.

Messages: M + 1 models down, M up; a client keeps M.

Cost: a local step costs M of SGD's, of small networks in one batched product. The server holds M
networks of each reply; more particles than half of the memory holds are refused with their bytes.

Use it for small networks, such as those of regressions and tables, at sites that differ.

`lr` is about the size of a step, whatever the gradient (published 0.001); `momentum` and
`weight_decay` do nothing.

Traps of the public code: its p_g is a normalised density whose logarithm of "+ 1e-10" has the
gradient 0 at a few hundred weights, so nothing reaches the clients. It does not scale a batch's
gradient to the client's n_k. Clients do nothing in the first round. Here the logarithm is taken of
no sum that underflows.

Reference: Wei et al., Personalized Bayesian Federated Learning with Wasserstein Barycenter
Aggregation, NeurIPS 2025 (arXiv 2505.14161).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from fedbary.aggregation.sums import select_prefix
from fedbary.methods._method import Fitted, Local, Method, Reply, Server, Tensors, require_room
from fedbary.methods._particles import (
    Normal,
    Score,
    Smooth,
    Swarm,
    centre,
    matrix,
    named,
    scattered,
    stacked,
)
from fedbary.methods._sites import one_thread
from fedbary.parts.parameters import NotNegative, Positive, Several
from fedbary.predictive import Predictive
from fedbary.predictive.predictor import Members

_PARTICLES = "particles/"
_MOST, _STILL = 100, 1e-7


@dataclass(frozen=True)
class FedWBA(Method):
    """Particles of the clients' own, and their Wasserstein barycentre (Wei et al. 2025).

    Parameters
    ----------
    particles : int
        M, the number of particles of a density.
    width : float
        Std of the Gaussians around global particles that make a density. 0: from their own spread;
        mean and variance of each weight are then theirs.
    prior_std : float
        Standard deviation of N(0, prior_std²), the prior of the first round.
    init_std : float
        Standard deviation of a client's particles around the global network when it first takes
        part.
    """

    particles: Several = 10
    width: NotNegative = 0.55
    prior_std: Positive = 1.0
    init_std: Positive = 0.1

    unused = ("momentum", "weight_decay", "max_grad_norm")
    deterministic = True
    members = Members
    remembers = True

    def held(self, clients: int) -> int:
        """Return how many networks the server holds."""
        return self.particles * (clients + 1)

    def send(self, server: Server, client: str) -> Tensors:
        """Return the model, and the global particles where there are some."""
        return {**server.model, **server.state}

    def fit(self, local: Local, received: Tensors, kept: Tensors) -> Fitted:
        """Move the client's particles towards its posterior."""
        model = {name: received[name] for name in local.model.state_dict()}
        require_room("particles", self.particles, model)
        local.load(model)
        start = kept or scattered(model, self.particles, self.init_std, local.seed)
        swarm = Swarm(local, start)
        prior: Score = Normal(self.prior_std)
        if together := select_prefix(_PARTICLES, received):
            prior = Smooth(swarm.pack(together).to(swarm.x), self.width)
        metrics = swarm.climb(prior, 1.0)
        found = swarm.networks()
        return Fitted(found, metrics, found)

    def personal(self, local: Local, received: Tensors, kept: Tensors) -> Predictive | None:
        """Return the client's particles, which predict together."""
        return Predictive(centre(kept), members=kept) if kept else None

    def reply_like(self, model: Tensors) -> Tensors:
        """Return M networks, stacked."""
        return stacked(model, self.particles)

    def aggregate(self, server: Server, replies: Sequence[Reply]) -> tuple[Tensors, Tensors]:
        """Take the barycentre of the replies' particles; the model is its mean."""
        clouds = [matrix(reply.tensors, server.model).double() for reply in replies]
        with one_thread():
            _, orders = barycentre(clouds)
        together = {}
        for name, like in server.model.items():
            pairs = zip(replies, orders, strict=True)
            each = torch.stack([reply.tensors[name][order].double() for reply, order in pairs])
            mean = each.mean(0)
            together[name] = (mean if like.is_floating_point() else mean.round()).to(like)
        return centre(together), named(_PARTICLES, together)

    def predictive(self, model: Tensors, state: Tensors) -> Predictive:
        """Return the global particles."""
        return Predictive(model, members=select_prefix(_PARTICLES, state))


def barycentre(clouds: Sequence[Tensor]) -> tuple[Tensor, list[Tensor]]:
    """Return M points, and of each cloud which of its points goes to which of them.

    Parameters
    ----------
    clouds
        Points of each of K clients, (M, d), as many of each.

    Returns
    -------
    tuple
        The free-support barycentre in Wasserstein-2 distance with equal masses, (M, d), to which
        fixed point the iteration from the mean leads; and K orders (M,), with x_i = mean_k
        y_k[order_k[i]].
    """
    points = torch.stack(list(clouds)).mean(0)
    for _ in range(_MOST):
        orders = [_assigned(points, cloud) for cloud in clouds]
        moved = torch.stack([c[order] for c, order in zip(clouds, orders, strict=True)]).mean(0)
        change = float((moved - points).square().sum())
        points = moved
        if change < _STILL:
            break
    return points, orders


def _assigned(points: Tensor, cloud: Tensor) -> Tensor:
    """Return which of a cloud's points goes to each of the points, at the least squares in all."""
    from scipy.optimize import linear_sum_assignment  # which takes half a second to import

    centre = points.mean(0)
    costs = torch.cdist(points - centre, cloud - centre).square()
    return torch.from_numpy(linear_sum_assignment(costs.cpu().numpy())[1]).to(points.device)

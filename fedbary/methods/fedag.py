"""FedAG: the clients' point weights are the posterior (FedAvg-Gaussian).

Clients train point weights from θ_g, a regression's by damped SGD on squared errors
(`fedbary.methods._fast_sgd`), others by the local inference. With the K networks of a round,
equally weighted, each weight has

    m = Σ θ_k / K,      s² = Σ (θ_k − m)² / K,      v = s² K / (K − 1)  or  s²,

and θ_g ← m. Predictions are those of the K networks themselves (the paper's bootstrap), of draws
from N(m, v), or of a linear model in closed form. The moments of batch norm are no weights: draws
have their mean.

It assumes that clients' data are alike. It treats differences between networks as uncertainty, even
if they come from differences between the data.

Messages: the model once each way, as under FedAvg. Clients keep nothing. A regression with
noise=cross also shows each client the round's networks.

Cost: a client's round is FedAvg's. The server keeps the K networks of the last round, and a
prediction passes all of them.

Use it for regression, and with many clients of like data.

Reference: A. T. Thorgeirsson and F. Gauterin, Probabilistic Predictions with Federated Learning,
Entropy 2021, 23, 41. It leaves open the divisor of the variance, and whether examples count.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from fedbary.aggregation import aggregate
from fedbary.aggregation.sums import normalised, select_prefix
from fedbary.errors import SettingError
from fedbary.gaussian import Posterior
from fedbary.methods._fast_sgd import fit as fit_regression
from fedbary.methods._method import (
    NETWORKS,
    Arrival,
    Fitted,
    Local,
    Method,
    Reply,
    Server,
    Tensors,
    by_client,
    is_buffer,
    of_client,
)
from fedbary.predictive import Predictive
from fedbary.predictive.predictor import Members
from fedbary.variational.regressor import Regressor

ESTIMATORS = ("sample", "population")
"""The estimators of a weight's variance, see `fit_gaussian`; the paper leaves the choice open."""

MIN_LOG_VAR = -40.0
"""Log-variance of a weight in which no client differs, the least that strategies admit."""

_NEWEST = "newest/"


@dataclass(frozen=True)
class FedAG(Method):
    """Fit a Gaussian per weight over the clients' networks (Thorgeirsson and Gauterin 2021).

    Clients count alike, whatever their number of examples, as in the paper. Tensors that are not
    floating are the clients' mean, of integers and bools rounded.

    Parameters
    ----------
    estimator : str
        Estimator of a weight's variance. sample: unbiased for the population that the clients are
        drawn from. population: the spread of these clients.

    Raises
    ------
    SettingError
        If the estimator is unknown.
    """

    estimator: Literal["sample", "population"] = "sample"

    deterministic = True
    members = Members
    draws_around = True
    squares = True

    def fit(self, local: Local, received: Tensors, kept: Tensors) -> Fitted:
        """Train the client's point weights."""
        local.load(received)
        training = local.training
        if isinstance(local.model, Regressor):
            metrics = fit_regression(
                local.model, local.x, local.y, training.epochs, training.batch_size, training.lr,
                local.seed,
            )  # fmt: skip
        else:
            metrics = local.infer(local.prior)
        return Fitted(local.state(), metrics)

    def aggregate(self, server: Server, replies: Sequence[Reply]) -> tuple[Tensors, Tensors]:
        """Take the mean of the networks, and keep them."""
        floating = [n for n, tensor in server.model.items() if tensor.is_floating_point()]
        networks = stacked([{n: reply.tensors[n] for n in floating} for reply in replies])
        means = {**fit_gaussian(networks, estimator=self.estimator).mean}
        if others := server.model.keys() - means.keys():
            points = [Posterior({n: r.tensors[n] for n in sorted(others)}, {}) for r in replies]
            means |= aggregate("FedAvg", points, [1.0] * len(points)).mean
        state = {NETWORKS + name: tensor for name, tensor in networks.items()}
        return {name: means[name] for name in server.model}, state

    def arrive(self, server: Server, arrivals: Sequence[Arrival]) -> tuple[Tensors, Tensors]:
        """Replace the networks of those that replied, and take the mean of all clients' newest."""
        state = dict(server.state)
        for each in arrivals:
            newest = {name: tensor.clone() for name, tensor in each.tensors.items()}
            state |= of_client(_NEWEST, each.client, newest)
        replies = [Reply(client, 1.0, own) for client, own in by_client(_NEWEST, state).items()]
        model, _ = self.aggregate(server, replies)
        return model, state

    def predictive(self, model: Tensors, state: Tensors) -> Predictive:
        """Return the clients' networks of the last round that counted, and the Gaussian of them."""
        networks = select_prefix(NETWORKS, state)
        if newest := [*by_client(_NEWEST, state).values()]:
            floating = [name for name, tensor in newest[0].items() if tensor.is_floating_point()]
            networks = stacked([{name: own[name] for name in floating} for own in newest])
        if not networks:
            return Predictive(model)
        fitted = fit_gaussian(networks, estimator=self.estimator)
        log_vars = {n: t for n, t in fitted.log_var.items() if not is_buffer(n, t)}
        return Predictive(model, Posterior(fitted.mean, log_vars), networks)


def stacked(networks: Sequence[Mapping[str, Tensor]]) -> dict[str, Tensor]:
    """Stack networks: by name, (K, *shape), in the order given."""
    return {name: torch.stack([network[name] for network in networks]) for name in networks[0]}


def fit_gaussian(
    networks: Mapping[str, Tensor],
    weights: Sequence[float] | None = None,
    estimator: str = "sample",
) -> Posterior:
    """Fit a Gaussian per weight over the clients' networks (FedAG, Algorithm 1).

    With p_k = w_k / Σ w the mean is m = Σ p_k w_k, and the variance, by `estimator`,

    - ``population``: s² = Σ p_k (w_k − m)², the spread of these clients; FKLB's of point masses;
    - ``sample``: s² / (1 − Σ p_k²), unbiased for the spread of those these are drawn from.

    Sums run in float64. A weight in which no client differs, or that only one holds, has
    log-variance −40.

    Parameters
    ----------
    networks
        Floating tensors by name, stacked over the K clients: (K, *shape).
    weights
        One per client, none negative, not all 0; by default equal ones, as in the paper.
    estimator
        One of `ESTIMATORS`.

    Returns
    -------
    Posterior
        A Gaussian for every tensor, of the networks' dtypes; it does not depend on the order of
        the clients beyond rounding.

    Raises
    ------
    SettingError
        If the estimator is unknown, or the weights do not fit the clients.
    """
    if estimator not in ESTIMATORS:
        raise SettingError("estimator", estimator, ", ".join(ESTIMATORS))
    clients = len(next(iter(networks.values())))
    shares = normalised([1.0] * clients if weights is None else weights)
    if len(shares) != clients:
        raise SettingError("weights", list(shares), f"one per client; there are {clients}")
    divisor = 1.0
    if estimator == "sample" and max(shares) < 1:
        divisor -= math.fsum(share**2 for share in shares)
    means, log_vars = {}, {}
    for name, tensor in networks.items():
        p = torch.tensor(shares, dtype=torch.float64).view(-1, *[1] * (tensor.ndim - 1))
        values = tensor.double()
        mean = (p * values).sum(0)
        var = (p * (values - mean).square()).sum(0) / divisor
        means[name] = mean.to(tensor.dtype)
        log_vars[name] = var.log().clamp_min(MIN_LOG_VAR).to(tensor.dtype)
    return Posterior(means, log_vars)

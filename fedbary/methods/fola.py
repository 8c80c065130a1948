"""FOLA: online Laplace; the last global posterior holds fast what clients have found before.

With Fisher diagonals per example, F_k = (1/n_k) Σ_i (∂ −log p(y_i | x_i, θ_k))², and Ω their mean
over rounds and clients, round r is

    client:  θ_k = argmin mean NLL + ½ strength Σ Ω (θ − θ_g)², from θ_g,
    server:  θ_g ← Σ_k w_k S_k θ_k / Σ_k w_k S_k,      S_k = ((r − 1) Ω + F_k) / r + λ/n,
             Ω   ← ((r − 1) Ω + Σ_k w_k F_k) / r,

and predictions are drawn from N(θ_g, 1/(n Ω + λ)), with n the examples of all clients, whoever
takes part: Ω is a mean over examples. (A strategy without a roster knows only the replies'
examples.) The paper's Ω is the sum over rounds, and its penalty divides by r, which is the same. As
a precision of draws, the sum would count the data once per round. In round 1 there is no Ω and no
penalty.

With equal F_k it is FedAvg; a factor that all S_k share does not change θ.

It assumes what Laplace's approximation does (see Laplace). By the penalty, weights that hardly
change the loss may move, as in elastic weight consolidation.

Messages: 2 models either way. Clients keep nothing.

Cost: a client pays a pass for F, one to two epochs. The server keeps Ω.

Use it under label skew, where clients' networks drift apart.

Traps of the public code: the penalty reads its weights from `state_dict()`, which is detached, so
it has no gradient and never acts. An ε = 1e-5 in the denominator alone shrinks weights, by a factor
of 0.09 at Ω = 1e-6 (here a prior is in numerator and denominator). It sums squared gradients of
batches of all epochs, which is about the Fisher over the batch's size times the epochs. Its
`strength` runs from 0 to 1e4.

Reference: Liu et al., A Bayesian Federated Learning Framework with Online Laplace Approximation,
2021 (IEEE TPAMI 2024).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch

from fedbary.aggregation.sums import select_prefix
from fedbary.gaussian import Posterior
from fedbary.methods._descent import Descent, fisher
from fedbary.methods._method import (
    Fitted,
    Inherited,
    Local,
    Method,
    Reply,
    Server,
    Tensors,
    all_examples,
    weighted_mean,
    weights_of,
)
from fedbary.methods.laplace import FISHER, pooled
from fedbary.parts.parameters import NotNegative, Positive
from fedbary.predictive import Predictive

_EXAMPLES, _EARLIER = "examples/", "earlier/"
"""The entries of the state with n, which the draws and λ/n need, and with the part of it that
earlier runs have seen.
"""


@dataclass(frozen=True)
class FOLA(Method):
    """Federated online Laplace approximation (Liu et al. 2021), for point weights.

    Parameters
    ----------
    strength : float
        Strength of the pull to the global model; the paper tries 0 to 1e4.
    prior_precision : float
        λ, the precision of the prior beside the data.
    """

    strength: NotNegative = 1.0
    prior_precision: Positive = 1000.0

    deterministic = True
    draws_around = True

    def inherit(self, model: Tensors, inherited: Inherited) -> tuple[Tensors, Tensors]:
        """Keep Ω, which holds the earlier run's data fast, and how many examples it is of."""
        held = inherited.state
        if _EXAMPLES not in held:
            return model, {}
        omega = {
            FISHER + name: inherited.laid_out(held[FISHER + name], torch.zeros_like(model[name]))
            for name in weights_of(model)
        }
        seen = {_EXAMPLES: held[_EXAMPLES], _EARLIER: held[_EXAMPLES].clone()}
        return model, {**omega, **seen, "rounds/": held["rounds/"]}

    def send(self, server: Server, client: str) -> Tensors:
        """Return the global model and, from the second round on, Ω."""
        omega = {name: t for name, t in server.state.items() if name.startswith(FISHER)}
        return {**server.model, **omega}

    def fit(self, local: Local, received: Tensors, kept: Tensors) -> Fitted:
        """Train under the pull of the global posterior, and take the Fisher."""
        local.load(received)
        pull = {
            name: self.strength * tensor for name, tensor in select_prefix(FISHER, received).items()
        }
        descent = Descent(local, pull=pull or None)
        for _ in descent:
            pass
        found = {FISHER + name: tensor for name, tensor in fisher(local).items()}
        return Fitted({**local.state(), **found}, descent.metrics)

    def reply_like(self, model: Tensors) -> Tensors:
        """Return a model, and a Fisher for each of its weights."""
        return {**model, **{FISHER + name: model[name] for name in weights_of(model)}}

    def aggregate(self, server: Server, replies: Sequence[Reply]) -> tuple[Tensors, Tensors]:
        """Multiply the clients' Gaussians, and take in their Fishers."""
        earlier = {key: tensor for key, tensor in server.state.items() if key == _EARLIER}
        examples = all_examples(server, replies) + sum(map(float, earlier.values()))
        names, rounds = weights_of(server.model), float(server.state.get("rounds/", 0)) + 1
        before = {
            name: (rounds - 1) * server.state[FISHER + name].double()
            if server.state
            else torch.zeros_like(server.model[name], dtype=torch.float64)
            for name in names
        }
        prior = self.prior_precision / examples
        mean, precision = pooled(replies, names, rounds * prior, before)
        found = {name: (precision[name] / rounds - prior).clamp_min(0) for name in names}
        like = server.model
        state = {FISHER + name: found[name].to(like[name].dtype) for name in names}
        state["rounds/"] = torch.tensor(rounds)
        state |= {_EXAMPLES: torch.tensor(float(examples)), **earlier}
        return {**weighted_mean(replies, list(like)), **mean}, state

    def predictive(self, model: Tensors, state: Tensors) -> Predictive:
        """Return the Gaussian around the global model; points before the first round."""
        if not state:
            return Predictive(model)
        examples = float(state[_EXAMPLES])
        log_vars = {
            name: -(examples * state[FISHER + name] + self.prior_precision).log()
            for name in weights_of(model)
        }
        return Predictive(model, Posterior(model, log_vars))

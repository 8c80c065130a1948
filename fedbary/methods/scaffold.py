"""SCAFFOLD: control variates correct every local step for the differences between clients.

Client k holds c_k, the mean gradient of its last round. The server holds c = Σ_k (n_k/n) c_k, for n
examples of all clients. A client steps from the global θ along

    g_k(y) − c_k + c

for each batch's gradient g_k, by the run's SGD, and then keeps and sends

    c_k⁺ = the mean of the round's g_k,      Δ_k = c_k⁺ − c_k.

With clients S of a round, weighed by size, w_k, and η_g the server's rate,

    θ ← θ + η_g (θ̄ − θ),      θ̄ = Σ_S w_k y_k,      c ← c + Σ_S (n_k/n) Δ_k.

The paper's option II is c_k⁺ = c_k − c + (θ − y_k)/(K η) after K steps. Both are equal under plain
SGD. Only the first is a mean of gradients under momentum, too. If clients have equal sizes, c moves
by
|S|/N times the mean Δ_k, as published. All c start at 0, so the first round is FedAvg's.

If c_k is the gradient at the common optimum, no client drifts. On quadratics many local steps end
at the optimum of all data; FedAvg's do not. Buffers, as batch norm's, have no control variate and
are averaged.

Gaussian layers, `bayesian_layers=1` or more, are trained by the run's local inference, and the
gradients of their means are corrected. θ̄ and the variances are then RKLB's: the mean of precisions,
and means weighed by precision. `inference=curvature` takes SCAFFOLD's steps of point weights and
then finds each weight's curvature, so that θ̄ weighs clients by it. That is ahead of a tuned FedAvg
where the skew is strong, see `docs/results/curvature.md`. Other inferences were not measured under
SCAFFOLD.

It assumes clients that come back, and gradients that change little from round to round. The c_k of
a client that is seldom asked is outdated. The prediction of point weights is a point.

Messages: the model and c down, the model and Δ_k up: twice what FedAvg sends, and with Gaussian
layers 3 numbers a Gaussian weight. A client keeps c_k, of its last admitted reply.

Cost: local steps cost FedAvg's, and two vectors more in memory; the server keeps c.

Use it where clients differ and take many local steps, with most of them in a round. It needs small
rates. On digits (10 clients, Dirichlet α = 0.1, 5 epochs, 15 rounds, one seed) its accuracy is 94 %
at lr=0.05 and momentum=0, FedAvg's 92 %. At lr=0.02 and momentum=0.9 it is 81 %, FedAvg's 96 %.

`compress` leaves control variates as they are, so that server and clients count the same Δ_k.

Reference: Karimireddy et al., SCAFFOLD: Stochastic Controlled Averaging for Federated Learning,
ICML 2020, Algorithm 1; their η_g is 1.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from types import MappingProxyType
from typing import Any, ClassVar

import torch
from torch import Tensor

from fedbary.aggregation import RULES, aggregate_tensors
from fedbary.aggregation.sums import LARGEST_LOG_VAR
from fedbary.errors import SettingError
from fedbary.inference._steps import Vectors
from fedbary.methods._conditions import Unfit
from fedbary.methods._method import (
    Fitted,
    Local,
    Method,
    Reply,
    Server,
    Tensors,
    part_of_all,
    weights_of,
)
from fedbary.methods._server_steps import ServerSGD, stepped
from fedbary.parts.parameters import Positive
from fedbary.settings.config import Settings

CONTROL = "control/"
"""The prefix of control variates' keys, in state and messages and at a client."""


def of_posteriors(method: SCAFFOLD, run: Settings) -> Unfit:
    """Refuse posteriors of no Gaussian layer; `variational` trains point weights without."""
    if run.bayesian_layers == 0 and run.inference not in ("variational", "laplace"):
        why = "its posterior is one of Gaussian layers"
        yield "bayesian_layers", f"1 or more for inference={run.inference}: {why}"


@dataclass(frozen=True)
class SCAFFOLD(Method):
    """Stochastic controlled averaging (Karimireddy et al. 2020), and of posteriors.

    Parameters
    ----------
    server_lr : float
        η_g, above 0, the server's step size along the clients' mean step; variances do not step.
    """

    server_lr: Positive = 1.0

    deterministic = None
    remembers = True
    conditions = (of_posteriors,)
    defaults: ClassVar[Mapping[str, Any]] = MappingProxyType({"bayesian_layers": 0})

    def start(self, model: Tensors) -> Tensors:
        """Return c = 0."""
        return {CONTROL + name: torch.zeros_like(model[name]) for name in weights_of(model)}

    def send(self, server: Server, client: str) -> Tensors:
        """Return the global model and c."""
        return {**server.model, **server.state}

    def fit(self, local: Local, received: Tensors, kept: Tensors) -> Fitted:
        """Infer along corrected gradients; c_k⁺ is kept, and its change travels with the model.

        A local inference that takes no step is refused with a SettingError.
        """
        local.load(received)
        common = {name: t for name, t in received.items() if name.startswith(CONTROL)}
        before = kept or {name: torch.zeros_like(tensor) for name, tensor in common.items()}
        vectors, taken = Vectors(local.model, 1.0), 0
        shift = vectors.packed(common, CONTROL) - vectors.packed(before, CONTROL)
        total = torch.zeros_like(shift)

        def correct(gradient: Tensor) -> None:
            nonlocal taken
            taken += 1
            total.add_(gradient)
            gradient.add_(shift)

        metrics = replace(local, correct=correct).infer(local.prior)
        if not taken:
            raise SettingError("inference", "without steps", "one that takes `Local.correct`")
        found = {CONTROL + n: t for n, t in vectors.named(total / taken).items()}
        after = {**before, **found}  # what the model does not train keeps 0
        change = {name: after[name] - before[name].to(after[name]) for name in common}
        return Fitted({**local.state(), **change}, metrics, after)

    def reply_like(self, model: Tensors) -> Tensors:
        """Return a model, and the change of a control variate for each of its weights."""
        return {**model, **{CONTROL + name: model[name] for name in weights_of(model)}}

    def aggregate(self, server: Server, replies: Sequence[Reply]) -> tuple[Tensors, Tensors]:
        """Go along the step to the clients' barycentre, and let c follow the clients'."""
        found = aggregate_tensors(
            RULES["RKLB"],
            [reply.tensors for reply in replies],
            [reply.weight for reply in replies],
            largest_log_var=LARGEST_LOG_VAR,
        )
        means, part = {name: found[name] for name in server.model}, part_of_all(server, replies)
        model, _ = stepped(ServerSGD(self.server_lr), server.model, means, {})
        return model, {name: c + part * found[name] for name, c in server.state.items()}

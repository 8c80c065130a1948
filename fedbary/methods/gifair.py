"""GIFAIR-FL: clients that fared worse in their last round train at higher rates.

Clients that have a last loss are ranked, the worst first, r_k = K − 1, K − 3, …, −(K − 1). With
their shares w_k = n_k/n a client's rate is

    lr · (1 + λ r_k / w_k),      λ = c · min_k w_k / (K − 1),      0 ≤ c < 1,

which lies within lr (1 ± c); the server averages by size. The penalty behind it is λ Σ |ℓ_i − ℓ_j|
over the pairs of clients: with c < 1 the objective still falls with every client's loss. A client
without a last loss trains at lr, as all do in the first round; c = 0 is FedAvg.

It assumes that clients tell their losses truly. A client that claims a large loss raises only its
own rate. The prediction is a point.

Messages: the model once each way, as under FedAvg; also a rate down, and up the mean loss of the
last epoch, as a tensor that admission checks. Clients keep nothing.

Cost: local steps cost what FedAvg's cost. The server keeps two numbers per client.

Use it where clients should fare alike on their own data.

Reference: Yue, Nouiehed and Al Kontar, GIFAIR-FL: A Framework for Group and Individual Fairness in
Federated Learning, INFORMS Journal on Data Science 2023. Its code, UMDataScienceLab/GIFAIR-FL,
draws clients by w_k and takes their plain mean. Here clients are drawn uniformly and weighed by
size, which estimates the same. That code ranks by random losses at first, takes the loss over all
of a round's epochs, and its test loop scores one client for all.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from urllib.parse import quote

import torch

from fedbary.methods._method import Fitted, Local, Method, Reply, Server, Tensors
from fedbary.parts.parameters import BelowOne

RATE, LOSS = "fairness/rate", "fairness/loss"
"""The names of what travels beside the model."""


@dataclass(frozen=True)
class GIFAIR(Method):
    """Federated averaging with rates by the rank of losses (Yue et al. 2023), for point weights.

    Parameters
    ----------
    fairness : float
        c, the part of the largest λ that is used; the public code has ½.
    """

    fairness: BelowOne = 0.5

    deterministic = True

    def send(self, server: Server, client: str) -> Tensors:
        """Return the global model, and the client's rate as a multiple of the run's."""
        factor = rates(server.state, self.fairness).get(quote(client, safe=""), 1.0)
        return {**server.model, RATE: torch.tensor(factor)}

    def fit(self, local: Local, received: Tensors, kept: Tensors) -> Fitted:
        """Train at the client's rate; the loss travels with the model."""
        training = replace(local.training, lr=local.training.lr * float(received[RATE]))
        fitted = super().fit(replace(local, training=training), received, kept)
        loss = torch.tensor(fitted.metrics["train_nll"])
        return replace(fitted, reply={**fitted.reply, LOSS: loss})

    def reply_like(self, model: Tensors) -> Tensors:
        """Return the model, with a loss."""
        return {**model, LOSS: torch.zeros(())}

    def aggregate(self, server: Server, replies: Sequence[Reply]) -> tuple[Tensors, Tensors]:
        """Return the mean by size, and what each client has and how it fared."""
        state = dict(server.state)
        for reply in replies:
            client = quote(reply.client, safe="")
            state[f"examples/{client}"] = torch.tensor(reply.weight, dtype=torch.double)
            state[f"loss/{client}"] = reply.tensors[LOSS].clone()
        return super().aggregate(server, replies)[0], state


def rates(state: Tensors, fairness: float) -> dict[str, float]:
    """Return the multiples 1 + λ r_k / w_k by client, of those whose loss is known."""
    losses = {k.removeprefix("loss/"): float(v) for k, v in state.items() if k.startswith("loss/")}
    count = len(losses)
    if count < 2:
        return {}
    held = {client: float(state[f"examples/{client}"]) for client in losses}
    least = fairness * min(held.values()) / (count - 1)
    ranked = sorted(losses, key=lambda client: (-losses[client], client))
    return {c: 1 + least * (count - 1 - 2 * place) / held[c] for place, c in enumerate(ranked)}

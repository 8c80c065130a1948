"""FedBN: each client keeps its batch norms; the rest is the barycentre.

A client loads the global model with its own batch norms, infers as under `barycentre`, and sends
everything but these. They are weight, bias and running moments of every layer that has
`running_mean`. The server takes the barycentre of the rest by `rule`. In the first round all start
from the same batch norms.

A client predicts by the global model with its own batch norms.

There is no model for everybody. The global model has the initial batch norms, so its scores mean
little; look at the clients' own. A new client must take part in a round to get batch norms. If a
model has no batch norm, the method is the barycentre, and the log says so. The networks of fedbary
have none (resnet20 has group norm). A batch norm without running moments is not recognised, and is
averaged.

The code keeps all tensors whose key holds "bn", unlike the paper. It scores each client's own
model, as here. Both train point weights with FedAvg, which is `rule=FedAvg`.

It assumes that clients' inputs differ in scale or style (scanners, hospitals), so that each needs a
normalisation of its own.

Messages: the model without its batch norms, 2 numbers per Gaussian weight. A client keeps its batch
norms, a few numbers per channel.

Cost: a round costs what barycentre's does.

Use it with a network that has batch norm, for sites that each predict their own cases.

Reference: Li, Jiang, Zhang, Kamp and Dou, FedBN: Federated Learning on Non-IID Features via Local
Batch Normalization, ICLR 2021.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from fedbary.methods._method import Fitted, Local, Method, Reply, Server, Tensors
from fedbary.methods.barycentre import Barycentre
from fedbary.predictive import Predictive

_MARK = "running_mean"

_PARTS = ("weight", "bias", _MARK, "running_var", "num_batches_tracked")


@dataclass(frozen=True)
class FedBN(Barycentre):
    """Batch norms of each client's own, the barycentre of the rest (Li et al. 2021)."""

    remembers = True

    arrive = Method.arrive  # clients keep their batch norms from round to round

    def fit(self, local: Local, received: Tensors, kept: Tensors) -> Fitted:
        """Infer with the client's own batch norms, and keep these."""
        fitted = super().fit(local, {**received, **kept}, {})
        own = own_names(fitted.reply)
        sent = {name: tensor for name, tensor in fitted.reply.items() if name not in own}
        return Fitted(sent, fitted.metrics, {name: fitted.reply[name] for name in own})

    def personal(self, local: Local, received: Tensors, kept: Tensors) -> Predictive | None:
        """Return the global model with the client's batch norms."""
        return Predictive({**received, **kept}) if kept else None

    def reply_like(self, model: Tensors) -> Tensors:
        """Return the model without batch norms."""
        own = own_names(model)
        return {name: tensor for name, tensor in model.items() if name not in own}

    def aggregate(self, server: Server, replies: Sequence[Reply]) -> tuple[Tensors, Tensors]:
        """Return the barycentre of what is sent beside the batch norms of the start."""
        shared = self.reply_like(server.model)
        if server.round == 1 and len(shared) == len(server.model):
            server.warn("the model has no batch norm, so FedBN is the barycentre")
        found, state = super().aggregate(replace(server, model=shared), replies)
        return {**server.model, **found}, state


def own_names(model: Tensors) -> set[str]:
    """Return the names of the batch norms' tensors in a state dict."""
    layers = [name.removesuffix(_MARK) for name in model if name.split(".")[-1] == _MARK]
    return {layer + part for layer in layers for part in _PARTS} & model.keys()

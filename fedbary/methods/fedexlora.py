"""FedExLoRA: exact means of adapters, also if both factors train, or ranks differ by client.

A client of rank r_k trains the adapters s B_k A_k of layers W + s (R + B A). It takes the first r_k
columns of the server's B and rows of its A, and its reply has zeros for the others. With w_k by
size,

    B ← Σ_k w_k B_k,      A ← Σ_k w_k A_k,      R ← R + Σ_k w_k B_k A_k − B A,

with the new B and A on the right. So the new R + B A is the old R plus the clients' mean product.
With A frozen (factor=B) the two are equal without R, so there is none. A network without adapters
is averaged.

It assumes point weights; the prediction is a point. Zeros count in a mean: a column that few
clients train shrinks.

Messages: 1 model down and with factor=both R, as large as the adapted weights; 1 model up, without
R. Clients keep nothing.

Cost: the server multiplies the factors of each reply, out × in × rank per layer, and keeps R.

Use it with factor=both where clients differ, and where some sites have less memory or data.

Reference: Singhal et al., FedEx-LoRA: Exact Aggregation for Federated and Efficient Fine-Tuning of
Foundation Models, 2024; Cho et al., Heterogeneous LoRA for Federated Fine-tuning of On-Device
Foundation Models, 2024, for the ranks, without its pruning and its weights by norm.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from fedbary.errors import SettingError
from fedbary.methods.shared.averages import shares, weighted_mean
from fedbary.methods.shared.method import Fitted, Local, Method, Reply, Server, Tensors
from fedbary.parts.parameters import NameList
from fedbary.variational.adapters import DOWN, RESIDUAL, UP, truncated

RANK = "rank/"
"""The key of a client's rank in what it is sent."""


@dataclass(frozen=True)
class FedExLoRA(Method):
    """Exact aggregation of adapters (Singhal et al. 2024), for point weights.

    Parameters
    ----------
    ranks : str
        all: every client has the run's rank. Otherwise smaller ranks of some clients, NAME:RANK
        with commas between, such as ward 7:2.

    Raises
    ------
    SettingError
        If a rank is none, or larger than the run's.
    """

    ranks: NameList = "all"

    deterministic = True
    corrects = True

    def __post_init__(self) -> None:
        """Read the ranks."""
        super().__post_init__()
        self._ranks()

    def start(self, model: Tensors) -> Tensors:
        """Refuse ranks that are larger than the model's; there is no state."""
        most = max((model[name].shape[1] for name in model if name.endswith(UP)), default=0)
        for name, rank in self._ranks().items():
            if rank > most:
                allowed = f"ranks up to {most}, the adapters'" if most else "all without adapters"
                raise SettingError("ranks", f"{name}:{rank}", allowed)
        return {}

    def send(self, server: Server, client: str) -> Tensors:
        """Return the global model, and the client's rank if it has one of its own."""
        rank = self._ranks().get(client)
        return server.model if rank is None else {**server.model, RANK: torch.tensor([float(rank)])}

    def show(self, server: Server, client: str) -> Tensors:
        """Return the global model, which every client scores at its full rank."""
        return server.model

    def fit(self, local: Local, received: Tensors, kept: Tensors) -> Fitted:
        """Train the first columns and rows; the reply has no R."""
        local.load(received)
        rank = int(received[RANK]) if RANK in received else None
        with truncated(local.model, rank):
            metrics = local.infer(local.prior)
            return Fitted(self.reply_like(local.state()), metrics)

    def reply_like(self, model: Tensors) -> Tensors:
        """Return a model without R."""
        return {name: tensor for name, tensor in model.items() if not name.endswith(RESIDUAL)}

    def aggregate(self, server: Server, replies: Sequence[Reply]) -> tuple[Tensors, Tensors]:
        """Average the factors, and add to R what their product lacks."""
        self._say_absent(server, replies)
        model = weighted_mean(replies, list(self.reply_like(server.model)))
        for name in server.model.keys() - model.keys():
            layer, held = name.removesuffix(RESIDUAL), server.model[name]
            total = held.double().flatten(1) - _product(model, layer)
            for reply, weight in zip(replies, shares(replies), strict=True):
                total += weight * _product(reply.tensors, layer)
            model[name] = total.view(held.shape).to(held.dtype)
        return {name: model[name] for name in server.model}, {}

    def _ranks(self) -> dict[str, int]:
        """Return the clients' own ranks by name."""
        found: dict[str, int] = {}
        for part in () if self.ranks == "all" else self.ranks.split(","):
            name, _, rank = (word.strip() for word in part.rpartition(":"))
            if not name or not rank.isdecimal() or int(rank) < 1 or name in found:
                allowed = "all, or NAME:RANK of each client with a smaller rank, commas between"
                raise SettingError("ranks", self.ranks, allowed)
            found[name] = int(rank)
        return found

    def _say_absent(self, server: Server, replies: Sequence[Reply]) -> None:
        """Say in the first round which clients with a rank of their own have sent no reply."""
        if absent := sorted(self._ranks().keys() - {reply.client for reply in replies}):
            if server.round == 1:
                server.warn(f"ranks: no reply of {', '.join(absent)} in the first round")


def _product(tensors: Tensors, layer: str) -> Tensor:
    """Return B A of a layer as a matrix, in float64."""
    up, down = (tensors[layer + factor].double().flatten(1) for factor in (UP, DOWN))
    return up @ down

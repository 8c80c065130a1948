"""FedHBMixture: clients' networks are draws about one of several centres (FedHB's mixture).

With centres r_1 … r_J ~ N(0, I), the client's network from the equal mixture of N(r_j, σ² I):

    client:  min over m_k of NLL_k(m_k) − log Σ_j exp(−‖m_k − r_j‖² / 2σ²)
    server:  c_kj = softmax_j(−‖m_k − r_j‖² / 2σ²),    r_j = Σ_k c_kj m_k / (σ² + Σ_k c_kj).

Distances are over all weights, so an assignment c_k is nearly hard: clients are clustered by their
networks. The centres start as one network with noise of σ. A client starts from the centre that
fits its data best, which drives the centres apart. A centre that no client is near stays where it
is; the formula would send it to 0.

For everybody the centres predict together, p(y|x) = Σ_j g_j(x) p(y|x, r_j), with a gate g that
federated averaging trains to tell from x which centre the client is near,

    client:  min over the gate of −mean_i Σ_j c_kj log g_j(x_i).

The gate is a network of the same architecture. Its logits are its first J − 1 outputs and a 0, so J
is at most the number of outputs plus one. `predictive=members` mixes the centres with equal
weights.

A client's own model is fitted anew, as in training.

It assumes that there are kinds of clients, each with a network of its own.

Messages: J centres and the gate down, beside the model that the run goes by, the largest cluster's;
a network and the gate up. Clients keep nothing.

Cost: a round costs twice FedAvg's and J forward passes. If clients are scored, they train once
more. The server keeps J + 1 networks.

Use it where clients fall into unknown groups.

Trap: the pull 1/σ² of each weight stands against a sum over n_k examples. With σ = 0.1 and 600
examples it is FedProx with μ = 0.17.

Reference: Kim and Hospedales, FedHB: Hierarchical Bayesian Federated Learning, 2023 (arXiv
2305.04979); no public code was found. The server's step was checked as the optimum. The paper says
of the gate only that it is used and averaged; its architecture and loss are ours.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch
from torch import Generator, Tensor

from fedbary.aggregation.sums import select_prefix
from fedbary.data.batches import scale_pixels
from fedbary.inference._steps import Vectors
from fedbary.methods._conditions import one_class
from fedbary.methods._descent import Descent
from fedbary.methods._method import (
    Fitted,
    Local,
    Method,
    Reply,
    Server,
    Tensors,
    completed,
    weighted_mean,
    weights_of,
)
from fedbary.methods._sites import Pull, fit_near, packed
from fedbary.parts.parameters import Count, Positive
from fedbary.predictive import Predictive
from fedbary.predictive.predictor import Gated, gate_logits
from fedbary.seeds import derive_seed

_CENTRE, _GATE = "centres/", "gate/"


@dataclass(frozen=True)
class FedHBMixture(Method):
    """Clusters of clients' networks: a mixture of J Gaussians (Kim and Hospedales 2023).

    Parameters
    ----------
    centres : int
        J, the number of clusters, from 1 to the network's outputs plus one.
    centre_std : float
        σ, the standard deviation of a client's weights around its centre's.
    """

    centres: Count = 2
    centre_std: Positive = 0.1

    deterministic = True
    conditions = (one_class,)
    members = Gated

    def held(self, clients: int) -> int:
        """Return the number of the centres and the gate."""
        return self.centres + 1

    def start(self, model: Tensors) -> Tensors:
        """Return the gate, the model, and the centres: the model, and others with noise of σ."""
        noise = Generator().manual_seed(0)
        state = {_GATE + name: tensor.clone() for name, tensor in model.items()}
        for name in weights_of(model):
            stacked = model[name].cpu().repeat(self.centres, *[1] * model[name].ndim)
            drawn = torch.empty_like(stacked[1:]).normal_(generator=noise)
            stacked[1:] += self.centre_std * drawn
            state[_CENTRE + name] = stacked.to(model[name])
        return state

    def send(self, server: Server, client: str) -> Tensors:
        """Return the model, the centres and the gate."""
        return {**server.model, **server.state}

    def passes(self, epochs: int, steps: int) -> float:
        """Return the network's passes, and as many of the gate."""
        return epochs * min(2, self.centres)

    def fit(self, local: Local, received: Tensors, kept: Tensors) -> Fitted:
        """Train from the centre that fits best, near the centres; then train the gate."""
        metrics = self._fit(local, received)
        own = local.state()
        gate = self._gate(local, received, own)
        return Fitted({**own, **{_GATE + name: tensor for name, tensor in gate.items()}}, metrics)

    def _fit(self, local: Local, received: Tensors) -> dict[str, float]:
        def pull(q: Vectors) -> Pull:
            centres = torch.stack([packed(q, centre) for centre in self._centres(received)])

            def towards(value: Tensor) -> tuple[Tensor, float]:
                squares = (value - centres).square().sum(1)
                return self._near(squares) @ centres, self.centre_std**-2

            return towards

        local.load(min(self._centres(received), key=lambda centre: _nll(local, centre)))
        return fit_near(local, pull)

    def _gate(self, local: Local, received: Tensors, own: Tensors) -> dict[str, Tensor]:
        """Train the gate to name the centres that the client's network is near."""
        gate = select_prefix(_GATE, received)
        if self.centres == 1:
            return gate
        squares = [_squared_distance(own, centre) for centre in self._centres(received)]
        near = self._near(torch.stack(squares))

        def nll(outputs: Tensor, y: Tensor) -> Tensor:
            logs = gate_logits(outputs, self.centres).log_softmax(1)
            return -(logs @ near.to(logs)).mean()

        local.load(gate)
        for _ in Descent(replace(local, nll=nll, seed=derive_seed(local.seed, "gate"))):
            pass
        return local.state()

    def personal(self, local: Local, received: Tensors, kept: Tensors) -> Predictive | None:
        """Train a network of the client's own, as in a round."""
        self._fit(local, received)
        return Predictive(local.state())

    def reply_like(self, model: Tensors) -> Tensors:
        """Return a network and a gate."""
        return {**model, **{_GATE + name: tensor for name, tensor in model.items()}}

    def aggregate(self, server: Server, replies: Sequence[Reply]) -> tuple[Tensors, Tensors]:
        """Move each centre to its clients; the model is the largest cluster's; average the gate."""
        model, weights = server.model, weights_of(server.model)
        centres = [server.state[_CENTRE + name].double() for name in weights]
        networks = [torch.stack([r.tensors[n].double() for r in replies]) for n in weights]
        squares = torch.stack(
            [
                (own[:, None] - before).square().flatten(2).sum(-1)
                if own.ndim > 1
                else (own[:, None] - before).square()
                for own, before in zip(networks, centres, strict=True)
            ]
        ).sum(0)
        near = self._near(squares)
        held = near.sum(0)
        state = weighted_mean(replies, [_GATE + name for name in model])
        for name, own, before in zip(weights, networks, centres, strict=True):
            found = torch.tensordot(near.t(), own, 1)
            shape = (-1, *[1] * (found.ndim - 1))
            found /= (self.centre_std**2 + held).view(shape)
            after = torch.where((held > 0.01).view(shape), found, before)
            state[_CENTRE + name] = after.to(model[name])
        after_all = weighted_mean(replies, [name for name in model if name not in weights])
        largest = int(held.argmax())
        after_all |= {name: state[_CENTRE + name][largest].clone() for name in weights}
        return {name: after_all[name] for name in model}, state

    def predictive(self, model: Tensors, state: Tensors) -> Predictive:
        """Return the centres, each a network, and as the last member the gate of the others."""
        if not state:
            return Predictive(model)
        centres = completed(select_prefix(_CENTRE, state), model)
        members = {n: torch.cat([t, state[_GATE + n][None]]) for n, t in centres.items()}
        return Predictive(model, members=members, kind=Gated(self.centres))

    def _near(self, squares: Tensor) -> Tensor:
        """Return c, given squared distances to the centres (…, J)."""
        return (-squares / (2 * self.centre_std**2)).softmax(-1)

    def _centres(self, received: Tensors) -> list[dict[str, Tensor]]:
        """Return each centre as a state dict, with the model's buffers."""
        names = [name for name in received if not name.startswith((_CENTRE, _GATE))]
        return [
            {n: received[_CENTRE + n][j] if _CENTRE + n in received else received[n] for n in names}
            for j in range(self.centres)
        ]


def _squared_distance(one: Tensors, other: Tensors) -> Tensor:
    """Return ‖m − r‖² over all weights, on the device of the first."""
    gaps = [
        one[name].double() - other[name].to(one[name].device).double() for name in weights_of(one)
    ]
    return torch.stack([gap.square().sum() for gap in gaps]).sum()


@torch.no_grad()
def _nll(local: Local, network: Tensors) -> float:
    """Return the mean NLL of the client's data under a network, which the local one then holds."""
    local.load(network)
    local.model.eval()
    parts = zip(local.x.split(500), local.y.split(500), strict=True)
    total = sum(float(local.nll(local.model(scale_pixels(x)), y)) * len(y) for x, y in parts)
    return total / len(local.y)

"""Federated stochastic expectation propagation: EP that holds no site, only their product.

With the tilted distributions of `FedEP`, w_k = n_k/n and C replies in a round,

    cavity:   π_k = (1 − w_k) η_g,
    server:   u ← β u + (s/C) Σ_k (η(q_k) − η_g),      η_g ← η_g + u.

A client's site is approximated by its share of the whole. L_k are the natural parameters that
client k's likelihood adds. If they do not depend on the cavity, the distance to η_g = Σ L_k shrinks
by 1 − s/K per round without momentum. Linear models of independent features are such a case. The
fixed point is not that of EP in general.

It assumes that a client's site is its share of the whole, which holds if clients' data are alike.
Deterministic tensors are averaged by size.

Messages: down the global posterior (2 numbers per Gaussian weight) and the number of examples of
the others that have ever replied; up the client's posterior (2). Clients keep nothing.

Cost: local steps cost what plain variational inference costs. The server holds 4 numbers per
weight, however many clients there are.

Use it for a federation of many clients, where PVI and FedEP hold too much.

Reference: Guo et al., Federated Learning as Variational Inference: A Scalable Expectation
Propagation Approach, ICLR 2023; `FedEP` says how its code differs.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from urllib.parse import quote

import torch

from fedbary.gaussian import Factor, Posterior
from fedbary.methods._method import Inherited, Method, Reply, Server, Tensors, older
from fedbary.methods._sites import advanced, factor, factors, found, named
from fedbary.methods.fedep import FedEP


@dataclass(frozen=True)
class FedSEP(FedEP):
    """Federated stochastic expectation propagation (Guo et al. 2023), without memory of clients."""

    def inherit(self, model: Tensors, inherited: Inherited) -> tuple[Tensors, Tensors]:
        """Go on from the earlier run's factor and examples; without these begin from nothing."""
        held = _examples(inherited.state)
        if not held:
            return Method.inherit(self, model, inherited)
        prior = self.prior(Posterior.from_state_dict(model).log_var)
        after = inherited.factor(factor("global", inherited.state), prior)
        examples = {key + quote(older("")): number for key, number in held.items()}
        return model, {**named("global", after), **examples}

    def send(self, server: Server, client: str) -> Tensors:
        """Return the global posterior, and how many examples the others hold."""
        own = f"examples/{quote(client, safe='')}"
        others = [tensor for key, tensor in sorted(_examples(server.state).items()) if key != own]
        return {**server.model, "others/examples": sum(others, torch.zeros((), dtype=torch.double))}

    def cavity(self, received: Tensors, examples: int) -> Factor:
        """Return (1 − w_k) η_g; nothing in the first round."""
        others = float(received["others/examples"])
        everything = Factor.of(Posterior.from_state_dict(received))
        return everything ** (others / (others + examples))

    arrive = Method.arrive  # without sites a stale change would be taken for a new one

    def aggregate(self, server: Server, replies: Sequence[Reply]) -> tuple[Tensors, Tensors]:
        """Go along the mean change, with momentum."""
        before, step = self.global_factor(server), self.step(len(replies))
        velocity = factors("velocity", server.state).get("server", before**0.0)
        velocity = velocity**self.server_momentum
        for reply in replies:
            velocity = velocity * (found(reply) / before) ** step
        held = {"velocity": {"server": velocity}}
        model, state = advanced(server.model, replies, before, before * velocity, held)
        examples = {
            f"examples/{quote(reply.client, safe='')}": torch.tensor(reply.weight).double()
            for reply in replies
        }
        return model, {**state, **_examples(server.state), **examples}


def _examples(state: Tensors) -> Tensors:
    return {key: tensor for key, tensor in state.items() if key.startswith("examples/")}

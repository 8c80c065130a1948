"""Partitioned variational inference: the global posterior is the prior times a site per client.

With natural parameters η = (m/v, 1/v), prior η₀ and sites λ_k,

    η_g = η₀ + Σ_k λ_k,      q_k = argmin_q E_q[NLL_k] + KL(q ‖ η_g − λ_k),
    λ_k ← λ_k + γ (η(q_k) − η_g).

The prior of a client is the cavity, everything but its own data: it counts once, and local
posteriors need no weights by size. A fixed point over Gaussians that factorise is the mean-field
posterior of all data; for linear models exactly (mean and diagonal of the precision).

What travels: to a client the global posterior and its cavity (4 numbers a Gaussian weight), back
its posterior (2). The sites lie at the server (2 numbers a weight and client), so clients keep
nothing and a refused or lost reply leaves no side with another view. Deterministic tensors have
no site: they are averaged by size.

References: Bui et al., Partitioned Variational Inference, 2018; Ashman et al. 2022, whose public
code repairs sites of negative precision. Here sites may be negative; a cavity's precision is held
above 0.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from urllib.parse import quote, unquote

from torch import Tensor

from fedbary.errors import SettingError
from fedbary.gaussian import Factor, Posterior
from fedbary.methods._method import Fitted, Local, Method, Reply, Server, Tensors, weighted_mean

LEAST_CAVITY_PRECISION = 1e-6
"""What the precision of a cavity is held above: a standard deviation of 1000."""


@dataclass(frozen=True)
class PVI(Method):
    """Partitioned variational inference (Bui et al. 2018), synchronous or one client at a time.

    Parameters
    ----------
    damping : float
        γ, above 0 to 1: how far a site moves. 0, the default: 1 over the number of replies of a
        round, with which synchronous rounds converge and one client a round moves all the way.
    prior_std : float
        Of N(0, prior_std²), η₀.

    Raises
    ------
    SettingError
        If a parameter is out of its range.
    """

    damping: float = 0.0
    prior_std: float = 1.0

    def __post_init__(self) -> None:
        if not 0 <= self.damping <= 1:
            raise SettingError("damping", self.damping, "above 0 to 1, or 0: 1 over the replies")
        if not 0 < self.prior_std < float("inf"):
            raise SettingError("prior_std", self.prior_std, "a number above 0")

    def check(self, clients: int, epochs: int) -> None:
        """Refuse a damping with which a round of so many clients would diverge."""
        if self.damping * clients > 1:
            allowed = f"at most 1/{clients} where so many clients reply: it diverges above"
            raise SettingError("damping", self.damping, allowed)

    def send(self, server: Server, client: str) -> Tensors:
        """Return the global posterior, from which the client starts, and its cavity."""
        cavity = self._global(server.model, server.state)
        if (site := _sites(server.state).get(client)) is not None:
            cavity = cavity / site
        return {**server.model, **_named("cavity", cavity)}

    def fit(self, local: Local, received: Tensors, kept: Tensors) -> Fitted:
        """Infer the client's posterior with the cavity as the prior."""
        local.load(received)
        cavity = _factor("cavity", received).clipped(LEAST_CAVITY_PRECISION)
        metrics = local.infer(cavity)
        return Fitted(local.state(), metrics)

    def aggregate(self, server: Server, replies: Sequence[Reply]) -> tuple[Tensors, Tensors]:
        """Move the sites of those that replied, and multiply all."""
        self.check(len(replies), 1)
        model, damping = server.model, self.damping or 1 / len(replies)
        before, sites = self._global(model, server.state), _sites(server.state)
        for reply in replies:
            found = Factor.of(Posterior.from_state_dict(reply.tensors))
            step = (found / before) ** damping
            sites[reply.client] = sites[reply.client] * step if reply.client in sites else step
        state = {
            name: tensor
            for client, site in sites.items()
            for name, tensor in _named(f"site/{quote(client, safe='')}", site).items()
        }
        points = [name for name in Posterior.from_state_dict(model).mean if name in model]
        posterior = self._global(model, state).posterior(weighted_mean(replies, points))
        tensors = posterior.state_dict()
        return {name: tensors[name].to(like.dtype) for name, like in model.items()}, state

    def _global(self, model: Tensors, state: Tensors) -> Factor:
        """Return η_g = η₀ + Σ λ_k."""
        gaussian = Posterior.from_state_dict(model)
        product = Factor.normal(self.prior_std, gaussian.log_var)
        for _, site in sorted(_sites(state).items()):
            product = product * site
        return product


def _named(prefix: str, factor: Factor) -> dict[str, Tensor]:
    shifts = {f"{prefix}/shift/{name}": tensor for name, tensor in factor.shift.items()}
    precisions = {f"{prefix}/precision/{name}": t for name, t in factor.precision.items()}
    return shifts | precisions


def _factor(prefix: str, tensors: Tensors) -> Factor:
    parts = {
        part: {
            key.removeprefix(f"{prefix}/{part}/"): tensor
            for key, tensor in tensors.items()
            if key.startswith(f"{prefix}/{part}/")
        }
        for part in ("shift", "precision")
    }
    return Factor(parts["shift"], parts["precision"])


def _sites(state: Tensors) -> dict[str, Factor]:
    """Return the sites by client, whose name is quoted in the keys: it may hold a slash."""
    quoted = sorted({key.split("/")[1] for key in state})
    return {unquote(client): _factor(f"site/{client}", state) for client in quoted}

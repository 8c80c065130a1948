"""Partitioned variational inference: the global posterior is the prior times a site per client.

With natural parameters η = (m/v, 1/v), prior η₀ and sites λ_k,

    η_g = η₀ + Σ_k λ_k,      q_k = argmin_q E_q[NLL_k] + KL(q ‖ η_g − λ_k),
    λ_k ← λ_k + γ (η(q_k) − η_g).

The prior of a client is the cavity, everything but its own data: it counts once, and local
posteriors need no weights by size. A fixed point over Gaussians that factorise is the mean-field
posterior of all data; for linear models exactly (mean and diagonal of the precision).

It assumes that posteriors factorise, and clients that come back: a site stays until its client
replies again. Deterministic tensors have no site: they are averaged by size.

What travels: to a client the global posterior and its cavity (4 numbers a Gaussian weight), back
its posterior (2). Clients keep nothing, so that a refused or lost reply leaves no side with another
view.

What it costs: local steps cost what plain variational inference costs. The sites lie at the server,
2 numbers a weight and client. Synchronous rounds need damping, so many clients a round make it
slow. The first round does not: every site starts from nothing, so no two clients explain the same
data twice. `undamped_start=true` moves all sites the whole way there, which for factorising
posteriors is the end.

Use it where the prior is to count once and clients are few: it is variational inference on all
data.

References: Bui et al., Partitioned Variational Inference, 2018; Ashman et al. 2022, whose public
code repairs sites of negative precision. Here sites may be negative; a cavity's precision is held
above 0.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from torch import Tensor

from fedbary.errors import SettingError
from fedbary.gaussian import Factor
from fedbary.methods._sites import SiteMethod
from fedbary.parts.parameters import Positive, ShareOrZero


@dataclass(frozen=True)
class PVI(SiteMethod):
    """Partitioned variational inference (Bui et al. 2018), synchronous or one client at a time.

    Parameters
    ----------
    damping : float
        γ: how far a site moves. 0, the default: 1 over the number of replies of a
        round, with which synchronous rounds converge and one client a round moves all the way.
    undamped_start : bool
        Whether the first round that counts moves its sites all the way, γ = 1.
    prior_std : float
        Of N(0, prior_std²), η₀.

    Raises
    ------
    SettingError
        If a parameter is out of its range.
    """

    damping: ShareOrZero = 0.0
    undamped_start: bool = False
    prior_std: Positive = 1.0

    def check(self, clients: int, epochs: int) -> None:
        """Refuse a damping with which a round of so many clients may diverge."""
        if self.damping * clients > 1:
            allowed = f"at most 1/{clients} where so many clients reply: it may diverge above; "
            allowed += "undamped_start=true leaves the first round undamped"
            raise SettingError("damping", self.damping, allowed)

    def prior(self, like: Mapping[str, Tensor]) -> Factor:
        """Return N(0, prior_std²)."""
        return Factor.normal(self.prior_std, like)

    def step(self, replies: int) -> float:
        """Return γ, 1 over the replies where none is given."""
        return self.damping or 1 / replies

    def first_step(self, replies: int) -> float:
        """Return 1 for an undamped start."""
        return 1.0 if self.undamped_start else self.step(replies)

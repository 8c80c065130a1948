"""A personal model for each client of any run, between its posterior and the global one.

With strength λ the client's own model is

    argmin_q λ D(q, q_k) + D(q, q_g),

the barycentre of {q_k: λ/(1 + λ), q_g: 1/(1 + λ)}. q_g is the global posterior, and q_k the one
that the client trained last. D is the divergence that the rule minimises: W2² (WB), the reverse KL
(RKLB) or the forward one (FKLB). λ = 0 gives the global model, λ = ∞ the client's own. It costs no
communication: clients keep their trained models. Deterministic tensors are mixed linearly.

Reference: arXiv 2509.10132, Personalisation by projection.
"""

from __future__ import annotations

from collections.abc import Mapping

from torch import Tensor

from fedbary.aggregation import DIVERGENCES, aggregate
from fedbary.errors import SettingError
from fedbary.gaussian import Posterior

STRENGTHS: Mapping[str, float] = {"1/4": 0.25, "1/2": 0.5, "1": 1.0, "3/2": 1.5, "2": 2.0}
"""The paper's λ, by name."""


def projected(
    rule: str, own: Mapping[str, Tensor], common: Mapping[str, Tensor], strength: float
) -> dict[str, Tensor]:
    """Return the state dict of a client's own model, between its posterior and the global one.

    Parameters
    ----------
    rule
        A rule that minimises a divergence.
    own, common
        State dicts with Gaussians as `<name>_mean` beside `<name>_log_var`.
    strength
        λ, from 0.

    Raises
    ------
    SettingError
        If the rule minimises no divergence, or λ is below 0 or infinite.
    """
    if rule not in DIVERGENCES:
        raise SettingError("rule", rule, ", ".join(DIVERGENCES))
    if not 0 <= strength < float("inf"):
        raise SettingError("strength", strength, "a number from 0 up")
    posteriors = [Posterior.from_state_dict(own), Posterior.from_state_dict(common)]
    found = aggregate(rule, posteriors, [strength / (1 + strength), 1 / (1 + strength)])
    state = found.state_dict()
    return {name: state[name] for name in common}

"""Clusters of clients by their posteriors: k-means with barycentres for centres.

Lloyd's steps minimise Σ_k w_k min_j D(c_j, q_k). Each posterior joins the centre of least
divergence; each centre moves to the barycentre of its posteriors. D is the divergence that the rule
minimises: KL(c ‖ q) for RKLB, KL(q ‖ c) for FKLB, W2² for WB (k-means in (m, √v)). Neither step
increases the sum. A single cluster's centre is the barycentre.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from fedbary.aggregation import DIVERGENCES, aggregate
from fedbary.aggregation.sums import normalised
from fedbary.errors import SettingError
from fedbary.gaussian import Posterior


@dataclass(frozen=True, eq=False)
class Clusters:
    """Result of `clustered`.

    Attributes
    ----------
    members : tuple of int
        Cluster of each posterior.
    centres : tuple of Posterior
        The clusters' barycentres.
    costs : tuple of float
        Σ w_k min_j D(c_j, q_k) for the first centres and after each step; it never rises.
    """

    members: tuple[int, ...]
    centres: tuple[Posterior, ...]
    costs: tuple[float, ...]


def clustered(
    rule: str,
    posteriors: Sequence[Posterior],
    weights: Sequence[float],
    clusters: int,
    steps: int = 100,
) -> Clusters:
    """Cluster posteriors.

    The first centres are posteriors that lie far apart: the one nearest to the barycentre of all,
    then repeatedly the one farthest from the centres so far. The steps end when no posterior moves.

    Parameters
    ----------
    rule
        A rule that minimises a divergence.
    posteriors
        The clients', of one layout.
    weights
        One per posterior, none negative, not all 0.
    clusters
        Number of clusters, from 1 to the number of posteriors.
    steps
        Largest number of steps.

    Raises
    ------
    SettingError
        If an argument is out of its range.
    """
    if rule not in DIVERGENCES:
        raise SettingError("rule", rule, ", ".join(DIVERGENCES))
    if not 1 <= clusters <= len(posteriors):
        raise SettingError("clusters", clusters, f"from 1 to {len(posteriors)}, the posteriors")
    divergence, shares = DIVERGENCES[rule], normalised(weights)
    centres = [aggregate(rule, posteriors, shares)]
    if clusters > 1:
        first = [divergence(centres[0], q) for q in posteriors]
        centres = [posteriors[first.index(min(first))]]
    nearest = [divergence(centres[0], q) for q in posteriors]
    while len(centres) < clusters:
        centres.append(posteriors[nearest.index(max(nearest))])
        nearest = [
            min(n, divergence(centres[-1], q)) for n, q in zip(nearest, posteriors, strict=True)
        ]
    members: list[int] = []
    costs: list[float] = []
    for _ in range(steps + 1):
        distances = [[divergence(centre, q) for centre in centres] for q in posteriors]
        costs.append(sum(w * min(row) for w, row in zip(shares, distances, strict=True)))
        nearest_now = [row.index(min(row)) for row in distances]
        if nearest_now == members:
            break
        members = nearest_now
        for j in range(clusters):
            held = [k for k, member in enumerate(members) if member == j and shares[k] > 0]
            if held:
                own = [posteriors[k] for k in held]
                centres[j] = aggregate(rule, own, [shares[k] for k in held])
    return Clusters(tuple(members), tuple(centres), tuple(costs))

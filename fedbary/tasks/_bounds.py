"""Bounds of what rows can say: a site that claims more is left out.

A site says its curvature P, the slope g and the spread ⟨W, P W⟩ of its likelihood at its mode W.
The layer sees columns z of which all N rows have Σ z² = N. With intercepts of sites it is Σ (z −
z̄)² within them. So no z, or z − z̄, is beyond √N.

A client's mode minimises its loss ℓ plus that of the cavity, ½ ⟨W − C, Λ (W − C)⟩. So at any V

    ℓ(W) ≤ ℓ(V) + D,    D = ½ ⟨V − C, Λ (V − C)⟩,

where D is known from the other sites alone. At V all rates, or numbers, are the mean of all rows.
"""

from __future__ import annotations

import math
from typing import NamedTuple

from fedbary.methods._expanded import Claim

ROOM = 4.0
"""Factor of the bounds that is allowed: for sites that came later, and for own intercepts."""

SHORTEST = 20.0
"""−log of the fewest events that a row may expect by its exposure alone."""


class Most(NamedTuple):
    """The largest entries of P and of |g|, and the largest ⟨W, P W⟩."""

    bent: float
    slope: float
    spread: float

    def allow(self, claim: Claim) -> bool:
        """Return whether a claim is within them; a claim that is no number is not."""
        pairs = zip(self, (claim.bent, claim.slope, claim.spread), strict=True)
        return all(told <= ROOM * most for most, told in pairs)


def logits_std(classes: float) -> float:
    """Return the most that logits deviate under their own softmax: log(K − 1)/2 + 0.67."""
    return math.log(max(classes - 1, 1)) / 2 + 0.67


def of_classes(rows: float, every: float, classes: int) -> Most:
    """Return bounds of n rows of N and K classes: P ≤ N/4, |g| ≤ √(n N)."""
    return Most(every / 4, math.sqrt(rows * every), rows * logits_std(classes) ** 2)


def product_of_scores(pulls: float, every: float) -> float:
    """Return a bound of Σ u² over clusters, the scores being s z: N times that of (Σ |s|)².

    `pulls` is the latter. For classes |s| ≤ 1, and (Σ |z|)² ≤ n N with the n rows of a site. For
    counts |s| = |y − μ|, and Σ μ = Σ y = E at the mode: (Σ |s|)² ≤ (2 E)². For numbers it is that
    of Σ s² = Σ (y − f)²/s⁴ ≤ N/s², by (Σ |s z|)² ≤ Σ s² Σ z².
    """
    return ROOM * pulls * every


def of_numbers(every: float, noise_std: float, far: float) -> Most:
    """Return bounds for ½ Σ (y − f)²/s², y standardised and far = D at 0.

    P ≤ N/s², and Σ (y − f)²/s² ≤ N/s² + 2 D.
    """
    size = math.sqrt(every) / noise_std
    left = math.sqrt(size**2 + 2 * far)
    return Most(size**2, size * left, (size + left) ** 2)


def of_counts(every: float, events: float, log_rate: float, far: float) -> Most:
    """Return bounds for Σ μ − y log μ with E events at the rate r of all rows, far = D there.

    ℓ(V) − ℓ(W) + D ≥ 0 gives S = Σ μ ≤ E + E (log S + 20) + D if each row expects e⁻²⁰ events or
    more by its exposure. So S ≤ 42 E + 2 D + 2 E log 2E. Then P ≤ N S, |g| ≤ √N (S + E), and
    predictors differ from log r by at most log S + 20.
    """
    total = 2 * ((1 + SHORTEST) * events + far) + 2 * events * math.log(max(2 * events, 1))
    wide = math.log(max(total, 1)) + SHORTEST + abs(log_rate)
    return Most(every * total, math.sqrt(every) * (total + events), total * wide**2)


def of_events(every: float, events: float) -> Most:
    """Return bounds for Cox's likelihood: each event has a variance and a mean of rows at risk.

    P ≤ E N/2, |g| ≤ E √(2 N). With tied events weights are up to N times the hazards' apart.
    """
    wide = logits_std(every) + math.log(every) / 2
    return Most(events * every / 2, events * math.sqrt(2 * every), events * wide**2)

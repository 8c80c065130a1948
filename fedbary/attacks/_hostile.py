"""Settings of every attack."""

from __future__ import annotations

from dataclasses import dataclass

from fedbary.parts.parameters import Checked, ShareOrZero


@dataclass(frozen=True)
class Hostile(Checked):
    """Number of hostile clients.

    Parameters
    ----------
    hostile_fraction
        Fraction of the clients that attack.
    """

    hostile_fraction: ShareOrZero = 0.2

"""What every attack owns."""

from __future__ import annotations

from dataclasses import dataclass

from fedbary.parts.parameters import Checked, ShareOrZero


@dataclass(frozen=True)
class Hostile(Checked):
    """How many clients are hostile.

    Parameters
    ----------
    hostile_fraction
        Fraction of the clients that attack.
    """

    hostile_fraction: ShareOrZero = 0.2

"""Defences before any rule: centred clipping, and nearest-neighbour mixing, of posteriors.

Both work in (m, √v), where distances are Wasserstein-2 and the mean is its barycentre. Client k's
point is x_k. It began from the global model c, so its update is u_k = x_k − c. There are K clients,
of which h may be hostile. The steps are:

1. Clipping shortens long updates to the median length r = median ‖u_k‖, by
   u_k ← min(1, r/‖u_k‖) u_k (Karimireddy, He and Jaggi, Learning from History for Byzantine Robust
   Optimization, ICML 2021).
2. Mixing replaces each point by the mean of K − h points: its own, and those whose updates are most
   like its own in direction. If all updates have one length, these are its nearest neighbours
   (Allouah et al., Fixing by Mixing, AISTATS 2023).
3. Points that still lie far out are clipped to the median distance from the middle. The middle is
   the point with the least sum of distances from all.
4. The rule aggregates as usual.

Lengths and distances are taken in m and in √v separately, because a hostile client could spend a
joint length on m alone. If honest standard deviations move more than honest means, a client that
scales its means would then go several times as far as any honest one.

Cosines choose the neighbours here; in Allouah et al. distances do. If clients differ, small updates
lie near all others, and the honest mean with its sign flipped is small. The similarity of two
updates is the sum of their cosines in m and in √v. A single cosine over both would hide a client
that flips m, if its √v is like everybody's.

If h is 0, every point becomes the mean of all. Rule and weights then have no effect.

Every point after these steps is a weighted mean of the clients' points and c. So one pass over the
replies computes all inner products, and a second one mixes and aggregates.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from fedbary.aggregation.robust import num_hostile
from fedbary.errors import SettingError

_NO_LENGTH = 1e-150
"""The value that stands for a length of 0, so that its square is above 0."""

_TIE = 1e-9
"""Relative difference below which sums of distances are equal: the first client's is taken."""


@dataclass(frozen=True)
class Mixing:
    """The steps before a rule: clipping alone, or with mixing against so many hostile clients.

    Parameters
    ----------
    fraction : float
        The part of the clients that may be hostile, from 0 to below ½; h = ⌊fraction · K⌋.
    mixes : bool
        True: clipping and mixing; False: clipping alone.

    Raises
    ------
    SettingError
        If the fraction is out of its range.
    """

    fraction: float
    mixes: bool

    def __post_init__(self) -> None:
        if not 0 <= self.fraction < 0.5:
            raise SettingError("trim_fraction", self.fraction, "from 0 to below 0.5")

    def matrices(self, products: Tensor) -> Tensor:
        """Return each client's new update as coefficients of all updates, in m and in √v.

        Parameters
        ----------
        products : Tensor
            The clients' updates' inner products in m and in √v, (2, K, K), float64.

        Returns
        -------
        Tensor
            (2, K, K). No number is negative, and no row sums to more than 1: the rest of a row is
            the weight of the centre c.
        """
        made = _kept(products.diagonal(dim1=1, dim2=2).sqrt()).diag_embed()
        if not self.mixes:
            return made
        clients = made.shape[1]
        nearest = clients - num_hostile(self.fraction, clients)
        alike = _cosines(products).sum(0).fill_diagonal_(torch.inf)
        made = made[:, alike.argsort(dim=1, descending=True, stable=True)[:, :nearest]].mean(2)
        apart = distances_after(made, products).sqrt()
        far = apart.sum(2)
        near = far <= far.amin(1, keepdim=True) * (1 + _TIE)
        middle = near.int().argmax(1)
        parts = torch.arange(len(made))
        kept = _kept(apart[parts, middle])[:, :, None]
        return kept * made + (1 - kept) * made[parts, middle][:, None]


def distances_after(matrices: Tensor, products: Tensor) -> Tensor:
    """Return the squared distances between new points, in m and √v.

    The new updates are `matrices` times the old ones, whose inner products are `products`. All are
    (2, K, K). The new inner products are M G Mᵀ, with G the old ones.
    """
    made = matrices @ products @ matrices.mT
    own = made.diagonal(dim1=1, dim2=2)
    apart = (own[:, :, None] + own[:, None, :] - 2 * made).clamp_min(0)
    apart.diagonal(dim1=1, dim2=2).zero_()
    return apart


def _kept(lengths: Tensor) -> Tensor:
    """Return the part of each length, (2, K), that is kept: none then exceeds their median."""
    median = lengths.quantile(0.5, dim=1, keepdim=True)
    return (median / lengths.clamp_min(_NO_LENGTH)).clamp_max(1)


def _cosines(products: Tensor) -> Tensor:
    """Return the cosines of updates; with one of no length they are 0."""
    lengths = products.diagonal(dim1=1, dim2=2).sqrt().clamp_min(_NO_LENGTH)
    return products / (lengths[:, :, None] * lengths[:, None, :])

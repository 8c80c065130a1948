"""An attack on clipping and mixing: of many updates, the one that holds the server up the most.

Hostile clients know the defence and its `trim_fraction`. All send one update. Its means are the
honest mean update against its sign, turned towards one honest client's until clients count it as a
neighbour, and as long as the honest median, so that clipping leaves it. Its standard deviations are
that client's or the honest mean. Hostile clients send the one after which the mixed ones go least
far along the honest mean (see `fedbary.aggregation.mixing`), if all clients count alike.

In a clone it is `attack=findings.hostile.against_mixing:AgainstMixing`.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from fedbary.aggregation.mixing import Mixing
from fedbary.attacks import OmniscientAttack, Tensors
from fedbary.gaussian import gaussian_pairs
from fedbary.parts.parameters import BelowHalf

TURNS = 9
"""Number of directions from the flipped mean to an honest client's update."""

_NO_LENGTH = 1e-150


@dataclass(frozen=True)
class AgainstMixing(OmniscientAttack):
    """Of many updates, the one that holds a server that clips and mixes up the most.

    Parameters
    ----------
    trim_fraction
        Fraction of the clients that the server takes for hostile.
    """

    trim_fraction: BelowHalf = 0.2

    def sent(
        self, received: Tensors, fitted: Tensors, honest: Sequence[Tensors], hostile: int
    ) -> dict[str, Tensor]:
        """Send the update that holds the server up the most."""
        scales, sent = set(gaussian_pairs(fitted).values()), dict(fitted)
        moves: tuple[dict[str, Tensor], dict[str, Tensor]] = ({}, {})
        for name, new in fitted.items():
            others = [o[name] for o in honest if name in o and o[name].shape == new.shape]
            if len(others) == len(honest) > 0 and new.is_floating_point():
                points = torch.stack([*others, received.get(name, torch.zeros_like(new)).to(new)])
                points = (points.double() / 2).exp() if name in scales else points.double()
                moves[name in scales][name] = points[:-1] - points[-1]
        products = torch.zeros(2, len(honest), len(honest)).double()
        for total, part in zip(products, moves, strict=True):
            for move in part.values():
                total += move.flatten(1) @ move.flatten(1).T
        if not products.any():
            return sent
        for chosen, part in zip(worst(products, hostile, self.trim_fraction), moves, strict=True):
            for name, move in part.items():
                old = received.get(name, torch.zeros_like(fitted[name])).to(fitted[name]).double()
                made = torch.tensordot(chosen, move, 1)
                made = 2 * ((old / 2).exp() + made).log() if name in scales else old + made
                sent[name] = made.to(fitted[name])
        return sent


def worst(products: Tensor, hostile: int, trim_fraction: float) -> Tensor:
    """Return the update that holds the server up the most, as coefficients of the honest ones.

    Parameters
    ----------
    products : Tensor
        The honest clients' updates' inner products in m and in √v, (2, K, K), float64.
    hostile : int
        Number of clients that send the update.
    trim_fraction : float
        Fraction of the clients that the server takes for hostile.

    Returns
    -------
    Tensor
        (2, K): of the means' updates, and of the standard deviations'.
    """
    mixing = Mixing(trim_fraction, True)
    own = torch.eye(len(products[0])).double()
    along = products[0].mean(1)

    def progress(update: Tensor) -> float:
        every = torch.cat([own.expand(2, -1, -1), update[:, None].expand(-1, hostile, -1)], 1)
        matrix = mixing.matrices(every @ products @ every.mT)[0]
        return float(matrix.mean(0) @ every[0] @ along)

    return min(_tried(products[0], own), key=progress)


def _tried(products: Tensor, own: Tensor) -> Iterator[Tensor]:
    """Yield updates, (2, K): flipped means turned towards each client's, with either deviations."""

    def length(update: Tensor) -> Tensor:
        return (update @ products @ update).clamp_min(0).sqrt().clamp_min(_NO_LENGTH)

    mean, median = own.mean(0), products.diagonal().sqrt().median()
    for client in own:
        for share in torch.linspace(0, 1, TURNS).tolist():
            turned = share * client / length(client) - (1 - share) * mean / length(mean)
            means = turned * (median / length(turned))
            yield from (torch.stack([means, deviations]) for deviations in (client, mean))

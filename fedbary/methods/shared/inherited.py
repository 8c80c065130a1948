"""What a run takes over from an earlier one: its posterior and its state, classes by name."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from fedbary.gaussian import Factor, Posterior

_OLDER = "\n"
"""What a site's name ends with once for each run that has passed; no site's own name has it."""


@dataclass(frozen=True, eq=False)
class Inherited:
    """The end of an earlier run.

    Parameters
    ----------
    posterior : Posterior
        Its posterior.
    state : mapping of str to Tensor
        What its method kept at the server.
    places : tuple of int
        For each class of the new run the place that it had in the earlier one, −1 for a new class.
        Empty: the classes are the same.
    settings : mapping
        The earlier run's settings; empty where they are not known.
    """

    posterior: Posterior
    state: Mapping[str, Tensor]
    places: tuple[int, ...] = ()
    settings: Mapping[str, Any] = field(default_factory=dict)

    def laid_out(self, tensor: Tensor, like: Tensor) -> Tensor:
        """Return a tensor in the shape of `like`; rows of new classes are those of `like`.

        Raises
        ------
        ValueError
            If the shapes differ in more than the number of classes.
        """
        if tensor.shape == like.shape:
            return tensor.to(like)
        old = [place for place in self.places if place >= 0]
        rows = tensor.shape[:1] == (len(old),) and like.shape[:1] == (len(self.places),)
        if not rows or tensor.shape[1:] != like.shape[1:]:
            raise ValueError(f"of shape {tuple(tensor.shape)}, not {tuple(like.shape)}")
        found = like.clone()
        found[torch.tensor([place >= 0 for place in self.places])] = tensor[old].to(like)
        return found

    def factor(self, held: Factor, like: Factor) -> Factor:
        """Return a factor in the shapes of `like`, as `laid_out` does."""
        return Factor(
            {name: self.laid_out(held.shift[name], e) for name, e in like.shift.items()},
            {name: self.laid_out(held.precision[name], s) for name, s in like.precision.items()},
        )


def older(site: str) -> str:
    """Return what a site of a run is called in the next one, where its own name has new data."""
    return site + _OLDER


def whose(site: str) -> str:
    """Return the name of the site whose data these are."""
    return site.rstrip(_OLDER)


def age(site: str) -> int:
    """Return how many runs have passed since a site's data counted."""
    return len(site) - len(whose(site))

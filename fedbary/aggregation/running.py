"""Aggregation of posteriors that are read one at a time and not kept."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor

from fedbary.aggregation.buffers import BufferMean
from fedbary.aggregation.reals import flat_reals, is_continuous
from fedbary.aggregation.rule import Rule
from fedbary.aggregation.sums import RunningSums
from fedbary.gaussian import Posterior


class Running:
    """The sums of every tensor under a rule, to which one posterior after another is added.

    Parameters
    ----------
    rule : Rule
        The rule.
    first : Posterior
        A posterior with the layout of all; its data are not held.

    Attributes
    ----------
    layout : Posterior
        The first posterior without its data.
    """

    def __init__(self, rule: Rule, first: Posterior) -> None:
        self.layout = Posterior(_without_data(first.mean), _without_data(first.log_var))
        self._sums: dict[str, RunningSums | BufferMean] = {
            name: RunningSums(rule) if is_continuous(tensor) else BufferMean()
            for name, tensor in first.mean.items()
        }

    def add(self, posterior: Posterior, share: float) -> None:
        """Add a posterior with its normalised weight."""
        for name, sums in self._sums.items():
            mean, log_var = posterior.mean[name], posterior.log_var.get(name)
            if isinstance(sums, BufferMean):
                sums.add(mean, share)
            else:
                flat = None if log_var is None else flat_reals(log_var)
                sums.add(flat_reals(mean), flat, share)

    def finish(self) -> Posterior:
        """Return the aggregate, with the names, order, shapes and dtypes of the layout."""
        means: dict[str, Tensor] = {}
        log_vars: dict[str, Tensor] = {}
        for name, sums in self._sums.items():
            if isinstance(sums, BufferMean):
                means[name] = sums.finish()
                continue
            mean, log_var = sums.finish()
            means[name] = _shaped(mean, self.layout.mean[name])
            if log_var is not None:
                log_vars[name] = _shaped(log_var, self.layout.log_var[name])
        return Posterior(means, log_vars)


def _without_data(tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    return {name: torch.empty_like(tensor, device="meta") for name, tensor in tensors.items()}


def _shaped(reals: Tensor, like: Tensor) -> Tensor:
    reals = reals.to(like.dtype.to_real())
    if like.is_complex():
        reals = torch.view_as_complex(reals.view(-1, 2))
    return reals.reshape(like.shape)

"""Aggregation of whole posteriors, one client after another."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

import torch
from torch import Tensor

from fedbary.aggregation.rule import Rule
from fedbary.aggregation.sums import PIECE, Sums, normalised
from fedbary.errors import SettingError
from fedbary.gaussian import Posterior, layout_difference


def aggregate_posteriors(
    rule: Rule, posteriors: Iterable[Posterior], weights: Sequence[float]
) -> Posterior:
    """Aggregate posteriors under a rule; see `fedbary.aggregation.aggregate`."""
    shares = normalised(weights)
    result: _Running | None = None
    count = 0
    for posterior in posteriors:
        if count == len(shares):
            raise SettingError("weights", list(weights), "one per posterior; there are more")
        result = result or _Running(rule, posterior)
        if difference := layout_difference(posterior, result.layout):
            raise ValueError(f"posterior {count}: {difference}")
        result.add(posterior, shares[count])
        count += 1
    if result is None:
        raise SettingError("posteriors", [], "at least one posterior")
    if count < len(shares):
        raise SettingError("weights", list(weights), f"one per posterior; there are {count}")
    return result.finish()


class _Running:
    """The sums of every tensor, in pieces, and what the first posterior looked like."""

    def __init__(self, rule: Rule, first: Posterior) -> None:
        self.layout = Posterior(_without_data(first.mean), _without_data(first.log_var))
        self._buffers = {
            name: tensor.clone()
            for name, tensor in first.mean.items()
            if not tensor.is_floating_point()
        }
        self._sums = {
            name: [Sums(rule) for _ in _pieces(tensor)]
            for name, tensor in first.mean.items()
            if tensor.is_floating_point()
        }

    def add(self, posterior: Posterior, weight: float) -> None:
        for name, sums in self._sums.items():
            means = _pieces(posterior.mean[name])
            log_var = posterior.log_var.get(name)
            log_vars = [None] * len(means) if log_var is None else _pieces(log_var)
            for piece, mean, piece_log_var in zip(sums, means, log_vars, strict=True):
                piece.add(mean, piece_log_var, weight)

    def finish(self) -> Posterior:
        mean, log_var = dict(self._buffers), {}
        for name, sums in self._sums.items():
            means, log_vars = zip(*(piece.finish() for piece in sums), strict=True)
            mean[name] = _joined(means, self.layout.mean[name])
            if name in self.layout.log_var:
                log_var[name] = _joined(log_vars, self.layout.log_var[name])
        return Posterior({name: mean[name] for name in self.layout.mean}, log_var)


def _without_data(tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    return {name: torch.empty_like(tensor, device="meta") for name, tensor in tensors.items()}


def _pieces(tensor: Tensor) -> Sequence[Tensor]:
    return tensor.detach().reshape(-1).split(PIECE)


def _joined(pieces: Sequence[Tensor], like: Tensor) -> Tensor:
    return torch.cat([piece.to(like.dtype) for piece in pieces]).reshape(like.shape)

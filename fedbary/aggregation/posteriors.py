"""Aggregation of whole posteriors: one client after another, or side by side."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence

import torch
from torch import Tensor

from fedbary.aggregation.bound import check_ratio
from fedbary.aggregation.buffers import BufferMean, aggregate_buffer
from fedbary.aggregation.reals import flat_reals, is_continuous
from fedbary.aggregation.robust import RobustRule, SelectionRule
from fedbary.aggregation.rule import Rule
from fedbary.aggregation.stack import (
    Stack,
    aggregate_stack,
    squared_distances,
    stack_size,
    stacked,
)
from fedbary.aggregation.sums import PIECE, Sums, normalised
from fedbary.errors import SettingError
from fedbary.gaussian import Posterior, layout_difference


def aggregate_posteriors(
    rule: Rule | RobustRule,
    posteriors: Iterable[Posterior],
    weights: Sequence[float],
    max_precision_ratio: float | None = None,
) -> Posterior:
    """Aggregate posteriors under a rule; see `fedbary.aggregation.aggregate`."""
    check_ratio(max_precision_ratio)
    shares = normalised(weights)
    result: _Running | _SideBySide | None = None
    count = 0
    for posterior in posteriors:
        if count == len(shares):
            raise SettingError("weights", list(weights), "one per posterior; there are more")
        if result is None and isinstance(rule, Rule) and max_precision_ratio is None:
            result = _Running(rule, posterior)
        elif result is None:
            result = _SideBySide(rule, posterior, max_precision_ratio)
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
        self.layout = _layout(first)
        self._buffers = {name: BufferMean() for name in _buffer_names(first)}
        self._sums = {
            name: [Sums(rule) for _ in _pieces(first.mean[name], PIECE)]
            for name in first.mean
            if name not in self._buffers
        }

    def add(self, posterior: Posterior, weight: float) -> None:
        for name, sums in self._sums.items():
            pieces = _pieces_of(posterior, name, PIECE)
            for piece, (mean, log_var) in zip(sums, pieces, strict=True):
                piece.add(mean, log_var, weight)
        for name, buffer in self._buffers.items():
            buffer.add(posterior.mean[name], weight)

    def finish(self) -> Posterior:
        pieces = {name: [piece.finish() for piece in sums] for name, sums in self._sums.items()}
        buffers = {name: buffer.finish() for name, buffer in self._buffers.items()}
        return _assembled(self.layout, buffers, pieces)


class _SideBySide:
    """All the posteriors, held until the last is there."""

    def __init__(
        self, rule: Rule | RobustRule, first: Posterior, max_precision_ratio: float | None
    ) -> None:
        self.layout = _layout(first)
        self._buffers = _buffer_names(first)
        self._rule = rule
        self._max_precision_ratio = max_precision_ratio
        self._posteriors: list[Posterior] = []
        self._weights: list[float] = []

    def add(self, posterior: Posterior, weight: float) -> None:
        if weight > 0:
            self._posteriors.append(posterior)
            self._weights.append(weight)

    def finish(self) -> Posterior:
        weights = self._weights
        buffers = {
            name: aggregate_buffer(self._rule, [p.mean[name] for p in self._posteriors], weights)
            for name in self._buffers
        }
        names = [name for name in self.layout.mean if name not in buffers]
        if isinstance(self._rule, SelectionRule):
            parts = (squared_distances(stack) for name in names for stack in self._stacks(name))
            weights = self._rule.weights(sum(parts, torch.zeros(len(weights), len(weights))))
        pieces = {
            name: [aggregate_stack(self._rule, stack, weights) for stack in self._stacks(name)]
            for name in names
        }
        return _assembled(self.layout, buffers, pieces)

    def _stacks(self, name: str) -> Iterator[Stack]:
        size = stack_size(len(self._posteriors))
        clients = [_pieces_of(posterior, name, size) for posterior in self._posteriors]
        for pieces in zip(*clients, strict=True):
            yield stacked(pieces, self._max_precision_ratio, torch.float64)


def _layout(posterior: Posterior) -> Posterior:
    return Posterior(_without_data(posterior.mean), _without_data(posterior.log_var))


def _without_data(tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    return {name: torch.empty_like(tensor, device="meta") for name, tensor in tensors.items()}


def _buffer_names(posterior: Posterior) -> list[str]:
    return [name for name, tensor in posterior.mean.items() if not is_continuous(tensor)]


def _pieces(tensor: Tensor, size: int) -> Sequence[Tensor]:
    return flat_reals(tensor).split(size)


def _pieces_of(
    posterior: Posterior, name: str, size: int
) -> Sequence[tuple[Tensor, Tensor | None]]:
    means = _pieces(posterior.mean[name], size)
    if name not in posterior.log_var:
        return [(mean, None) for mean in means]
    return list(zip(means, _pieces(posterior.log_var[name], size), strict=True))


def _assembled(
    layout: Posterior,
    buffers: Mapping[str, Tensor],
    pieces: Mapping[str, Sequence[tuple[Tensor, Tensor | None]]],
) -> Posterior:
    mean, log_var = dict(buffers), {}
    for name, results in pieces.items():
        means, log_vars = zip(*results, strict=True)
        mean[name] = _joined(means, layout.mean[name])
        if name in layout.log_var:
            log_var[name] = _joined(log_vars, layout.log_var[name])
    return Posterior({name: mean[name] for name in layout.mean}, log_var)


def _joined(pieces: Sequence[Tensor], like: Tensor) -> Tensor:
    joined = torch.cat([piece.to(like.dtype.to_real()) for piece in pieces])
    if like.is_complex():
        joined = torch.view_as_complex(joined.view(-1, 2))
    return joined.reshape(like.shape)

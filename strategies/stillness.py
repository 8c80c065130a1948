"""A warning about untrained variances: with these a barycentre is almost a plain mean."""

from __future__ import annotations

from collections.abc import Sequence
from logging import WARNING

import torch
from flwr.app import Array, ArrayRecord
from torch import Tensor

from fedbary.aggregation.reals import flat_reals

from .arrays import tensor_from_array
from .conventions import Convention
from .internals import log

STILL = 0.01
"""The mean move of log-variances below which they stand still: 1 % of the variance."""

ALIKE = 0.01
"""Fraction of a move below which clients' moves count as equal, and so not due to their data."""

TINY = 1e-30
"""Divisor in place of a move of 0."""

PATIENCE = 3
"""Number of rounds taken together."""

SAMPLE = 1000
"""Number of evenly spaced weights of an array that are compared, so that large models cost
nothing."""

STOOD_STILL = (
    "aggregate_train: in %d rounds clients have hardly moved log-variances, so the aggregate is "
    "almost a plain mean: %s; raise log_var_lr, or give the scales a step size in your own "
    "training loop, see fedbary.strategies.parameter_groups"
)

MOVED_ALIKE = (
    "aggregate_train: in %d rounds a penalty, not the data, has moved all clients' log-variances "
    "alike, so the aggregate is almost a plain mean: %s; lower kl_weight, raise "
    "local_epochs, or draw the weights in your own training loop, see "
    "fedbary.variational.drawing"
)


class Stillness:
    """Warns of log-variances that do not train: they stand still, or the data do not move them.

    With log-variances s_i sent and s_ki replied, client k moves an array in a round by
    m_k = mean_i |s_ki − s_i|. Clients' moves differ by d = mean_i std_k (s_ki − s_i) / m_k. An
    array does not train in two cases, over `PATIENCE` rounds in a row:

    - Σ max_k m_k is below `STILL`, as with plain SGD;
    - the mean of d is below `ALIKE`, with several clients and several weights: a penalty alone
      moves all clients alike, some further than others.

    One step of Adam at the default rate moves a log-variance by 0.01, so short rounds do not count
    as standing still. But Adam's first steps have the same length for any gradient. While the
    penalty outweighs the data, clients' moves are alike in short rounds and differ in longer ones
    (`regression-vi`: d is 0.008 after three steps a round, 0.011 after fifteen). Warnings name each
    array once.
    """

    def __init__(self) -> None:
        self._rounds: dict[str, list[tuple[float, float]]] = {}
        self._named: set[str] = set()

    def observe(
        self, sent: ArrayRecord, replies: Sequence[ArrayRecord], convention: Convention
    ) -> None:
        """Compare the sent arrays of a round with the admitted replies."""
        named: dict[str, list[str]] = {STOOD_STILL: [], MOVED_ALIKE: []}
        for scale in convention.pairs(sent.keys()).values():
            before = convention.to_log_var(some_of(sent[scale]))
            after = convention.to_log_var(torch.stack([some_of(r[scale]) for r in replies]))
            if not before.numel():
                continue
            moves = after - before
            each = moves.abs().mean(1, keepdim=True)
            differing = (moves / each.clamp_min(TINY)).std(0, correction=0).mean()
            last = [*self._rounds.get(scale, []), (float(each.max()), float(differing))]
            self._rounds[scale] = last = last[-PATIENCE:]
            moved, differ = (sum(values) for values in zip(*last, strict=True))
            if len(last) < PATIENCE or scale in self._named:
                continue
            comparable = len(replies) > 1 and before.numel() > 1
            is_alike = comparable and differ / PATIENCE < ALIKE
            if moved < STILL or is_alike:
                self._named.add(scale)
                text = STOOD_STILL if moved < STILL else MOVED_ALIKE
                named[text].append(f"{scale!r} (by {moved:.2g})")
        for text, scales in named.items():
            if scales:
                log(WARNING, text, PATIENCE, ", ".join(scales))


def some_of(array: Array) -> Tensor:
    """Return some of an array's numbers, evenly spaced."""
    flat = flat_reals(tensor_from_array(array))
    return flat[:: max(1, len(flat) // SAMPLE)].double()

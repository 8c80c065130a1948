"""Warnings about variances that do not train, or that a rule shrinks from round to round."""

from __future__ import annotations

from collections.abc import Sequence
from logging import WARNING

import torch
from flwr.app import ArrayRecord
from torch import Tensor

from fedbary.aggregation.sums import flat_reals

from .arrays import tensor_from_array
from .conventions import Convention
from .internals import log

PATIENCE = 3
"""Rounds in a row before a warning."""

STILL = 0.01
"""The mean move of log-variances below which they stand still: 1 % of the variance."""

ALIKE = 0.01
"""Fraction of a move below which clients' moves count as equal, and so not due to their data."""

NARROWER = 0.1
"""Least narrowing that counts, in the mean log-variance."""

TINY = 1e-30
"""Divisor in place of a move of 0."""

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

NARROWED = (
    "aggregate_train: in %d rounds %s has narrowed log-variances more than clients widened them, "
    "to a mean of %.3g: they will shrink to a point estimate's; use it for one round, or "
    "method=DWC, whose clients start from their own variances"
)


class Diagnostics:
    """Warns of log-variances that do not train, and of a rule that shrinks them.

    With log-variances s_i sent and s_ki replied, client k moves an array in a round by
    m_k = mean_i |s_ki − s_i|. Clients' moves differ by d = mean_i std_k (s_ki − s_i) / m_k. An
    array does not train in two cases, over `PATIENCE` rounds in a row:

    - Σ max_k m_k is below `STILL`, as with plain SGD;
    - the mean of d is below `ALIKE`, with several clients and several weights: a penalty alone
      moves all clients alike, some further than others.

    One step of Adam at the default rate moves a log-variance by 0.01, so short rounds do not count
    as standing still. But Adam's first steps have the same length for any gradient. While the
    penalty outweighs the data, clients' moves are alike in short rounds and differ in longer ones
    (`regression-vi`: d is 0.008 after three steps a round, 0.011 after fifteen).

    A product of K posteriors has about 1/K of the clients' variance, and so has the distribution of
    a mean of K draws. Clients that start from it widen it only by one round of training, and the
    next aggregate narrows it again. A round narrows if r > s and a < s − `NARROWER`, with s the
    mean log-variance sent, r that of the replies and a that of the aggregate.

    Warnings name each array once, and the rule once.
    """

    def __init__(self) -> None:
        self._moves: dict[str, list[tuple[float, float]]] = {}
        self._named: set[str] = set()
        self._narrowed = 0

    def observe(
        self,
        rule: str,
        sent: ArrayRecord,
        replies: Sequence[ArrayRecord],
        aggregate: ArrayRecord,
        convention: Convention,
    ) -> None:
        """Compare the sent arrays of a round with the admitted replies and their aggregate."""
        scales = list(convention.pairs(sent.keys()).values())

        def log_vars(record: ArrayRecord) -> dict[str, Tensor]:
            return {scale: convention.to_log_var(_sample(record, scale)) for scale in scales}

        before, replied = log_vars(sent), [log_vars(reply) for reply in replies]
        self._warn_of_untrained(before, replied)
        if scales and self._narrowed < PATIENCE:
            self._warn_of_narrowing(rule, before, replied, log_vars(aggregate))

    def _warn_of_untrained(
        self, sent: dict[str, Tensor], replies: Sequence[dict[str, Tensor]]
    ) -> None:
        untrained: dict[str, list[str]] = {STOOD_STILL: [], MOVED_ALIKE: []}
        for scale, before in sent.items():
            if not before.numel():
                continue
            moves = torch.stack([reply[scale] for reply in replies]) - before
            lengths = moves.abs().mean(1, keepdim=True)
            difference = (moves / lengths.clamp_min(TINY)).std(0, correction=0).mean()
            last = [*self._moves.get(scale, []), (float(lengths.max()), float(difference))]
            self._moves[scale] = last = last[-PATIENCE:]
            if len(last) < PATIENCE or scale in self._named:
                continue
            moved, differed = (sum(values) for values in zip(*last, strict=True))
            comparable = len(replies) > 1 and before.numel() > 1
            if moved < STILL or (comparable and differed / PATIENCE < ALIKE):
                self._named.add(scale)
                text = STOOD_STILL if moved < STILL else MOVED_ALIKE
                untrained[text].append(f"{scale!r} (by {moved:.2g})")
        for text, names in untrained.items():
            if names:
                log(WARNING, text, PATIENCE, ", ".join(names))

    def _warn_of_narrowing(
        self,
        rule: str,
        sent: dict[str, Tensor],
        replies: Sequence[dict[str, Tensor]],
        aggregate: dict[str, Tensor],
    ) -> None:
        before, after = _mean(sent), _mean(aggregate)
        replied = sum(map(_mean, replies)) / len(replies)
        falls = replied > before and after < before - NARROWER
        self._narrowed = self._narrowed + 1 if falls else 0
        if self._narrowed == PATIENCE:
            log(WARNING, NARROWED, PATIENCE, rule, after)


def _sample(record: ArrayRecord, name: str) -> Tensor:
    """Return some of an array's numbers, evenly spaced."""
    flat = flat_reals(tensor_from_array(record[name]))
    return flat[:: max(1, len(flat) // SAMPLE)].double()


def _mean(log_vars: dict[str, Tensor]) -> float:
    return float(torch.cat(list(log_vars.values())).mean())

"""A warning about rules that shrink variances more in a round than clients widen them."""

from __future__ import annotations

from collections.abc import Sequence
from logging import WARNING

import torch
from flwr.app import ArrayRecord

from .conventions import Convention
from .internals import log
from .stillness import some_of

PATIENCE = 3
"""Rounds in a row with an aggregate narrower than the sent posterior, before a warning."""

NARROWER = 0.1
"""Least narrowing that counts, in the mean log-variance."""


class Narrowing:
    """Warns once of variances that fall from round to round although clients widen them.

    A product of K posteriors has about 1/K of the clients' variance, and so has the distribution of
    a mean of K draws. Clients that start from it widen it only by one round of training, and the
    next aggregate narrows it again. A round counts if r > s and a < s − `NARROWER`, with s the mean
    log-variance sent, r that of the replies and a that of the aggregate.
    """

    def __init__(self) -> None:
        self._rounds = 0
        self._has_warned = False

    def observe(
        self,
        rule: str,
        sent: ArrayRecord,
        replies: Sequence[ArrayRecord],
        aggregate: ArrayRecord,
        convention: Convention,
    ) -> None:
        """Compare the sent arrays of a round, the admitted replies, and their aggregate."""
        scales = list(convention.pairs(sent.keys()).values())
        if not scales or self._has_warned:
            return

        def mean(record: ArrayRecord) -> float:
            parts = [convention.to_log_var(some_of(record[scale])) for scale in scales]
            return float(torch.cat(parts).mean())

        before, after = mean(sent), mean(aggregate)
        replied = sum(map(mean, replies)) / len(replies)
        falls = replied > before and after < before - NARROWER
        self._rounds = self._rounds + 1 if falls else 0
        if self._rounds == PATIENCE:
            self._has_warned = True
            log(
                WARNING,
                "aggregate_train: in %d rounds %s has narrowed log-variances more than clients "
                "widened them, to a mean of %.3g: they will shrink to a point estimate's; use "
                "it for one round, or method=DWC, whose clients start from their own variances",
                PATIENCE, rule, after,
            )  # fmt: skip

"""Whether clients train their variances: without that a barycentre is little but a plain mean."""

from __future__ import annotations

from collections.abc import Sequence
from logging import WARNING

import torch
from flwr.app import Array, ArrayRecord
from flwr.supercore import log
from torch import Tensor

from fedbary.aggregation.reals import flat_reals

from .arrays import tensor_from_array
from .conventions import Convention

STILL = 0.01
"""The mean change of a log-variance, 1 % of the variance, below which an array stands still."""

PATIENCE = 3
"""Rounds in a row of stillness after which it is said."""

SAMPLE = 1000
"""How many evenly spaced weights of an array are looked at, so that large models cost nothing."""


class Stillness:
    """Watch how far log-variances move and how far clients differ in them; warn of standstill.

    An array of scales stands still in a round if no client has moved its log-variances by more
    than `STILL` from what it was sent, or the clients' differ by less: max_k mean_i |s_ki − s_i|,
    and mean_i std_k s_ki. Each array is named once, after `PATIENCE` such rounds in a row.
    """

    def __init__(self) -> None:
        self._rounds: dict[str, int] = {}

    def observe(
        self, sent: ArrayRecord, replies: Sequence[ArrayRecord], convention: Convention
    ) -> None:
        """Take in a round: what was sent, and what admitted clients replied."""
        named = []
        for scale in convention.pairs(sent.keys()).values():
            before = convention.to_log_var(_sample(sent[scale]))
            after = convention.to_log_var(torch.stack([_sample(r[scale]) for r in replies]))
            if not before.numel():
                continue
            moved = float((after - before).abs().mean(1).max())
            spread = float(after.std(0, correction=0).mean())
            is_still = moved < STILL or (len(replies) > 1 and spread < STILL)
            self._rounds[scale] = self._rounds.get(scale, 0) + 1 if is_still else 0
            if self._rounds[scale] == PATIENCE:
                named.append(f"{scale!r} (moved by {moved:.2g}, clients' std {spread:.2g})")
        if named:
            log(
                WARNING,
                "aggregate_train: for %d rounds log-variances have stood still or been the same at "
                "all clients, so that the aggregate is little but a plain mean: %s; clients' "
                "optimisers need a rate for scales, see fedbary.strategies.parameter_groups",
                PATIENCE,
                ", ".join(named),
            )


def _sample(array: Array) -> Tensor:
    """Return some of an array's numbers, evenly spaced."""
    flat = flat_reals(tensor_from_array(array))
    return flat[:: max(1, len(flat) // SAMPLE)].double()

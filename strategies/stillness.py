"""Whether clients train their variances: if not, a barycentre is almost a plain mean."""

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
"""The mean change of log-variances below which an array stands still: 1 % of the variance."""

PATIENCE = 3
"""After so many still rounds in a row there is a warning."""

SAMPLE = 1000
"""How many evenly spaced weights of an array are compared, so that large models cost nothing."""


class Stillness:
    """Warns when log-variances do not move or are the same at all clients.

    With log-variances s_i sent and s_ki replied, an array stands still in a round if
    max_k mean_i |s_ki − s_i| or, under several clients, mean_i std_k s_ki is below `STILL`. The
    warning names each array once, after `PATIENCE` such rounds in a row.
    """

    def __init__(self) -> None:
        self._rounds: dict[str, int] = {}

    def observe(
        self, sent: ArrayRecord, replies: Sequence[ArrayRecord], convention: Convention
    ) -> None:
        """Compare what was sent in a round with what admitted clients replied."""
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
                "all clients, so that the aggregate is almost a plain mean: %s; give the clients' "
                "optimisers a rate for scales, see fedbary.strategies.parameter_groups",
                PATIENCE,
                ", ".join(named),
            )


def _sample(array: Array) -> Tensor:
    """Return some of an array's numbers, evenly spaced."""
    flat = flat_reals(tensor_from_array(array))
    return flat[:: max(1, len(flat) // SAMPLE)].double()

"""Aggregation of replies as they arrive, each as a change in the coordinates of a rule.

A client was sent θ_k and replies q_k. Meanwhile the aggregate has become θ. For a rule that is a
mean in the chart F, the new aggregate is

    θ ← F⁻¹(F(θ) + Σ a_k (F(q_k) − F(θ_k))),      a_k = w(s_k) n_k / (C n̄),

The client has n_k examples, the mean client n̄. C clients are at work, and s_k aggregates were made
since θ_k was sent. If all clients reply to θ, the result is the rule's own. Σ a_k is at most 1.

A sum of changes may leave the chart: a precision or a standard deviation may fall below 0. Then the
new variance is not finite, or lies by more than a factor of 4 outside the range of those of θ and
all q_k. Such a weight is mixed instead:

    θ ← F⁻¹((1 − Σ a_k) F(θ) + Σ a_k F(q_k)),

This is a mean of Gaussians, so its precision is above 0.

References: Xie, Koyejo and Gupta, Asynchronous Federated Optimization (FedAsync), 2019, for w and
the mixture; Nguyen et al., Federated Learning with Buffered Asynchronous Aggregation (FedBuff),
AISTATS 2022, for the changes.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from fedbary.aggregation.rules import AnyRule, Rule
from fedbary.aggregation.sums import is_continuous
from fedbary.aggregation.tensors import aggregate_buffer
from fedbary.errors import SettingError
from fedbary.gaussian import gaussian_pairs

LEEWAY = math.log(4.0)
"""The farthest, in nats, that a new log-variance may lie outside the range of its sources."""


@dataclass(frozen=True, eq=False)
class Change:
    """A client's change of a model.

    Parameters
    ----------
    sent, found : Mapping[str, Tensor]
        The model that it began from, θ_k, and its reply, q_k; further keys are ignored.
    part : float
        a_k, the fraction of the change that is added to the aggregate.
    """

    sent: Mapping[str, Tensor]
    found: Mapping[str, Tensor]
    part: float


def parts_of(shares: Sequence[float], weights: Sequence[float]) -> list[float]:
    """Return a_k from n_k/(C n̄) and w(s_k), which sum to at most 1.

    Shares n_k/(C n̄) that sum to more than 1 are scaled to sum to 1 before they are multiplied by
    w(s_k). So a stale change counts for less, whatever the clients' sizes.
    """
    most = max(1.0, math.fsum(shares))
    parts = [share / most * weight for share, weight in zip(shares, weights, strict=True)]
    most = max(1.0, math.fsum(parts))
    return [part / most for part in parts]


def along(
    rule: AnyRule,
    model: Mapping[str, Tensor],
    changes: Sequence[Change],
    mixed: Collection[str] = (),
    largest_log_var: float = math.inf,
) -> dict[str, Tensor]:
    """Return the aggregate after some changes.

    Parameters
    ----------
    rule : Rule
        A rule that is a mean.
    model : Mapping[str, Tensor]
        θ, a state dict.
    changes : sequence of Change
        One or more, whose parts sum to at most 1; their order changes only the rounding.
    mixed : collection of str
        Keys of tensors that are no parameters, such as running variances; they are mixed. Integer
        and bool tensors always are, and rounded.
    largest_log_var : float
        Largest magnitude of the result's log-variances.

    Returns
    -------
    dict of str to Tensor
        New tensors with the keys, shapes and dtypes of the model.

    Raises
    ------
    SettingError
        If the rule is no mean.
    """
    if not (isinstance(rule, Rule) and rule.is_mean):
        raise SettingError("rule", rule.name, "a rule that is a mean in its chart")
    pairs = gaussian_pairs(model.keys())
    stays = max(0.0, 1 - math.fsum(change.part for change in changes))
    moved: dict[str, Tensor] = {}
    for key, tensor in model.items():
        if key in pairs:
            moved |= _gaussian(rule, key, pairs[key], model, changes, stays, largest_log_var)
        elif not is_continuous(tensor):
            held = [tensor, *(change.found[key] for change in changes)]
            parts = [stays, *(change.part for change in changes)]
            moved[key] = aggregate_buffer(rule, held, parts)
        elif key not in pairs.values():
            moved[key] = _point(key, tensor, changes, stays, key in mixed)
    return {key: moved[key] for key in model}


def _point(
    key: str, tensor: Tensor, changes: Sequence[Change], stays: float, is_mixed: bool
) -> Tensor:
    total = _wide(tensor) * (stays if is_mixed else 1.0)
    for change in changes:
        found = _wide(change.found[key])
        total += change.part * (found if is_mixed else found - _wide(change.sent[key]))
    return total.to(tensor.dtype)


def _gaussian(
    rule: Rule,
    mean: str,
    log_var: str,
    model: Mapping[str, Tensor],
    changes: Sequence[Change],
    stays: float,
    largest_log_var: float,
) -> dict[str, Tensor]:
    origin = _wide(model[mean]) if rule.centred else torch.zeros((), dtype=torch.float64)

    def coordinates(tensors: Mapping[str, Tensor]) -> tuple[Tensor, ...]:
        return rule.forward(_wide(tensors[mean]) - origin, _wide(tensors[log_var]))

    here = coordinates(model)
    mixture = [stays * c for c in here]
    summed = [c.clone() for c in here]
    low = high = _wide(model[log_var])
    for change in changes:
        found, sent = coordinates(change.found), coordinates(change.sent)
        for total, mix, new, old in zip(summed, mixture, found, sent, strict=True):
            total += change.part * (new - old)
            mix += change.part * new
        low = torch.minimum(low, _wide(change.found[log_var]))
        high = torch.maximum(high, _wide(change.found[log_var]))
    (along_mean, along_log_var), (mixed_mean, mixed_log_var) = (
        rule.inverse(*summed), rule.inverse(*mixture)
    )  # fmt: skip
    near = (along_log_var >= low - LEEWAY) & (along_log_var <= high + LEEWAY)
    taken = near & along_mean.isfinite()  # NaN is not near
    found_log_var = torch.where(taken, along_log_var, mixed_log_var)
    return {
        mean: (torch.where(taken, along_mean, mixed_mean) + origin).to(model[mean].dtype),
        log_var: found_log_var.clamp(-largest_log_var, largest_log_var).to(model[log_var].dtype),
    }


def _wide(tensor: Tensor) -> Tensor:
    return tensor.to(torch.promote_types(tensor.dtype, torch.float64))

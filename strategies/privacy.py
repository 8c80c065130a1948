"""Strategies that Flower's wrappers for differential privacy may drive.

A wrapper clips each client's update to the norm C and adds noise of standard deviation z C / n to
*every* array of the aggregate, log-variances too. That hides a client only if a single client moves
the aggregate by at most C / n. So the aggregate must be the plain mean of the arrays of n replies,
each with the same weight. AALV is such a mean of log-variances (and of log-stds). The other rules
are means in other coordinates, where a clipped update may move the aggregate by any amount. For
these rules use the client mod `chart` with Flower's FedAvg, which is a plain mean of coordinates.
"""

from __future__ import annotations

import inspect
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import torch
from flwr.app import ArrayRecord
from flwr.serverapp.strategy import (
    DifferentialPrivacyClientSideAdaptiveClipping,
    DifferentialPrivacyClientSideFixedClipping,
    DifferentialPrivacyServerSideAdaptiveClipping,
    DifferentialPrivacyServerSideFixedClipping,
)

from fedbary.aggregation import RULES, AnyRule, RobustRule, Rule
from fedbary.aggregation.sums import normalised
from fedbary.errors import SettingError
from fedbary.methods.barycentre import Barycentre

from .arrays import tensor_from_array
from .conventions import Convention
from .records import aggregate_records

Wrapper = (
    DifferentialPrivacyClientSideAdaptiveClipping
    | DifferentialPrivacyClientSideFixedClipping
    | DifferentialPrivacyServerSideAdaptiveClipping
    | DifferentialPrivacyServerSideFixedClipping
)


def _of_wrappers() -> Iterator[Mapping[str, Any]]:
    """Yield the local variables of the calls of a wrapper's methods, the innermost first."""
    frame = inspect.currentframe()
    while frame is not None:
        if isinstance(frame.f_locals.get("self"), Wrapper):
            yield frame.f_locals
        frame = frame.f_back


def driving_wrapper() -> Wrapper | None:
    """Return the wrapper for differential privacy on the call stack; None if there is none.

    The call stack is the only place where a strategy can see the wrapper around it.
    """
    return next((held["self"] for held in _of_wrappers()), None)


def rounds_of_wrapper() -> int | None:
    """Return how many rounds the wrapper on the call stack makes; None if there is none."""
    return next((held["num_rounds"] for held in _of_wrappers() if "num_rounds" in held), None)


PLAIN = {
    "server_momentum": 0,
    "max_precision_ratio": None,
    "clipping": False,
    "mixing": False,
    "remember": False,
}
"""Parameters of `Barycentre` with which the aggregate depends on this round alone, by the rule."""


def require_plain_mean(
    wrapper: Wrapper,
    rule: AnyRule,
    convention: Convention,
    method: Barycentre,
    arrays: ArrayRecord,
) -> None:
    """Refuse a strategy in whose aggregate a wrapper's noise would not hide a client.

    Raises
    ------
    SettingError
        If the aggregate is not the plain mean of the arrays. Causes are another rule; momentum
        or remembered changes, which repeat earlier aggregates without their noise; a bound,
        clipping or mixing that depends on the other clients; arrays that are not floating; an
        array without dimensions, which Flower's clipping does not change.
    """
    name = type(wrapper).__name__
    if not averages_arrays(rule, convention):
        means = [other.name for other in RULES.values() if averages_arrays(other, convention)]
        has_chart = isinstance(rule, Rule) and rule.is_mean and rule.name in RULES
        charted = f"chart({rule.name!r})" if has_chart else "chart(...)"
        chart = f"or Flower's FedAvg with the client mod {charted}"
        raise SettingError("rule", rule.name, f"for {name}: {', '.join([*means, chart])}")
    for parameter, plain in PLAIN.items():
        if (value := getattr(method, parameter)) != plain:
            raise SettingError(parameter, value, f"{plain} for {name}")
    for key, array in arrays.items():
        if not (tensor_from_array(array).is_floating_point() and array.shape):
            kind = f"{array.dtype} of shape {tuple(array.shape)}"
            allowed = f"for {name}: floating arrays of at least one dimension, not {kind}"
            raise SettingError("array", key, allowed)


def averages_arrays(rule: AnyRule, convention: Convention) -> bool:
    """Return whether a rule's aggregate is Σ w_k x_k for any arrays x_k of real numbers.

    The test aggregates the arrays of three clients. A robust rule is refused: it may average three
    clients but not ten.
    """
    if isinstance(rule, RobustRule):
        return False
    generator = torch.Generator().manual_seed(0)
    keys = [pattern.replace("*", "x") for pattern in (convention.mean, convention.scale)]
    values = torch.randn(3, len(keys), 100, generator=generator)
    records = [ArrayRecord(dict(zip(keys, client, strict=True))) for client in values]
    weights = [0.2, 0.3, 0.5]
    aggregate = aggregate_records(rule, records, weights, convention)
    mean = torch.tensordot(torch.tensor(weights), values, 1)
    return all(
        torch.allclose(tensor_from_array(aggregate[key]), expected, atol=1e-5)
        for key, expected in zip(keys, mean, strict=True)
    )


def weights_within_sensitivity(wrapper: Wrapper, weights: Sequence[float]) -> bool:
    """Return whether no reply's share of the mean exceeds 1/n, the share that the noise hides."""
    return max(normalised(weights)) * wrapper.num_sampled_clients <= 1 + 1e-9

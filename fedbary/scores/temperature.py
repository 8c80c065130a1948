"""One calibration temperature for a federation's predictions, from the clients' holdouts.

Temperature scaling (Guo et al., On Calibration of Modern Neural Networks, ICML 2017) predicts by
p^(1/T), normalised: T > 1 makes a model less sure. T minimises the NLL on examples that the model
was not trained on. Each client sends its NLL at each of a few temperatures, and nothing else. Their
mean, weighted by examples, is the NLL of all examples together.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

from torch import Tensor

from fedbary.predictive import Prediction
from fedbary.scores.metrics import NLL_RANGE, evaluate

TEMPERATURES = {f"nll-at-{2 ** (k / 4):.3g}": 2 ** (k / 4) for k in range(-8, 13)}
"""Name of a client's NLL at each temperature, and the temperature: 1/4 to 8."""

KNOWN = dict.fromkeys(TEMPERATURES, NLL_RANGE)
"""These scores, each with its least and its largest value."""


def nll_at_temperatures(prediction: Prediction, labels: Tensor) -> dict[str, float]:
    """Return the mean NLL at every temperature, in nats, by its name."""
    return {
        name: evaluate(prediction.tempered(temperature).probs, labels)["nll"]
        for name, temperature in TEMPERATURES.items()
    }


def fitted_temperature(clients: Sequence[Mapping[str, Any]]) -> float | None:
    """Return the temperature T of the least mean NLL over the clients' examples; None without any.

    Near the best of the temperatures the NLL is interpolated by a parabola in log T, through it and
    its neighbours.

    Parameters
    ----------
    clients
        Scores by name, with ``num-examples``; those without `TEMPERATURES` do not count.
    """
    nll = _nll(clients)
    if nll is None:
        return None
    logs = [math.log(temperature) for temperature in TEMPERATURES.values()]
    best = min(range(len(nll)), key=nll.__getitem__)
    if best in (0, len(nll) - 1):
        return math.exp(logs[best])
    before, here, after = nll[best - 1 : best + 2]
    bend = before - 2 * here + after
    step = 0.5 * (before - after) / bend if bend > 0 else 0.0
    return math.exp(logs[best] + step * (logs[best + 1] - logs[best]))


def least_nll(clients: Sequence[Mapping[str, Any]]) -> float | None:
    """Return the mean NLL in nats at the best of the `TEMPERATURES`; None without any client."""
    nll = _nll(clients)
    return None if nll is None else min(nll)


def _nll(clients: Sequence[Mapping[str, Any]]) -> list[float] | None:
    """Return the mean NLL over the clients' examples at each temperature; None without any."""
    told = [client for client in clients if client.keys() >= TEMPERATURES.keys()]
    examples = sum(client["num-examples"] for client in told)
    if not examples:
        return None
    return [sum(c["num-examples"] * c[name] for c in told) / examples for name in TEMPERATURES]

"""Settings in the words of earlier versions, put into today's."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

WRITTEN_OUT = {"predictive": ("bootstrap", "montecarlo")}
"""What earlier versions wrote where today's say auto."""

_OF_CYCLES = ("cycles", "noisy_epochs", "rate_factor")
"""What samplers of clients' posteriors had before their rate was set by their data."""


def translated(values: Mapping[str, Any]) -> dict[str, Any]:
    """Return settings in today's words; those that are in them already are as they were.

    FedAG was a value of `rule`; its parameters had no names. The members' networks that predict
    were a bootstrap. Samplers had cycles, which a run that was written has all parameters of.
    """
    today = dict(values)
    if today.get("rule") == "FedAG":
        today |= {"method": "FedAG", "rule": "RKLB", "estimator": "sample"}
    if today.keys() >= set(_OF_CYCLES) and today.get("method") in ("SGHMC", "SGLD", "PredBayes"):
        today = {name: value for name, value in today.items() if name not in _OF_CYCLES}
    if today.get("predictive") == "bootstrap":
        today["predictive"] = "members"
    return today

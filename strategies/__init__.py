"""Flower strategies that aggregate Gaussian posteriors, one class per rule.

Every rule in `fedbary.aggregation.RULES` has its class here by its name; only that of FedAvg, a
name Flower has taken, is `strategy_for("FedAvg")`. `FedAG` makes a posterior of point weights.
"""

from fedbary.aggregation import RULES

from .admission import Refusal
from .charts import Chart, chart
from .conventions import CONVENTIONS, Convention
from .fedag import FedAG
from .methods import (
    AALV,
    EAA,
    FKLB,
    GAA,
    RKLB,
    WB,
    Median,
    MultiKrum,
    TrimmedMean,
    strategy_for,
)
from .optimisers import parameter_groups
from .records import aggregate_records, arrays_from_posterior, posterior_from_arrays
from .strategy import PosteriorStrategy

__all__ = [
    "AALV",
    "CONVENTIONS",
    "EAA",
    "FKLB",
    "FedAG",
    "Chart",
    "GAA",
    "RKLB",
    "WB",
    "Convention",
    "Median",
    "MultiKrum",
    "PosteriorStrategy",
    "Refusal",
    "TrimmedMean",
    "aggregate_records",
    "arrays_from_posterior",
    "chart",
    "parameter_groups",
    "posterior_from_arrays",
    "strategy_for",
]


def __getattr__(name: str) -> type[PosteriorStrategy]:
    if name in RULES and name != "FedAvg":
        return strategy_for(name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")

"""Flower strategies that aggregate Gaussian posteriors, one class per rule.

Every rule in `fedbary.aggregation.RULES` and every method in `fedbary.methods.METHODS` has a class
here by its name. The exception is FedAvg, a name that Flower uses: its class is
`strategy_for("FedAvg")`. Clients of a method answer by a `Client`.
"""

from fedbary.aggregation import RULES
from fedbary.methods import METHODS
from fedbary.settings.modes import Asynchronous

from .admission import Refusal
from .by_name import strategy_for
from .charts import Chart, chart
from .client import Client
from .compression import CompressedGrid, compression
from .conventions import CONVENTIONS, Convention
from .federation import Federation
from .fit_messages import FitMessages
from .method_strategy import MethodStrategy
from .optimisers import parameter_groups
from .pace import Arrivals
from .records import aggregate_records, arrays_from_posterior, posterior_from_arrays
from .strategy import PosteriorStrategy

__all__ = [
    "CONVENTIONS",
    "Asynchronous",
    "Arrivals",
    "Chart",
    "CompressedGrid",
    "Client",
    "Federation",
    "FitMessages",
    "Convention",
    "MethodStrategy",
    "PosteriorStrategy",
    "Refusal",
    "aggregate_records",
    "arrays_from_posterior",
    "chart",
    "compression",
    "parameter_groups",
    "posterior_from_arrays",
    "strategy_for",
]


def __getattr__(name: str) -> type[MethodStrategy]:
    if name in METHODS or (name in RULES and name != "FedAvg"):
        return strategy_for(name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted({*globals(), *METHODS, *RULES} - {"FedAvg"})

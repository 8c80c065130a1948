"""The sides that are measured on streams, and the settings that are tried for each."""

import itertools
import random
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

BUDGETS = {"digits": (32, 5), "fashion": (6, 2)}
"""The most settings that are tried of a side, and how many of these on more seeds, by the data."""

USUAL = 10, 3
"""Both on other data, where a run is dearer."""

COMMON: Mapping[str, Any] = {
    "pictures": False, "device": "cpu", "clients": 3, "partition": "iid", "model": "linear",
    "normalise": "none", "evaluate_clients": 0, "holdout": 0.0,
}  # fmt: skip

Lists = Mapping[str, Sequence[Any]]
_STEPS: Lists = {
    "lr": (0.005, 0.02, 0.05, 0.2), "local_epochs": (1, 3), "rounds": (1, 3, 10),
    "batch_size": (32,), "lr_schedule": ("constant",),
}  # fmt: skip
_GAUSSIAN: Lists = {
    **_STEPS, "bayesian_layers": (1,), "inference": ("variational", "natural_gradient"),
    "log_var_lr": (0.003, 0.03),
}  # fmt: skip


@dataclass(frozen=True)
class Side:
    """A way to go on from task to task.

    Attributes
    ----------
    lists : mapping
        The values that are tried of each setting.
    anew : bool
        True: each task's model is trained anew, on the data of all tasks so far.
    by_prior : bool
        True: from the second task on the earlier posterior is the prior.
    changes : tuple of str
        The changes that it can follow.
    knows_classes : bool
        True: the head has the rows of all tasks' classes from the first task on.
    """

    lists: Lists
    anew: bool = False
    by_prior: bool = False
    changes: Sequence[str] = ("pairs", "turns")
    knows_classes: bool = False

    def settings(self, name: str, most: int) -> Iterator[dict[str, Any]]:
        """Yield those that are tried, drawn by the side's name if there are more."""
        every = list(itertools.product(*self.lists.values()))
        if len(every) > most:
            every = random.Random(name).sample(every, most)
        for values in every:
            yield dict(zip(self.lists, values, strict=True))

    def own(self, settings: Mapping[str, Any], task: int) -> dict[str, Any]:
        """Return the settings of a task's run."""
        prior = {"prior": "earlier"} if self.by_prior else {}
        begun = {} if self.anew or not task else {"start_from": "the task before", **prior}
        return {**COMMON, **settings, **begun}


_FEDAVG: Lists = {
    "rule": ("FedAvg",), "bayesian_layers": (0,), **_STEPS, "weight_decay": (1e-5, 1e-3),
}  # fmt: skip
_OF_MODE: Lists = {
    "method": ("PVI",), "inference": ("laplace",), "kl_weight": (1,),
    "covariance": ("diagonal", "kronecker"), "prior_std": (0.3, 1, 3), "rounds": (1, 3, 10),
}  # fmt: skip
SIDES: Mapping[str, Side] = {
    "FedAvg, all data anew": Side(_FEDAVG, anew=True),
    "FedAvg": Side(_FEDAVG),
    "RKLB": Side({**_GAUSSIAN, "kl_weight": (0.001, 0.1, "share", 1)}),
    "RKLB, prior=earlier": Side(
        {**_GAUSSIAN, "kl_weight": (0.03, 0.1, "share", 1, 3, 10)}, by_prior=True
    ),
    "PVI": Side({"method": ("PVI",), **_GAUSSIAN, "kl_weight": (0.1, 0.3, 1)}),
    "FOLA": Side(
        {
            "method": ("FOLA",), **_STEPS, "strength": (0.1, 1, 10, 100, 1000, 10000),
            "prior_precision": (10, 100, 1000),
        }
    ),
    "LDA": Side({"method": ("LDA",), "rounds": (1,)}),
    "PVI, sites of a mode": Side(_OF_MODE),
    "PVI, sites of a mode, classes known": Side(_OF_MODE, changes=("pairs",), knows_classes=True),
}  # fmt: skip

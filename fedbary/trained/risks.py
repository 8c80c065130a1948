"""Risks of a survival run with their intervals, and its sites' survival by time at risk.

With log H(t|x) and its slopes g by the weights, whose covariance is V, the interval of the risk
1 − exp(−H) has the ends of log H ± z √(g V g). Over all sites, with d_j events in T_j time at risk
and t_j the time until t in interval j,

    S(t) = exp(−H),    H = Σ_j t_j d_j / T_j,    Var H = Σ_j d_j (t_j / T_j)²,

and its interval has the ends of log H ± z √Var H / H. It is Kaplan and Meier's curve as the
intervals grow short.

Reference: Breslow, Discussion of Professor Cox's paper, 1972.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np
import torch
from scipy.special import ndtri

from fedbary.data.examples import Examples
from fedbary.errors import SettingError
from fedbary.tasks._values import Facts
from fedbary.tasks.survival import Survival
from fedbary.trained.factors import basis, coefficients

if TYPE_CHECKING:
    from fedbary.trained.run import Trained


def risks(
    trained: Trained, examples: Examples, at: Sequence[float], level: float = 0.95
) -> dict[str, np.ndarray]:
    """Return the risk of an event until each time, with its interval, (N,) by name.

    Raises
    ------
    SettingError
        If the run has no common baseline, a time is not above 0, or its table of coefficients is
        refused.
    """
    task, facts, found = trained.task, trained.facts, dict[str, np.ndarray]()
    if not isinstance(task, Survival) or not task.predicts:
        allowed = "a run of task=survival family=hazard with a common baseline"
        raise SettingError("at", f"a run of task={trained.settings.task}", allowed)
    held = coefficients(trained, level, anyway=False).factors
    root = basis(held.contrasts)[0] @ held.root
    weights = trained.network.state_dict()["output.weight"][0].double()
    for time in at:
        if not 0 < time < np.inf:
            raise SettingError("at", time, "a time above 0")
        log_hazard, slopes = task.log_hazard(weights, task.taken(examples.x, facts), time, facts)
        wide = ndtri((1 + level) / 2) * np.linalg.norm(slopes.numpy() @ root, axis=1)
        for name, move in (("", 0.0), ("lower ", -wide), ("upper ", wide)):
            found[f"{name}risk at {time:g}"] = -np.expm1(-np.exp(log_hazard.numpy() + move))
    return found


def survival_of(facts: Facts, level: float = 0.95) -> dict[str, np.ndarray]:
    """Return the survival of all sites at the cuts, with its interval, (J − 1,) by name."""
    cuts, length = facts["cuts"], facts["cuts"].diff(prepend=torch.zeros(1).double())
    events, at_risk = facts["events"][:-1], facts["at_risk"][:-1]
    share = (length / at_risk.where(at_risk > 0, 1)).numpy()
    hazard = (share * events.numpy()).cumsum()
    std = np.sqrt((share**2 * events.numpy()).cumsum())
    long = (length > 0).numpy()
    wide = ndtri((1 + level) / 2) * std / np.where(hazard > 0, hazard, 1)
    ends = {"": 0.0, "lower ": wide, "upper ": -wide}
    curve = {f"{name}survival": np.exp(-hazard * np.exp(move)) for name, move in ends.items()}
    found = {"time": cuts.numpy(), "events": events.numpy(), "at risk": at_risk.numpy(), **curve}
    return {name: values[long] for name, values in found.items()}

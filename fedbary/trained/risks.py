"""Risks of a survival run with their intervals, its sites' curves, and what judges it.

With log H(t|x) and its slopes g by the weights, whose covariance is V, the interval of the risk
1 − exp(−H) has the ends of log H ± z √(g V g). Over all sites, with d_j events in T_j time at risk
and t_j the time until t in interval j,

    S(t) = exp(−H),    H = Σ_j t_j d_j / T_j,    Var H = Σ_j d_j (t_j / T_j)²,

and its interval has the ends of log H ± z √Var H / H. It is Kaplan and Meier's curve as the
intervals grow short.

Reference: Breslow, Discussion of Professor Cox's paper, 1972.
"""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np
import torch
from scipy.special import chdtrc, ndtri

from fedbary.data.examples import Examples
from fedbary.data.layout import Layout
from fedbary.errors import SettingError
from fedbary.figures.survival import Curve, survival_curves
from fedbary.scores.binary import Bins
from fedbary.scores.survival import calibration_of_sums
from fedbary.tasks.survival import WEIGHTS, Hazards, Survival
from fedbary.trained.factors import basis, coefficients

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from fedbary.trained.run import Trained


def risks(
    trained: Trained, examples: Examples, at: Sequence[float], level: float = 0.95
) -> dict[str, np.ndarray]:
    """Return the risk of an event until each time, with its interval, (N,) by name.

    Raises
    ------
    SettingError
        If the run predicts no risk, a time is not above 0, or its table of coefficients is
        refused.
    """
    task, facts, found = trained.task, trained.facts, dict[str, np.ndarray]()
    if not isinstance(task, Survival):
        raise SettingError("at", f"a run of task={trained.settings.task}", "task=survival")
    task.require_predicting()
    held = coefficients(trained, level, anyway=False).factors
    root = basis(held.contrasts)[0] @ held.root
    weights = trained.network.state_dict()[WEIGHTS][0].double()
    for time in at:
        if not 0 < time < np.inf:
            raise SettingError("at", time, "a time above 0")
        log_hazard, slopes = task.log_hazard(weights, task.taken(examples.x, facts), time, facts)
        wide = ndtri((1 + level) / 2) * np.linalg.norm(slopes.numpy() @ root, axis=1)
        for name, move in (("", 0.0), ("lower ", -wide), ("upper ", wide)):
            found[f"{name}risk at {time:g}"] = -np.expm1(-np.exp(log_hazard.numpy() + move))
    return found


ALL = "all"
"""The group of all rows."""


def survival_of(trained: Trained, level: float = 0.95) -> dict[str, np.ndarray]:
    """Return the survival of all sites until each cut, of all rows and of each level, (K,) by name.

    It has ``group``, ``time``, ``rows at risk`` at the cut before, ``events`` and ``time at risk``
    since then, ``survival``, and its ends ``lower survival`` and ``upper survival``. It ends where
    no site tells a group's rows. It is empty if no site told its times.
    """
    told, task, layout = trained.told, trained.task, trained.signature
    assert isinstance(task, Survival) and isinstance(layout, Layout)
    if "curves" in told:
        cuts, groups = told["cuts"], [ALL, *task.levels(layout)]
        sums = told["curves"][:, :, :-1].numpy()
    elif "cuts" in trained.facts:
        long = trained.facts["cuts"].diff(prepend=torch.zeros(1).double()) > 0
        cuts, groups = trained.facts["cuts"][long], [ALL]
        held = [trained.facts[name][:-1][long].numpy() for name in ("events", "at_risk")]
        sums = np.stack([np.full_like(held[0], np.nan), *held])[None]
    else:
        return {}
    length = cuts.diff(prepend=cuts.new_zeros(1)).numpy()
    tables = []
    for group, (rows, events, time) in zip(groups, sums, strict=True):
        known = np.minimum.accumulate(time > 0)
        share = length[known] / time[known]
        hazard = (share * events[known]).cumsum()
        std = np.sqrt((share**2 * events[known]).cumsum())
        wide = ndtri((1 + level) / 2) * std / np.where(hazard > 0, hazard, 1)
        ends = {"": 0.0, "lower ": wide, "upper ": -wide}
        tables.append(
            {
                "group": np.full(known.sum(), group, dtype=object),
                "time": cuts.numpy()[known],
                "rows at risk": rows[known],
                "events": events[known],
                "time at risk": time[known],
                **{f"{name}survival": np.exp(-hazard * np.exp(m)) for name, m in ends.items()},
            }
        )
    return {name: np.concatenate([table[name] for table in tables]) for name in tables[0]}


def picture(trained: Trained, level: float = 0.95) -> Figure | None:
    """Draw `survival_of`: all rows, and a panel for each column of levels; None without curves."""
    task, layout, table = trained.task, trained.signature, survival_of(trained, level)
    assert isinstance(task, Survival) and isinstance(layout, Layout)
    if not table or not len(table["time"]):
        return None
    names = "time", "rows at risk", "survival", "lower survival", "upper survival"
    curves = {
        group: Curve(*(table[name][table["group"] == group] for name in names))
        for group in dict.fromkeys(table["group"])
    }
    panels = {"All rows": {ALL: curves[ALL]}}
    for column, statistic, degrees in task.log_ranks(layout, trained.facts):
        held = {n: c for n, c in curves.items() if n.startswith(f"{column}=") and len(c.time)}
        if held:
            p = f"{chdtrc(degrees, statistic):.2g}"
            panels[f"{column}: log-rank test within sites, p = {p}"] = held
    return survival_curves(panels, task.own.target)


def calibration(trained: Trained) -> Bins | None:
    """Return the sites' own calibration of the run's risk, at rows that were trained on."""
    cells = trained.told.get("cells")
    return None if cells is None else calibration_of_sums(cells.numpy())


def hazards(trained: Trained, examples: Examples, at: float | None = None) -> Hazards:
    """Return predicted hazards of rows whose times and events are known.

    Parameters
    ----------
    trained, examples
        A run of survival, and rows with targets (N, 2).
    at
        The time of the predicted risk; by default the run's.

    Raises
    ------
    SettingError
        If a time is not above 0, an event is neither 0 nor 1, or the run predicts no risk.
    """
    task, facts = trained.task, trained.facts
    assert isinstance(task, Survival) and examples.y is not None
    time, event = examples.y.unbind(1)
    if not ((time > 0) & time.isfinite()).all():
        raise SettingError(task.own.target, float(time.min()), "times above 0")
    if not ((event == 0) | (event == 1)).all():
        raise SettingError(task.own.event, "another number", "1 for an event, else 0")
    if at is not None:
        task.require_predicting()
        if not 0 < at < np.inf:
            raise SettingError("at", at, "a time above 0")
    weights = trained.network.state_dict()[WEIGHTS][0].double()
    found = task.hazards(weights, task.taken(examples.x, facts), facts, at)
    if found.at > float(time.max()):
        warnings.warn(f"no row is observed until {found.at:g}: no risk to compare", stacklevel=2)
    return found

"""Scores of federated methods and of those that see all data, by split; means with errors."""

from __future__ import annotations

import math
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pandas as pd

from fedbary.report.results import REPEATS
from fedbary.settings.config import bookkeeping
from fedbary.study.table import settings_of

CENTRAL = "central.csv"
"""Scores of methods that see all data at once, beside the runs."""

SCORES = ("nll", "rmse", "sharpness", "crps")
COVERAGE = ("coverage_50", "coverage_90", "coverage_95")
POINT = ["dataset", "split", "method", "settings"]

LARGE = 1e6
"""Means from this size are written with an exponent."""


@dataclass(frozen=True)
class Estimate:
    """A mean over splits with its standard error; NaN if there is none."""

    mean: float
    error: float

    @classmethod
    def of(cls, values: pd.Series) -> Estimate:
        """Estimate from a value of each split."""
        count = len(values)
        if not count or not np.isfinite(values).all():
            return cls(math.nan, math.nan)
        return cls(float(values.mean()), float(values.std(ddof=1)) / math.sqrt(count))

    def __str__(self) -> str:
        if math.isnan(self.mean):
            return "–"
        if abs(self.mean) >= LARGE:
            text = f"{self.mean:.1e}"
            return text if math.isnan(self.error) else f"{text} ± {self.error:.1e}"
        places = max(2, 2 - math.floor(math.log10(abs(self.mean) or 1)))
        text = f"{self.mean:.{places}f}"
        return text if math.isnan(self.error) else f"{text} ± {self.error:.{places}f}"


def scores_by_method(last: pd.DataFrame, folder: Path) -> pd.DataFrame:
    """Return the scores by data set, split, method and settings, seeds of one split averaged.

    `last` has a row a run; methods that see all data come from the folder's table of them.
    """
    linear = last["model"].map({"linear": ", linear"}).fillna("")
    last = last.assign(method=last["rule"] + linear, settings=_differences(last))
    columns = [*SCORES, *COVERAGE]
    bare = last.reindex(columns=[f"without_noise.{name}" for name in columns])
    bare = last[POINT].join(bare.set_axis(columns, axis=1)).dropna(subset=["nll"])
    found = [last[[*POINT, *columns]], bare.assign(method=bare["method"] + ", without noise")]
    if (folder / CENTRAL).exists():
        central = pd.read_csv(folder / CENTRAL).assign(settings="")
        found.append(central.loc[central["dataset"].isin(last["dataset"]), [*POINT, *columns]])
    return pd.concat(found).groupby(POINT, sort=False, as_index=False).mean()


def _differences(last: pd.DataFrame) -> pd.Series:
    """Return, as texts, the settings but the split that differ between a method's runs."""
    keys = [key for key in settings_of(last) if key not in {*bookkeeping(), *REPEATS}]
    texts = pd.Series("", index=last.index)
    for _, held in last.groupby(["dataset", "rule", "model"]):
        for key in (key for key in keys if held[key].nunique() > 1):
            texts[held.index] += [
                f"{key}={value} " if value == value else "" for value in held[key]
            ]
    return texts.str.strip().str.replace(" ", ", ")

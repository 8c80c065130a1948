"""The scores of regressions by data set, split, method and settings."""

from __future__ import annotations

import pandas as pd

from fedbary.report.results import REPEATS
from fedbary.settings.config import BOOKKEEPING
from fedbary.study.table import settings_of

SCORES = {"nll": "Table 2: NLL", "rmse": "Table 3: RMSE", "sharpness": "Table 4: sharpness"}

MORE = ("crps", "coverage_50", "coverage_90", "coverage_95")


def _method(row: pd.Series) -> str:
    kind = ", linear" if row["model"] == "linear" else ""
    return f"{row['rule']}{kind}"


def differences(last: pd.DataFrame) -> pd.Series:
    """Return, as texts, in which settings runs of a method on a data set differ but the split."""
    keys = [key for key in settings_of(last) if key not in {*BOOKKEEPING, *REPEATS}]
    texts = pd.Series("", index=last.index)
    for _, held in last.groupby(["dataset", "rule", "model"]):
        for key in (key for key in keys if held[key].nunique() > 1):
            texts[held.index] += [
                f"{key}={value} " if value == value else "" for value in held[key]
            ]
    return texts.str.strip().str.replace(" ", ", ")


def scores_by_method(last: pd.DataFrame) -> pd.DataFrame:
    """Return the scores by data set, split and method; of FedAG's networks with and without noise.

    The linear model has a noise in the paper too. Seeds of one split are averaged.
    """
    last = last.assign(method=last.apply(_method, axis=1))
    columns = [*SCORES, *MORE]
    point = ["dataset", "split", "method", "settings"]
    both = (last["method"] == "FedAG") & (last["noise_var"] > 0)
    without = last.reindex(columns=[f"without_noise.{name}" for name in columns])
    bare = last.loc[both, point].join(without.set_axis(columns, axis=1))
    noisy = last.loc[both, [*point, *columns]].assign(method="FedAG + noise")
    scores = pd.concat([last.loc[~both, [*point, *columns]], bare, noisy])
    return scores.groupby(point, sort=False, as_index=False).mean()

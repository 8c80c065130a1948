"""Settings and versions of every run of a report."""

from __future__ import annotations

import numpy as np
import pandas as pd

from fedbary.report.document import Document
from fedbary.report.markup import code
from fedbary.report.results import plain
from fedbary.runs.duration import duration
from fedbary.study.grid import NAMING
from fedbary.study.table import settings_of

PARTLY = " (not recorded by some runs)"


def add_runs(document: Document, last: pd.DataFrame) -> None:
    """Add every run's settings and versions."""
    document.heading("Settings, versions, runs")
    settings = settings_of(last).assign(
        **{c: last[c] for c in last if c.startswith("versions.") or c == "device"}
    )
    known = {key: settings[key].replace("", np.nan).dropna() for key in settings}
    same = {key: values for key, values in known.items() if values.nunique() == 1}
    rows = [
        [code(key), plain(values.iloc[0]) + (PARTLY if len(values) < len(settings) else "")]
        for key, values in same.items()
    ]
    document.table(["setting or version", "in every run"], rows, "Common to all runs")
    other = [key for key in settings if key not in same and key not in NAMING]
    if "keep_best" in last and (last["keep_best"].fillna("none") != "none").any():
        other.append("round")
    body = [
        [code(row["run"]), *(plain(row[key]) for key in (*other, "commit", "started")),
         duration(row["duration"])]
        for row in last.to_dict("records")
    ]  # fmt: skip
    header = ["run", *(code(key) for key in other), "commit", "started", "took"]
    document.table(header, body, f"All {len(body)} runs")

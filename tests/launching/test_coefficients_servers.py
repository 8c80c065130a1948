"""Coefficients of three sites' own tables on real servers have the bits of one process."""

import sys

import forked
import pandas as pd
import statsmodels.api as sm
from every_method import night
from processes import MARK

from findings.statistics.servers import measure


@night
def test_real_servers_find_what_one_process_finds(tmp_path, monkeypatch):
    """By day the page of results has it of three tables."""
    monkeypatch.setattr(sys, "executable", f"{forked.tools()}/python")
    monkeypatch.setenv(MARK, str(tmp_path))
    table: pd.DataFrame = sm.datasets.fair.load_pandas().data[:900]
    assert measure("fair", "binomial", table.assign(y=table.pop("affairs") > 0))["same"]

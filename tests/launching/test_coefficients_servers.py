"""Coefficients of three sites' own tables on real servers have the bits of one process."""

import sys

import forked
import numpy as np
import pytest
import statsmodels.api as sm
from every_method import night
from processes import MARK

from findings.statistics.measure import words_of
from findings.statistics.servers import SITES, measure


@night
@pytest.mark.parametrize("masked", [False, True])
def test_real_servers_find_what_one_process_finds(masked, tmp_path, monkeypatch):
    """By day the page of results has it of six tables, and with masks of one."""
    monkeypatch.setattr(sys, "executable", f"{forked.tools()}/python")
    monkeypatch.setenv(MARK, str(tmp_path))
    table = sm.datasets.fair.load_pandas().data[:900]
    words = {**words_of("binomial"), **({"method": "Newton"} if masked else {})}
    table, site = table.assign(y=table.pop("affairs") > 0), np.arange(len(table)) % SITES
    found = measure("fair", table, site, words, masked)
    assert found["apart"] < 1e-6 and (found["masked"] if masked else found["same"])

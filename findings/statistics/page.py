"""Coefficients of federations: the tables of docs/results/statistics.md."""

import json
from collections.abc import Iterator
from pathlib import Path

import pandas as pd
from scipy import stats

from findings import maker
from findings.statistics.coverage import LEVEL, SLOPES, SLOPES_ALONE
from findings.statistics.mixed import ABOUT

FAMILIES = {"binomial": "logistic", "poisson": "Poisson", "multinomial": "7 classes", "cox": "Cox"}
RATES = {
    "once": "one round",
    "pooled": "pooled",
    "random": "Hartung-Knapp",
    "warned": "a line warns",
    "taken": "the interval to take",
}
MIXED = ["median of τ found", *(f"slope of {slope:g}" for slope in SLOPES)]
MIXED += ["intercept, by a normal", "intercept, by t"]


def tables(results: Path) -> Iterator[str]:
    """Yield the errors by data, split and round, the coverage, and the runs on servers."""
    cells, found = pd.read_json(results / "cells.jsonl", lines=True), {}
    for (name, split), own in maker.by(cells, "data", "split").items():
        by = own.set_index("rounds")
        last = by.loc[20]
        label = f"{name}, {FAMILIES[last['family']]}, {last['rows']:,} rows"
        errors = [f"{by.loc[k, 'error']:.0e}" for k in (1, 2, 3, 20)]
        steps = "–" if pd.isna(last["newton"]) else f"{last['newton']:.0f}"
        found[label, f"{last['sites']} {split}"] = [
            *errors,
            f"{last['std_error']:.0e}",
            f"{last['taken']:.0f}",
            steps,
            f"{last['seconds']:.1f}",
        ]
    heads = ["round 1", "round 2", "round 3", "last", "its std", "rounds", "by sums", "s"]
    yield maker.cells(("data", "sites"), heads, found)
    kinds = pd.read_json(results / "coverage.jsonl", lines=True)
    rates = {
        (row["sites"], row["differ"]): [f"{row[key]:.1f} %" for key in RATES]
        for _, row in kinds.iterrows()
    }
    yield maker.cells(("sites", "coefficients"), [*RATES.values()], rates)
    mixed = pd.read_csv(results / "mixed.csv.xz")
    yield maker.cells(
        ("sites' intercepts",), MIXED, dict(map(_mixed, maker.by(mixed, "tau").items()))
    )
    ways = pd.read_json(results / "missing.jsonl", lines=True)
    yield maker.cells(
        ("missing cells",),
        ["their column", "its neighbour"],
        {
            f"`{row['way']}`": [f"{row[key]:.1f} %" for key in ("column", "neighbour")]
            for _, row in ways.iterrows()
        },
    )
    runs, found = pd.read_json(results / "servers.jsonl", lines=True), {}
    for _, row in runs.iterrows():
        seconds = [f"{row[key]:.0f}" for key in ("process", "servers")]
        sizes = [f"{row[key] / 1000:.1f}" for key in ("up", "down")]
        same = "yes" if row["same"] else f"{row['apart']:.0e} std"
        found[f"{row['data']}, {row['rows']:,} rows"] = [
            f"{row['rounds']}", same, *seconds, f"{row['each_round']:.1f}", *sizes
        ]  # fmt: skip
    heads = ["rounds", "same bits", "one process, s", "servers, s", "each round, s"]
    yield maker.cells(("three servers",), [*heads, "up, KB a site", "down, KB a site"], found)
    rows = pd.read_json(results / "prior.jsonl", lines=True)
    far = {
        (row["data"], row["sites"]): [
            f"{row['rounds']}",
            *(f"{row[key]:.2e}" for key in ("run", "place", "apart")),
        ]
        for _, row in rows.iterrows()
    }
    heads = ["rounds", "run, statsmodels", "one place, statsmodels", "run, one place"]
    yield maker.cells(("data", "sites"), heads, far)


def _mixed(group: tuple[float, pd.DataFrame]) -> tuple[str, list[str]]:
    """Return the name and the cells of the mixed model's row of a true τ."""
    tau, rows = group
    name = f"drawn, τ = {tau:g}" if tau else "alike, τ = 0"
    truth = dict(zip(SLOPES_ALONE.terms, SLOPES, strict=True)) | {"intercept": LEVEL}
    z = {term: ((rows[term] - at) / rows[f"{term} std"]).abs() for term, at in truth.items()}
    normal, of_sites = stats.norm.ppf(0.975), stats.t(ABOUT[0] - 1).ppf(0.975)
    held = [each < normal for each in z.values()] + [z["intercept"] < of_sites]
    return name, [f"{rows['found tau'].median():.2f}", *(f"{100 * h.mean():.1f} %" for h in held)]


def facts(results: Path) -> Iterator[float]:
    """Yield the slope, the standard deviation of a rate of 95 % in points, and other figures.

    Before the last two, the share of intervals of sites' own estimates at a rare level: coverage.py
    of 2f5069af. The last are of the intercept of three sites, by a normal and by t.
    """
    missing = pd.read_json(results / "missing.jsonl", lines=True)
    yield from (0.6, 100 * (0.95 * 0.05 / 1000) ** 0.5, missing["share"].iloc[0], 71.9)
    few = json.loads((results / "few_sites.json").read_text())
    yield from (few["normal"], few["t"])

"""Equal numbers of settings a side: a part of docs/results/when-it-pays.md."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pandas as pd

from fedbary.report.cells import ACCURACY, Metric
from fedbary.report.markup import markdown_table
from fedbary.settings.config import read_yaml
from findings._pairs import of_pair, tests_table
from findings.arms.page import AT_T, BOUND, ECE, TEMPERATURE
from findings.budgets.measure import best, name_of, settings_in
from findings.budgets.sides import LOG_VARS, RANGES

NEAR = 0.1
"""The part of a range, by logarithm, that counts as its end."""

PLAIN = Metric("plain_nll", "NLL at T = 1")

NO_SETTING = ("rule", "method", "bayesian_layers")


def samples(results: Path) -> dict[str, str]:
    """Return the sample of each setting, which is named by its key."""
    held = read_yaml(results / "plan.yaml")
    return {
        json.dumps(own): block["sample"] for block in held["grid"] for own in settings_in(block)
    }


def read(results: Path) -> pd.DataFrame:
    """Return the rows of the fresh seeds, by sample."""
    table = pd.read_csv(results / "scores.csv.xz")
    return table.assign(side=table["side"].map(samples(results)))


def chosen(results: Path) -> dict[str, str]:
    """Return the sample with the best setting of each method or rule on validation data."""
    choice, by = pd.read_csv(results / "choice.csv.xz"), samples(results)
    ranked = best(choice, map(json.loads, by))[::-1]
    return {name_of(own): by[json.dumps(own)] for own in ranked}


def tables(results: Path) -> str:
    """Return what each side found, the fresh seeds' scores, and the tests."""
    rows = read(results)
    return "\n\n".join([_found(results), _scores(rows), _tests(rows, chosen(results))])


def at_ends(own: dict[str, Any]) -> list[str]:
    """Return the settings that lie at an end of what was tried; below little dropout there is 0."""
    low, high = LOG_VARS
    places = {"init_log_var": (own.get("init_log_var", -7.0) - low) / (high - low)}
    for name, (low, high) in RANGES.items():
        if isinstance(value := own.get(name), float) and value:
            places[name] = math.log(value / low) / math.log(high / low)
    ends = {name: "low" if at < NEAR else "high" for name, at in places.items()}
    inside = {name for name, at in places.items() if NEAR <= at <= 1 - NEAR}
    if ends.get("dropout") == "low":
        inside.add("dropout")
    return [f"`{name}` {end}" for name, end in ends.items() if name not in inside]


def _found(results: Path) -> str:
    first, choice = (pd.read_csv(results / f"{name}.csv.xz") for name in ("first", "choice"))
    early, late, body = first.set_index("side")["nll"], choice.groupby("side")["nll"].mean(), []
    held = read_yaml(results / "plan.yaml")
    numbers = (8, 16, 32, 64)
    for block in held["grid"]:
        settings = settings_in(block)
        keys = [json.dumps(own) for own in settings]
        ran = keys[0] in early.index
        least = [
            f"{early[keys[:number]].min():.3f}" if ran and number <= len(keys) else "–"
            for number in numbers
        ]
        own = best(choice, settings)[0]
        told = ", ".join(f"`{key}={own[key]}`" for key in own if key not in NO_SETTING)
        nll = f"{late[json.dumps(own)]:.3f}"
        body.append([block["sample"], *least, nll, told, ", ".join(at_ends(own)) or "–"])
    after = f"after {held['first']['rounds']} rounds"
    head = ["side", *(f"{number} tried, {after}" for number in numbers), "the best, all rounds"]
    return markdown_table([*head, "its setting", "at an end"], body)


def _scores(rows: pd.DataFrame) -> str:
    shown = (AT_T, ACCURACY, ECE, TEMPERATURE, PLAIN)
    body = [
        [str(side), *(metric.show(own[metric.column]) for metric in shown)]
        for side, own in rows.groupby("side", sort=False)
    ]
    return markdown_table(["fresh seeds", *(metric.label for metric in shown)], body)


def _tests(rows: pd.DataFrame, of: Mapping[str, str]) -> str:
    names = (("RKLB", "FedAvg"), ("RKLB", "SCAFFOLD"), ("FedAvg", "SCAFFOLD"))
    pairs = [
        (of[one], of[other]) for one, other in names if {of[one], of[other]} <= {*rows["side"]}
    ]
    found = []
    for metric in (AT_T, PLAIN):
        named = {f"{one} − {other}": of_pair(rows, (one, other), metric) for one, other in pairs}
        found.append(tests_table("best of each", metric, named, BOUND))
    return "\n\n".join(found)

"""Noise in training, draws in prediction, variances by factors: parts of when-it-pays.md."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path

import pandas as pd

from fedbary.report.cells import ACCURACY, Metric
from fedbary.report.markup import markdown_table
from findings._pairs import of_pair, tests_table

AT_T = Metric("nll", "NLL at T")
ECE = Metric("ece", "ECE %, 15 bins", 100, 2)
TEMPERATURE = Metric("temperature", "T", decimals=2)
BOUND = 0.01
"""Nats of NLL within which two sides count as equal; named before the runs."""

RKLB, SWAPPED = "RKLB", "WB last"


def read(results: Path) -> pd.DataFrame:
    """Return every row, with the posterior's KL weight."""
    table = pd.read_csv(results / "scores.csv.xz")
    table["kl_weight"] = [str(json.loads(side)["kl_weight"]) for side in table["side"]]
    return table


def arms(rows: pd.DataFrame) -> pd.DataFrame:
    """Return the rows of the four arms, with a column `side`."""
    here = rows[(rows["rule"] == RKLB) & rows["factor"].isin([0.0, 1.0])]
    noise = here["noise"].map({True: "noise", False: "no noise"})
    return here.assign(side=noise + ", " + here["factor"].map({0.0: "mean", 1.0: "draws"}))


def factors(rows: pd.DataFrame) -> pd.DataFrame:
    """Return the rows of posteriors by rule and factor, with a column `side`."""
    here = rows[rows["noise"]]
    return here.assign(side=here["rule"] + " × " + here["factor"].map("{:g}".format))


def tables(results: Path) -> str:
    """Return scores and tests of the arms, then of the factors, by KL weight."""
    rows, found = read(results), []
    for kl in rows["kl_weight"].unique():
        own = rows[rows["kl_weight"] == kl]
        found += [_arms(arms(own), kl), _factors(factors(own), kl)]
    tests = [
        (kl, *pair)
        for kl in rows["kl_weight"].unique()
        for pair in (
            ("noise, draws", "no noise, mean"),
            ("noise, mean", "no noise, mean"),
            ("noise, draws", "noise, mean"),
            ("no noise, draws", "no noise, mean"),
            *(("RKLB × 1", other) for other in ("WB × 1", "WB last × 1")),
            (f"RKLB × {best(own_of(rows, kl), RKLB):g}", f"WB × {best(own_of(rows, kl), 'WB'):g}"),
        )
    ]
    return "\n\n".join([*found, _tests(rows, tests)])


def own_of(rows: pd.DataFrame, kl: str) -> pd.DataFrame:
    """Return the rows of a KL weight."""
    return rows[rows["kl_weight"] == kl]


def best(rows: pd.DataFrame, rule: str) -> float:
    """Return the factor of the least mean NLL at T of a rule's posteriors."""
    of_rule = rows[rows["noise"] & (rows["rule"] == rule)]
    return float(of_rule.groupby("factor")["nll"].mean().idxmin())


def _arms(rows: pd.DataFrame, kl: str) -> str:
    body = [
        [side, *(m.show(own[m.column]) for m in (AT_T, ACCURACY, ECE, TEMPERATURE))]
        for side, own in rows.groupby("side", sort=False)
    ]
    head = [f"arm, `kl_weight={kl}`", AT_T.label, ACCURACY.label, ECE.label, TEMPERATURE.label]
    return markdown_table(head, body)


def _factors(rows: pd.DataFrame, kl: str) -> str:
    body = []
    for factor in sorted(rows["factor"].unique()):
        cells = []
        for rule in (RKLB, "WB", SWAPPED):
            own = rows[(rows["rule"] == rule) & (rows["factor"] == factor)]
            cells.append(AT_T.show(own["nll"]) if len(own) else "–")
        body.append([f"{factor:g}", *cells])
    head = [f"variances ×, `kl_weight={kl}`", "RKLB", "WB", "WB of RKLB's last round"]
    return markdown_table(head, body)


def _tests(rows: pd.DataFrame, tests: Sequence[tuple[str, str, str]]) -> str:
    named = {}
    for kl, *pair in tests:
        own = own_of(rows, kl)
        both = pd.concat([arms(own), factors(own)])
        named[f"`{kl}`: {pair[0]} − {pair[1]}"] = of_pair(both, (pair[0], pair[1]), AT_T)
    return tests_table("pair", AT_T, named, BOUND)

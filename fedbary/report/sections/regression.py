"""Sections on regressions: FedAG's Tables 2-4 and Fig. 3, and calibration."""

from __future__ import annotations

import math

import pandas as pd

from fedbary.aggregation import RULES
from fedbary.figures.rounds import rounds_by_rule
from fedbary.report.cells import NLL, Metric
from fedbary.report.document import Document
from fedbary.report.estimate import Estimate
from fedbary.report.methods import add_methods
from fedbary.report.published import DATASETS, fedag_published
from fedbary.report.results import Results, scored_after, scored_on
from fedbary.report.runs import add_runs
from fedbary.report.sections._regression_scores import (
    SCORES,
    differences,
    scores_by_method,
)
from fedbary.report.sections._regression_tables import (
    METHODS,
    by_method,
    by_settings,
    calibration,
    strongest,
)
from fedbary.study.central import TABLE as CENTRAL
from fedbary.study.grid import NAMING

RMSE = Metric("rmse", "RMSE", decimals=2)
RANKED = (NLL, RMSE, Metric("crps", "CRPS", decimals=2))

REQUIRED = (*NAMING, *SCORES, "evaluate_on", "split")

TESTS = {
    "test": "the rows that a split keeps for the test",
    "validation": "training rows that were kept from all clients (validation)",
}

EXPLODED = 1000
"""How many times the median over the splits a sharpness is that has exploded."""

CLOSE = 0.1
"""How near to Bayesian linear regression the paper finds the linear FedAG, in nats."""


def write(results: Results, document: Document) -> None:
    """Add the sections to a document, from the tables of runs and of central methods."""
    last = results.last.sort_index()
    last["settings"] = differences(last)
    scores = scores_by_method(last)
    if (results.folder / CENTRAL).exists():
        central = pd.read_csv(results.folder / CENTRAL).assign(settings="")
        scores = pd.concat([scores, central], ignore_index=True)
    _add_introduction(document, last)
    if not set(last["rule"]) <= {"FedAG", *RULES}:
        add_methods(results, document, RANKED, (NLL, RMSE))
        _add_calibration(document, scores)
    elif (last["settings"] == "").all():
        _add_comparison(document, scores, results.table)
    else:
        document.heading("By settings")
        document.text("Mean ± standard error; bold is the lowest mean NLL of a data set.")
        document.table(*by_settings(scores))
    add_runs(document, last)


def _add_introduction(document: Document, last: pd.DataFrame) -> None:
    clients = ", ".join(map(str, sorted(last["clients"].unique())))
    document.text(
        """{runs} runs of {clients} clients. All numbers are of {scored}, {after}, in the target's
        own units, over the splits.""",
        runs=len(last),
        clients=clients,
        scored=scored_on(last, TESTS),
        after=scored_after(last),
    )


def _add_comparison(document: Document, scores: pd.DataFrame, table: pd.DataFrame) -> None:
    """Add the tables and the figure that show a method of one kind of settings in a column."""
    document.text(
        """Mean ± standard error, and below it in italics what the paper prints. **BLR**, **VI** and
        **DE**, Bayesian linear regression, mean-field variational inference and deep ensembles of
        five networks, see all data at once. **FedAG** predicts without a noise term, as in the
        paper, and **+ noise** with one that the clients estimate together. Bold is the best mean of
        a data set."""
    )
    for metric, title in SCORES.items():
        document.heading(title)
        document.table(*by_method(scores, metric))
    for line in _exploded(scores):
        document.text("{line}", line=line)
    document.heading("Do they hold?")
    for line in _verdicts(scores):
        document.text("{line}", line=line)
    if "DE" in set(scores["method"]):
        document.heading("The strongest federated method beside deep ensembles")
        document.text(
            """For each set the federated method of the lowest mean NLL beside deep
            ensembles, which see all data at once; the difference is that of the two on each
            split. The strongest is picked by the very numbers shown, which favours it a
            little."""
        )
        document.table(*strongest(scores))
    _add_calibration(document, scores)
    document.heading("Round by round")
    caption = """NLL and RMSE of the networks by round (Fig. 3): mean and standard error;
        FedAG's with its noise term, where the runs have one."""
    document.figure("rounds", rounds_by_rule(table, DATASETS), caption)


def _add_calibration(document: Document, scores: pd.DataFrame) -> None:
    document.heading("CRPS, and how many targets lie in the 50, 90 and 95 % intervals")
    document.text("CRPS is mean ± standard error over the splits.")
    document.table(*calibration(scores))


def _exploded(scores: pd.DataFrame) -> list[str]:
    """Say where a mean sharpness is that of a few splits, and what it is on the others."""
    lines = []
    for (dataset, method), held in scores.groupby(["dataset", "method"], sort=False):
        sharpness = held["sharpness"].dropna()
        usual = sharpness[sharpness < EXPLODED * sharpness.median()]
        if 0 < len(usual) < len(sharpness):
            name = DATASETS.get(str(dataset), str(dataset))
            lines.append(
                f"""{method} on {name}: the mean sharpness, and the CRPS, are those of
                {len(sharpness) - len(usual)} of {len(sharpness)} splits, in which the predicted
                variance of some test rows explodes; on the others the sharpness is
                {Estimate.of(usual)}."""
            )
    return lines


def _verdicts(scores: pd.DataFrame) -> list[str]:
    """Say where the linear FedAG is close to BLR, and where FedAG is as good as printed."""
    means = scores.groupby(["dataset", "method"], sort=False)["nll"].mean().unstack()
    lines = []
    if {"BLR", "FedAG, linear"} <= set(means):
        gaps = (means["FedAG, linear"] - means["BLR"]).dropna()
        close = int((gaps <= CLOSE).sum())
        lines.append(
            f"""The NLL of linear FedAG is within {CLOSE} of Bayesian linear regression, or better,
            on {close} of {len(gaps)} sets: {_listed(gaps)}."""
        )
    for metric in ("nll", "rmse"):
        for method in ("FedAG", "FedAG + noise"):
            missed = {}
            compared = 0
            for dataset, held in scores[scores["method"] == method].groupby("dataset", sort=False):
                ours = Estimate.of(held[metric])
                printed, error = fedag_published(str(dataset), METHODS["FedAG"], metric)
                if math.isnan(printed):
                    continue
                compared += 1
                if not ours.mean <= printed + 2 * error:
                    missed[str(dataset)] = ours.mean - printed
            if compared:
                rest = f"; not on {_listed(pd.Series(missed))}" if missed else ""
                lines.append(
                    f"""{method}: the {metric.upper()} is the paper's within two of its standard
                    errors, or better, on {compared - len(missed)} of {compared} sets{rest}."""
                )
    return lines


def _listed(gaps: pd.Series) -> str:
    return ", ".join(f"{DATASETS.get(str(name), name)} ({gap:+.3g})" for name, gap in gaps.items())

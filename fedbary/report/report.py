"""The report of an experiment from its table alone: the papers' tables and figures, and more."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from fedbary.aggregation import RULES
from fedbary.errors import SettingError
from fedbary.figures.comparison import lines_by_group, rejection_curves
from fedbary.figures.run import partition_heatmap
from fedbary.figures.toy import toy_barycentres
from fedbary.figures.triangles import triangles
from fedbary.report.cells import (
    ACCURACY,
    DETECTION,
    ECE_15,
    FAIRNESS,
    MAIN,
    NLL,
    OF_TABLES,
    REJECTED,
    UNCERTAINTY,
    Metric,
    marked,
)
from fedbary.report.comparison import (
    TOGETHER,
    Comparison,
    compare,
    enough_draws,
    of_draws,
    pairs_table,
)
from fedbary.report.document import Document
from fedbary.report.markup import Markup, code, italic, listed
from fedbary.report.published import published
from fedbary.settings.config import BOOKKEEPING, Settings
from fedbary.study.grid import NAMING, differing
from fedbary.study.provenance import add_runs, plain
from fedbary.study.table import TABLE, read_about, read_table, settings_of, with_methods

DATASETS = {
    "fashionmnist": "Fashion-MNIST",
    "cifar10": "CIFAR-10",
    "svhn": "SVHN",
    "digits": "Digits",
    "breast_cancer": "Breast cancer",
}
"""How data sets are written; another is written as it is named."""

REQUIRED = (*NAMING, *(metric.column for metric in MAIN), "seconds", "evaluate_on", "ood_dataset")
"""The columns without which there is nothing to tell."""

DECIDED = 0.95
"""The probability above which the test is taken to have decided."""

ENOUGH = 6
"""Points from which on it can: with fewer, the ROPE being a quartile, no data give more."""


def write_report(results: Path) -> Path:
    """Write `report.html`, `report.md` and `figures/` from a results folder's table.

    Returns
    -------
    Path
        The HTML page.

    Raises
    ------
    SettingError
        If there is no table of this version, or no run in it.
    """
    table = read_table(results)
    if "task" in table and (table["task"] == "regression").all():
        from fedbary.report.regression_report import write_regression_report

        return write_regression_report(table, results)
    for column in REQUIRED:
        if column not in table:
            allowed = f"a table with a column {column}, as this version of fedbary writes it"
            raise SettingError("results", str(results / TABLE), allowed)
    if table.empty:
        raise SettingError("results", str(results), "a folder whose table holds a finished run")
    Report(table, results).write()
    return results / "report.html"


class Report:
    """Sections of a report; each takes what it shows from the table's last rounds.

    Parameters
    ----------
    table
        As `read_table` returns it.
    folder
        Where the report goes.
    """

    def __init__(self, table: pd.DataFrame, folder: Path) -> None:
        self.table = table = with_methods(table)
        last = table[table["round"] == table["rounds"]].copy()
        last["order"] = [list(RULES).index(r) if r in RULES else len(RULES) for r in last["rule"]]
        trained = table[table["round"] > 0].groupby("run")["seconds"]
        last["seconds"] = last["run"].map(trained.median())
        last["duration"] = last["run"].map(table.groupby("run")["seconds"].sum())
        settings = _settings(last)
        self.varied = differing(settings)
        last["variant"] = [
            ", ".join(f"{key}={plain(run[key])}" for key in self.varied if key in run)
            for run in settings
        ]
        self.last = last.sort_values(["bayesian_layers", "order"], kind="stable")
        self.variant_header = [", ".join(self.varied)] if self.varied else []
        self.about = read_about(folder)
        self.document = Document(folder, self.about.get("title") or folder.resolve().name)

    def write(self) -> None:
        """Write the whole report."""
        self.introduction()
        self.warnings()
        self.main_tables()
        self.rules_compared()
        self.layers()
        self.uncertainty()
        self.variances()
        self.background()
        add_runs(self.document, self.last)
        self.document.write()

    def introduction(self) -> None:
        """Say what was run and how to read it."""
        document = self.document
        if about := self.about.get("about"):
            document.text("{about}", about=about)
        shared = settings_of(self.last).iloc[0]
        document.text(
            """{runs} runs. In each, {clients} clients hold a data set between
            them, each fits the network to its own part, and a **rule** makes one model of their
            answers; that is a round. The last *n* of the network's layers hold a Gaussian
            for every weight, the others a number; FedAvg has n = 0. All numbers are of the global
            model after the last round, on {where}, as mean ± standard deviation over
            the seeds ({seeds}).""",
            runs=len(self.last),
            clients=shared["clients"],
            where=_where(self.last),
            seeds=_listed(self.last["seed"]),
        )
        document.text(
            """**Accuracy** is the share of right answers. **ECE**, the expected calibration
            error, is how far confidence and accuracy lie apart: 0 is a model that is right in
            80 % of the cases in which it is 80 % sure. **NLL** is the mean negative
            log-likelihood of the true class in nats: it punishes wrong answers, and most of
            all confident ones. The lower ECE and NLL, the better."""
        )

    def warnings(self) -> None:
        """Say what a reader of the means should know: skipped rounds, settings that differ."""
        skipped = self.table[self.table["round"] > 0].groupby("run")["skipped"].sum()
        if (skipped > 0).any():
            lost = [(code(str(run)), count) for run, count in skipped[skipped > 0].items()]
            self.document.text(
                """**Rounds were skipped**, for want of replies that were admitted, in
                {named}: their last round is not comparable with that of the other runs.""",
                named=listed([Markup(f"{run} ({count:.0f})") for run, count in lost]),
            )
        for dataset, rows in _grouped(self.last, "dataset"):
            settings = settings_of(rows)
            known = BOOKKEEPING.union(NAMING, self.varied, ["method"])
            mixed = [k for k in settings if k not in known and settings[k].nunique() > 1]
            if mixed:
                self.document.text(
                    """**Not all runs on {dataset} have the same {settings}**; the list of all
                    runs below has each one's.""",
                    dataset=_name(dataset),
                    settings=", ".join(mixed),
                )

    def main_tables(self) -> None:
        """Add accuracy, ECE and NLL by data set, n and rule, beside the papers' numbers."""
        document = self.document
        document.heading("How good, how calibrated")
        if any(published(d, 0, "FedAvg", "nll")[0] > 0 for d in self.last["dataset"].unique()):
            document.text(
                """*Paper* is what BA-BFL prints in its Table 1 (50 rounds × 50 local epochs,
                ECE over 100 bins, ± standard deviation over seeds 0-2); *Δ* is our mean minus
                theirs. Its GAA is not its formula, Σ w² v, which is ours: its public code divides
                by Σ w². Here it was {lengths}. **Bold** is the best mean of the whole
                table, <u>underlined</u> the best among the rules at the same n.""",
                lengths=_lengths(self.last),
            )
        else:
            document.text(
                """**Bold** is the best mean of the whole table, <u>underlined</u> the best
                among the rules at the same n."""
            )
        for dataset, rows in _grouped(self.last, "dataset"):
            document.heading(_name(dataset), 3)
            document.table(*self._main_table(dataset, rows))

    def _main_table(
        self, dataset: str, rows: pd.DataFrame
    ) -> tuple[Sequence[str], Sequence[Sequence[str]]]:
        groups = [(key, group) for key, group in _grouped(rows, "variant", "bayesian_layers")]
        cells = [
            (variant, n, rule, runs)
            for (variant, n), group in groups
            for rule, runs in _grouped(group, "rule")
        ]
        header = ["n", "rule", "seeds"]
        columns = []
        for metric in (*MAIN, *(m for m in OF_TABLES if m.column in rows and rows[m.column].any())):
            means = [metric.scale * runs[metric.column].mean(skipna=False) for *_, runs in cells]
            shown = [metric.show(runs[metric.column]) for *_, runs in cells]
            shown = marked(metric, means, shown, [(variant, n) for variant, n, *_ in cells])
            header.append(metric.label)
            columns.append(shown)
            if not metric.published:
                continue
            paper = [published(dataset, n, rule, metric.published) for _, n, rule, _ in cells]
            if np.isfinite([mean for mean, _ in paper]).any():
                header += [italic("paper"), italic("Δ")]
                places = 2
                columns.append(
                    [f"{m:.{places}f} ± {s:.{places}f}" if m == m else "" for m, s in paper]
                )
                columns.append(
                    [
                        f"{ours - theirs:+.{places}f}" if theirs == theirs else ""
                        for ours, (theirs, _) in zip(means, paper, strict=True)
                    ]
                )
        first = [[str(n), rule, str(len(runs))] for _, n, rule, runs in cells]
        if self.varied:
            header = [*self.variant_header, *header]
            first = [[cell[0], *row] for cell, row in zip(cells, first, strict=True)]
        body = [[*row, *(column[index] for column in columns)] for index, row in enumerate(first)]
        return header, body

    def rules_compared(self) -> None:
        """Add how far every pair of rules lies apart, with tests over seeds and over points."""
        metrics = (NLL, ECE_15, ACCURACY) if enough_draws(self.last) else (NLL, ACCURACY)
        compared = {metric: compare(self.last, metric) for metric in metrics}
        if not compared[NLL]:
            return
        document = self.document
        document.heading("Does the rule matter?")
        document.text(
            """How far two rules lie apart is the mean of first − second over all points that both
            have: data set, n and seed (FedAvg, with n = 0, has none in common with the others).
            Points of one seed share its splits and initial networks, so the seeds alone count as
            independent: the 95 % interval, the paired t-test and Wilcoxon's signed-rank test are of
            one mean difference a seed. With 3 seeds Wilcoxon's p is never below 0.25, with 5 never
            below 0.06."""
        )
        document.text(
            """The Bayesian signed-rank test (Benavoli et al. 2017, by the library baycomp)
            takes every point as independent, as in the paper. It gives the probability that the
            first is better, that both are practically equal, and that the second is better.
            Practically equal means a difference within the ROPE, as in the paper the 25th
            percentile of the absolute differences. A ROPE taken from the data shrinks with the
            differences, and calls equal a difference that is the same in every pair: look at the
            effect first."""
        )
        document.text(of_draws(self.last))
        if self.varied:
            self._variants(compared)
        else:
            self.document.figure(
                "triangles",
                triangles({(c.first, c.second): c.test for c in compared[NLL]}),
                """The test on the NLL, pair by pair: each point is a draw from the posterior; the
                nearer it lies to a corner, the more probable is that corner's answer.""",
            )
        for metric, pairs in compared.items():
            header, rows = pairs_table(pairs, metric, bool(self.varied))
            folded = f"{metric.label}: all pairs" if self.varied else ""
            if not folded:
                document.heading(metric.label, 3)
            document.table([*self.variant_header, *header], rows, folded)

    def _variants(self, compared: Mapping[Metric, Sequence[Comparison]]) -> None:
        """Add a row per variant: how far apart clients' variances and the rules' results lie."""
        spread = [column for column in self.last if column.startswith("log_var_spread.")]
        rows = []
        bayesian = self.last[self.last["bayesian_layers"] > 0]
        for variant, runs in [*_grouped(bayesian, "variant"), (TOGETHER, bayesian)]:
            cells = [variant, f"{runs[spread].mean(axis=1).mean():.3f}"]
            for metric, pairs in compared.items():
                means = metric.scale * runs.groupby("rule")[metric.column].mean().dropna()
                means = means.sort_values(ascending=metric.lower_is_better)
                ends = [
                    f"{means[r]:.{metric.decimals}f} ({r})"
                    for r in means.index[[0, -1][: len(means)]]
                ]
                cells.append(" … ".join(ends))
                here = [pair for pair in pairs if pair.variant == variant]
                decided = sum(max(p.test.first, p.test.second) > DECIDED for p in here)
                few = any(pair.points < ENOUGH for pair in here)
                cells.append("too few points" if few else f"{decided} of {len(here)}")
            rows.append(cells)
        header = [*self.variant_header, "clients' spread of log-variances"]
        for metric in compared:
            header += [f"{metric.label}: best … worst rule", "pairs decided"]
        self.document.text(
            """A row for each variant of the settings, and one for the points of all of them
            together. The spread is the standard deviation of a weight's log-variance over the
            clients in the last round, averaged over weights and then layers: 0 is clients
            that hold the same variances. A pair of rules is decided if one is better with
            probability above {decided}; fewer than {enough} points cannot decide, whatever
            they are.""",
            decided=DECIDED,
            enough=ENOUGH,
        )
        self.document.table(header, rows)

    def layers(self) -> None:
        """Add ECE, NLL, fairness and the time of a round against n, where several were run."""
        if self.last.groupby("variant")["bayesian_layers"].nunique().max() < 2:
            return
        self.document.heading("More Bayesian layers")
        self._against_layers(
            "ece-nll",
            (ECE_15, NLL),
            "ECE and NLL against n: mean and standard deviation over seeds.",
        )
        self.document.heading("Clients' own models, and time")
        self.document.text(
            """Fairness is measured on the clients' models as they leave for the server, each on the
            same examples as the global one: the mean weighted by what they hold, and the worst
            tenth of them."""
        )
        self._against_layers("fairness", FAIRNESS, "Both fairness measures against n.")
        self._against_layers(
            "seconds",
            (Metric("seconds", "Seconds a round"),),
            """Median seconds of a round against n, evaluation of the global model included. Runs
            beside each other on one machine slow each other down, so compare with care.""",
        )

    def _against_layers(self, name: str, metrics: Sequence[Metric], caption: str) -> None:
        shown = [m for m in metrics if m.column in self.last and self.last[m.column].notna().any()]
        for number, (variant, rows) in enumerate(_grouped(self.last, "variant")):
            if shown and rows["bayesian_layers"].nunique() > 1:
                data = rows.assign(dataset=rows["dataset"].map(_name), n=rows["bayesian_layers"])
                columns = [(metric.column, metric.label, metric.scale) for metric in shown]
                figure = lines_by_group(data, columns)
                suffix = f"-{number}" if self.varied else ""
                self.document.figure(name + suffix, figure, f"{caption} {variant}")

    def uncertainty(self) -> None:
        """Add the split of uncertainty, detection of foreign data and accuracy after rejection."""
        document = self.document
        document.heading("What the uncertainty is worth")
        document.text(
            """The entropy of a prediction splits into the entropy that the drawn networks have
            on average (**aleatoric**: the data's own ambiguity) and the mutual information of
            label and weights (**epistemic**: what more data would remove). A model that knows
            what it does not know is more uncertain on images of another kind than it was
            trained on: **AUROC** is the probability that a foreign image gets the higher value;
            50 % is chance. A single network (n = 0) has no mutual information."""
        )
        for dataset, rows in _grouped(self.last, "dataset"):
            document.heading(_name(dataset), 3)
            foreign = [
                _name(name) for name in rows["ood_dataset"].dropna().unique() if name != "none"
            ]
            shown = list(UNCERTAINTY)
            if DETECTION[0].column in rows and rows[DETECTION[0].column].notna().any():
                document.text(
                    "Foreign images: the test images of {foreign}, resized.",
                    foreign=" or ".join(foreign),
                )
                shown += DETECTION
            shown += [
                Metric(
                    f"rejection.{part}", f"Accuracy %, {int(100 * float(part))} % rejected", 100, 2
                )
                for part in REJECTED
            ]
            body = [
                [
                    *([variant] if self.varied else []),
                    str(n),
                    rule,
                    *(m.show(runs[m.column]) if m.column in runs else "–" for m in shown),
                ]
                for (variant, n, rule), runs in _grouped(rows, "variant", "bayesian_layers", "rule")
            ]
            header = ["n", "rule", *(metric.label for metric in shown)]
            document.table([*self.variant_header, *header], body)
        if not self.varied:
            document.figure(
                "rejection",
                rejection_curves(_rejections(self.last)),
                f"""Accuracy on what is left when the most uncertain predictions, by entropy,
                are put aside: mean and standard deviation over seeds, FedAvg and the rules at n
                = {self.last["bayesian_layers"].max()}.""",
            )

    def variances(self) -> None:
        """Add the layers' log-variances and how far apart the clients' lie."""
        spread = [c for c in self.last if c.startswith("log_var_spread.")]
        if not spread:
            return
        document = self.document
        document.heading("The variances")
        document.text(
            """RKLB, WB, EAA and AALV can differ only where the clients' variances do; GAA and
            FKLB make other variances even of equal ones. Per layer: the mean log-variance of
            the global posterior, and in parentheses how far apart the clients' log-variances
            lie in the last round (their standard deviation over the clients, averaged over
            the weights). Where that is 0, those four rules give the same posterior up to
            rounding, which training then amplifies."""
        )
        layers = [column.removeprefix("log_var_spread.") for column in spread]
        body = []
        for (dataset, variant, n, rule), runs in _grouped(
            self.last[self.last["bayesian_layers"] > 0],
            "dataset", "variant", "bayesian_layers", "rule",
        ):  # fmt: skip
            cells = []
            for layer in layers:
                level, apart = runs[f"log_var.{layer}"], runs[f"log_var_spread.{layer}"]
                known = level.notna().any()
                cells.append(f"{level.mean():.2f} ({apart.mean():.3f})" if known else "")
            body.append([_name(dataset), *([variant] if self.varied else []), str(n), rule, *cells])
        document.table(["data set", *self.variant_header, "n", "rule", *layers], body)

    def background(self) -> None:
        """Add the toy picture of the rules and who holds what."""
        document = self.document
        document.heading("Background")
        document.figure(
            "toy",
            toy_barycentres(),
            """Two clients' posteriors over one weight, N(0, 1) and N(2, 0.25), and what each
            rule makes of them with equal weights.""",
        )
        starts = self.table[self.table["round"] == 0]
        for number, (dataset, rows) in enumerate(_grouped(starts, "dataset"), 1):
            row = rows.sort_values("seed").iloc[0]
            document.figure(
                f"partition-{number}",
                partition_heatmap(np.array(json.loads(row["label_counts"]))),
                f"Who holds what: {_name(dataset)}, seed {row['seed']}.",
            )


def _settings(last: pd.DataFrame) -> list[dict[str, Any]]:
    """Return each run's settings; those of other runs' methods and models are left out."""
    runs = settings_of(last).astype(object).fillna("").to_dict("records")
    return [{k: v for k, v in run.items() if v != "" or k in Settings.model_fields} for run in runs]


def _rejections(last: pd.DataFrame) -> pd.DataFrame:
    """Return accuracies after rejection in long form, of FedAvg and of the largest n."""
    largest = last["bayesian_layers"].isin((0, last["bayesian_layers"].max()))
    columns = [column for column in last if column.startswith("rejection.")]
    kept = last.loc[largest, ["dataset", "rule", "seed", *columns]]
    long = kept.melt(["dataset", "rule", "seed"], var_name="rejected", value_name="accuracy")
    long["rejected"] = long["rejected"].str.removeprefix("rejection.").astype(float)
    return long.assign(dataset=long["dataset"].map(_name))


def _grouped(rows: pd.DataFrame, *keys: str) -> Iterable[tuple[Any, pd.DataFrame]]:
    for key, group in rows.groupby(list(keys), sort=False):
        yield (key[0] if len(keys) == 1 else key), group


def _name(dataset: object) -> str:
    return DATASETS.get(str(dataset), str(dataset))


def _listed(values: pd.Series) -> str:
    return ", ".join(str(value) for value in sorted(values.unique()))


def _where(last: pd.DataFrame) -> str:
    tests = last["evaluate_on"].unique()
    names = {
        "test": "the test set",
        "validation": "a tenth of the training set kept from all clients",
    }
    return " or ".join(names[test] for test in tests)


def _lengths(last: pd.DataFrame) -> str:
    found = sorted({(row.rounds, row.local_epochs) for row in last.itertuples()})
    return ", or ".join(f"{rounds} rounds × {epochs} local epochs" for rounds, epochs in found)

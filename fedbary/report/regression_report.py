"""The report of an experiment of regressions: FedAG's Tables 2-4 and Fig. 3, and calibration."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import pandas as pd

from fedbary.report.document import Document
from fedbary.report.markup import Markup, bold, escape, italic
from fedbary.report.published import DATASETS, fedag_published
from fedbary.settings.config import BOOKKEEPING
from fedbary.study.central import METHODS as CENTRAL_METHODS
from fedbary.study.central import TABLE as CENTRAL
from fedbary.study.provenance import add_runs
from fedbary.study.table import read_about, settings_of, with_methods

if TYPE_CHECKING:
    from matplotlib.figure import Figure

METHODS = {
    "BLR": "BLR",
    "FedAG, linear": "FedAG-N0-t1",
    "VI": "VI",
    "FedAG": "FedAG-N1-t5",
    "FedAG + noise": "",
    "DE": "DE",
}
"""Methods that always come in this order, with the paper's name of those that it has."""

SCORES = {"nll": "Table 2: NLL", "rmse": "Table 3: RMSE", "sharpness": "Table 4: sharpness"}

SCORED_ON = {
    "test": "the rows that a split keeps for the test",
    "validation": "training rows that were kept from all clients (validation)",
}

REPEATS = ("split", "seed")
"""In which runs of one method may differ."""

MORE = ("crps", "coverage_50", "coverage_90", "coverage_95")

CLOSE = 0.1
"""How near to Bayesian linear regression the paper finds the linear FedAG, in nats."""


@dataclass(frozen=True)
class Estimate:
    """A mean over splits with its standard error; NaN where there is none."""

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
        places = max(2, 2 - math.floor(math.log10(abs(self.mean) or 1)))
        text = f"{self.mean:.{places}f}"
        return text if math.isnan(self.error) else f"{text} ± {self.error:.{places}f}"


def write_regression_report(table: pd.DataFrame, folder: Path) -> Path:
    """Write `report.html`, `report.md` and `figures/` from tables of runs and central methods.

    Returns
    -------
    Path
        The HTML page.
    """
    about = read_about(folder)
    table = with_methods(table)
    document = Document(folder, about.get("title") or folder.resolve().name)
    last = table[table["round"] == table["rounds"]].copy()
    last["duration"] = last["run"].map(table.groupby("run")["seconds"].sum())
    last["settings"] = _settings(last)
    scores = _scores(last)
    if (folder / CENTRAL).exists():
        central = pd.read_csv(folder / CENTRAL).assign(settings="")
        scores = pd.concat([scores, central], ignore_index=True)
    _introduce(document, about.get("about", ""), last)
    if (last["settings"] == "").all():
        _compare(document, scores, table)
    else:
        document.heading("By settings")
        document.text("Bold is the lowest mean NLL of a data set.")
        document.table(*_by_settings(scores))
    add_runs(document, last)
    document.write()
    return folder / "report.html"


def _compare(document: Document, scores: pd.DataFrame, table: pd.DataFrame) -> None:
    """Add the tables and the figure that show a method of one kind of settings in a column."""
    document.text(
        """Below each number in italics what the paper prints. **BLR**, **VI** and **DE**, Bayesian
        linear regression, mean-field variational inference and deep ensembles of five networks,
        see all data at once. **FedAG** predicts without a noise term, as in the paper, and
        **+ noise** with one that the clients estimate together. Bold is the best mean of a data
        set."""
    )
    for metric, title in SCORES.items():
        document.heading(title)
        document.table(*_table(scores, metric))
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
        document.table(*_strongest(scores))
    document.heading("CRPS, and how many targets lie in the 50, 90 and 95 % intervals")
    document.table(*_calibration(scores))
    document.heading("Round by round")
    caption = """NLL and RMSE of the networks by round (Fig. 3): mean and standard error;
        FedAG's with its noise term, where the runs have one."""
    document.figure("rounds", _rounds(table), caption)


def _method(row: pd.Series) -> str:
    kind = ", linear" if row["model"] == "linear" else ""
    return f"{row['rule']}{kind}"


def _settings(last: pd.DataFrame) -> pd.Series:
    """Return, as texts, in which settings runs of a method on a data set differ but the split."""
    keys = [key for key in settings_of(last) if key not in {*BOOKKEEPING, *REPEATS}]
    texts = pd.Series("", index=last.index)
    for _, held in last.groupby(["dataset", "rule", "model"]):
        for key in (key for key in keys if held[key].nunique() > 1):
            texts[held.index] += [
                f"{key}={value} " if value == value else "" for value in held[key]
            ]
    return texts.str.strip().str.replace(" ", ", ")


def _scores(last: pd.DataFrame) -> pd.DataFrame:
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


def _introduce(document: Document, about: str, last: pd.DataFrame) -> None:
    document.text("{about}", about=about)
    clients = ", ".join(map(str, sorted(last["clients"].unique())))
    scored = " and ".join(SCORED_ON[part] for part in sorted(last["evaluate_on"].unique()))
    document.text(
        """{runs} runs of {clients} clients. All numbers are of {scored}, in the target's own
        units, as mean ± standard error over the splits.""",
        runs=len(last),
        clients=clients,
        scored=scored,
    )


def _order(methods: Sequence[str]) -> list[str]:
    """Return methods in the order of `METHODS`, others before the last of them."""
    others = sorted(set(methods) - METHODS.keys())
    known = [method for method in METHODS if method in methods]
    return [m for m in known if m != "DE"] + others + [m for m in known if m == "DE"]


def _table(scores: pd.DataFrame, metric: str) -> tuple[list[str], list[list[str]]]:
    methods = _order(list(scores["method"].unique()))
    rows = []
    for dataset, held in scores.groupby("dataset", sort=False):
        ours = {m: Estimate.of(held.loc[held["method"] == m, metric]) for m in methods}
        best = min((e.mean for e in ours.values() if e.mean == e.mean), default=math.nan)
        cells = []
        for method, estimate in ours.items():
            best_of_set = metric != "sharpness" and estimate.mean == best
            cell = bold(str(estimate)) if best_of_set else str(estimate)
            paper = Estimate(*fedag_published(str(dataset), METHODS.get(method, ""), metric))
            printed = Markup(f"{escape(cell)}<br>{italic(str(paper))}")
            cells.append(cell if math.isnan(paper.mean) else printed)
        splits = sorted({count for count in held.groupby("method")["split"].nunique()})
        counted = "–".join(map(str, dict.fromkeys((splits[0], splits[-1]))))
        rows.append([DATASETS.get(str(dataset), str(dataset)), counted, *cells])
    return ["data set", "splits", *methods], rows


def _strongest(scores: pd.DataFrame) -> tuple[list[str], list[list[str]]]:
    rows = []
    for dataset, held in scores.groupby("dataset", sort=False):
        nll, rmse = (held.pivot_table(m, "split", "method") for m in ("nll", "rmse"))
        federated = nll.drop(columns=CENTRAL_METHODS, errors="ignore").mean().dropna()
        if "DE" not in nll or federated.empty:
            continue
        best = str(federated.idxmin())
        name = DATASETS.get(str(dataset), str(dataset))
        cells = [
            str(Estimate.of(values))
            for metric in (nll, rmse)
            for values in (metric[best], metric["DE"], (metric[best] - metric["DE"]).dropna())
        ]
        rows.append([name, best, *cells])
    scored = [
        f"{metric}{of}" for metric in ("NLL", "RMSE") for of in ("", " of DE", ", difference")
    ]
    return ["data set", "method", *scored], rows


def _by_settings(scores: pd.DataFrame) -> tuple[list[str], list[list[str]]]:
    shown = ("nll", "rmse", "sharpness", "crps")
    rows = []
    for dataset, of_set in scores.groupby("dataset", sort=False):
        best = of_set.groupby(["method", "settings"])["nll"].mean().min()
        for (method, settings), held in of_set.groupby(["method", "settings"], sort=False):
            cells = [str(Estimate.of(held[metric])) for metric in shown]
            if held["nll"].mean() == best:
                cells[0] = bold(cells[0])
            splits = str(held["split"].nunique())
            rows.append(
                [DATASETS.get(str(dataset), str(dataset)), method, settings, splits, *cells]
            )
    return ["data set", "method", "settings", "splits", "NLL", "RMSE", "sharpness", "CRPS"], rows


def _calibration(scores: pd.DataFrame) -> tuple[list[str], list[list[str]]]:
    methods = _order(list(scores["method"].unique()))
    rows = []
    for dataset, held in scores.groupby("dataset", sort=False):
        for method in methods:
            found = held[held["method"] == method]
            if found.empty:
                continue
            covered = " / ".join(f"{100 * found[name].mean():.0f}" for name in MORE[1:])
            name = DATASETS.get(str(dataset), str(dataset))
            rows.append([name, method, str(Estimate.of(found["crps"])), covered])
    return ["data set", "method", "CRPS", "in 50 / 90 / 95 %"], rows


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


def _rounds(table: pd.DataFrame) -> Figure:
    """Draw NLL and RMSE by round: a column of panels a data set, a line a method."""
    from matplotlib.figure import Figure

    from fedbary.figures.looks import COLORS, MARKERS
    from fedbary.figures.sheet import open_frame

    shown = table[(table["model"] == "mlp") & (table["round"] > 0)]
    datasets = list(shown["dataset"].unique())
    rules = list(shown["rule"].unique())
    figure = Figure(figsize=(2.8 * max(1, len(datasets)), 5), layout="constrained")
    panels = figure.subplots(2, max(1, len(datasets)), squeeze=False, sharex="col")
    for column, dataset in enumerate(datasets):
        for row, (metric, label) in enumerate((("nll", "NLL, nats"), ("rmse", "RMSE"))):
            axes = panels[row, column]
            for rule, color, marker in zip(rules, COLORS, MARKERS, strict=False):
                held = shown[(shown["dataset"] == dataset) & (shown["rule"] == rule)]
                by_round = held.groupby("round")[metric]
                mean, error = by_round.mean(), by_round.sem(ddof=1).fillna(0)
                axes.errorbar(
                    mean.index, mean, error, color=color, marker=marker, markersize=4, label=rule
                )
            axes.grid(alpha=0.3)
            open_frame(axes)
            if row == 0:
                axes.set_title(DATASETS.get(dataset, dataset), size=11, parse_math=False)
            else:
                axes.set_xlabel("Round")
            if column == 0:
                axes.set_ylabel(label)
    panels[0, 0].legend(fontsize=8)
    return figure

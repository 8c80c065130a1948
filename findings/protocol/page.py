"""The papers' protocol as their public code runs it, round by round: docs/results/protocol.md.

Its part `short` is BA-BFL's Table 1 at a fiftieth of its training, on docs/results/rules.md, and
`hours` what the papers' tables at full length would take.
"""

from collections.abc import Iterator
from pathlib import Path

import pandas as pd

from fedbary.inference.clamped_sgd import LOG_VAR_RANGE
from fedbary.report.results import (
    ACCURACY,
    ECE_15,
    ECE_100,
    MAIN,
    NLL,
    Metric,
    differences,
)
from fedbary.study.arms import with_methods
from fedbary.study.table import read_table, result_rows
from findings import maker
from findings.maker import EPISTEMIC, SEED
from findings.published import PRINTED, published, table1

ROUNDS = (1, 2, 5, 10, 15, 20, 22, 24, 26, 28, 30, 35, 40, 45, 50)
TRAIN_NLL = Metric("train_nll", "training NLL", 1, 4)
BY_ROUND = (ACCURACY, NLL, TRAIN_NLL, ECE_15, ECE_100)
LOG_VAR, SPREAD = "log_var.", "log_var_spread."
SCORES = (ACCURACY, NLL, ECE_15, ECE_100)
LAST_ROUND = "last-round.csv"

NAMES = {"fashionmnist": "Fashion-MNIST", "cifar10": "CIFAR-10", "svhn": "SVHN"}
IMAGES = {"fashionmnist": 60_000, "cifar10": 50_000, "svhn": 73_257}
GAUSSIAN = 15
"""Runs of a seed in Table 1 with Gaussian layers: five rules, three numbers of layers."""

SEEDS, CORES = 3, 2
GOAL = 1 / 6
"""Hours that a run may take on a GPU: our goal, not a measurement."""


def arms(rows: pd.DataFrame) -> dict[str, pd.DataFrame]:
    """Return every rule and n with its rows, by round."""
    found = maker.by(rows.sort_values("round", kind="stable"), "rule", "bayesian_layers")
    known = maker.by(rows, "rule", "bayesian_layers")  # in the order of the table
    return {f"{rule}, n = {layers}": found[rule, layers] for rule, layers in known}


def layers_of(run: pd.DataFrame, prefix: str = LOG_VAR) -> dict[str, str]:
    """Return the column of every layer's mean log-variance, or of another quantity of it."""
    columns = [name for name in run if name.startswith(prefix) and run[name].notna().any()]
    return {name.removeprefix(prefix).removesuffix(".weight"): name for name in columns}


def _printed(run: pd.DataFrame, printed: str) -> str:
    row = run.iloc[0]
    mean, std = published(row["dataset"], row["bayesian_layers"], row["rule"], printed)
    return f"{mean:.2f} ± {std:.2f}"


def tables(results: Path) -> Iterator[str]:
    """Yield scores beside the paper's, turns, scores and variances by round, and the last round."""
    rows = read_table(results)
    body = {
        (name, metric.label): [metric.show(run[metric.column]), _printed(run, printed)]
        for name, run in arms(result_rows(rows)).items()
        for metric, printed in PRINTED.items()
    }
    yield maker.cells(("", ""), ["ours", "the paper"], body)
    head = ["least NLL", "last NLL", "training NLL then", "and at the end", "best accuracy %"]
    turns = {name: _turns(run) for name, run in arms(rows[rows["round"] > 0]).items()}
    yield maker.cells("", [*head, "last"], turns)
    for run in arms(rows).values():
        shown = maker.by(run[run["round"].isin(ROUNDS)], "round")
        yield maker.table("round", shown, BY_ROUND)
        if layers := layers_of(run):
            columns = [(layer, lambda at, name=name: _marked(at[name].item()))
                       for layer, name in layers.items()]  # fmt: skip
            names = [*layers_of(run, SPREAD).values()]
            spread = "clients' spread", lambda at, own=names: f"{at[own].mean(axis=1).item():.4f}"
            yield maker.table("round", shown, [*columns, spread, EPISTEMIC])
    if (results / LAST_ROUND).exists():
        yield last_round(pd.read_csv(results / LAST_ROUND))


def _turns(run: pd.DataFrame) -> list[str]:
    """Return where a run is at its best on the test set, and what it has become by its end."""
    at = run.set_index("round")
    nll, accuracy = at["nll"], at["accuracy"]
    both = nll.idxmin(), nll.index.max()
    cells = [f"{nll[number]:.3f} in round {number}" for number in both]
    cells += [f"{at['train_nll'][number]:.4f}" for number in both]
    cells.append(f"{100 * accuracy.max():.2f} in round {accuracy.idxmax()}")
    return [*cells, f"{100 * accuracy[both[1]]:.2f}"]


def _marked(log_var: float) -> str:
    """Return a mean log-variance, in bold above the clamp."""
    shown = f"{log_var:.3f}"
    return f"**{shown}**" if log_var > LOG_VAR_RANGE[0] else shown


def last_round(rows: pd.DataFrame) -> str:
    """Return the table of the last round under every rule."""
    shifts = {"means shifted, in std": "mean_shift", "log-variances, nats": "log_var_shift"}
    columns = [(name, lambda at, own=own: f"{at[own].item():.1e}") for name, own in shifts.items()]
    return maker.table("", maker.by(rows, "rule"), [*SCORES, *columns])


def facts(results: Path) -> Iterator[float]:
    """Yield what the page's sentences say beside its tables."""
    rows = read_table(results)
    rows = rows[rows["round"] > 0]
    plain, gaussian = (run.set_index("round") for run in arms(rows).values())
    yield from rows["nll"]
    yield (plain["nll"] - gaussian["nll"]).loc[3:24].median()
    yield gaussian.loc[:24, "train_nll"].min()
    log_var = gaussian[[*layers_of(gaussian).values()]].mean(axis=1)
    yield from (*log_var, *log_var.diff())
    for level in (-9.0, -7.6, -6.15):
        decay, prior = 0.0417 * level / -9, 50 * 0.01 / (1 - 0.9) * 0.5 / 64
        yield from (-level, decay, prior, decay + prior, 1 - 0.9, 0.9)
    yield from maker.where(table1(), dataset="fashionmnist", bayesian_layers=3)["mean"]
    scores = pd.read_csv(results / LAST_ROUND).set_index("rule")["accuracy"]
    yield 100 * (scores["RKLB"] - scores["FKLB"])
    yield 50 * 50 * 60_000 / 64 / 1e6


def picture(results: Path) -> maker.Figure:
    """Return scores on the test set by round, then training NLL, log-variances and uncertainty."""
    rows = read_table(results)
    rows = rows[rows["round"] > 0]
    figure, panels = maker.panels(10.0, 5.4, 2, 3, sharex=True)
    for (name, run), color in zip(arms(rows).items(), (maker.BLUE, maker.ORANGE), strict=False):
        for axes, metric in zip(panels, (ACCURACY, NLL, ECE_100, TRAIN_NLL), strict=False):
            axes.plot(run["round"], metric.scale * run[metric.column], color=color, label=name)
            axes.set_ylabel(metric.label)
        for (layer, column), line in zip(layers_of(run).items(), ("-", "--", ":"), strict=False):
            panels[4].plot(run["round"], run[column], line, color=color, label=layer)
        if layers_of(run):
            panels[5].plot(run["round"], run[EPISTEMIC.column], color=color)
    for axes, metric in zip(panels[:3], (ACCURACY, NLL, ECE_100), strict=True):
        maker.zoom(axes, metric.scale * rows.loc[rows["round"] > 1, metric.column])
    panels[3].set_yscale("log")
    panels[4].axhline(LOG_VAR_RANGE[0], color="black", linewidth=1, label="clamp")
    panels[4].set_ylabel("mean log-variance")
    panels[5].set_ylabel(EPISTEMIC.label)
    for axes in (panels[0], panels[4]):
        axes.legend(fontsize=8)
    for axes in panels[3:]:
        axes.set_xlabel("Round")
    return figure


def short_tables(results: Path) -> Iterator[str]:
    """Yield our scores and the paper's, by data set, n and rule, and how far RKLB is from three."""
    rows, body = maker.last(results), {}
    for dataset in ("fashionmnist", "cifar10"):
        own = rows[rows["dataset"] == dataset]
        for (layers, rule), runs in own.groupby(["bayesian_layers", "rule"]):
            ours = [metric.show(runs[metric.column]) for metric in MAIN]
            theirs = [_printed(runs, printed) for printed in PRINTED.values()]
            body[NAMES[dataset], rule, layers] = [*ours, *theirs]
    paper = [f"*paper's {name}*" for name in ("accuracy", "ECE", "NLL")]
    heads = [*(metric.label for metric in MAIN), *paper]
    yield maker.cells(("data set", "rule", "n"), heads, body)
    pairs = [("RKLB", rival) for rival in ("WB", "EAA", "AALV")]
    points, sided = ("dataset", "bayesian_layers", *SEED), rows.assign(side=rows["rule"])
    for metric in (NLL, ACCURACY):
        found = maker.ranked(differences(sided, pairs, [metric], SEED), sided, points).itertuples()
        columns = [maker.effect(metric), maker.BETTER, maker.P, *maker.RANKS]
        yield maker.table("pair", ((f"{r.first} − {r.second}", r) for r in found), columns)


def short_facts(results: Path) -> Iterator[float]:
    """Yield the epistemic uncertainty of GAA and of RKLB on Fashion-MNIST at n = 3."""
    shown = maker.where(maker.last(results), dataset="fashionmnist", bayesian_layers=3)
    yield from shown.groupby("rule")["uncertainty.epistemic"].mean().loc[["GAA", "RKLB"]]


def seconds(folder: Path) -> pd.Series:
    """Return the median seconds of a run by data set, rule and number of Gaussian layers."""
    rows = with_methods(read_table(folder).copy())
    by = ["dataset", "rule", "bayesian_layers"]
    return rows.groupby([*by, "run"])["seconds"].sum().groupby(level=by).median()


def hours(results: Path) -> dict[tuple[str, str], float]:
    """Return the hours of a run on one busy core, by data set and method.

    They are those of the two runs that were made, times what images, rounds and methods cost in
    shorter runs beside one another.
    """
    made, short = seconds(results) / 3600, seconds(results / "short")
    methods = seconds(results.parent / "methods")["fashionmnist"].droplevel(1)
    arms = short["cifar10"].index
    dearer = (short["cifar10"] / short["fashionmnist"].loc[arms]).median()
    found = {}
    for dataset, images in IMAGES.items():
        factor = 1.0 if dataset == "fashionmnist" else dearer * images / IMAGES["cifar10"]
        for rule, layers in (("FedAvg", 0), ("RKLB", 3)):
            found[dataset, rule] = factor * made["fashionmnist", rule, layers]
        for method, rounds in (("pFedBayes", 1), ("pFedVem", 2)):
            ratio = rounds * methods[method] / methods["RKLB"]
            found[dataset, method] = ratio * found[dataset, "RKLB"]
    return found


def hours_tables(results: Path) -> str:
    """Return runs and hours of each of the papers' tables and data sets."""
    every, body = hours(results), {}
    for table, runs in (
        ("Table 1", {"FedAvg": 1, "RKLB": GAUSSIAN}),
        ("Table IV", {"pFedBayes": 1, "pFedVem": 1}),
    ):
        for dataset, name in NAMES.items():
            count = SEEDS * sum(runs.values())
            time = SEEDS * sum(n * every[dataset, rule] for rule, n in runs.items())
            body[table, name] = [f"{count}", f"{time / CORES:.0f}", f"{count * GOAL:.0f}"]
    head = ["runs", "hours on two cores", "hours on a GPU, at our goal"]
    return maker.cells(("table", "data set"), head, body)


def hours_facts(results: Path) -> Iterator[float]:
    """Yield the hours of a run, and what CIFAR-10 costs beside Fashion-MNIST."""
    every = hours(results)
    yield from every.values()
    yield every["cifar10", "FedAvg"] / every["fashionmnist", "FedAvg"]

"""The papers' protocol as their public code runs it: what its scores and variances do by round.

It makes the tables of docs/results/protocol.md from runs of `findings/protocol/grid.yaml` and from
what `findings.protocol.last_round` wrote, and draws `picture.png` beside them.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pandas as pd

from fedbary.figures.sheet import BLUE, GREEN, ORANGE, RED, open_frame, sheet
from fedbary.inference.clamped_sgd import LOG_VAR_RANGE
from fedbary.report.cells import ACCURACY, ECE_15, ECE_100, NLL, Metric
from fedbary.report.markup import markdown_table
from fedbary.study.table import read_table, result_rows
from findings.protocol import last_round
from findings.published import PRINTED, published, table1

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

ROUNDS = (1, 2, 5, 10, 15, 20, 22, 24, 26, 28, 30, 35, 40, 45, 50)
TRAIN_NLL = Metric("train_nll", "training NLL", 1, 4)
EPISTEMIC = Metric("uncertainty.epistemic", "epistemic, nats", 1, 4)
DRAWN = (ACCURACY, NLL, ECE_100, TRAIN_NLL)
BY_ROUND = (ACCURACY, NLL, TRAIN_NLL, ECE_15, ECE_100)
LOG_VAR, SPREAD = "log_var.", "log_var_spread."


def read(results: Path) -> pd.DataFrame:
    """Return the rows of all rounds."""
    return read_table(results)


def arms(rows: pd.DataFrame) -> Iterator[tuple[str, pd.DataFrame]]:
    """Yield every rule and n with its rows, by round."""
    for (rule, layers), run in rows.groupby(["rule", "bayesian_layers"], sort=False):
        yield f"{rule}, n = {layers}", run.sort_values("round")


def layers_of(run: pd.DataFrame, prefix: str = LOG_VAR) -> dict[str, pd.Series]:
    """Return the mean log-variance, or another column of every layer, by the layer's name."""
    columns = [name for name in run if name.startswith(prefix) and run[name].notna().any()]
    return {
        name.removeprefix(prefix).removesuffix(".weight"): run.set_index("round")[name]
        for name in columns
    }


def paper_table(last: pd.DataFrame) -> str:
    """Return the scores after the last round beside the paper's mean ± standard deviation."""
    body = []
    for name, run in arms(last):
        for metric, printed in PRINTED.items():
            row = run.iloc[0]
            setting = row["dataset"], row["bayesian_layers"], row["rule"]
            mean, std = published(*setting, printed)
            theirs = f"{mean:.2f} ± {std:.2f}"
            body.append([name, metric.label, metric.show(run[metric.column]), theirs])
    return markdown_table(["", "", "ours", "the paper"], body)


def turns_table(rows: pd.DataFrame) -> str:
    """Return where each run is at its best on the test set, and what it has become by its end."""
    body = []
    for name, run in arms(rows[rows["round"] > 0]):
        by_round = run.set_index("round")
        nll, accuracy = by_round["nll"], by_round["accuracy"]
        best, end = nll.idxmin(), nll.index.max()
        cells = [f"{nll[at]:.3f} in round {at}" for at in (best, end)]
        cells += [f"{by_round['train_nll'][at]:.4f}" for at in (best, end)]
        cells.append(f"{100 * accuracy.max():.2f} in round {accuracy.idxmax()}")
        body.append([name, *cells, f"{100 * accuracy[end]:.2f}"])
    head = ["least NLL", "last NLL", "training NLL then", "and at the end"]
    return markdown_table(["", *head, "best accuracy %", "last"], body)


def rounds_table(run: pd.DataFrame) -> str:
    """Return a run's scores by round."""
    body = [
        [f"{row['round']:.0f}", *(metric.show([row[metric.column]]) for metric in BY_ROUND)]
        for _, row in run[run["round"].isin(ROUNDS)].iterrows()
    ]
    return markdown_table(["round", *(metric.label for metric in BY_ROUND)], body)


def variances_table(run: pd.DataFrame) -> str:
    """Return a run's mean log-variances, those that have passed the clamp in bold."""
    means, spreads = layers_of(run), layers_of(run, SPREAD)
    body = []
    for _, row in run[run["round"].isin(ROUNDS)].iterrows():
        at = row["round"]
        cells = [marked(each[at]) for each in means.values()]
        spread = sum(each[at] for each in spreads.values()) / len(spreads)
        body.append([f"{at:.0f}", *cells, f"{spread:.4f}", EPISTEMIC.show([row[EPISTEMIC.column]])])
    return markdown_table(["round", *means, "clients' spread", EPISTEMIC.label], body)


def marked(log_var: float) -> str:
    """Return a mean log-variance, in bold above the clamp."""
    shown = f"{log_var:.3f}"
    return f"**{shown}**" if log_var > LOG_VAR_RANGE[0] else shown


def tables(results: Path) -> str:
    """Return all tables in Markdown."""
    rows = read(results)
    parts = {"Beside the paper": paper_table(result_rows(rows)), "Turns": turns_table(rows)}
    for name, run in arms(rows):
        parts[name] = rounds_table(run)
        if layers_of(run):
            parts[f"Variances of {name}"] = variances_table(run[run["round"] > 0])
    if (results / last_round.TABLE).exists():
        parts["The last round under every rule"] = last_round.tables(results)
    return "\n\n".join(f"### {title}\n\n{text}" for title, text in parts.items())


def facts(results: Path) -> Iterator[float]:
    """Yield what the page's sentences say beside its tables."""
    rows = read(results)
    rows = rows[rows["round"] > 0]
    (_, plain), (_, gaussian) = ((name, run.set_index("round")) for name, run in arms(rows))
    yield from rows["nll"]
    yield (plain["nll"] - gaussian["nll"]).loc[3:24].median()
    yield gaussian.loc[:24, "train_nll"].min()
    log_var = gaussian[[name for name in gaussian if name.startswith(LOG_VAR)]].mean(axis=1)
    yield from log_var
    yield from log_var.diff()
    for level in (-9.0, -7.6, -6.15):
        decay, prior = 0.0417 * level / -9, 50 * 0.01 / (1 - 0.9) * 0.5 / 64
        yield from (-level, decay, prior, decay + prior, 1 - 0.9, 0.9)
    table = table1()
    same = (table["dataset"] == "fashionmnist") & (table["bayesian_layers"] == 3)
    yield from table.loc[same, "mean"]
    scores = pd.read_csv(results / last_round.TABLE).set_index("rule")["accuracy"]
    yield 100 * (scores["RKLB"] - scores["FKLB"])
    yield 50 * 50 * 60_000 / 64 / 1e6


def picture(results: Path) -> Figure:
    """Return scores on the test set by round, then training NLL, log-variances and uncertainty."""
    rows = read(results)
    rows = rows[rows["round"] > 0]
    figure = sheet(10.0, 5.4)
    panels = figure.subplots(2, 3, sharex=True)
    for (name, run), color in zip(arms(rows), (BLUE, ORANGE, GREEN, RED), strict=False):
        for axes, metric in zip(panels.flat, DRAWN, strict=False):
            axes.plot(run["round"], metric.scale * run[metric.column], color=color, label=name)
        if layers_of(run):
            _draw_variances(panels[1, 1], run)
            panels[1, 2].plot(run["round"], run[EPISTEMIC.column], color=color)
    later = rows[rows["round"] > 1]
    for axes, metric in zip(panels[0], DRAWN, strict=False):
        scores = metric.scale * later[metric.column]
        margin = 0.05 * (scores.max() - scores.min())
        axes.set_ylim(scores.min() - margin, scores.max() + margin)
    labels = (*(metric.label for metric in DRAWN), "mean log-variance", EPISTEMIC.label)
    for axes, label in zip(panels.flat, labels, strict=True):
        axes.set_ylabel(label)
        axes.grid(alpha=0.3)
        open_frame(axes)
    panels[1, 0].set_yscale("log")
    for axes in panels[1]:
        axes.set_xlabel("Round")
    panels[0, 0].legend(fontsize=8)
    panels[1, 1].legend(fontsize=8)
    return figure


def _draw_variances(axes: Axes, run: pd.DataFrame) -> None:
    """Draw the log-variances of a run's layers, and the clamp below which they are not trained."""
    for (layer, series), line in zip(layers_of(run).items(), ("-", "--", ":"), strict=False):
        axes.plot(series.index, series, line, color=BLUE, label=layer)
    axes.axhline(LOG_VAR_RANGE[0], color="black", linewidth=1, label="clamp")

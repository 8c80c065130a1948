"""Pictures that compare methods: the rules on a toy, the signed-rank test, metrics side by side.

Each function returns a matplotlib Figure, which writes itself by ``savefig``. A rule has the same
colour and the same marker in all of them.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING

import numpy as np
import torch
from torch import Tensor

from fedbary.aggregation import RULES, aggregate
from fedbary.alpha import alpha_barycentre, alpha_density
from fedbary.figures import BLUE, DPI, GREEN, GREY, ORANGE, RED, SKY, open_frame
from fedbary.gaussian import Posterior
from fedbary.stats import SignedRank

if TYPE_CHECKING:
    import pandas as pd
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

REFERENCE = "FedAvg"
"""The deterministic method that the others are measured against."""

COLORS = (
    "#000000",
    BLUE,
    RED,
    GREEN,
    ORANGE,
    "#CC79A7",
    SKY,
    "#882255",
    "#332288",
    "#7A4B22",
    "#999933",
    "#A6D854",
)
MARKERS = ("s", "o", "^", "P", "v", "D", "X", "<", ">", "p", "h", "*", "d")

TOY_MEANS, TOY_VARS = (0.0, 2.0), (1.0, 0.25)
TOY_RANGE = (-3.5, 4.5)
TOY_ALPHAS = {
    0.0: "α → 0 (RKLB)",
    0.25: "α = 0.25",
    0.5: "α = 0.5",
    1.0: "α = 1 (FKLB)",
    2.0: "α = 2",
}

DODGE, DODGED = 0.07, 0.7
"""How far apart, in layers, rules stand about one number of layers; over how much at most."""


def styles(methods: Iterable[str] = ()) -> dict[str, dict[str, str]]:
    """Return ``color`` and ``marker`` per method: FedAvg, the other rules, then further names.

    Rules come in the order of the registry, further names in the order given. Colours return
    after 12 names, with other markers.
    """
    names = dict.fromkeys([REFERENCE, *RULES, *methods])
    return {
        name: {"color": COLORS[i % len(COLORS)], "marker": MARKERS[i % len(MARKERS)]}
        for i, name in enumerate(names)
    }


def toy_barycentres() -> Figure:
    """Draw N(0, 1) and N(2, ¼) and what becomes of the two, weighted equally.

    A panel for each rule of `fedbary.aggregation.RULES`, FedAvg with the point mass it makes of
    deterministic weights; then the α-barycentres, both as the densities they are and as the
    Gaussians with their moments. α → 0 is RKLB, and the Gaussian of α = 1 is FKLB.
    """
    columns = 4
    rows = math.ceil(len(RULES) / columns)
    figure = _sheet(10.5, 2.0 * rows + 3.7)
    grid = figure.add_gridspec(rows + 1, columns, height_ratios=[2.0] * rows + [2.9])
    panels = [figure.add_subplot(grid[divmod(place, columns)]) for place in range(len(RULES))]
    pools = [figure.add_subplot(grid[rows, at : at + 2]) for at in (0, 2)]
    for axes in (*panels, *pools):
        _draw_clients(axes)
    for axes, (rule, look) in zip(panels, styles().items(), strict=True):
        _draw_aggregate(axes, rule, look["color"])
    _draw_alpha_barycentres(*pools)
    for axes in (*panels[::columns], pools[0]):
        axes.set_ylabel("Density")
    for axes in (*panels, *pools):
        axes.set(xlim=TOY_RANGE, ylim=(0, 0.9))
        open_frame(axes)
    handles, labels = pools[0].get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside lower center", ncols=len(labels), fontsize=9)
    return figure


def triangle(result: SignedRank, first_name: str, second_name: str) -> Figure:
    """Draw the sample of a signed-rank test in the triangle of its three outcomes.

    A draw lies the closer to a corner the more mass it gives to that outcome; lines part the
    regions in which each is the largest. The probabilities stand at the corners.
    """
    figure = _sheet(4.4, 4.2)
    _draw_triangle(figure.subplots(), result, first_name, second_name, 10)
    return figure


def triangles(results: Mapping[tuple[str, str], SignedRank]) -> Figure:
    """Draw a `triangle` for each pair of methods, (first, second), up to five in a row.

    Raises
    ------
    ValueError
        There is no pair.
    """
    if not results:
        raise ValueError("there is no pair to draw")
    columns = min(5, len(results))
    rows = math.ceil(len(results) / columns)
    figure = _sheet(2.6 * columns, 2.6 * rows)
    panels = figure.subplots(rows, columns, squeeze=False).ravel()
    for axes, ((first, second), result) in zip(panels, results.items(), strict=False):
        _draw_triangle(axes, result, first, second, 8)
    for axes in panels[len(results) :]:
        axes.remove()
    return figure


def lines_by_group(frame: pd.DataFrame, metrics: Sequence[tuple[str, str, float]]) -> Figure:
    """Draw metrics against the number of Bayesian layers, a panel per metric and data set.

    A marker is the mean over the seeds, its bar ± one sample standard deviation (none for one
    seed). Rules stand side by side about each number of layers, so that equal values can be told
    apart. FedAvg at n = 0 is drawn on as a dashed line, its standard deviation as a band.

    Parameters
    ----------
    frame : DataFrame
        A row per run: ``dataset``, ``rule``, ``n`` (Bayesian layers), ``seed`` and the metrics.
        Values that are not finite are left out.
    metrics : sequence of (str, str, float)
        Per row of panels: column, label with its unit, and the factor from one to the other.

    Raises
    ------
    ValueError
        There is no run.
    """
    figure, panels, rules = _panels(frame, [label for _, label, _ in metrics], "Bayesian layers n")
    look = styles(frame["rule"])
    others = [rule for rule in rules if rule != REFERENCE]
    step = min(DODGE, DODGED / max(1, len(others)))
    for row, (column, _, scale) in zip(panels, metrics, strict=True):
        for axes, (_, runs) in zip(row, frame.groupby("dataset", sort=False), strict=True):
            for rule in rules:
                n, mean, std = _mean_and_std(runs[runs["rule"] == rule], "n", column, scale)
                if rule == REFERENCE:
                    _draw_reference(axes, mean[n == 0], std[n == 0])
                else:
                    n = n + step * (others.index(rule) - (len(others) - 1) / 2)
                axes.errorbar(
                    n, mean, std, **look[rule], label=rule, markersize=6, linewidth=1, capsize=2
                )
            axes.set_xticks(sorted(set(frame["n"])))
    _add_legend(figure, rules)
    return figure


def rejection_curves(frame: pd.DataFrame) -> Figure:
    """Draw accuracy against the rejected share of the inputs, a panel per data set.

    Below it, where FedAvg is among the rules, stands the difference from FedAvg's accuracy at the
    same seed and share. A line is the mean over the seeds, its band ± one sample standard
    deviation. Markers shrink from rule to rule, so that equal lines can be told apart.

    Parameters
    ----------
    frame : DataFrame
        A row per run and share: ``dataset``, ``rule``, ``seed``, ``rejected`` and ``accuracy``,
        both fractions. Values that are not finite are left out.

    Raises
    ------
    ValueError
        There is no run, or FedAvg has two at one data set, seed and share.
    """
    shown = {"accuracy": "Accuracy on the rest (%)"}
    if REFERENCE in set(frame["rule"]):
        shown["gain"] = f"Difference from {REFERENCE} (points)"
        frame = frame.assign(gain=frame["accuracy"] - _reference_of(frame))
    figure, panels, rules = _panels(
        frame, list(shown.values()), "Rejected, most uncertain first (%)"
    )
    look = styles(frame["rule"])
    sizes = dict(zip(rules, np.linspace(8, 3.5, len(rules)), strict=True))
    for row, column in zip(panels, shown, strict=True):
        for axes, (_, runs) in zip(row, frame.groupby("dataset", sort=False), strict=True):
            for rule, size in sizes.items():
                share, mean, std = _mean_and_std(
                    runs[runs["rule"] == rule], "rejected", column, 100
                )
                color = look[rule]["color"]
                axes.fill_between(100 * share, mean - std, mean + std, color=color, alpha=0.12)
                axes.plot(100 * share, mean, **look[rule], label=rule, markersize=size, linewidth=1)
    _add_legend(figure, rules)
    return figure


def _toy_axis() -> Tensor:
    return torch.linspace(*TOY_RANGE, 601, dtype=torch.float64)


def _normal(x: Tensor, mean: Tensor | float, log_var: Tensor | float) -> Tensor:
    """Return the density of N(mean, exp(log_var)) at x."""
    log_var = torch.as_tensor(log_var).double()
    return (-0.5 * ((x - mean).square() / log_var.exp() + log_var + math.log(2 * math.pi))).exp()


def _draw_clients(axes: Axes) -> None:
    x = _toy_axis()
    for mean, var in zip(TOY_MEANS, TOY_VARS, strict=True):
        density = _normal(x, mean, math.log(var))
        label = f"client N({mean:g}, {var:g})"
        axes.fill_between(x, density, color=GREY, alpha=var / 4 + 0.2, linewidth=0, label=label)


def _draw_aggregate(axes: Axes, rule: str, color: str) -> None:
    """Draw what a rule makes of the toy's two clients, or of their means if it is FedAvg."""
    gaussian = rule != REFERENCE
    clients = [
        Posterior(
            {"w": torch.tensor([mean]).double()},
            {"w": torch.tensor([var]).double().log()} if gaussian else {},
        )
        for mean, var in zip(TOY_MEANS, TOY_VARS, strict=True)
    ]
    result = aggregate(rule, clients, [1.0] * len(clients))
    mean = result.mean["w"].item()
    if gaussian:
        x, log_var = _toy_axis(), result.log_var["w"]
        axes.plot(x, _normal(x, mean, log_var), color=color)
        axes.set_title(f"{rule}: N({mean:.4g}, {log_var.exp().item():.4g})", size=10)
    else:
        axes.axvline(mean, color=color)
        axes.set_title(f"{rule}: point mass at {mean:.4g}", size=10)


def _draw_alpha_barycentres(densities: Axes, gaussians: Axes) -> None:
    from matplotlib import colormaps

    means, log_vars = torch.tensor([TOY_MEANS, TOY_VARS]).double()
    log_vars = log_vars.log()
    x = _toy_axis()
    shades = colormaps["plasma"](np.linspace(0, 0.85, len(TOY_ALPHAS)))
    for (alpha, label), shade in zip(TOY_ALPHAS.items(), shades, strict=True):
        toy = means, log_vars, torch.ones(len(means)), alpha
        densities.plot(x, alpha_density(x, *toy), color=shade, label=label)
        gaussians.plot(x, _normal(x, *alpha_barycentre(*toy)), color=shade, label=label)
    densities.set_title("α-barycentres: their true densities", size=10)
    gaussians.set_title("α-barycentres: the Gaussians with their moments", size=10)
    for axes in (densities, gaussians):
        axes.set_xlabel("Weight θ")


def _draw_triangle(axes: Axes, result: SignedRank, first: str, second: str, size: int) -> None:
    from matplotlib.patches import Polygon

    corners = np.array([[0, 0], [0.5, math.sqrt(0.75)], [1, 0]])
    points = result.sample @ corners
    outline = Polygon(corners, fill=False, linewidth=1, zorder=3)
    axes.add_patch(outline)
    cells = axes.hexbin(
        *points.T, gridsize=40, extent=(-0.05, 1.05, -0.05, 1), mincnt=1, bins="log", cmap="YlGnBu"
    )
    cells.set_clip_path(outline)
    centre = corners.mean(0)
    for corner in corners:
        border = np.stack([centre, (corners.sum(0) - corner) / 2])
        axes.plot(*border.T, color=RED, linewidth=1)
    labels = (
        (f"{first}\nbetter: {result.first:.3f}", -0.04, "top"),
        (f"equal: {result.equal:.3f}", 0.03, "bottom"),
        (f"{second}\nbetter: {result.second:.3f}", -0.04, "top"),
    )
    for (x, y), (label, rise, side) in zip(corners, labels, strict=True):
        axes.text(x, y + rise, label, size=size, ha="center", va=side)
    axes.set(xlim=(-0.25, 1.25), ylim=(-0.25, 1.1), aspect="equal")
    axes.axis("off")


def _mean_and_std(
    runs: pd.DataFrame, by: str, column: str, scale: float
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return the groups, and mean and standard deviation in each (0 where it has one value)."""
    finite = runs[np.isfinite(runs[column].astype(float))]
    groups = finite.groupby(by)[column]
    mean, std = groups.mean(), groups.std().fillna(0)
    return mean.index.to_numpy(), scale * mean.to_numpy(), scale * std.to_numpy()


def _draw_reference(axes: Axes, mean: np.ndarray, std: np.ndarray) -> None:
    color = styles()[REFERENCE]["color"]
    for level, spread in zip(mean, std, strict=True):
        axes.axhline(level, color=color, linestyle="--", linewidth=1)
        axes.axhspan(level - spread, level + spread, color=color, alpha=0.08, linewidth=0)


def _reference_of(frame: pd.DataFrame) -> np.ndarray:
    """Return the accuracy of FedAvg at the data set, seed and share of each row."""
    run = ["dataset", "seed", "rejected"]
    reference = frame[frame["rule"] == REFERENCE].set_index(run)["accuracy"]
    return reference.reindex(frame.set_index(run).index).to_numpy()


def _panels(
    frame: pd.DataFrame, labels: Sequence[str], xlabel: str
) -> tuple[Figure, np.ndarray, list[str]]:
    """Return a sheet, its panels (labels, data sets), and the rules in the order of `styles`."""
    datasets = list(dict.fromkeys(frame["dataset"]))
    if not datasets:
        raise ValueError("there is no run to draw")
    figure = _sheet(max(4.5, 1 + 3.1 * len(datasets)), 0.9 + 2.5 * len(labels))
    panels = figure.subplots(len(labels), len(datasets), sharex=True, squeeze=False)
    for axes in panels.flat:
        axes.grid(alpha=0.3)
        open_frame(axes)
    for axes, label in zip(panels[:, 0], labels, strict=True):
        axes.set_ylabel(label)
    for axes, dataset in zip(panels[0], datasets, strict=True):
        axes.set_title(dataset, size=11)
    for axes in panels[-1]:
        axes.set_xlabel(xlabel)
    present = set(frame["rule"])
    return figure, panels, [rule for rule in styles(frame["rule"]) if rule in present]


def _add_legend(figure: Figure, rules: Sequence[str]) -> None:
    """Put one legend above all panels, as wide as the sheet allows."""
    handles, _ = figure.axes[0].get_legend_handles_labels()
    columns = min(len(rules), int(figure.get_figwidth() / 1.3))
    figure.legend(handles, rules, loc="outside upper center", ncols=columns, fontsize=9)


def _sheet(width: float, height: float) -> Figure:
    from matplotlib.figure import Figure

    return Figure(figsize=(width, height), dpi=DPI, layout="constrained")

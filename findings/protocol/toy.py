"""The rules on a toy: two univariate Gaussians and what becomes of them (Fig. 1).

python -m findings.protocol.toy    draws it into `short/toy.png`

The α-barycentre of Gaussians p_k is p ∝ (Σ w_k p_k^α)^{1/α}, the minimiser of the weighted
α-divergence (BA-BFL, eqs. 5 and 6). It is Gaussian for α → 0 alone, and is RKLB there. For any
other α the Gaussian of its first two moments is the closest in forward KL: FKLB for α = 1.
"""

import math
from itertools import cycle
from pathlib import Path

import numpy as np
import torch
from matplotlib import colormaps

from fedbary.aggregation import RULES, aggregate
from fedbary.figures.sheet import COLORS, GREY, open_frame, sheet
from fedbary.gaussian import Posterior
from fedbary.report.document import write_small
from findings.maker import Axes, Figure

MEANS, VARS = np.array([0.0, 2.0]), np.array([1.0, 0.25])
RANGE = (-3.5, 4.5)
X = np.linspace(-12, 14, 3001)
ALPHAS = {0.0: "α → 0 (RKLB)", 0.25: "α = 0.25", 0.5: "α = 0.5", 1.0: "α = 1 (FKLB)", 2.0: "α = 2"}


def toy_barycentres() -> Figure:
    """Draw N(0, 1) and N(2, ¼) and what becomes of the two, weighted equally.

    A panel for each rule of `fedbary.aggregation.RULES`, FedAvg with the point mass it makes of
    deterministic weights; then the α-barycentres, both as the densities they are and as the
    Gaussians with their moments. α → 0 is RKLB, and the Gaussian of α = 1 is FKLB.
    """
    columns = 4
    names = [*dict.fromkeys(["FedAvg", *RULES])]
    rows = math.ceil(len(RULES) / columns)
    figure = sheet(10.5, 2.0 * rows + 3.7)
    grid = figure.add_gridspec(rows + 1, columns, height_ratios=[2.0] * rows + [2.9])
    panels = [figure.add_subplot(grid[divmod(place, columns)]) for place in range(len(RULES))]
    pools = [figure.add_subplot(grid[rows, at : at + 2]) for at in (0, 2)]
    for axes in (*panels, *pools):
        for mean, var in zip(MEANS, VARS, strict=True):
            shade = {"color": GREY, "alpha": var / 4 + 0.2, "linewidth": 0}
            label = f"client N({mean:g}, {var:g})"
            axes.fill_between(X, normal(mean, var), label=label, **shade)
        axes.set(xlim=RANGE, ylim=(0, 0.9))
        open_frame(axes)
    for axes, rule, color in zip(panels, names, cycle(COLORS)):
        _draw_aggregate(axes, rule, color)
    shades = colormaps["plasma"](np.linspace(0, 0.85, len(ALPHAS)))
    for (alpha, label), shade in zip(ALPHAS.items(), shades, strict=True):
        density = pooled(alpha)
        mean = np.average(X, weights=density)
        var = np.average((X - mean) ** 2, weights=density)
        pools[0].plot(X, density, color=shade, label=label)
        pools[1].plot(X, normal(mean, var), color=shade, label=label)
    pools[0].set_title("α-barycentres: their true densities", size=10)
    pools[1].set_title("α-barycentres: the Gaussians with their moments", size=10)
    for axes in pools:
        axes.set_xlabel("Weight θ")
    for axes in (*panels[::columns], pools[0]):
        axes.set_ylabel("Density")
    handles, labels = pools[0].get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside lower center", ncols=len(labels), fontsize=9)
    return figure


def normal(mean: float, var: float) -> np.ndarray:
    """Return the density of N(mean, var) at `X`."""
    return np.exp(-0.5 * (X - mean) ** 2 / var) / math.sqrt(2 * math.pi * var)


def pooled(alpha: float) -> np.ndarray:
    """Return the density of the α-barycentre at `X`."""
    log = -0.5 * ((X - MEANS[:, None]) ** 2 / VARS[:, None] + np.log(VARS)[:, None])
    pool = np.logaddexp.reduce(alpha * log) / alpha if alpha else log.mean(0)
    density = np.exp(pool - pool.max())
    return density / (density.sum() * (X[1] - X[0]))


def _draw_aggregate(axes: Axes, rule: str, color: str) -> None:
    """Draw what a rule makes of the toy's two clients, or of their means if it is FedAvg."""
    gaussian = rule != "FedAvg"
    clients = [
        Posterior({"w": torch.tensor([m])}, {"w": torch.tensor([v]).log()} if gaussian else {})
        for m, v in zip(MEANS, VARS, strict=True)
    ]
    result = aggregate(rule, clients, [1.0] * len(clients))
    mean = result.mean["w"].item()
    if gaussian:
        var = result.log_var["w"].exp().item()
        axes.plot(X, normal(mean, var), color=color)
        axes.set_title(f"{rule}: N({mean:.4g}, {var:.4g})", size=10)
    else:
        axes.axvline(mean, color=color)
        axes.set_title(f"{rule}: point mass at {mean:.4g}", size=10)


if __name__ == "__main__":
    write_small(toy_barycentres(), Path(__file__).parent / "short" / "toy.png", 110)

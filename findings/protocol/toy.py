"""The rules on a toy: two univariate Gaussians and what becomes of them (Fig. 1).

python -m findings.protocol.toy    draws it into `short/toy.png`
"""

from __future__ import annotations

import math
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import torch
from torch import Tensor

from fedbary.aggregation import RULES, aggregate
from fedbary.figures.looks import REFERENCE, styles
from fedbary.figures.sheet import GREY, open_frame, sheet
from fedbary.gaussian import Posterior
from findings.alpha import alpha_barycentre, alpha_density

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

MEANS, VARS = (0.0, 2.0), (1.0, 0.25)
RANGE = (-3.5, 4.5)
ALPHAS = {
    0.0: "α → 0 (RKLB)",
    0.25: "α = 0.25",
    0.5: "α = 0.5",
    1.0: "α = 1 (FKLB)",
    2.0: "α = 2",
}


def toy_barycentres() -> Figure:
    """Draw N(0, 1) and N(2, ¼) and what becomes of the two, weighted equally.

    A panel for each rule of `fedbary.aggregation.RULES`, FedAvg with the point mass it makes of
    deterministic weights; then the α-barycentres, both as the densities they are and as the
    Gaussians with their moments. α → 0 is RKLB, and the Gaussian of α = 1 is FKLB.
    """
    columns = 4
    rows = math.ceil(len(RULES) / columns)
    figure = sheet(10.5, 2.0 * rows + 3.7)
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
        axes.set(xlim=RANGE, ylim=(0, 0.9))
        open_frame(axes)
    handles, labels = pools[0].get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside lower center", ncols=len(labels), fontsize=9)
    return figure


def _axis() -> Tensor:
    return torch.linspace(*RANGE, 601, dtype=torch.float64)


def _normal(x: Tensor, mean: Tensor | float, log_var: Tensor | float) -> Tensor:
    """Return the density of N(mean, exp(log_var)) at x."""
    log_var = torch.as_tensor(log_var).double()
    return (-0.5 * ((x - mean).square() / log_var.exp() + log_var + math.log(2 * math.pi))).exp()


def _draw_clients(axes: Axes) -> None:
    x = _axis()
    for mean, var in zip(MEANS, VARS, strict=True):
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
        for mean, var in zip(MEANS, VARS, strict=True)
    ]
    result = aggregate(rule, clients, [1.0] * len(clients))
    mean = result.mean["w"].item()
    if gaussian:
        x, log_var = _axis(), result.log_var["w"]
        axes.plot(x, _normal(x, mean, log_var), color=color)
        axes.set_title(f"{rule}: N({mean:.4g}, {log_var.exp().item():.4g})", size=10)
    else:
        axes.axvline(mean, color=color)
        axes.set_title(f"{rule}: point mass at {mean:.4g}", size=10)


def _draw_alpha_barycentres(densities: Axes, gaussians: Axes) -> None:
    from matplotlib import colormaps

    means, log_vars = torch.tensor([MEANS, VARS]).double()
    log_vars = log_vars.log()
    x = _axis()
    shades = colormaps["plasma"](np.linspace(0, 0.85, len(ALPHAS)))
    for (alpha, label), shade in zip(ALPHAS.items(), shades, strict=True):
        toy = means, log_vars, torch.ones(len(means)), alpha
        densities.plot(x, alpha_density(x, *toy), color=shade, label=label)
        gaussians.plot(x, _normal(x, *alpha_barycentre(*toy)), color=shade, label=label)
    densities.set_title("α-barycentres: their true densities", size=10)
    gaussians.set_title("α-barycentres: the Gaussians with their moments", size=10)
    for axes in (densities, gaussians):
        axes.set_xlabel("Weight θ")


if __name__ == "__main__":
    toy_barycentres().savefig(Path(__file__).parent / "short" / "toy.png", dpi=110)

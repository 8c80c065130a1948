"""The toy problem y = x³ + ε, ε ~ N(0, 3²), and its picture (FedAG, section 4.2 and Fig. 2)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

import torch
from torch import Generator, Tensor

from fedbary.figures.sheet import BLUE, GREY, ORANGE, open_frame
from fedbary.regression.forecast import Forecast

if TYPE_CHECKING:
    from matplotlib.figure import Figure

NOISE_STD = 3.0
TRAINED, SHOWN = 4.0, 6.0
"""Data lie in [−4, 4], predictions are shown for [−6, 6]."""


def cubic_data(clients: int, examples: int, seed: int) -> tuple[Tensor, Tensor]:
    """Draw each client's x uniformly from [−4, 4] and y = x³ + ε.

    Returns
    -------
    (Tensor, Tensor)
        x (clients, examples, 1) and y (clients, examples), float64. The paper has 10 clients of
        16 examples.
    """
    generator = Generator().manual_seed(seed)
    x = torch.rand(clients, examples, 1, generator=generator, dtype=torch.float64)
    x = TRAINED * (2 * x - 1)
    noise = torch.randn(clients, examples, generator=generator, dtype=torch.float64)
    return x, x[..., 0] ** 3 + NOISE_STD * noise


def cubic_figure(x: Tensor, y: Tensor, grid: Tensor, forecasts: Mapping[int, Forecast]) -> Figure:
    """Draw truth, data and predictions N(m, v) after some rounds, a panel each.

    Parameters
    ----------
    x, y
        Data, (N, 1) and (N,).
    grid
        Where the forecasts are, (M, 1), ascending.
    forecasts
        By the round after which they were made; in the data's units. The band is m ± 3 √v.
    """
    from matplotlib.figure import Figure

    figure = Figure(figsize=(3.6 * len(forecasts), 3.3), layout="constrained")
    panels = figure.subplots(1, len(forecasts), sharey=True, squeeze=False)[0]
    for axes, (server_round, forecast) in zip(panels, forecasts.items(), strict=True):
        at, mean, std = grid[:, 0], forecast.mean, forecast.var.sqrt()
        band = dict(color=GREY, alpha=0.35, linewidth=0, label="mean ± 3 std")
        axes.fill_between(at, mean - 3 * std, mean + 3 * std, **band)
        axes.plot(at, at**3, color=BLUE, label="x³")
        axes.plot(at, mean, color="black", label="mean")
        axes.plot(x[:, 0], y, ".", color=ORANGE, markersize=4, label="data")
        axes.set(xlabel="x", xlim=(-SHOWN, SHOWN), ylim=(-200, 200))
        axes.set_title(f"Round {server_round}", size=11)
        axes.grid(alpha=0.3)
        open_frame(axes)
    panels[0].set_ylabel("y")
    panels[0].legend(loc="upper left", fontsize=8)
    return figure

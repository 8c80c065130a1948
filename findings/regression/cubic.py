"""FedAG's toy problem y = x³ + ε, ε ~ N(0, 3²): what it predicts after 1, 3 and 5 rounds (Fig. 2).

Ten clients hold 16 points each of [−4, 4]; the network has 100 hidden units and is trained with
batch size 1. `cubic.png` is of the bootstrap over the clients' networks without a noise term, as in
the paper; `cubic-noise.png` has the noise that the clients estimate together.

    python -m findings.regression.cubic
"""

import functools
import operator
from collections.abc import Mapping
from pathlib import Path

import torch
from torch import Generator, Tensor

from fedbary.data.standardise import Sums
from fedbary.figures.sheet import BLUE, GREY, ORANGE
from fedbary.methods._fast_sgd import fit
from fedbary.methods.fedag import fit_gaussian, stacked
from fedbary.predictive.prediction import Forecast
from fedbary.predictive.predictor import forecast
from fedbary.predictive.regression import RegressionStandardiser, noise_sums
from fedbary.seeds import derive_seed
from fedbary.variational.regressor import Regressor
from findings import maker

NOISE_STD = 3.0
TRAINED, SHOWN = 4.0, 6.0
"""Data lie in [−4, 4], predictions are shown for [−6, 6]."""

CLIENTS, EXAMPLES, HIDDEN, EPOCHS, LR, SEED = 10, 16, 100, 40, 1.0, 0
SHOWN_ROUNDS = (1, 3, 5)


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


def cubic_figure(
    x: Tensor, y: Tensor, grid: Tensor, forecasts: Mapping[int, Forecast]
) -> maker.Figure:
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
    figure, panels = maker.panels(3.6 * len(forecasts), 3.3, 1, len(forecasts), sharey=True)
    for axes, (server_round, found) in zip(panels, forecasts.items(), strict=True):
        at, mean, std = grid[:, 0], found.mean, found.var.sqrt()
        band = dict(color=GREY, alpha=0.35, linewidth=0, label="mean ± 3 std")
        axes.fill_between(at, mean - 3 * std, mean + 3 * std, **band)
        axes.plot(at, at**3, color=BLUE, label="x³")
        axes.plot(at, mean, color="black", label="mean")
        axes.plot(x[:, 0], y, ".", color=ORANGE, markersize=4, label="data")
        axes.set(xlabel="x", xlim=(-SHOWN, SHOWN), ylim=(-200, 200))
        axes.set_title(f"Round {server_round}", size=11)
    panels[0].set_ylabel("y")
    panels[0].legend(loc="upper left", fontsize=8)
    return figure


def trained(model: Regressor, x: Tensor, y: Tensor, seed: int) -> dict[str, Tensor]:
    """Return a client's network, started from the model, which is left as it is."""
    before = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    fit(model, x, y, EPOCHS, batch_size=1, lr=LR, seed=seed)
    after = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    model.load_state_dict(before)
    return after


def main() -> None:
    """Draw both pictures, and say how far out the truth is in the band."""
    x, y = cubic_data(CLIENTS, EXAMPLES, SEED)
    points = torch.cat([x, y[..., None]], -1).flatten(0, 1)
    standardiser = RegressionStandardiser.from_sums(Sums.of(points, Sums.of(points).mean))
    data = [(standardiser.features(a), standardiser.target(b)) for a, b in zip(x, y, strict=True)]
    grid = torch.linspace(-SHOWN, SHOWN, 200, dtype=torch.float64)[:, None]
    inputs = standardiser.features(grid)
    model = Regressor(1, HIDDEN, noise="none")
    model.reset(0.0, SEED)
    bare, noisy = {}, {}
    for t in range(1, max(SHOWN_ROUNDS) + 1):
        clients = enumerate(data)
        networks = stacked(
            [trained(model, *d, derive_seed(SEED, "train", k, t)) for k, d in clients]
        )
        model.load_state_dict(fit_gaussian(networks).mean)
        sums = (noise_sums(networks, *d, own=k) for k, d in enumerate(data))
        noise = functools.reduce(operator.add, sums).noise_var
        if t in SHOWN_ROUNDS:
            bare[t] = standardiser.restore(forecast(networks, inputs))
            noisy[t] = standardiser.restore(forecast(networks, inputs, noise))
    for name, forecasts in (("", bare), ("-noise", noisy)):
        file = Path(__file__).with_name(f"cubic{name}.png")
        cubic_figure(points[:, :1], points[:, 1], grid, forecasts).savefig(file, dpi=90)
        last = forecasts[max(SHOWN_ROUNDS)]
        inside = (grid[:, 0] ** 3 - last.mean).abs() <= 3 * last.var.sqrt()
        for x0 in (4.0, 5.0, 6.0):
            near = (grid[:, 0].abs() - x0).abs() < 0.05
            print(f"{file.name}: x³ in the band at |x| = {x0:g}: {bool(inside[near].all())}")


if __name__ == "__main__":
    main()

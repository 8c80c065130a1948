"""FedAG on the toy problem y = x³ + ε: what it predicts after 1, 3 and 5 rounds, as a picture.

Ten clients hold 16 points each of [−4, 4]; the network has 100 hidden units and is trained with
batch size 1. The first picture is of the bootstrap over the clients' networks without a noise term,
as in the paper; the second, <name>-noise.png, has the noise that the clients estimate together.

    python examples/cubic.py findings/regression/cubic.png
"""

import functools
import operator
import sys

import torch

from fedbary.data.standardise import Sums
from fedbary.figures.cubic import SHOWN, cubic_data, cubic_figure
from fedbary.methods.fedag import fit_gaussian, stacked
from fedbary.regression.forecast import forecast
from fedbary.regression.networks import Regressor
from fedbary.regression.noise import noise_sums
from fedbary.regression.sgd import fit
from fedbary.regression.standardise import Standardiser
from fedbary.seeds import derive_seed

CLIENTS, EXAMPLES, HIDDEN, EPOCHS, LR, SEED = 10, 16, 100, 40, 1.0, 0
SHOWN_ROUNDS = (1, 3, 5)


def standardiser_of(columns):
    mean = functools.reduce(operator.add, map(Sums.of, columns)).mean
    return Standardiser.from_sums(
        functools.reduce(operator.add, (Sums.of(c, mean) for c in columns))
    )


def trained(model, x, y, seed):
    """A client's network, started from the model, which is left as it is."""
    before = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    fit(model, x, y, EPOCHS, batch_size=1, lr=LR, seed=seed)
    after = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    model.load_state_dict(before)
    return after


def main():
    x, y = cubic_data(CLIENTS, EXAMPLES, SEED)
    standardiser = standardiser_of(
        [torch.cat([a, b[:, None]], 1) for a, b in zip(x, y, strict=True)]
    )
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
    points = x.flatten(0, 1), y.flatten()
    for name, forecasts in (("", bare), ("-noise", noisy)):
        file = sys.argv[1].replace(".png", f"{name}.png")
        cubic_figure(*points, grid, forecasts).savefig(file, dpi=90)
        last = forecasts[max(SHOWN_ROUNDS)]
        inside = (grid[:, 0] ** 3 - last.mean).abs() <= 3 * last.var.sqrt()
        for x0 in (4.0, 5.0, 6.0):
            near = (grid[:, 0].abs() - x0).abs() < 0.05
            print(f"{file}: x³ in the band at |x| = {x0:g}: {bool(inside[near].all())}")


if __name__ == "__main__":
    main()

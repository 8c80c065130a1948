"""Time an epoch of FedAG's clients at batch size 1 against the plain eager loop of torch.

By default ten clients that share 41,157 rows of 9 features and a network of 100 hidden units: the
sizes of the UCI set Protein. The plain loop is timed on a part of the rows, as long as `--plain`
says, by the same side of the same run; that both give the same weights is asserted on those rows,
in float64.

    python benchmarks/regression_epoch.py
"""

from __future__ import annotations

import argparse
import statistics
import time

import torch
from torch import Generator
from torch.nn.functional import mse_loss

from fedbary.methods._fast_sgd import fit
from fedbary.variational.regressor import Regressor

LR, SEED = 1e-3, 0


def network(features: int, hidden: int) -> Regressor:
    """Return the network all clients start from."""
    model = Regressor(features, hidden, noise="none").double()
    model.reset(0.0, SEED)
    return model


def plain_epoch(model: Regressor, x: torch.Tensor, y: torch.Tensor) -> None:
    """Train one epoch as one would write it."""
    optimizer = torch.optim.SGD(model.parameters(), LR)
    for row in torch.randperm(len(x), generator=Generator().manual_seed(SEED)).split(1):
        optimizer.zero_grad()
        mse_loss(model(x[row])[:, 0], y[row]).backward()
        optimizer.step()


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rows", type=int, default=41157)
    parser.add_argument("--clients", type=int, default=10)
    parser.add_argument("--features", type=int, default=9)
    parser.add_argument("--hidden", type=int, default=100, help="0: the linear model")
    parser.add_argument("--plain", type=int, default=1000, help="rows of the plain loop's timing")
    parser.add_argument("--repeats", type=int, default=5, help="alternations")
    args = parser.parse_args()
    torch.set_num_threads(1)
    generator = Generator().manual_seed(SEED)
    x = torch.randn(args.rows, args.features, generator=generator, dtype=torch.float64)
    y = x.sin().sum(1) + torch.randn(args.rows, generator=generator, dtype=torch.float64)
    part = x[: args.plain], y[: args.plain]

    epochs, ratios, damped_ratios = [], [], []
    for _ in range(args.repeats):
        start = time.perf_counter()
        for client in range(args.clients):
            rows = slice(client, None, args.clients)
            fit(network(args.features, args.hidden), x[rows], y[rows], 1, 1, LR, SEED)
        epochs.append(time.perf_counter() - start)

        seconds, weights = [], []
        for side in ("plain", "ours", "damped"):
            model = network(args.features, args.hidden)
            start = time.perf_counter()
            if side == "plain":
                plain_epoch(model, *part)
            else:
                fit(model, *part, 1, 1, LR, SEED, damped=side == "damped")
            seconds.append(time.perf_counter() - start)
            weights.append(model.state_dict())
        for name, tensor in weights[0].items():
            torch.testing.assert_close(weights[1][name], tensor, rtol=1e-9, atol=1e-12)
        ratios.append(seconds[0] / seconds[1])
        damped_ratios.append(seconds[0] / seconds[2])
    print(
        f"an epoch of {args.rows} rows at {args.clients} clients: {statistics.median(epochs):.2f} s"
    )
    print(
        f"plain loop over ours, same weights: {statistics.median(ratios):.1f} (target at least 5)"
    )
    print(f"plain loop over ours, damped: {statistics.median(damped_ratios):.1f}")


if __name__ == "__main__":
    main()

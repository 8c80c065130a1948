"""Time a training step of the CNN, batch 64, one thread, n = 3 against other networks.

Against n = 0 (target: at most 1.05 times its time) and against the same network with
bayesian-torch's layers in its own recommended loop (target: at least 2.5 times faster). The sides
alternate within one run; the medians of the ratios are printed.

    python benchmarks/local_step.py
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Callable

import torch
from torch import nn
from torch.nn import functional

from fedbary.inference import Local, Training
from fedbary.inference.variational import fit
from fedbary.models import build

SHAPE, CLASSES, BATCH = (1, 28, 28), 10, 64


def ours(bayesian_layers: int, x: torch.Tensor, y: torch.Tensor) -> Callable[[], None]:
    """One epoch of fedbary's variational inference."""
    model = build("cnn", SHAPE, CLASSES, 0, bayesian_layers, init_log_var=-5.0)
    return lambda: void(fit(Local(model, x, y, training=Training(batch_size=BATCH))))


def void(_: object) -> None:
    """Drop a result."""


def bayesian_torch(x: torch.Tensor, y: torch.Tensor) -> Callable[[], None]:
    """One epoch of the same network with bayesian-torch's reparameterisation layers and SGD."""
    from bayesian_torch.layers import LinearReparameterization
    from bayesian_torch.models.dnn_to_bnn import get_kl_loss

    class Net(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.conv1, self.conv2 = nn.Conv2d(1, 6, 5), nn.Conv2d(6, 16, 5)
            self.fc1 = LinearReparameterization(256, 120)
            self.fc2 = LinearReparameterization(120, 84)
            self.fc3 = LinearReparameterization(84, CLASSES)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            x = functional.max_pool2d(functional.relu(self.conv1(x)), 2)
            x = functional.max_pool2d(functional.relu(self.conv2(x)), 2).flatten(1)
            x = functional.relu(self.fc1(x)[0])
            x = functional.relu(self.fc2(x)[0])
            logits: torch.Tensor = self.fc3(x)[0]
            return logits

    model = Net()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9)

    def epoch() -> None:
        for indices in torch.randperm(len(x)).split(BATCH):
            optimizer.zero_grad()
            logits = model(x[indices].float() / 255)
            loss = functional.cross_entropy(logits, y[indices]) + get_kl_loss(model) / len(x)
            loss.backward()
            optimizer.step()

    return epoch


def seconds(call: Callable[[], None]) -> float:
    """Wall seconds of one call."""
    start = time.perf_counter()
    call()
    return time.perf_counter() - start


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--steps", type=int, default=60, help="steps in one timing")
    parser.add_argument("--repeats", type=int, default=15, help="alternations")
    args = parser.parse_args()
    torch.set_num_threads(1)
    x = torch.randint(0, 256, (BATCH * args.steps, *SHAPE), dtype=torch.uint8)
    y = torch.randint(0, CLASSES, (len(x),))
    sides = {
        "n = 0": ours(0, x, y),
        "n = 3": ours(3, x, y),
        "bayesian-torch, n = 3": bayesian_torch(x, y),
    }
    times: dict[str, list[float]] = {name: [] for name in sides}
    for _ in range(args.repeats + 1):
        for name, side in sides.items():
            times[name].append(seconds(side) / args.steps * 1e3)
    for name, values in times.items():
        print(f"{name}: median {statistics.median(values[1:]):.2f} ms a step")
    plain, variational, other = (values[1:] for values in times.values())
    against_plain = statistics.median(v / p for v, p in zip(variational, plain, strict=True))
    against_other = statistics.median(o / v for v, o in zip(variational, other, strict=True))
    print(f"n = 3 over n = 0: {against_plain:.2f} (target at most 1.05)")
    print(f"bayesian-torch over n = 3: {against_other:.2f} (target at least 2.5)")


if __name__ == "__main__":
    main()

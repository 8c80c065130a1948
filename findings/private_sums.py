"""Accuracy of a head by sums against ε, on the digits.

python findings/private_sums.py            prints the table of docs/howto/privacy.md; a minute
"""

from __future__ import annotations

import torch
from sklearn.datasets import load_digits
from torch import Tensor, nn

from fedbary.methods import METHODS, Local, Reply, Server

EPSILONS = (1.0, 3.0, 10.0, 30.0, 100.0, 0.0)
SEEDS, TEST, NORM = 5, 360, 5.0


def accuracy(name: str, sites: int, epsilon: float, seed: int, x: Tensor, y: Tensor) -> float:
    """Return the accuracy, per cent, of a model of all sites on test images."""
    method, model = METHODS[name](max_norm=NORM, epsilon=epsilon), nn.Sequential(nn.Linear(64, 10))
    order = torch.randperm(len(x), generator=torch.Generator().manual_seed(seed))
    test, parts = order[:TEST], order[TEST:].chunk(sites)
    held = dict(model.state_dict())
    sent = [
        Reply(str(k), len(part), method.fit(Local(model, x[part], y[part]), held, {}).reply)
        for k, part in enumerate(parts)
    ]
    found, _ = method.aggregate(Server(held, {}), sent)
    logits = x[test] @ found["0.weight"].T + found["0.bias"]
    return 100 * float((logits.argmax(1) == y[test]).float().mean())


def main() -> None:
    """Print the table."""
    held = load_digits()
    x = torch.tensor(held.data, dtype=torch.float32) / 16
    y = torch.tensor(held.target)
    heads = [f"ε = {epsilon:g}" if epsilon else "no noise" for epsilon in EPSILONS]
    print("| | " + " | ".join(heads) + " |")
    print("|" + " --- |" * (1 + len(heads)))
    for name in ("LDA", "Ridge"):
        for sites in (1, 5):
            cells = []
            for epsilon in EPSILONS:
                every = [accuracy(name, sites, epsilon, seed, x, y) for seed in range(SEEDS)]
                cells.append(f"{sum(every) / SEEDS:.1f}")
            print(f"| `{name}`, {sites} site{'s' * (sites > 1)} | " + " | ".join(cells) + " |")


if __name__ == "__main__":
    main()

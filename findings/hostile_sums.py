"""What one hostile site of ten can do to a head by sums that examples could have.

python findings/hostile_sums.py            prints the table of docs/howto/hostile.md; a minute
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from sklearn.datasets import load_digits
from torch import Tensor, nn
from torch.nn import functional

from fedbary.methods import METHODS, Local, Reply, Server
from fedbary.methods._sums import SumsMethod

SEEDS, SITES, TEST, NORM = 5, 10, 360, 5.0


def network() -> nn.Module:
    """Return a linear model of digits."""
    return nn.Sequential(nn.Linear(64, 10))


def sums(method: SumsMethod, x: Tensor, y: Tensor, name: str) -> Reply:
    """Return what a site sends."""
    model = network()
    fitted = method.fit(Local(model, x, y), dict(model.state_dict()), {})
    return Reply(name, len(x), fitted.reply)


def scores(method: SumsMethod, replies: list[Reply], x: Tensor, y: Tensor) -> tuple[float, float]:
    """Return accuracy, per cent, and NLL of the model of some replies."""
    model, _ = method.aggregate(Server(dict(network().state_dict()), {}), replies)
    logits = x @ model["0.weight"].T + model["0.bias"]
    right = (logits.argmax(1) == y).float().mean()
    return 100 * float(right), float(functional.cross_entropy(logits, y))


def cases(
    method: SumsMethod, seed: int, x: Tensor, y: Tensor
) -> dict[str, Callable[[], tuple[float, float]]]:
    """Return what is tried: from a name, the scores."""
    order = torch.randperm(len(x), generator=torch.Generator().manual_seed(seed))
    test, parts = order[:TEST], order[TEST:].chunk(SITES)
    honest = [sums(method, x[part], y[part], str(k)) for k, part in enumerate(parts)]
    own, labels, free = x[parts[0]], y[parts[0]], type(method)()

    def with_one(by: SumsMethod, its_x: Tensor, its_y: Tensor) -> Callable[[], tuple[float, float]]:
        first = sums(by, its_x, its_y, "0")
        return lambda: scores(method, [first, *honest[1:]], x[test], y[test])

    wrong = (labels + 1) % 10
    return {
        "is honest": lambda: scores(method, honest, x[test], y[test]),
        "is left out": lambda: scores(method, honest[1:], x[test], y[test]),
        "its labels shifted by one": with_one(method, own, wrong),
        "all of its examples called 0": with_one(method, own, 0 * labels),
        "its features with the other sign": with_one(method, -own, labels),
        "shifted labels, features three times as large": with_one(free, 3 * own, wrong),
        "shifted labels, features ten times as large": with_one(free, 10 * own, wrong),
    }


def row(name: str, norm: float, case: str, x: Tensor, y: Tensor) -> str:
    """Return a cell: means over the seeds, or that the sums are refused."""
    kind = METHODS[name]
    assert issubclass(kind, SumsMethod)
    try:
        found = [cases(kind(max_norm=norm), seed, x, y)[case]() for seed in range(SEEDS)]
    except ValueError:
        return "refused"
    accuracy, nll = (sum(column) / SEEDS for column in zip(*found, strict=True))
    return f"{accuracy:.1f} / {nll:.3f}"


def main() -> None:
    """Print the table."""
    held = load_digits()
    x = torch.tensor(held.data, dtype=torch.float32) / 16
    y = torch.tensor(held.target)
    columns = [(name, norm) for name in ("LDA", "Ridge") for norm in (0.0, NORM)]
    heads = [f"`{name}`" + (f", `max_norm={norm:g}`" if norm else "") for name, norm in columns]
    print("| the site | " + " | ".join(heads) + " |")
    print("|" + " --- |" * (1 + len(heads)))
    for case in cases(METHODS["LDA"](), 0, x, y):  # type: ignore[arg-type]
        print(f"| {case} | " + " | ".join(row(*column, case, x, y) for column in columns) + " |")


if __name__ == "__main__":
    main()

"""Heads by sums on the digits: what one hostile site of ten can do, and what noise costs.

python -m findings.sums hostile      prints the table of docs/howto/hostile.md; a minute
python -m findings.sums private      prints the table of docs/howto/privacy.md; a minute
"""

import sys
from collections.abc import Sequence
from functools import cache, partial

import torch
from sklearn.datasets import load_digits
from torch import Tensor, nn
from torch.nn import functional

from fedbary.methods import METHODS, Local, Reply, Server
from findings import maker

SEEDS, TEST, NORM = range(5), 360, 5.0
EPSILONS = (1.0, 3.0, 10.0, 30.0, 100.0, 0.0)
CASES = {
    "is honest": (1, 0),
    "is left out": None,
    "its labels shifted by one": (1, 1),
    "all of its examples called 0": (1, None),
    "its features with the other sign": (-1, 0),
    "shifted labels, features three times as large": (3, 1),
    "shifted labels, features ten times as large": (10, 1),
}
"""What the hostile site does: the factor of its features, and the shift of its labels."""

Data = tuple[Tensor, Tensor]


def dealt(sites: int, seed: int) -> tuple[Data, list[Data]]:
    """Return the test's images and labels, and each site's."""
    held = load_digits()
    x, y = torch.tensor(held.data, dtype=torch.float32) / 16, torch.tensor(held.target)
    order = torch.randperm(len(x), generator=torch.Generator().manual_seed(seed))
    parts = (order[:TEST], *order[TEST:].chunk(sites))
    test, *sites_data = ((x[part], y[part]) for part in parts)
    return test, sites_data


def network() -> nn.Module:
    """Return a linear model of digits."""
    return nn.Sequential(nn.Linear(64, 10))


def reply(method: object, at: int, x: Tensor, y: Tensor) -> Reply:
    """Return what a site sends."""
    model = network()
    fitted = method.fit(Local(model, x, y), dict(model.state_dict()), {})
    return Reply(str(at), len(x), fitted.reply)


def scores(method: object, replies: Sequence[Reply], test: Data) -> tuple[float, float]:
    """Return accuracy, per cent, and NLL of the model of some replies."""
    model, _ = method.aggregate(Server(dict(network().state_dict()), {}), replies)
    logits, y = test[0] @ model["0.weight"].T + model["0.bias"], test[1]
    right = (logits.argmax(1) == y).float().mean()
    return 100 * float(right), float(functional.cross_entropy(logits, y))


@cache
def honest(name: str, norm: float, seed: int) -> tuple[Data, Data, list[Reply]]:
    """Return the test, the first site's examples, and what ten sites send."""
    test, sites = dealt(10, seed)
    method = METHODS[name](max_norm=norm)
    return test, sites[0], [reply(method, at, *site) for at, site in enumerate(sites)]


def attacked(name: str, norm: float, case: str) -> str:
    """Return means over the seeds, or that the sums are refused; a large site has no bound."""
    method, found = METHODS[name](max_norm=norm), []
    for seed in SEEDS:
        test, (x, y), (_, *replies) = honest(name, norm, seed)
        if does := CASES[case]:
            factor, shift = does
            labels = 0 * y if shift is None else (y + shift) % 10
            its = METHODS[name]() if factor > 1 else method
            replies.insert(0, reply(its, 0, factor * x, labels))
        try:
            found.append(scores(method, replies, test))
        except ValueError:
            return "refused"
    accuracy, nll = (sum(column) / len(SEEDS) for column in zip(*found, strict=True))
    return f"{accuracy:.1f} / {nll:.3f}"


def noisy(epsilon: float, at: tuple[str, int]) -> str:
    """Return the mean accuracy of a method's model of some sites, with noise of ε."""
    (name, count), found = at, 0.0
    for seed in SEEDS:
        test, sites = dealt(count, seed)
        method = METHODS[name](max_norm=NORM, epsilon=epsilon)
        found += scores(method, [reply(method, k, *own) for k, own in enumerate(sites)], test)[0]
    return f"{found / len(SEEDS):.1f}"


def main(which: str) -> None:
    """Print a table."""
    if which == "hostile":
        sides = {}
        for name in ("LDA", "Ridge"):
            sides |= {f"`{name}`": (name, 0.0), f"`{name}`, `max_norm={NORM:g}`": (name, NORM)}
        columns = [(head, partial(attacked, *side)) for head, side in sides.items()]
        print(maker.table("the site", ((case, case) for case in CASES), columns))
    else:
        rows = {f"`{name}`, {n} site{'s' * (n > 1)}": (name, n)
                for name in ("LDA", "Ridge") for n in (1, 5)}  # fmt: skip
        heads = (f"ε = {epsilon:g}" if epsilon else "no noise" for epsilon in EPSILONS)
        columns = [(h, partial(noisy, e)) for h, e in zip(heads, EPSILONS, strict=True)]
        print(maker.table("", rows, columns))


if __name__ == "__main__":
    main(sys.argv[1])

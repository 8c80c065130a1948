"""How often sites of other populations are said to have other units, and how often a unit is found.

Real tables are dealt to 2, 3, 5 and 10 sites: at random, by sizes that differ, by Dirichlet(0.1)
shares of five classes of the target, by one or two of its classes a site, sorted by the target, and
sorted by a column. No site has another unit, so each deal with a line is a false alarm. Then one of
some invented sites has another unit.

    python -m benchmarks.beside DATA [--draws 5] [--seed 1]

DATA is the folder that holds `uci/`. The figures stand in `docs/howto/tables.md` and
`docs/howto/look.md`.
"""

from __future__ import annotations

import argparse
import sys
import warnings
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import torch
from pandas import DataFrame

from fedbary.data.beside import far_sites
from fedbary.data.sentinels import sentinels
from fedbary.data.standardise import Sums
from fedbary.data.tables import load, load_labelled
from fedbary.tasks._look.findings import findings

UCI = (
    "bostonHousing", "concrete", "kin8nm", "naval-propulsion-plant", "protein-tertiary-structure",
    "wine-quality-red", "yacht",
)  # fmt: skip

KINDS = ("iid", "quantity", "dirichlet", "classes", "by target", "by column")

LEAST, MOST = 10, 4000
"""Fewest rows of a site; rows of a table that are dealt."""

FAULTS = {
    "creatinine × 88.4": (1.0, 0.35, lambda v: 88.4 * v),
    "glucose × 18.02": (5.5, 0.25, lambda v: 18.02 * v),
    "weight × 2.2046": (72.0, 0.2, lambda v: 2.2046 * v),
    "height ÷ 2.54": (170.0, 0.06, lambda v: v / 2.54),
    "pressure ÷ 7.5006": (120.0, 0.15, lambda v: v / 7.5006),
    "haemoglobin × 10": (14.0, 0.12, lambda v: 10 * v),
    "age × 12": (60.0, 0.25, lambda v: 12 * v),
    "bilirubin × 17.1": (0.8, 0.7, lambda v: 17.1 * v),
    "°C as °F": (37.0, 0.02, lambda v: 1.8 * v + 32),
}
"""Mean and coefficient of variation of a column, and what another unit does to it."""


def tables(data: str) -> Iterator[tuple[np.ndarray, np.ndarray]]:
    """Yield columns, (N, C), and target, (N,), of each table."""
    held = [load(f"uci/{name}", data) for name in UCI]
    for each in (*held, load("diabetes", data), load_labelled("breast_cancer", data)):
        assert each.y is not None
        rows = np.random.default_rng(0).permutation(len(each.x))[:MOST]
        yield each.x.numpy()[rows], each.y.double().numpy()[rows]


def deal(
    kind: str, x: np.ndarray, y: np.ndarray, count: int, rng: np.random.Generator
) -> list[np.ndarray]:
    """Return each site's rows; none if a site has too few."""
    mixed, noise = rng.permutation(len(y)), 1e-9 * rng.normal(size=len(y))
    labels = np.searchsorted(np.unique(np.quantile(y, (0.2, 0.4, 0.6, 0.8))), y)
    kinds = np.unique(labels)
    if kind.startswith("by"):
        by = y if kind == "by target" else x[:, rng.integers(x.shape[1])]
        parts = np.array_split(np.argsort(by + noise), count)
    elif kind == "classes":
        own = [
            rng.choice(kinds, min(len(kinds) - 1, rng.integers(1, 3)), False) for _ in range(count)
        ]
        parts = [mixed[np.isin(labels[mixed], some)][: len(y) // count] for some in own]
    else:
        groups = [mixed[labels[mixed] == k] for k in kinds] if kind == "dirichlet" else [mixed]
        even, alpha = np.full(count, 1 / count), 0.1 if kind == "dirichlet" else 0.5
        parts = [np.zeros(0, dtype=int)] * count
        for rows in groups:
            share = even if kind == "iid" else rng.dirichlet([alpha] * count)
            cuts = np.split(rows, (np.cumsum(share)[:-1] * len(rows)).astype(int))
            parts = [np.append(*pair) for pair in zip(parts, cuts, strict=True)]
    return parts if min(map(len, parts)) >= LEAST else []


def deals(
    data: str, draws: int, rng: np.random.Generator
) -> Iterator[tuple[str, list[np.ndarray]]]:
    """Yield deals: their kind, and each site's rows, (n, C)."""
    for x, y in tables(data):
        for kind in KINDS:
            for count in (2, 3, 5, 10) * draws:
                if parts := deal(kind, x, y, count, rng):
                    yield kind, [x[rows] for rows in parts]


def invented(
    name: str, draws: int, rng: np.random.Generator
) -> Iterator[tuple[int, list[np.ndarray]]]:
    """Yield federations with a site in another unit: its place, and each site's values, (n,).

    Sites' means differ by 0.3 deviations.
    """
    mean, variation, changed = FAULTS[name]
    for count in (2, 3, 5, 8) * draws:
        log_std, odd = np.sqrt(np.log1p(variation**2)), int(rng.integers(count))
        centres = mean * (1 + 0.3 * variation * rng.normal(size=count))
        sizes = rng.integers(50, 400, count)
        sites = [
            m * rng.lognormal(-(log_std**2) / 2, log_std, n)
            for m, n in zip(centres, sizes, strict=True)
        ]
        sites[odd] = changed(sites[odd])
        yield odd, sites


def false_alarms(data: str, draws: int, rng: np.random.Generator) -> None:
    """Print how many deals have a line, of units and of numbers that repeat."""
    dealt, units, repeats = Counter[str](), Counter[str](), Counter[str]()
    for kind, parts in deals(data, draws, rng):
        dealt[kind] += 1
        units[kind] += bool(far_sites([Sums.of(torch.from_numpy(part)) for part in parts]))
        repeats[kind] += any(sentinels(column) for part in parts for column in part.T)
    for kind in KINDS:
        print(
            f"{kind}: {dealt[kind]} deals, {units[kind]} units, {repeats[kind]} numbers that repeat"
        )


def found(draws: int, rng: np.random.Generator) -> None:
    """Print how often a site in another unit is found."""
    for name in FAULTS:
        hits = wrong = 0
        for odd, sites in invented(name, draws, rng):
            said = far_sites([Sums.of(torch.from_numpy(site)[:, None]) for site in sites])
            hits += any(far.site == odd or len(sites) == 2 for far in said)
            wrong += any(far.site != odd and len(sites) > 2 for far in said)
        print(f"{name}: found {hits} of {4 * draws}; another site named {wrong}")


def looks(data: str, draws: int, rng: np.random.Generator) -> None:
    """Print the same for looks, with -999 in 3 % of a site's rows, and quantiles' errors."""
    sys.path.append(str(Path(__file__).parents[1] / "tests"))
    from looks import look_at

    def lines(sites: list[np.ndarray]) -> list[str]:
        held = {f"s{k}": DataFrame(part).add_prefix("c") for k, part in enumerate(sites)}
        told = findings(look_at(held))
        return [line for line in told if "another unit" in line or "repeats" in line]

    dealt = [bool(lines(parts)) for _, parts in deals(data, draws, rng)]
    print(f"look: {sum(dealt)} of {len(dealt)} deals have a line on units or numbers that repeat")
    hits, wrong, minus = 0, 0, 0
    for name in FAULTS:
        for odd, sites in invented(name, 10 * draws, rng):
            said = " ".join(lines(sites))
            hits += f"s{odd} (" in said or (len(sites) == 2 and bool(said))
            wrong += len(sites) > 2 and any(
                f"s{k} (" in said for k in range(len(sites)) if k != odd
            )
            sites = [rng.normal(26, 4, 200) for _ in sites]
            sites[odd][:6] = -999
            minus += f"repeats at s{odd}" in " ".join(lines(sites))
    count = 40 * draws * len(FAULTS)
    print(f"look: units found {hits} of {count}, another site named {wrong}; -999 found {minus}")
    at, off = (0.05, 0.25, 0.5, 0.75, 0.95), []
    for _ in range(40 * draws):
        sizes = rng.integers(30, 500, rng.integers(3, 9))
        held = {f"s{k}": DataFrame({"x": rng.lognormal(1.7, 0.25, n)}) for k, n in enumerate(sizes)}
        true = np.quantile(np.concatenate([each["x"] for each in held.values()]), at)
        off.append(abs(look_at(held).quantiles("x", at) / true - 1))
    for name, error in zip(at, np.transpose(off), strict=True):
        mean, most = 100 * error.mean(), 100 * np.quantile(error, 0.95)
        print(f"look: quantile {name} off by {mean:.2f} % in the mean, {most:.1f} % in 1 of 20")


def main() -> None:
    """Print all."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("data")
    parser.add_argument("--draws", type=int, default=5)
    parser.add_argument("--seed", type=int, default=1)
    given = parser.parse_args()
    warnings.simplefilter("ignore")
    rng = np.random.default_rng(given.seed)
    false_alarms(given.data, given.draws, rng)
    found(10 * given.draws, rng)
    looks(given.data, given.draws, rng)


if __name__ == "__main__":
    main()

"""Clients whose speeds differ tenfold, as traces: `python -m findings.asynchronous.clocks`.

It writes `speeds-SEED.csv` for ten clients and `speeds100-SEED.csv` for a hundred, here.
Seconds an example go from 1 to 10 ms in equal ratios; the seed deals them to the clients.
`fast-SEED.csv` and `slow-SEED.csv` are for ten clients of which some are hostile. Those have 1 or
10 ms, the others 1.5 to 7 ms.
"""

from collections.abc import Iterable
from pathlib import Path
from random import Random

from fedbary.attacks import hostile_clients
from fedbary.server_app.clocked import COLUMNS, LATENCY_EXAMPLES, LEAST_SECONDS, MOST_SECONDS

SEEDS = range(10, 15)


FRACTION = 0.2
"""Fraction of the clients that are hostile."""


def write(file: Path, seconds: list[float]) -> None:
    """Write a trace, given each client's seconds an example."""
    rows = (f"partition {client},{each:.6f},{LATENCY_EXAMPLES * each:.5f}"
            for client, each in enumerate(seconds))  # fmt: skip
    file.write_text("\n".join([",".join(COLUMNS), *rows]) + "\n")


def dealt(
    clients: int, seed: int, least: float = LEAST_SECONDS, most: float = MOST_SECONDS
) -> list[float]:
    """Return seconds in equal ratios, in an order of the seed."""
    seconds = [least * (most / least) ** (place / (clients - 1)) for place in range(clients)]
    Random(seed).shuffle(seconds)
    return seconds


def main(folder: Path, seeds: Iterable[int]) -> None:
    """Write all traces of some seeds."""
    for seed in seeds:
        write(folder / f"speeds-{seed}.csv", dealt(10, seed))
        write(folder / f"speeds100-{seed}.csv", dealt(100, 1000 + seed))
        for name, own in (("fast", LEAST_SECONDS), ("slow", MOST_SECONDS)):
            hostile, others = hostile_clients(FRACTION, 10, seed), dealt(10, seed, 1.5e-3, 7e-3)
            write(
                folder / f"{name}-{seed}.csv",
                [own if k in hostile else each for k, each in enumerate(others)],
            )


if __name__ == "__main__":
    main(Path(), SEEDS)

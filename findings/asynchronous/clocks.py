"""Clients whose speeds differ tenfold, as traces: `python -m findings.asynchronous.clocks`.

It writes `speeds-SEED.csv` for ten clients and `speeds100-SEED.csv` for a hundred, here.
Seconds an example go from 1 to 10 ms in equal ratios; the seed deals them to the clients.
"""

from __future__ import annotations

import csv
from pathlib import Path
from random import Random

from server_app.speeds import COLUMNS, LATENCY_EXAMPLES, LEAST_SECONDS, MOST_SECONDS

SEEDS = range(10, 15)


def write(file: Path, clients: int, seed: int) -> None:
    """Write a trace."""
    places = list(range(clients))
    Random(seed).shuffle(places)
    with open(file, "w", newline="") as target:
        writer = csv.writer(target)
        writer.writerow(COLUMNS)
        for client, place in enumerate(places):
            ratio = MOST_SECONDS / LEAST_SECONDS
            seconds = LEAST_SECONDS * ratio ** (place / (clients - 1))
            latency = f"{LATENCY_EXAMPLES * seconds:.5f}"
            writer.writerow([f"partition {client}", f"{seconds:.6f}", latency])


if __name__ == "__main__":
    for each in SEEDS:
        write(Path(f"speeds-{each}.csv"), 10, each)
        write(Path(f"speeds100-{each}.csv"), 100, 1000 + each)

"""Six tables on three real servers and in one process: python -m findings.statistics.servers.

Starts a SuperLink and three SuperNodes with TLS and keys on this machine, for each table. A site of
lung has the rows of a third of the institutions. Needs statsmodels and lifelines, whose wheels hold
the tables. Rows that are in servers.jsonl already stay.
"""

import json
import time
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np
import torch

from fedbary import client_app
from fedbary.launching.deploy import lab
from fedbary.runs.checkpoints import load_checkpoint
from fedbary.runs.location import read_rounds
from fedbary.server_app import run
from fedbary.server_app.engine.inline import InlineGrid
from fedbary.settings.config import resolve
from findings.statistics.measure import OPEN, tables, words_of

FILE, SITES, SEED = Path(__file__).with_name("servers.jsonl"), 3, 0


def held(folder):
    """Return all tensors of a run's last checkpoint but the number that names the run."""
    checkpoint = load_checkpoint(folder, "last")
    state = {n: t for n, t in checkpoint.strategy.items() if n != "strategy.run"}
    return {**checkpoint.arrays, **state}


def measure(name, table, site, words):
    """Return the figures of the two runs of a table, whose rows' sites are 0, 1 and 2."""
    with TemporaryDirectory() as place:
        folder, nodes = Path(place), []
        table.to_csv(folder / "all.csv", index=False)
        for k in range(SITES):
            table[site == k].to_csv(folder / f"{k}.csv", index=False)
            nodes.append({"data-path": f"{folder}/{k}.csv", "name": f"site {k}", **OPEN})
        words |= {"dataset": f"{folder}/all.csv", "clients": SITES, "prior_std": 1000.0}
        words |= {"min_replies": SITES, "device": "cpu", "pictures": False}
        chosen = resolve({**words, "output": f"{folder}/servers"})
        start = time.process_time()
        run(InlineGrid(client_app.app, nodes, chosen.model_dump()), chosen, folder / "process")
        seconds, alone = time.process_time() - start, time.perf_counter()
        (folder / "lab").mkdir()
        with lab(folder / "lab", nodes) as servers:
            ready = time.perf_counter()
            status = servers.run(chosen)
            ended = time.perf_counter()
        assert status == "finished:completed", status
        one, other = held(folder / "process"), held(folder / "servers")
        same = one.keys() == other.keys() and all(torch.equal(one[n], other[n]) for n in one)
        lines = read_rounds(folder / "servers")[1:]
        return {
            "data": name, "rows": len(table), "rounds": len(lines), "same": same,
            "process": seconds, "servers": ended - ready, "to_start": ready - alone,
            "each_round": float(np.median([line["seconds"] for line in lines])),
            "up": sum(line["bytes"]["up"] for line in lines),
            "down": sum(line["bytes"]["down"] for line in lines),
        }  # fmt: skip


def main():
    """Measure what is not in the file yet."""
    known = [json.loads(line)["data"] for line in FILE.open()] if FILE.exists() else []
    for name, family, table, column, sites in tables():
        if name not in known:
            site = np.random.default_rng(SEED).permutation(len(table)) % SITES
            if not sites:
                site = table.pop(column).to_numpy(int) % SITES
            line = json.dumps(measure(name, table, site, words_of(family)))
            with FILE.open("a") as file:
                file.write(line + "\n")


if __name__ == "__main__":
    main()

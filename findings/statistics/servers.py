"""Six tables on three real servers and in one process: python -m findings.statistics.servers.

Starts a SuperLink and three SuperNodes with TLS and keys on this machine, for each table. A site of
lung has the rows of a third of the institutions. Once more fair by Newton's method: the servers
have masks that cancel, and the process has none. Needs statsmodels and lifelines, whose wheels hold
the tables. Rows that are in servers.jsonl already stay.
"""

import json
import shutil
import time
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np
import torch

import fedbary
from fedbary import client_app
from fedbary.launching.app import write_app
from fedbary.launching.deploy import lab
from fedbary.runs.checkpoints import load_checkpoint
from fedbary.runs.location import read_rounds
from fedbary.server_app import run
from fedbary.server_app.engine.inline import InlineGrid
from fedbary.settings.config import resolve
from findings.statistics import masks
from findings.statistics.measure import OPEN, tables, words_of

FILE, SITES, SEED = Path(__file__).with_name("servers.jsonl"), masks.SITES, 0
MASKED = "fair, masks"


def held(folder):
    """Return all tensors of a run's last checkpoint but the number that names the run."""
    checkpoint = load_checkpoint(folder, "last")
    state = {n: t for n, t in checkpoint.strategy.items() if n != "strategy.run"}
    return {**checkpoint.arrays, **state}


def app_of(folder):
    """Write the app of runs, whose clients add masks; return its folder."""
    project = write_app(folder) / "pyproject.toml"
    shutil.copy(masks.__file__, folder / "fedbary" / "masks.py")
    text = project.read_text().replace("fedbary.client_app:app", "fedbary.masks:app")
    project.write_text(text)
    return folder


def apart(one, other):
    """Return the largest distance of two runs' coefficients and standard errors, in the latter."""
    a, b = (fedbary.load(folder).coefficients(anyway=True).factors for folder in (one, other))
    return float(max((np.abs(a.estimates - b.estimates) / b.stds).max(),
                     np.abs(a.stds / b.stds - 1).max()))  # fmt: skip


def measure(name, table, site, words, masked=False):
    """Return the figures of the two runs of a table, whose rows' sites are 0, 1 and 2."""
    with TemporaryDirectory() as place:
        folder, nodes = Path(place), []
        table.to_csv(folder / "all.csv", index=False)
        for k in range(SITES):
            table[site == k].to_csv(folder / f"{k}.csv", index=False)
            nodes.append({"data-path": f"{folder}/{k}.csv", "name": f"site {k}", **OPEN})
            nodes[-1] |= {masks.KEY: SEED} if masked else {}
        words |= {"dataset": f"{folder}/all.csv", "clients": SITES, "prior_std": 1000.0}
        words |= {"min_replies": SITES, "device": "cpu", "pictures": False}
        words |= {"output": f"{folder}/servers"}
        chosen = resolve(words)
        start = time.process_time()
        run(InlineGrid(client_app.app, nodes, chosen.model_dump()), chosen, folder / "process")
        seconds, alone = time.process_time() - start, time.perf_counter()
        (folder / "lab").mkdir()
        with lab(folder / "lab", nodes) as servers:
            ready = time.perf_counter()
            asked = resolve({**words, "masked": True}) if masked else chosen
            status = servers.run(asked, app=app_of(folder / "app") if masked else None)
            ended = time.perf_counter()
            told = [servers.log(f"site{k}").count("masks of size") for k in range(SITES)]
        assert status == "finished:completed", status
        one, other = held(folder / "process"), held(folder / "servers")
        same = one.keys() == other.keys() and all(torch.equal(one[n], other[n]) for n in one)
        lines = read_rounds(folder / "servers")[1:]
        return {
            "data": name, "rows": len(table), "rounds": len(lines), "same": same,
            "process": seconds, "servers": ended - ready, "to_start": ready - alone,
            "apart": apart(folder / "servers", folder / "process"), "masked": min(told),
            "each_round": float(np.median([line["seconds"] for line in lines])),
            "up": sum(line["bytes"]["up"] for line in lines),
            "down": sum(line["bytes"]["down"] for line in lines),
        }  # fmt: skip


def main():
    """Measure what is not in the file yet."""
    known = [json.loads(line)["data"] for line in FILE.open()] if FILE.exists() else []
    for name, family, table, column, sites in tables():
        site = np.random.default_rng(SEED).permutation(len(table)) % SITES
        if not sites:
            site = table.pop(column).to_numpy(int) % SITES
        ways = [(name, {}, False)]
        if MASKED.startswith(name):
            ways.append((MASKED, {"method": "Newton"}, True))
        for called, words, masked in ways:
            if called not in known:
                found = measure(called, table, site, {**words_of(family), **words}, masked)
                with FILE.open("a") as file:
                    file.write(json.dumps(found) + "\n")


if __name__ == "__main__":
    main()

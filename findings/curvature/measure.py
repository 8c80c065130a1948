"""The scores of every federation of a plan: `cells.csv`.

    python -m findings.curvature.measure findings/curvature/plan.yaml findings/curvature DATA_DIR

DATA_DIR holds Fashion-MNIST. Cells that the table has are not measured again, so it can be stopped
and started.
"""

import os
import sys
from collections.abc import Iterator
from itertools import product
from pathlib import Path
from typing import Any

import pandas as pd
import torch
from torch.nn.functional import cross_entropy

from fedbary.predictive import mixture
from fedbary.scores.metrics import fitted_temperature, nll_at_temperatures
from fedbary.settings.config import read_yaml, resolve
from findings.curvature.side_by_side import Member, SideBySide
from findings.truth.federation import Federation

STEPS = ("lr", "momentum", "lr_schedule")
SETTING = (*STEPS, "local_epochs")
SIDES = ("FedAvg", "curvature", "by size")


class Map:
    """A plan, and the cells that are measured.

    Parameters
    ----------
    plan, file, data_dir
        The plan's content, the table, and the folder of the data sets.
    """

    def __init__(self, plan: dict[str, Any], file: Path, data_dir: str) -> None:
        self.plan, self.file, self.data_dir = plan, file, data_dir
        self.cells = pd.read_csv(file) if file.exists() else pd.DataFrame(columns=["condition"])

    def measure(self) -> None:
        """Choose and compare in each condition."""
        steps = [
            {**step, "lr_schedule": schedule}
            for step, schedule in product(self.plan["steps"], self.plan["lr_schedule"])
        ]
        for condition in self.plan["conditions"]:
            tries = product(self.plan["choice"], self.plan["local_epochs"], SIDES[:2])
            for seed, epochs, side in tries:
                self.take(condition, "choice", side, seed, epochs, steps)
            for seed, side in product(self.plan["fresh"], SIDES):
                best = self.best(condition, SIDES[0] if side == SIDES[0] else SIDES[1])
                epochs = best.pop("local_epochs")
                self.take(condition, "fresh", side, seed, epochs, [best])

    def best(self, condition: str, side: str) -> dict[str, Any]:
        """Return the setting of a side with the least mean NLL on held-out examples."""
        cells = self.cells
        tried = cells[(cells["condition"] == condition) & (cells["side"] == side)]
        tried = tried[tried["stage"] == "choice"]
        means = tried.groupby(list(SETTING))["held_out"].mean()
        return dict(zip(SETTING, means.idxmin(), strict=True))

    def take(
        self, condition: str, stage: str, side: str, seed: int, epochs: int, steps: list[dict]
    ) -> None:
        """Measure some steps of a side, unless the table has them."""
        place = {
            "condition": condition, "stage": stage, "side": side, "seed": seed,
            "local_epochs": epochs,
        }  # fmt: skip
        held = self.cells
        for name in place.keys() & set(held.columns):
            held = held[held[name] == place[name]]
        if len(held):
            return
        words = {**self.plan["settings"], **self.plan["conditions"][condition]}
        words |= {"seed": seed, "local_epochs": int(epochs), "data_dir": self.data_dir}
        precision = 0.0 if side == "FedAvg" else self.plan["settings"]["prior_std"] ** -2
        members = [Member(**step, precision=precision, by_curvature=side == "curvature")
                   for step in steps]  # fmt: skip
        runs = SideBySide(Federation(resolve(words)), members, self.plan["pooled"])
        for _ in range(runs.federation.settings.rounds):
            runs.take_round()
        rows = [{**place, **step, **score} for step, score in zip(steps, scores(runs), strict=True)]
        self.cells = pd.concat([self.cells, pd.DataFrame(rows)], ignore_index=True)
        self.cells.round(6).to_csv(self.file.with_suffix(".part"), index=False)
        os.replace(self.file.with_suffix(".part"), self.file)
        print(
            condition, stage, side, seed, epochs, min(row["held_out"] for row in rows), flush=True
        )


def scores(runs: SideBySide) -> Iterator[dict[str, float]]:
    """Yield for each federation temperature, NLL on held-out and test examples, and accuracy."""
    shards = runs.federation.shards
    held, y_held = (torch.cat([getattr(s, f"{n}_held_out") for s in shards]) for n in "xy")
    x, y = runs.federation.task.scored_by_clients({})
    for asked, logits in zip(runs.logits(held), runs.logits(x), strict=True):
        by_temperature = nll_at_temperatures(mixture(asked[None]), y_held)
        t = fitted_temperature([{**by_temperature, "num-examples": len(y_held)}]) or 1.0
        yield {
            "temperature": t,
            "held_out": float(cross_entropy(asked / t, y_held)),
            "nll": float(cross_entropy(logits / t, y)),
            "accuracy": float((logits.argmax(1) == y).float().mean()),
        }


if __name__ == "__main__":
    torch.set_num_threads(1)
    given, folder, data = sys.argv[1:4]
    Map(read_yaml(Path(given)), Path(folder) / "cells.csv", data).measure()

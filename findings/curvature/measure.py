"""The scores of every federation of a plan: `cells.csv.xz`.

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
from findings.curvature.alone import Alone
from findings.curvature.ivon import Ivon
from findings.curvature.page import best
from findings.curvature.side_by_side import Member, SideBySide
from findings.truth.federation import Federation


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
        """Choose and compare each side in each condition; then some at some numbers of epochs."""
        sides, conditions = self.plan["sides"], self.plan["conditions"]
        for condition in conditions:
            for side, own in sides.items():
                if condition not in own.get("conditions", conditions):
                    continue
                by = own.get("setting_of", side)
                steps = [
                    {**step, "lr_schedule": schedule}
                    for step in own.get("steps", self.plan["steps"])
                    for schedule in self.plan["lr_schedule"]
                ]
                for seed, epochs in product(self.plan["choice"], own.get("local_epochs", ())):
                    self.take(condition, "choice", side, seed, epochs, steps)
                for seed in self.plan["fresh"]:
                    self.compare(condition, side, seed, best(self.cells, condition, by))
            for side, counts in self.plan["each"].items():
                for seed, epochs in product(self.plan["fresh"], counts):
                    self.compare(condition, side, seed, best(self.cells, condition, side, epochs))

    def compare(self, condition: str, side: str, seed: int, setting: dict[str, Any]) -> None:
        """Measure a setting at a fresh seed."""
        epochs = setting.pop("local_epochs")
        self.take(condition, "fresh", side, seed, epochs, [setting])

    def take(
        self, condition: str, stage: str, side: str, seed: int, epochs: int, steps: list[dict]
    ) -> None:
        """Measure some steps of a side, unless the table has them."""
        place = {
            "condition": condition, "stage": stage, "side": side, "seed": seed,
            "local_epochs": epochs,
        }  # fmt: skip
        held, known = self.cells, place | (steps[0] if len(steps) == 1 else {})
        for name in known.keys() & set(held.columns):
            held = held[held[name] == known[name]]
        if len(held):
            return
        words = {**self.plan["settings"], **self.plan["conditions"][condition]}
        words |= self.plan["sides"][side].get("settings", {})
        pooled = words.pop("pooled", 1)
        words |= {"seed": seed, "local_epochs": int(epochs), "data_dir": self.data_dir}
        runs = self.begun(side, words, steps, pooled)
        for _ in range(runs.federation.settings.rounds):
            runs.take_round()
        found = scores(runs, tested=stage == "fresh")
        rows = [{**place, **step, **score} for step, score in zip(steps, found, strict=True)]
        self.cells = pd.concat([self.cells, pd.DataFrame(rows)], ignore_index=True)
        self.cells.convert_dtypes().round(5).to_csv(
            self.file.with_suffix(".part"), index=False, compression="xz"
        )
        os.replace(self.file.with_suffix(".part"), self.file)
        print(
            condition, stage, side, seed, epochs, min(row["held_out"] for row in rows), flush=True
        )

    def begun(
        self, side: str, words: dict[str, Any], steps: list[dict], pooled: int
    ) -> SideBySide | Alone:
        """Return federations of a side that have no round yet, together where that is faster."""
        kinds = {"curvature": SideBySide, "ivon": Ivon}
        kind = kinds.get(words.get("inference", "")) if words["model"] == "mlp" else None
        if kind is None or words["rule"] != "RKLB":
            return Alone(words, steps)
        gaussian = side in ("curvature", "by size")
        precision = self.plan["settings"]["prior_std"] ** -2 if gaussian else 0.0
        method = side if side in ("curvature", "SCAFFOLD") else "FedAvg"
        members = [Member(**step, precision=precision, method=method) for step in steps]
        return kind(Federation(resolve(words)), members, pooled)


def scores(runs: SideBySide | Alone, tested: bool) -> Iterator[dict[str, float]]:
    """Yield for each federation its NLL on held-out examples, at their temperature.

    If it is tested, also the temperature, and NLL and accuracy on test examples.
    """
    shards = runs.federation.shards
    held, y_held = (torch.cat([getattr(s, f"{n}_held_out") for s in shards]) for n in "xy")
    x, y = runs.federation.task.scored_by_clients({})
    for asked, logits in zip(runs.logits(held), runs.logits(x), strict=True):
        by_temperature = nll_at_temperatures(mixture(asked[None]), y_held)
        t = fitted_temperature([{**by_temperature, "num-examples": len(y_held)}]) or 1.0
        score = {"held_out": float(cross_entropy(asked / t, y_held))}
        if tested:
            score["temperature"] = t
            score["nll"] = float(cross_entropy(logits / t, y))
            score["accuracy"] = float((logits.argmax(1) == y).float().mean())
        yield score


if __name__ == "__main__":
    torch.set_num_threads(1)
    given, folder, data = sys.argv[1:4]
    Map(read_yaml(Path(given)), Path(folder) / "cells.csv.xz", data).measure()

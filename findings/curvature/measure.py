"""The scores of every federation of a plan, in a folder.

    python -m findings.curvature.measure findings/curvature/plan.yaml findings/curvature DATA_DIR

DATA_DIR holds Fashion-MNIST. Cells that the folder has are not measured again, so it can be stopped
and started.
"""

import sys
from collections.abc import Iterator
from itertools import groupby, product
from pathlib import Path
from typing import Any

import pandas as pd
import torch
from torch.nn.functional import cross_entropy

from fedbary.predictive import mixture
from fedbary.scores.metrics import fitted_temperature, nll_at_temperatures
from fedbary.settings.config import read_yaml, resolve
from findings import maker
from findings.curvature.cells import USUAL, read, write
from findings.curvature.convolutions import Convolutions
from findings.curvature.estimates import DrawnLabels, Exact, Free, Hutchinson
from findings.curvature.page import best
from findings.curvature.posteriors import (
    Ivon,
    IvonOfConvolutions,
    Variational,
    VariationalOfConvolutions,
)
from findings.curvature.side_by_side import Member, SideBySide
from findings.truth.federation import Federation

KINDS = {
    ("mlp", "curvature"): SideBySide,
    ("mlp", "ivon"): Ivon,
    ("mlp", "variational"): Variational,
    ("findings.curvature.networks:narrow", "curvature"): Convolutions,
    ("findings.curvature.networks:narrow", "ivon"): IvonOfConvolutions,
    ("findings.curvature.networks:narrow", "variational"): VariationalOfConvolutions,
}
"""What takes the rounds, by network and inference. Sides of point weights are of SideBySide."""

ESTIMATES = {
    "drawn labels": DrawnLabels, "exact": Exact, "Hutchinson": Hutchinson, "free": Free,
}  # fmt: skip
"""Sides with curvature's steps and another estimate of it."""

METHODS = {
    **dict.fromkeys(("curvature", "last layer", *ESTIMATES), "curvature"),
    **{name: name for name in ("SCAFFOLD", "SCAFFOLD by curvature", "FedAdam")},
}  # fmt: skip
"""Sides with a method other than FedAvg's."""


class Map:
    """A plan, and the cells that are measured.

    Parameters
    ----------
    plan, folder, data_dir
        The plan's content, the folder of the cells, and the folder of the data sets.
    """

    def __init__(self, plan: dict[str, Any], folder: Path, data_dir: str) -> None:
        self.plan, self.folder, self.data_dir = plan, folder, data_dir
        self.cells = read(folder)

    def measure(self) -> None:
        """Choose and compare each side in each condition; then some at some numbers of epochs."""
        sides, conditions = self.plan["sides"], self.plan["conditions"]
        for condition in conditions:
            for side, own in sides.items():
                if condition in own.get("conditions", conditions):
                    looks = [None, *self.plan["each"].get(side, ())]
                    if "setting_of" not in own:
                        self.choose(condition, side, looks)
                    for count, seed in product(looks, self.seeds("fresh", condition, side)):
                        self.compare(condition, side, seed, count)

    def seeds(self, stage: str, condition: str, side: str) -> list[int]:
        """Return the seeds of a stage: a side's own, a condition's own, or the plan's."""
        places = self.plan["sides"][side], self.plan.get("seeds", {}).get(condition, {}), self.plan
        return next(place[stage] for place in places if stage in place)

    def choose(self, condition: str, side: str, looks: list[int | None]) -> None:
        """Measure a side's grid at the seeds of the choice, then settings around the best of it.

        They stand around the best of each look: of all, or of those with so many local epochs.
        """
        own = self.plan["sides"][side]
        seeds = self.seeds("choice", condition, side)
        grid = [
            {**USUAL, **step, "lr_schedule": schedule}
            for step in own.get("steps", self.plan["steps"])
            for schedule in own.get("lr_schedule", self.plan["lr_schedule"])
        ]
        for seed, epochs in product(seeds, own["local_epochs"]):
            self.take(condition, "choice", side, seed, epochs, grid)
        near = self.cells.merge(pd.DataFrame(grid))
        for count in looks:
            centre = best(near, condition, side, count)
            epochs = centre.pop("local_epochs")
            around = [
                {**centre, **{n: v for n, v in change.items() if n != "lr_times"},
                 "lr": round(centre["lr"] * change.get("lr_times", 1), 4)}
                for change in own.get("around", self.plan.get("around", ()))
            ]  # fmt: skip
            for seed in seeds:
                self.take(condition, "choice", side, seed, epochs, around)

    def compare(self, condition: str, side: str, seed: int, local_epochs: int | None) -> None:
        """Measure a side's best setting at a fresh seed."""
        by = self.plan["sides"][side].get("setting_of", side)
        setting = best(self.cells, condition, by, local_epochs)
        self.take(condition, "fresh", side, seed, setting.pop("local_epochs"), [setting])

    def take(
        self, condition: str, stage: str, side: str, seed: int, epochs: int, steps: list[dict]
    ) -> None:
        """Measure those steps of a side that the table does not have."""
        place = {
            "condition": condition, "stage": stage, "side": side, "seed": seed,
            "local_epochs": epochs,
        }  # fmt: skip
        held = maker.where(self.cells, **place)
        steps = [step for step in steps if not len(maker.where(held, **step))]
        rows = []
        for size, own in groupby(sorted(steps, key=_batch_size), key=_batch_size):
            words = {**self.plan["settings"], **self.plan["conditions"][condition]}
            words |= self.plan["sides"][side].get("settings", {})
            pooled = words.pop("pooled", 1)
            words |= {"seed": seed, "local_epochs": int(epochs), "data_dir": self.data_dir}
            taken = [*own]
            runs = self.begun(side, {**words, "batch_size": size}, taken, pooled)
            for _ in range(runs.federation.settings.rounds):
                runs.take_round()
            found = scores(runs, tested=stage == "fresh")
            rows += [{**place, **step, **score} for step, score in zip(taken, found, strict=True)]
        if not rows:
            return
        known = [self.cells] if len(self.cells) else []
        self.cells = pd.concat([*known, pd.DataFrame(rows)], ignore_index=True)
        write(self.folder, self.cells)
        print(
            condition, stage, side, seed, epochs, min(row["held_out"] for row in rows), flush=True
        )

    def begun(self, side: str, words: dict[str, Any], steps: list[dict], pooled: int) -> SideBySide:
        """Return federations of a side that have no round yet."""
        kind = ESTIMATES.get(side) or KINDS[words["model"], words["inference"]]
        method = METHODS.get(side, "FedAvg")
        gaussian = "curvature" in method or side in ("by size", "variational")
        members = []
        for step in steps:
            own = {name: v for name, v in step.items() if name not in ("batch_size", "prior_std")}
            precision = float(step["prior_std"]) ** -2 if gaussian else 0.0
            members.append(Member(**own, precision=precision, method=method))
        return kind(Federation(resolve(words)), members, pooled)


def _batch_size(step: dict[str, Any]) -> int:
    return int(step["batch_size"])


def scores(runs: SideBySide, tested: bool) -> Iterator[dict[str, float]]:
    """Yield for each federation its NLL on held-out examples, at their temperature.

    If it is tested, also NLL and accuracy on test examples.
    """
    shards = runs.federation.shards
    held, y_held = (torch.cat([getattr(s, f"{n}_held_out") for s in shards]) for n in "xy")
    x, y = runs.federation.task.scored_by_clients({})
    for asked, logits in zip(runs.logits(held), runs.logits(x), strict=True):
        by_temperature = nll_at_temperatures(mixture(asked[None]), y_held)
        t = fitted_temperature([{**by_temperature, "num-examples": len(y_held)}]) or 1.0
        score = {"held_out": float(cross_entropy(asked / t, y_held))}
        if tested:
            score["nll"] = float(cross_entropy(logits / t, y))
            score["accuracy"] = float((logits.argmax(1) == y).float().mean())
        yield score


if __name__ == "__main__":
    torch.set_num_threads(1)
    given, folder, data = sys.argv[1:4]
    Map(read_yaml(Path(given)), Path(folder), data).measure()

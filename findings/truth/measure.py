"""How far each method's predictive is from that of the posterior of all data: `scores.csv.xz`.

    python -m findings.truth.measure GRID FOLDER DATA_DIR

DATA_DIR holds `features16.npz` (`findings.features`). FOLDER gets the table, a block of the grid
after the other. Blocks that are there are not measured again.
"""

import json
import sys
from collections.abc import Iterator, Sequence
from functools import lru_cache
from itertools import islice, product
from pathlib import Path
from typing import Any

import pandas as pd
import torch
from torch import Tensor

from fedbary.settings.config import Settings, read_yaml, resolve
from fedbary.study.grid import read_experiment
from findings.truth.federation import Federation
from findings.truth.posterior import (
    Softmax,
    effective_size,
    laplace,
    predictive,
    sample,
    split_r_hat,
)

CHAINS, DRAWS, PRIOR_STD = 4, 400, 1.0
ROUNDS = (1, 2, 5, 10, 20)
"""Those that are scored, beside the last."""


class Truth:
    """The true predictive of the test examples.

    Attributes
    ----------
    predictive : Tensor
        Of two runs of chains together, (examples, classes).
    sure : dict of str to float
        The largest split R̂ and the least effective size of a weight; KL between the two runs'
        predictives; KL and total variation from the truth to the mode's predictive, to that of the
        Laplace approximation, and to that of as many draws of the truth as methods have.
    """

    def __init__(self, federation: Federation) -> None:
        x, y = (torch.cat([getattr(each, name) for each in federation.shards]) for name in "xy")
        model = Softmax(x, y, federation.task.held.num_classes, PRIOR_STD)
        runs = [sample(model, CHAINS, DRAWS, 2 * federation.settings.seed + k) for k in (0, 1)]
        tested = federation.task.scored_by_clients({})[0]
        one, other = (predictive(draws, tested) for draws in runs)
        self.predictive = (one + other) / 2
        weights = torch.cat(runs).flatten(2)
        few = runs[1].flatten(0, 1)[:: CHAINS * DRAWS // federation.settings.samples]
        others = {
            "mode": predictive(model.mode()[None], tested),
            "laplace": predictive(laplace(model, DRAWS, federation.settings.seed), tested),
            "draws": predictive(few, tested),
        }
        self.sure = {
            "r_hat": float(split_r_hat(weights).max()),
            "size": float(effective_size(weights).min()),
            "between": divergence(one, other),
            **{f"{name}_kl": divergence(self.predictive, q) for name, q in others.items()},
            **{f"{name}_tv": variation(self.predictive, q) for name, q in others.items()},
        }


def divergence(p: Tensor, q: Tensor) -> float:
    """Return the mean KL(p ‖ q) of rows of probabilities, in nats."""
    return float((p * (p.clamp_min(1e-12) / q.clamp_min(1e-12)).log()).sum(1).mean())


def variation(p: Tensor, q: Tensor) -> float:
    """Return the mean total variation of rows of probabilities."""
    return float(0.5 * (p - q).abs().sum(1).mean())


@lru_cache(maxsize=64)
def truth(settings: Settings) -> Truth:
    """Return the truth of a seed, which is that of every method and split."""
    return Truth(Federation(settings))


def distances(federation: Federation, wanted: Truth) -> dict[str, float]:
    """Return the distances of a federation's predictive, and its scores by the labels."""
    x, y = federation.task.scored_by_clients({})
    probs = federation.predicted(x).probs.double()
    nll = -probs.gather(1, y[:, None]).clamp_min(1e-12).log().mean()
    return {
        "kl": divergence(wanted.predictive, probs),
        "tv": variation(wanted.predictive, probs),
        "nll": float(nll),
        "accuracy": float((probs.argmax(1) == y).double().mean()),
    }


def measured(several: Sequence[Settings]) -> Iterator[dict[str, Any]]:
    """Yield a row for each seed and each round that is scored."""
    for each in map(Federation, several):
        wanted = truth(_place(each.settings))
        for number in range(1, each.settings.rounds + 1):
            each.take_round()
            if number in (*ROUNDS, each.settings.rounds):
                told = {"round": number, "kilobytes": 4 * each.numbers / 1000}
                yield {"seed": each.settings.seed, **told, **distances(each, wanted), **wanted.sure}


def _place(settings: Settings) -> Settings:
    """Return settings that name the data of a seed alone."""
    same = ("dataset", "data_dir", "download", "train_fraction", "seed", "normalise", "holdout")
    same += ("min_examples", "samples")
    values = {name: dict(settings)[name] for name in same}
    return resolve({**values, "model": "linear", "partition": "iid"})


def main(grid: Path, folder: Path, data: Path) -> None:
    """Write the table after each side, a setting of the grid with all of its seeds."""
    over, file = {"data_dir": str(data), "download": False}, folder / "scores.csv.xz"
    runs = iter(read_experiment(grid, over, {}).runs.values())
    table = pd.read_csv(file) if file.exists() else pd.DataFrame({"side": []})
    for block in read_yaml(grid)["grid"]:
        seeds = block.pop("seed")
        lists = [value if isinstance(value, list) else [value] for value in block.values()]
        for values in product(*lists):
            side = json.dumps(dict(zip(block, values, strict=True)))
            several = [*islice(runs, len(seeds))]
            if side not in set(table["side"]):
                new = pd.DataFrame({"side": side, **row} for row in measured(several))
                table = pd.concat([table, new], ignore_index=True) if len(table) else new
                table.to_csv(file, index=False, float_format="%.6g")


if __name__ == "__main__":
    main(*(Path(word).resolve() for word in sys.argv[1:4]))

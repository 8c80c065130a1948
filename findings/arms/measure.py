"""Noise in training, draws in prediction, and variances times a factor: `scores.csv.xz`.

    python -m findings.arms.measure findings/arms/grid.yaml findings/arms DATA_DIR

DATA_DIR holds `features64.npz` (`findings.features`). Rows have a posterior `of` a rule and
`kl_weight`, whose means are from training with `noise` or without, and whose variances are times
`factor`. A factor of 0 is the network of the means. `rule` WB with `of` RKLB is WB's aggregate of
the last replies to RKLB.
"""

import math
import sys
from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from torch import Tensor

from fedbary.methods.barycentre import Barycentre
from fedbary.predictive import Predictive
from fedbary.settings.config import Settings
from findings.federations import Federation, trained
from findings.heads import add, scores, settings_of, tried

FACTORS = (0.0, 0.25, 0.5, 1.0, 2.0, 4.0)
SCALE = "_log_var"


def at(model: Mapping[str, Tensor], factor: float) -> dict[str, Tensor]:
    """Return a posterior with its variances times a factor."""
    shift = math.log(factor) if factor else 0.0
    return {name: t + shift if name.endswith(SCALE) else t for name, t in model.items()}


def around(points: Mapping[str, Tensor], model: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Return a posterior with the means of a network of point weights, and its own variances."""
    return {
        name: t if name.endswith(SCALE) else points[name.removesuffix("_mean")]
        for name, t in model.items()
    }


def scored(
    federation: Federation, model: Mapping[str, Tensor], factor: float, **told: Any
) -> dict[str, Any]:
    """Return a row: by draws of a posterior, or by the network of its means."""
    by = Predictive(at(model, factor))
    samples = None if factor else 0
    found = scores(federation, lambda x: federation.predicted(x, by, samples))
    return {"seed": federation.settings.seed, "factor": factor, **told, **found}


def made(
    several: Sequence[Settings], points: Mapping[int, Mapping[str, Tensor]], rule: str
) -> Iterator[dict[str, Any]]:
    """Train a side with noise, and yield its rows; `points` are the networks without, by seed."""
    for each in trained(several):
        seed = each.settings.seed
        for factor in FACTORS:
            yield scored(each, each.model, factor, noise=True, rule=rule)
        if rule == "RKLB":
            without = around(points[seed], each.model)
            yield scored(each, without, 0.0, noise=False, rule=rule)
            yield scored(each, without, 1.0, noise=False, rule=rule)
            by_wb = Barycentre(rule="WB")
            swapped, _ = by_wb.aggregate(each.server(), each.replies)
            yield scored(each, swapped, 1.0, noise=True, rule="WB last")


def main(grid: Path, folder: Path, data: Path) -> None:
    """Write the table."""
    points: dict[int, Mapping[str, Tensor]] = {}
    for key, values in tried(grid):
        several = settings_of(values, {}, values.pop("seed"), data)
        if values["rule"] == "FedAvg":
            points = {each.settings.seed: each.model for each in trained(several)}
            continue

        rows = partial(made, several, points, values["rule"])
        add(folder / "scores.csv.xz", key, rows)


if __name__ == "__main__":
    main(*(Path(word).resolve() for word in sys.argv[1:4]))

"""Five forward passes spent in several ways: `scores.csv.xz`.

    python -m findings.passes.measure findings/passes/grid.yaml findings/passes DATA_DIR

DATA_DIR holds `features64.npz` and `foreign64.npz` (`findings.features`).
"""

import math
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from fedbary.data.images import load
from fedbary.predictive import Prediction
from fedbary.tasks._beyond import detection
from findings.federations import Federation, trained
from findings.heads import add, scores, settings_of, temperature, tried

PASSES, LEVEL, REFERRED = 5, 0.9, 0.2
"""Networks of a prediction, level of the sets, and part of the examples that is referred."""


def mixture(parts: Sequence[Prediction]) -> Prediction:
    """Return the prediction of several together."""
    probs, aleatoric = (
        torch.stack([getattr(part, name) for part in parts]).mean(0)
        for name in ("probs", "aleatoric")
    )
    return Prediction(probs, aleatoric)


def set_size(held_out: Prediction, y: Tensor, tested: Prediction) -> float:
    """Return the mean size of the sets of classes with 1 − p up to the held-out quantile."""
    own = (1 - held_out.probs.double().gather(1, y[:, None]))[:, 0].sort().values
    rank = math.ceil((len(own) + 1) * LEVEL)
    limit = own[rank - 1] if rank <= len(own) else 1.0
    return float((1 - tested.probs.double() <= limit).sum(1).double().mean())


def scored(
    each: Federation, predict: Callable[[Tensor], Prediction], foreign: Tensor
) -> dict[str, Any]:
    """Return a row of scores."""
    x, y = each.task.scored_by_clients({})
    at = temperature(each, predict)
    here, there = (predict(inputs).tempered(at) for inputs in (x, foreign))
    kept = here.entropy.argsort()[: round((1 - REFERRED) * len(y))]
    x_held, y_held = each.held_out()
    return {
        "seed": each.settings.seed,
        **scores(each, predict),
        **detection(here, there),
        "kept_accuracy": float((here.probs.argmax(1) == y)[kept].double().mean()),
        "set_size": set_size(predict(x_held).tempered(at), y_held, here),
    }


def of_fedbe(each: Federation) -> Callable[[Tensor], Prediction]:
    """Return what predicts by the mean and the draws, without the clients' own networks."""
    by = each.method.predictive(each.model, each.state)
    clients = len(each.shards)
    held = replace(by, members={name: tensor[clients:] for name, tensor in by.members.items()})
    return lambda x: each.predicted(x, held)


def together(members: Sequence[Federation], samples: int) -> Callable[[Tensor], Prediction]:
    """Return what predicts by several federations, each with so many draws."""
    return lambda x: mixture([each.predicted(x, samples=samples) for each in members])


def main(grid: Path, folder: Path, data: Path) -> None:
    """Write the table."""
    foreign = load(str(data / "foreign64.npz"), data, False).x_test
    for key, values in tried(grid):
        several = settings_of(values, {}, values.pop("seed"), data)
        name = values.get("method", values.get("rule"))

        def rows(several: Any = several, name: str = name) -> Iterator[dict[str, Any]]:
            first = trained(several)
            if name == "FedBE":
                for each in first:
                    yield {"way": "FedBE", **scored(each, of_fedbe(each), foreign)}
                return
            others = [first, *(trained(several, k) for k in range(1, PASSES))]
            for number, each in enumerate(first):
                members = [of_member[number] for of_member in others]
                for way, held, samples in (
                    (f"five {name}", members, 1),
                    (f"one {name}", members[:1], PASSES),
                ):
                    yield {"way": way, **scored(each, together(held, samples), foreign)}

        add(folder / "scores.csv.xz", key, rows)


if __name__ == "__main__":
    main(*(Path(word).resolve() for word in sys.argv[1:4]))

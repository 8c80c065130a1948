"""As many settings a side, then fresh seeds of the best: `choice.csv.xz` and `scores.csv.xz`.

    python -m findings.budgets.measure findings/budgets/plan.yaml findings/budgets DATA_DIR

DATA_DIR holds the grid's data; `findings.features` makes `features64.npz`. A block of the grid is a
`sample` of settings (`sides.py`). They are scored on validation data at seeds that are not
reported. A block that does not `keep` all of them runs them as `first` says at one such seed
(`first.csv.xz`). Those that are kept run in full at two. What a table has is not measured again.
"""

import itertools
import json
import sys
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

import pandas as pd
import torch

from fedbary.settings.config import Settings, read_yaml
from findings.budgets.sides import tried
from findings.federations import Federation, rounds_of
from findings.heads import add, scores, settings_of

CHOICE_SEEDS = (100, 101)


def name_of(own: Mapping[str, Any]) -> str:
    """Return the method or rule of a setting."""
    return str(own.get("method", own.get("rule")))


def settings_in(block: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Return the settings of a block."""
    shared = {name: block[name] for name in block if name not in ("sample", "budget", "keep")}
    return [{**shared, **own} for own in tried(block["sample"], block["budget"])]


def best(table: pd.DataFrame, settings: Iterable[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Return those of some settings that a table has, that of the least mean NLL first."""
    rows = table[table["side"].isin({json.dumps(own) for own in settings})]
    nll = rows.groupby("side")["nll"].mean().sort_values(kind="stable")
    return [json.loads(key) for key in nll.index]


def begun(settings: Settings, start: float) -> Federation:
    """Return a federation whose last layer's first weights are times a factor."""
    found = Federation(settings)
    last = list(found.model)[-1].rpartition(".")[0]
    found.model = {
        name: tensor * start
        if name.startswith(f"{last}.") and not name.endswith("_log_var")
        else tensor
        for name, tensor in found.model.items()
    }
    return found


def main(grid: Path, folder: Path, data: Path) -> None:
    """Write the tables."""
    held = read_yaml(grid)
    common, seeds = held["settings"], range(*held["seeds"])
    on_validation = {**common, "evaluate_on": "validation"}
    first, few = folder / "first.csv.xz", {**on_validation, **held["first"]}
    every = [(settings_in(block), block["keep"]) for block in held["grid"]]
    for own in _in_turn([of_block for of_block, keep in every if keep < len(of_block)]):
        _score(first, few, own, CHOICE_SEEDS[:1], data)
    kept = [
        best(pd.read_csv(first), of_block)[:keep] if keep < len(of_block) else of_block
        for of_block, keep in every
    ]
    for own in _in_turn(kept):
        _score(folder / "choice.csv.xz", on_validation, own, CHOICE_SEEDS, data)
    choice, asked = pd.read_csv(folder / "choice.csv.xz"), list(_in_turn(kept))
    for name in dict.fromkeys(map(name_of, held["grid"])):
        own = best(choice, (one for one in asked if name_of(one) == name))[0]
        _score(folder / "scores.csv.xz", common, own, seeds, data)


def _in_turn(blocks: Iterable[list[dict[str, Any]]]) -> Iterator[dict[str, Any]]:
    for together in itertools.zip_longest(*blocks):
        yield from filter(None, together)


def _score(
    file: Path, common: Mapping[str, Any], own: dict[str, Any], seeds: Iterable[int], data: Path
) -> None:
    start, by = own["start"], {name: value for name, value in own.items() if name != "start"}

    def rows() -> Iterator[dict[str, Any]]:
        federations = [begun(each, start) for each in settings_of(common, by, seeds, data)]
        for _ in rounds_of(federations):
            pass
        for each in federations:
            model = each.method.predictive(each.model, each.state).model
            finite = all(tensor.isfinite().all() for tensor in model.values())
            found = scores(each, each.predicted) if finite else {"nll": float("inf")}
            yield {"seed": each.settings.seed, **found}

    add(file, json.dumps(own), rows)


if __name__ == "__main__":
    torch.set_num_threads(1)
    main(*(Path(word).resolve() for word in sys.argv[1:4]))

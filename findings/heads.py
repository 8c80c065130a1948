"""Scores of many federations on `features64.npz`, at their clients' temperature.

python -m findings.heads findings/arms/choice/grid.yaml findings/arms/choice DATA_DIR
"""

import itertools
import json
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import pandas as pd
from torch import Tensor

from fedbary.predictive import Prediction
from fedbary.scores.metrics import evaluate, fitted_temperature, nll_at_temperatures
from fedbary.settings.config import Settings, read_yaml, resolve
from findings.federations import Federation, trained

Predicted = Callable[[Tensor], Prediction]


def temperature(federation: Federation, predict: Predicted) -> float:
    """Return the temperature of the least NLL on all that the clients hold out."""
    x, y = federation.held_out()
    told = {"num-examples": len(y), **nll_at_temperatures(predict(x), y)}
    return fitted_temperature([told]) or 1.0


def scores(federation: Federation, predict: Predicted) -> dict[str, float]:
    """Return scores on the test examples, at the clients' temperature and without it."""
    x, y = federation.task.scored_by_clients({})
    plain, by = predict(x), temperature(federation, predict)
    found = evaluate(plain.tempered(by).probs, y)
    return {
        **{name: found[name] for name in ("nll", "accuracy", "ece")},
        "plain_nll": evaluate(plain.probs, y)["nll"],
        "temperature": by,
    }


def settings_of(
    common: Mapping[str, Any], own: Mapping[str, Any], seeds: Iterable[int], data: Path
) -> list[Settings]:
    """Return the settings of a side by seed."""
    place = {"data_dir": str(data), "download": False}
    return [resolve({**common, **own, "seed": seed, **place}) for seed in seeds]


def add(file: Path, key: str, rows: Callable[[], Iterator[dict[str, Any]]]) -> None:
    """Add a side's rows to a table, which is written whole, unless it has that side."""
    table = pd.read_csv(file) if file.exists() else pd.DataFrame({"side": []})
    if key in set(table["side"]):
        return
    new = pd.DataFrame({"side": key, **row} for row in rows())
    table = pd.concat([table, new], ignore_index=True) if len(table) else new
    table.to_csv(file, index=False, float_format="%.6g")
    print(key, new.drop(columns="side").mean(numeric_only=True).round(4).to_dict(), flush=True)


def add_line(file: Path, place: Mapping[str, Any], make: Callable[[], Mapping[str, Any]]) -> None:
    """Add a line of JSON to a file, unless one is there that has the values of `place`."""
    lines = file.read_text(encoding="utf-8").splitlines() if file.exists() else []
    if any(place.items() <= json.loads(line).items() for line in lines):
        return
    with open(file, "a", encoding="utf-8") as held:
        held.write(json.dumps({**place, **make()}) + "\n")


def tried(grid: Path) -> Iterator[tuple[str, dict[str, Any]]]:
    """Yield the name and the settings of every side of a grid, common ones with it."""
    held = read_yaml(grid)
    for block in held["grid"]:
        seeds = block.pop("seed")
        seeds = seeds if isinstance(seeds, list) else [seeds]
        lists = [value if isinstance(value, list) else [value] for value in block.values()]
        for values in itertools.product(*lists):
            own = dict(zip(block, values, strict=True))
            yield json.dumps(own), {**held["settings"], **own, "seed": seeds}


def main(grid: Path, folder: Path, data: Path) -> None:
    """Score every side of a grid after its last round: `scores.csv.xz` of the folder."""
    for key, values in tried(grid):
        several = settings_of(values, {}, values.pop("seed"), data)

        def rows(several: Sequence[Settings] = several) -> Iterator[dict[str, Any]]:
            for each in trained(several):
                yield {"seed": each.settings.seed, **scores(each, each.predicted)}

        add(folder / "scores.csv.xz", key, rows)


if __name__ == "__main__":
    main(*(Path(word).resolve() for word in sys.argv[1:4]))

"""The values of a grid that scored best on validation data, a line per block, as lines of a grid.

Of each block of the grid it takes the values whose NLL at the end, in the mean over seeds, is the
lowest.

    python -m findings.choice findings/methods/choice/grid.yaml findings/methods/choice
"""

import itertools
import math
import statistics
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import yaml

from fedbary.settings.config import read_yaml
from fedbary.study.grid import read_experiment
from fedbary.study.table import read_table, result_rows


def chosen(grid: Path, results: Path) -> Iterator[tuple[Mapping[str, Any], float]]:
    """Yield for each block the values that did best, and their mean NLL on the validation data.

    A run whose predictions were not finite is the worst. A block with a run that the table lacks
    raises a ValueError.
    """
    table = read_table(results)
    nll = result_rows(table).set_index("run")["nll"].fillna(math.inf)
    runs = iter(read_experiment(grid, {}, {}).runs.items())
    for block in read_yaml(grid)["grid"]:
        lists = {key: value for key, value in block.items() if isinstance(value, list)}
        of_block = dict(itertools.islice(runs, math.prod(map(len, lists.values()))))
        if missing := sorted(of_block.keys() - set(nll.index)):
            raise ValueError(f"{results} lacks {', '.join(missing)}")
        tried = [key for key in lists if key != "seed"]
        of_values: dict[tuple[Any, ...], list[float]] = {}
        for run, settings in of_block.items():
            values = tuple(dict(settings)[key] for key in tried)
            of_values.setdefault(values, []).append(nll[run])
        means = {values: statistics.fmean(found) for values, found in of_values.items()}
        best = min(means, key=lambda values: means[values])
        yield {**block, **dict(zip(tried, best, strict=True))}, means[best]


if __name__ == "__main__":
    for best, mean in chosen(*map(Path, sys.argv[1:3])):
        line = yaml.safe_dump(best, default_flow_style=True, sort_keys=False, width=1000).strip()
        print(f"  - {line}  # NLL {mean:.4f}")

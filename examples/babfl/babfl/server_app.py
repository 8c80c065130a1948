"""The server of BA-BFL: fedbary's run under the settings of a cell, and the row of the table."""

import json
from dataclasses import replace
from pathlib import Path
from statistics import mean, stdev

from fedbary.server_app import main as run_fedbary
from flwr.app import Context
from flwr.serverapp import Grid, ServerApp

app = ServerApp()
RESULTS = Path("results")
"""Folder of the runs: each is called by its data set, rule, Gaussian layers and seed."""

COLUMNS = {"accuracy": (100, 2), "ece_15": (100, 2), "ece_100": (100, 2), "nll": (1, 3)}
"""The scores of a row, each with its unit's inverse and its decimals."""


def row(cell: str) -> str:
    """Return the table's row of a cell: mean ± standard deviation of each score over seeds."""
    runs = sorted(RESULTS.glob(f"{cell}-seed*/metrics.jsonl"))
    last = [json.loads(run.read_text().splitlines()[-1]) for run in runs]
    cells = [cell, str(len(last))]
    for name, (scale, decimals) in COLUMNS.items():
        values = [scale * line[name] for line in last]
        spread = f" ± {stdev(values):.{decimals}f}" if len(values) > 1 else ""
        cells.append(f"{mean(values):.{decimals}f}{spread}")
    return f"| {' | '.join(cells)} |"


@app.main()
def main(grid: Grid, context: Context) -> None:
    """Run one seed; print the row of all seeds that lie in `RESULTS`."""
    config = context.run_config
    cell = f"{config['dataset']}-{config['rule']}-n{config['bayesian_layers']}"
    output = str(RESULTS / f"{cell}-seed{config['seed']}")
    run_fedbary(grid, replace(context, run_config={**config, "output": output}))
    print("| run | seeds | Accuracy % | ECE %, 15 bins | ECE %, 100 bins | NLL |")
    print(row(cell))

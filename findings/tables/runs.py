"""Breast cancer at five clients beside logistic regression of all rows, on the same ten splits.

It writes a row per split and method to a .csv file, of which `page.py` makes the table.

    python findings/tables/runs.py findings/tables/scores.csv
"""

import sys
import tempfile
from pathlib import Path

import pandas as pd
import torch
from sklearn.linear_model import LogisticRegression

from fedbary.data.deal import Deal, evaluation_data, rows
from fedbary.data.tables import load_labelled
from fedbary.runs.location import read_rounds
from fedbary.scores.tables import score
from fedbary.server_app.engine.inline import run_inline
from fedbary.settings.config import Settings, resolve
from fedbary.tasks.tables import OfLabelledRows

SPLITS = range(10)
SHOWN = ("accuracy", "nll", "auroc", "sensitivity")
FEDERATED: dict[str, dict[str, object]] = {
    "mlp, RKLB": {},
    "linear, RKLB": {"model": "linear", "bayesian_layers": 1},
    "linear, FedAvg": {"model": "linear", "bayesian_layers": 0, "rule": "FedAvg"},
}


def settings_of(split: int, changes: dict[str, object]) -> Settings:
    """Return the settings of a run on a split."""
    return resolve({"task": "tables", "engine": "inline", "split": split, **changes})


def pooled(settings: Settings) -> dict[str, float]:
    """Return the scores of logistic regression that has all training rows in one place."""
    own = settings.of_task(OfLabelledRows)
    table, deal = load_labelled(settings.dataset, settings.data_dir), Deal(split=own.split)
    train, (x, y) = rows(table, deal)[0], evaluation_data(table, deal)
    mean, std = table.x[train].mean(0), table.x[train].std(0)
    fitted = LogisticRegression(max_iter=5000).fit((table.x[train] - mean) / std, table.y[train])
    probs = torch.from_numpy(fitted.predict_proba((x - mean) / std))
    return score(probs, y, own.ece_bins, own.specificity)


def main(file: str) -> None:
    """Score every method on every split."""
    scored = []
    for split in SPLITS:
        found = {"logistic regression, all rows": pooled(settings_of(split, {}))}
        with tempfile.TemporaryDirectory() as scratch:
            for name, changes in FEDERATED.items():
                run_inline(settings_of(split, changes), Path(scratch) / name)
                found[name] = read_rounds(Path(scratch) / name)[-1]
        scored += [{"method": name, "split": split, **{key: own[key] for key in SHOWN}}
                   for name, own in found.items()]  # fmt: skip
    pd.DataFrame(scored).to_csv(file, index=False)


if __name__ == "__main__":
    main(sys.argv[1])

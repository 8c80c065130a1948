"""The cells of a map: scores of federations, on disk in two small tables.

`choice.csv.bz2` has the held-out NLL of each setting, a column a seed of the choice. `cells.csv.xz`
has a row for each fresh seed.
"""

import os
from pathlib import Path

import pandas as pd

USUAL = {
    "batch_size": 32, "weight_decay": 1e-5, "server_lr": 0.0, "start": 1.0, "mu": 0.0,
    "prior_std": 1.0,
}  # fmt: skip
"""What a cell has where its table does not say it."""

SETTING = ["lr", "momentum", "lr_schedule", *USUAL, "local_epochs"]

CELLS, CHOICE = "cells.csv.xz", "choice.csv.bz2"


def read(folder: Path) -> pd.DataFrame:
    """Return the cells of a folder, a row a federation; none if there are none."""
    found = [pd.DataFrame(columns=["condition", "stage", "side", "seed", *SETTING])]
    if (folder / CHOICE).exists():
        wide = _filled(pd.read_csv(folder / CHOICE))
        choice = wide.melt(["condition", "side", *SETTING], None, "seed", "held_out")
        found.append(choice.dropna().astype({"seed": int}).assign(stage="choice"))
    if (folder / CELLS).exists():
        found.append(pd.read_csv(folder / CELLS))
    cells = pd.concat([each for each in found if len(each)] or found[:1], ignore_index=True)
    return _filled(cells)


def _filled(rows: pd.DataFrame) -> pd.DataFrame:
    return rows.reindex(columns=rows.columns.union(SETTING, sort=False)).fillna(USUAL)


def write(folder: Path, cells: pd.DataFrame) -> None:
    """Write the cells of a folder; an interruption loses none."""
    chosen = cells["stage"] == "choice"
    key = ["condition", "side", *SETTING]
    wide = cells[chosen].pivot_table("held_out", key, "seed", "first").round(4).reset_index()
    others = cells[~chosen].sort_values([*key, "stage", "seed"]).dropna(axis=1, how="all")
    if "nll" in others:
        others.loc[others["nll"].notna(), "held_out"] = None
        others = others.round({"nll": 4, "accuracy": 4})
    for name, rows in ((CHOICE, wide), (CELLS, others)):
        if rows.empty:  # pandas does not read a table without columns
            continue
        part = folder / f"part-{name}"
        rows.convert_dtypes().round(5).to_csv(part, index=False)
        os.replace(part, folder / name)

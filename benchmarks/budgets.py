"""How many rounds sites of so many rows answer under the default budget, and what that costs.

A logistic model of standard normal columns. Error is the largest distance of a coefficient from
that of a run without limits, in its standard errors. Then there are 4 large sites and 16 small
ones, whose budget allows one or two answers; means of columns differ by site. The last rows are of
`method=Newton` with 4 sites, one of which may answer so often: two classes, and counts.

    python -m benchmarks.budgets [--seeds 4]

The figures stand in `docs/howto/glm.md`.
"""

from __future__ import annotations

import argparse
import itertools
from collections.abc import Mapping, Sequence
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
from flwr.app import Message

import fedbary
from fedbary import client_app
from fedbary.errors import RunError, SettingError
from fedbary.runs.location import read_rounds
from fedbary.server_app import run
from fedbary.server_app.engine.inline import InlineGrid
from fedbary.settings.config import resolve
from fedbary.strategies.wire import numbers_of

OPEN = {"min-rows": 0, "min-cell": 0, "max-columns": 1e9, "budget": 0}
"""Limits of nodes that tell as much as they are asked."""

ALIKE = ((3, 60), (3, 120), (3, 240), (9, 120), (9, 200), (9, 400))
"""Columns, and rows of each of five sites."""


class Counting(InlineGrid):
    """A federation that counts the numbers that each site sends, and its answers in training."""

    def __init__(self, nodes: Sequence[Mapping[str, Any]], settings: dict[str, Any]) -> None:
        super().__init__(client_app.app, nodes, settings)
        self.sent = [0] * len(nodes)
        self.trained = [0] * len(nodes)

    def _answer(self, message: Message) -> Message:
        reply, place = super()._answer(message), message.metadata.dst_node_id - 2
        if reply.has_content():
            self.sent[place] += numbers_of(reply.content)
            self.trained[place] += message.metadata.message_type == "train"
        return reply


def tables(
    folder: Path, sizes: Sequence[int], columns: int, apart: float, seed: int, counts: bool = False
) -> None:
    """Write the tables of sites, and all in one; means of columns differ by site.

    The outcome is of two classes, or a count.
    """
    draw = np.random.default_rng(seed)
    slopes, head = 0.7 * draw.normal(size=columns), [*(f"x{j}" for j in range(columns)), "out"]
    lines = []
    for place, rows in enumerate(sizes):
        x = draw.normal(size=(rows, columns)) + apart * draw.normal(size=columns)
        if counts:
            out = draw.poisson(np.exp(0.3 * (x @ slopes))).tolist()
        else:
            ill = draw.random(rows) < 1 / (1 + np.exp(0.3 - x @ slopes))
            out = np.where(ill, "y", "n").tolist()
        held = [f"{','.join(map(str, row))},{one}\n" for row, one in zip(x, out, strict=True)]
        (folder / f"{place}.csv").write_text(",".join(head) + "\n" + "".join(held))
        lines += held
    (folder / "all.csv").write_text(",".join(head) + "\n" + "".join(lines))


def federate(
    folder: Path, limits: Sequence[Mapping[str, float]], **own_words: object
) -> tuple[Counting, Path]:
    """Fit to the tables of a folder, each site with its limits; return federation and run."""
    name = f"run {len([*folder.glob('run *')])}"
    nodes = [
        {"data-path": f"{folder}/{k}.csv", "name": f"{k}", "state-path": f"{folder}/{k} of {name}"}
        for k in range(len(limits))
    ]
    words = {"engine": "inline", "device": "cpu", "pictures": False, "task": "glm", "rounds": 20}
    words |= {"target": "out", "dataset": f"{folder}/all.csv", "clients": len(nodes)}
    settings = resolve({**words, **own_words})
    own = [{**node, **limit} for node, limit in zip(nodes, limits, strict=True)]
    grid = Counting(own, settings.model_dump())
    run(grid, settings, folder / name)
    return grid, folder / name


def error(run_folder: Path, whole: Path) -> tuple[float, float]:
    """Return the largest distance of coefficients from those of another run, in its std.

    And that of the standard errors, as a part of theirs.
    """
    one, other = (fedbary.load(f).coefficients(anyway=True).table for f in (run_folder, whole))
    away = (one["estimate"] - other["estimate"]).abs() / other["std"]
    return float(away.max()), float((one["std"] / other["std"] - 1).abs().max())


def small_last(folder: Path, columns: int, seed: int, answers: Sequence[int]) -> list[float]:
    """Return the errors where 16 of 20 sites may give so many answers; none gives more."""
    draw = np.random.default_rng([seed, columns])
    sizes = [*draw.integers(200, 600, 4).tolist(), *draw.integers(25, 91, 16).tolist()]
    tables(folder, sizes, columns, 1.0, seed)
    grid, whole = federate(folder, [OPEN] * 20)
    reply, errors = columns + columns * (columns + 1) // 2 + 3, []
    for most in answers:
        numbers = grid.sent[-1] - (grid.trained[-1] - most) * reply + 0.5
        budgets = [numbers / (rows * (columns + 1)) for rows in sizes[4:]]
        own = [OPEN] * 4 + [{**OPEN, "budget": budget} for budget in budgets]
        partly, found = federate(folder, own)
        assert max(partly.trained[4:]) <= most
        errors.append(error(found, whole)[0])
    return errors


def one_seldom(folder: Path, seed: int, counts: bool, intercepts: str) -> list[tuple[float, float]]:
    """Return the errors of Newton's method where the first of 4 sites gives 1, 2, 3, 4 answers.

    They are NaN where the table is refused.
    """
    sizes = np.random.default_rng([seed, 4]).integers(150, 300, 4).tolist()
    tables(folder, sizes, 3, 1.0, seed, counts)
    words = {"method": "Newton", "intercepts": intercepts}
    words["family"] = "poisson" if counts else "binomial"
    grid, whole = federate(folder, [OPEN] * 4, **words)
    p = 4 + (intercepts == "random")
    each, errors = p + p * (p + 1) // 2 + 3, []
    for most in (1, 2, 3, 4):
        numbers = grid.sent[0] - (grid.trained[0] - most) * each + most
        own = [{**OPEN, "budget": (numbers + 0.5) / (sizes[0] * 4)}, *[OPEN] * 3]
        partly, found = federate(folder, own, **words)
        assert partly.trained[0] == min(most, grid.trained[0])
        try:
            fedbary.load(found).coefficients()
        except SettingError:  # rounds have not settled
            errors.append((np.nan, np.nan))
        else:
            errors.append(error(found, whole))
    return errors


def main() -> None:
    """Print both tables."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seeds", type=int, default=4)
    seeds = parser.parse_args().seeds
    for columns, rows in ALIKE:
        with TemporaryDirectory() as made:
            tables(folder := Path(made), [rows] * 5, columns, 0.0, 0)
            end = ""
            try:
                federate(folder, [{}] * 5)
            except RunError as error:
                end = f"; {error}"
            lines = read_rounds(folder / "run 0")[1:]
            steps = [line["step"] for line in lines if line.get("step") is not None]
            said = f"{len(steps)} answers, last step {steps[-1]:.1e}{end}"
            print(f"{columns} columns, {rows} rows: {said}", flush=True)
    for columns in (3, 9):
        found_errors = []
        for seed in range(seeds):
            with TemporaryDirectory() as made:
                found_errors.append(small_last(Path(made), columns, seed, (1, 2)))
        for most, held in zip((1, 2), np.array(found_errors).T, strict=True):
            said = f"median {np.median(held):.1e}, largest {held.max():.1e}"
            said = f"16 of 20 sites with {most} answers, {seeds} seeds: {said}"
            print(f"{columns} columns, {said}", flush=True)
    newton(seeds)


def newton(seeds: int) -> None:
    """Print the table of Newton's method, of two classes and counts and so many seeds of each."""
    for intercepts in ("common", "random"):
        errors = []
        for seed, counts in itertools.product(range(seeds), (False, True)):
            with TemporaryDirectory() as made:
                errors.append(one_seldom(Path(made), seed, counts, intercepts))
        for most, (held, stds) in enumerate(np.array(errors).transpose(1, 2, 0), 1):
            said = f"error {np.nanmin(held):.1e} to {np.nanmax(held):.1e}"
            said += f", of std at most {np.nanmax(stds):.1e}, {np.isnan(held).sum()} refused"
            print(f"Newton, {intercepts}, {most} answers of one of 4 sites: {said}", flush=True)


if __name__ == "__main__":
    main()

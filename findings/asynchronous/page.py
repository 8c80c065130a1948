"""Rounds that do not wait beside rounds that wait: docs/results/asynchronous.md."""

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pandas as pd

from fedbary.report.results import ACCURACY, NLL
from fedbary.study.table import read_table
from findings import maker
from findings.maker import BLUE, GREEN, GREY, ORANGE, RED

NEAR = 0.005
"""What an NLL may be above the other and count as reached."""

ALL, PART, DEADLINE = "all", "the fastest 80 %", "a second at most"
ASYNC, MEMORY = "nobody", "nobody, remembers"
COLORS = {ALL: GREY, PART: ORANGE, DEADLINE: RED, ASYNC: GREEN, MEMORY: BLUE}
"""What the server waits for, and the colour of it."""

CELL = ["clients", "name", "alpha"]
"""Columns whose values the runs of a panel share."""

TIME, SCORES = "virtual_seconds", ["accuracy", "nll"]

PROTECTIONS = {
    (False, False): "{rule}",
    (True, False): "{rule}, clipping",
    (True, True): "{rule}, clipping and mixing",
}
SERVERS = {
    "rounds": "in rounds",
    "slow": "without, hostile ones slow",
    "fast": "without, hostile ones fast",
}
"""What a server is called, by its mode or by its clock."""


def window(first: pd.Series) -> int:
    """Return how many aggregates have as many replies as a round, given a run's first row."""
    is_mean = first["mode"] == "async" and first["method"] == "barycentre"
    return round(first["clients"] / first["buffer"]) if is_mean else 1


def read(results: Path) -> pd.DataFrame:
    """Return every round, what its server waits for, and scores.

    Scores of an aggregate are means over the latest aggregates, of as many replies as a round has:
    single ones go to and fro. Those of sites do not.
    """
    table = read_table(results)
    for column in {"remember", "rule", "buffer"} - {*table}:  # sites have no rule
        table[column] = np.nan
    is_async, remembers = table["mode"] == "async", table["remember"].eq(True)
    chosen = [is_async & remembers, is_async, table["wait_for"] < 1, table["deadline"] != "none"]
    of_rule = table["method"] == "barycentre"
    table = table.assign(
        waits=np.select(chosen, [MEMORY, ASYNC, PART, DEADLINE], ALL),
        name=table["rule"].where(of_rule, table["method"]),
    )
    every = []
    for rounds in maker.by(table.sort_values([*CELL, "run", "round"]), "run").values():
        several = window(rounds.iloc[0])
        means = rounds[SCORES].rolling(several, min_periods=1).mean()
        every.append(rounds.assign(**means, is_whole=rounds["round"] >= several))
    return pd.concat(every)


def reached(table: pd.DataFrame, column: str = "accuracy", near: float = 0.0) -> pd.DataFrame:
    """Return a row a run: its last scores, and the `time` when it had the last score of `ALL`.

    That is the score, or one `near` to it, of the last round of the run of its seed that waits for
    all. The time is NaN where the run does not get there. `part` is the time over the whole time of
    the run that waits for all, `first` over the time of its first round with that score.
    """
    sign, keys = 1 if column == "accuracy" else -1, [*CELL, "seed"]
    last = table.groupby("run", sort=False).tail(1)

    def waited(rows: pd.DataFrame, name: str) -> np.ndarray:
        """Return a column of the runs that wait for all, for each run."""
        of_all = rows[rows["waits"] == ALL].set_index(keys)[name]
        return of_all.reindex(pd.MultiIndex.from_frame(rows[keys])).to_numpy()

    target = dict(zip(last["run"], sign * waited(last, column) - near, strict=True))
    had = table[(sign * table[column] >= table["run"].map(target)) & table["is_whole"]]
    last = last.assign(time=last["run"].map(had.groupby("run")[TIME].first()))
    return last.assign(part=last["time"] / waited(last, TIME), first=last["time"] / waited(
        last, "time"))  # fmt: skip


def tables(results: Path) -> str:
    """Return times and differences from the server that waits for all, a row a server."""
    table, body = read(results), {}
    rows, nll = reached(table), reached(table, "nll", NEAR).set_index("run")
    for (clients, name, alpha), cell in maker.by(rows, *CELL).items():
        seconds = cell.loc[cell["waits"] == ALL, TIME].mean()
        for waits in [each for each in COLORS if each != ALL and each in {*cell["waits"]}]:
            runs, sides = cell[cell["waits"] == waits], cell.assign(side=cell["waits"])
            parts = [runs["part"], runs["first"], nll.loc[runs["run"], "part"]]
            body[clients, name, f"{alpha:g}", waits] = [
                f"{seconds:.0f}", *map(_middle, parts), f"{(runs[TIME] / seconds).mean():.2f}",
                *(metric.difference(maker.of_pair(sides, (waits, ALL), metric))
                  for metric in (ACCURACY, NLL)),
            ]  # fmt: skip
    head = ["seconds of rounds", "accuracy after", "over the first such round", "NLL after"]
    head += ["ran for", "last accuracy, % [95 %]", "last NLL [95 %]"]
    return maker.cells(("clients", "method", "α", "waits for"), head, body)


def _middle(parts: pd.Series) -> str:
    """Return the median over all runs, where one that does not get there is the slowest."""
    middle, there = parts.fillna(float("inf")).median(), int(parts.notna().sum())
    said = f"{middle:.2f}" if middle < float("inf") else "none"
    return said if there == len(parts) else f"{said} ({there} of {len(parts)})"


def facts(results: Path) -> Iterator[float]:
    """Yield what the page says beside its tables: the bound of an NLL."""
    yield NEAR


def picture(results: Path) -> maker.Figure:
    """Draw accuracy against virtual time, a panel a federation, as far as every seed goes."""
    cells = maker.by(read(results), *CELL)
    rows = -(-len(cells) // 2)
    figure, panels = maker.panels(9.0, 2.6 * rows, rows, 2)
    for axes, ((clients, name, alpha), own) in zip(panels, cells.items(), strict=False):
        for waits, runs in maker.by(own, "waits").items():
            by_run = [rounds for _, rounds in runs.groupby("run")]
            times = np.linspace(0, min(rounds[TIME].max() for rounds in by_run), 200)
            lines = [np.interp(times, each[TIME], 100 * each["accuracy"]) for each in by_run]
            axes.plot(times, np.mean(lines, axis=0), color=COLORS[waits], label=waits)
        axes.set_title(f"{name}, {clients} clients, α = {alpha:g}", loc="left")
        axes.set(xlabel="virtual seconds", ylabel="accuracy %")
    for axes in panels[len(cells) :]:
        axes.set_axis_off()
    maker.legend_below(figure, len(COLORS), "the server waits for")
    return figure


def hostile_tables(results: Path) -> str:
    """Return accuracies, the mean over the last aggregates, of as many replies as a round has."""
    found = []
    for rounds in maker.by(read_table(results).sort_values(["run", "round"]), "run").values():
        first = rounds.iloc[0]
        clock = str(first["speeds"]).partition("-")[0]
        protection = PROTECTIONS[bool(first["clipping"]), bool(first["mixing"])]
        found.append({
            "attack": first["attack"], "rule": protection.format(rule=first["rule"]),
            "server": clock if first["mode"] == "async" else "rounds",
            "accuracy": rounds["accuracy"].tail(window(first)).mean(),
        })  # fmt: skip
    rows = pd.DataFrame(found).sort_values("attack", kind="stable")
    columns = [maker.of(name, ACCURACY, server=server) for server, name in SERVERS.items()]
    return maker.table(("attack", "rule"), maker.by(rows, "attack", "rule"), columns)

"""The report of a sweep from its table: scores, differences, costs, cautions, runs; or of a run."""

from __future__ import annotations

import itertools
import json
import math
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

import numpy as np
import pandas as pd

from fedbary.errors import SettingError
from fedbary.figures.courses import courses
from fedbary.figures.document import Document, Markup, code, listed, paragraph
from fedbary.figures.run_pictures import named_classes, partition_heatmap
from fedbary.figures.sheet import BLUE
from fedbary.report.compared import rounds_of
from fedbary.report.judged import Goals
from fedbary.report.results import (
    CLIENTS,
    DETECTION,
    NLL,
    SHOWN,
    UNCERTAINTY,
    Metric,
    Named,
    Results,
    differences,
    grouped,
    marked,
    own_models,
    pairs_table,
)
from fedbary.report.run import write_run
from fedbary.runs.failing import verdict
from fedbary.runs.location import METRICS, POSTERIOR, SETTINGS, SIGNATURE
from fedbary.runs.own_code import require_trusted
from fedbary.runs.progress import duration
from fedbary.runs.run_folder import read_signature
from fedbary.runs.schema import BEHIND, FAILING, RISING
from fedbary.study.arms import NO_DATA, REPEATS, differing, plain, settings_of, with_methods
from fedbary.study.grid import NAMING
from fedbary.study.table import is_table, lacking_of, read_about, read_table
from fedbary.tasks import task_class

PLAIN = "FedAvg"
"""The method that all others are compared with: it needs no posterior."""

DECIDED = 0.05
"""The p-value, corrected for all comparisons of a condition, below which methods differ."""

TOLD_APART = 12
"""The most methods that a table of all their pairs shows."""

SHOWN_PAIRS = 10
"""The most pairs that a table shows at once; more are folded."""

ENOUGH_DRAWS = 50
"""Least number of networks drawn for a prediction; with fewer, methods are not compared on the
ECE, which moves with the draw by as much as methods differ."""


def write_report(results: str | Path, own_code: bool = False, goals: Goals | None = None) -> Path:
    """Write `report.html`, `report.md` and `figures/` of a results folder, or of a run.

    `own_code` is as for `fedbary.load`; `goals` are what a run's thresholds are chosen by.

    Returns
    -------
    Path
        The HTML page.

    Raises
    ------
    SettingError
        If there is no table of this version, or no run in it.
    """
    results = Path(results)
    of_run = any((results / name).exists() for name in (SETTINGS, METRICS, POSTERIOR))
    if of_run and not is_table(results):
        write_run(results, own_code, goals or Goals())
        return results / "report.html"
    table = with_methods(read_table(results))
    if table.empty:
        raise SettingError("results", str(results), "a folder whose table holds a finished run")
    about = read_about(results)
    document = Document(results, about.get("title") or results.resolve().name)
    if text := about.get("about"):
        document.text("{about}", about=text)
    _add_lacking(document, lacking_of(results, table))
    tasks = [(str(task), rows) for task, rows in table.groupby("task", sort=False)]
    for task, rows in tasks:
        require_trusted({"task": task}, results, own_code)
        if len(tasks) > 1:
            document.heading(f"Task: {task}", 1)
            rows = rows.dropna(axis="columns", how="all")
        metrics = metrics_of(task)
        shown = Results.of(rows, results)
        for column in (*NAMING, _ranking(metrics).column, "seconds"):
            if column not in shown.table:
                allowed = f"a table with a column {column}, as this version of fedbary writes it"
                raise SettingError("results", str(results), allowed)
        write(shown, document, metrics)
    document.write()
    return results / "report.html"


def _add_lacking(document: Document, lacking: Mapping[str, str]) -> None:
    """Say how many runs of the grid are not here, and why the first is not."""
    if lacking:
        run, why = next(iter(lacking.items()))
        document.text(
            """**{runs} not here.** No mean and no test has what is lacking. The first is {run}:
            {why}.""",
            runs=f"{len(lacking)} runs of the grid are"
            if len(lacking) > 1
            else "1 run of the grid is",
            run=code(run),
            why=why,
        )


def metrics_of(task: str) -> tuple[Metric, ...]:
    """Return the scores that a report on a task shows."""
    return SHOWN.get(task) or tuple(
        Metric(name, label, scale, 2 if scale == 100 else 3)
        for name, scale, label, _ in task_class(task).curves
    )


def write(results: Results, document: Document, metrics: Sequence[Metric]) -> None:
    """Add the sections on the runs of one task."""
    last, rank = results.last, _ranking(metrics)
    _add_introduction(results, document)
    document.heading("Methods side by side")
    document.text(
        """By the {score} of the global model, the best first: mean ± standard deviation. *n* is
        how many layers are Gaussian while clients train. **Bold** is the best mean of a column.""",
        score=rank.label,
    )
    few = (last["samples"] < ENOUGH_DRAWS).any() if "samples" in last else False
    scored = [m for m in metrics if m.column in last and m.lower_is_better is not None]
    first = [rank, *[m for m in scored if m != rank][:2]]
    tested = [m for m in first if not (few and m.column.startswith("ece"))]
    explained = False
    for condition, rows in grouped(last, "condition"):
        named = sort_methods_by_mean(rows, rank)
        document.heading(condition, 3)
        document.table(*_table(named, metrics))
        if (pairs := _pairs(named, tested)) is not None:
            if not explained:
                _explain_pairs(results, document, len(tested) < len(first))
            explained = True
            _add_differences(document, pairs, rank)
        _add_courses(results, document, str(condition), rank)
        document.heading(f"{condition}: clients and costs", 3)
        document.table(*_table(named, (*CLIENTS, *_costs(rows)), best=False))
        own_models(document, named)
        _add_uncertainty(document, named, f"{condition}: uncertainty")
    document.heading("What the columns are")
    document.text(
        """Bytes are of the arrays that a client is sent, and replies with, in a round of training.
        Seconds are of the whole round in one process, evaluation included. Own models are those
        that clients keep where the method gives them one, on what each client holds out."""
    )
    if any(m.column in last and last[m.column].any() for m in UNCERTAINTY):
        document.text(
            """**Aleatoric** is the entropy that the drawn networks have on average, **epistemic**
            the mutual information of label and weights: a single network has none. **By chance** a
            calibrated model would have that ECE on as many examples. An uncertainty is worth
            something if accuracy rises when the most uncertain inputs are rejected. {foreign}""",
            foreign="Its AUROC is the probability that an input of another kind gets the higher"
            " value."
            if any(m.column in last and last[m.column].any() for m in DETECTION)
            else "",
        )
    if "sensitivity" in last and last.get("specificity", pd.Series()).nunique() == 1:
        document.text(
            "Sensitivity is at a specificity of {at} %.",
            at=f"{100 * last['specificity'].iloc[0]:g}",
        )
    _add_partitions(results, document)
    add_cautions(results, document)
    _add_runs(document, last)


def _ranking(metrics: Sequence[Metric]) -> Metric:
    """Return the score that methods are ranked by: the NLL, or the first that has a direction."""
    directed = [metric for metric in metrics if metric.lower_is_better is not None]
    return next((m for m in directed if m.column == NLL.column), (directed or metrics)[0])


def _add_introduction(results: Results, document: Document) -> None:
    last = results.last
    kept = last.get("keep_best", pd.Series(["none"])).astype(object).fillna("none").unique()
    after = [
        "after the last round"
        if score == "none"
        else f"after the round that is best by {score} on validation data"
        for score in kept
    ]
    names = {"test": "the test data", "validation": "data kept from all clients (validation)"}
    scored = last.get("evaluate_on", pd.Series("test", last.index)).map(names)
    scored = scored.mask(last["dataset"] == NO_DATA, "what clients hold out")
    document.text(
        """{runs} runs of {clients} clients, {rounds} rounds. All numbers are of the global model
        {after}, on {where}, as mean ± standard deviation over {repeats}.""",
        runs=len(last),
        clients=" or ".join(map(str, sorted(last["clients"].unique()))),
        rounds=" or ".join(map(str, sorted(last["rounds"].unique()))),
        after=" or ".join(after),
        where=" or ".join(scored.unique()),
        repeats=results.repeats,
    )


def add_cautions(results: Results, document: Document) -> None:
    """Add a section of warnings, if there are any."""
    if found := list(cautions(results)):
        document.heading("Cautions")
        document.bullets(found)


def cautions(results: Results) -> Iterator[Markup]:
    """Yield warnings: skipped rounds, runs that did not learn, settings that differ."""
    skipped = results.table[results.table["round"] > 0].groupby("run")["skipped"].sum()
    if (skipped > 0).any():
        lost = [(code(str(run)), count) for run, count in skipped[skipped > 0].items()]
        yield paragraph(
            """**Rounds were skipped**, for want of replies that were admitted, in
            {named}: their last round is not comparable with that of the other runs.""",
            named=listed([Markup(f"{run} ({count:.0f})") for run, count in lost]),
        )
    for word in [word for word in (FAILING, RISING, BEHIND) if word in results.last]:
        runs = results.last[results.last[word].notna()]
        if len(runs):
            several = f" and {len(runs) - 1} more of {len(results.last)} runs"
            yield paragraph(
                "**{first}**{several}: {said}.",
                first=code(str(runs["run"].iloc[0])),
                several=Markup(several if len(runs) > 1 else ""),
                said=verdict({word: runs[word].iloc[0]}),
            )
    for condition, rows in grouped(results.last, "condition"):
        known = {*NAMING, *REPEATS, "method"}
        of_method = rows.groupby("rule")
        mixed = [
            key
            for key in differing(settings_of(rows))
            if key not in known and of_method[key].nunique().max() == 1
        ]
        if mixed:
            yield paragraph(
                """**Not all runs on {condition} have the same {settings}**; the list of all
                runs below has each one's.""",
                condition=condition,
                settings=", ".join(mixed),
            )


def sort_methods_by_mean(rows: pd.DataFrame, rank: Metric) -> Named:
    """Return each method's runs, those of the best mean first; unscored ones come last."""
    sign = 1 if rank.lower_is_better else -1
    named = list(grouped(rows, "arm"))
    return sorted(named, key=lambda each: (sign * each[1][rank.column]).fillna(math.inf).mean())


def _table(
    named: Named, metrics: Sequence[Metric], best: bool = True
) -> tuple[list[str], list[list[str]]]:
    """Return a row a method and a column a metric that any of them has."""
    rows = pd.concat([runs for _, runs in named])
    known = [metric for metric in metrics if metric.column in rows and rows[metric.column].any()]
    body = [
        [name, "/".join(map(str, sorted(runs["bayesian_layers"].unique()))), str(len(runs))]
        for name, runs in named
    ]
    for metric in known:
        values = [runs[metric.column] for _, runs in named]
        shown = [metric.show(value) for value in values]
        if best:
            means = [metric.scale * value.mean(skipna=False) for value in values]
            shown = marked(metric, means, shown)
        for row, cell in zip(body, shown, strict=True):
            row.append(cell)
    return ["method", "n", "runs", *(metric.label for metric in known)], body


def _costs(rows: pd.DataFrame) -> tuple[Metric, ...]:
    """Return a method's cost; bytes in kB if no client sends a tenth of a megabyte."""
    most = rows["bytes.up"].max() if "bytes.up" in rows else math.nan
    unit, scale = ("kB", 1e-3) if most < 1e5 else ("MB", 1e-6)
    return (
        Metric("bytes.down", f"down, {unit}", scale, 2),
        Metric("bytes.up", f"up, {unit}", scale, 2),
        Metric("seconds", "s a round", 1, 1),
    )


def _pairs(named: Named, metrics: Sequence[Metric]) -> pd.DataFrame | None:
    """Return the differences of every pair of methods; with many, of each from `PLAIN`."""
    names = [name for name, _ in named]
    every = len(names) <= TOLD_APART
    return compared(
        named, list(itertools.combinations(names, 2)) if every else beside(names), metrics
    )


def _explain_pairs(results: Results, document: Document, no_ece: bool) -> None:
    """Add what the tables of pairs show, for all conditions."""
    document.text(
        """Mean difference over {repeats} with its 95 % interval. The tests are the paired t-test,
        the same corrected for all pairs of a score (Holm), and Wilcoxon's. Least seen is the
        difference that so many such pairs would show in 80 % of repetitions. {draws} {splits}""",
        repeats=results.repeats,
        draws=f"The ECE is not compared: predictions by fewer than {ENOUGH_DRAWS} networks move it."
        if no_ece
        else "",
        splits="""The splits of a data set share most of their rows, so they are not
            independent: intervals are too narrow and p-values too small."""
        if results.by_split
        else "",
    )


def _add_differences(document: Document, found: pd.DataFrame, rank: Metric) -> None:
    """Add the pairs' differences in the score that ranks, and, folded, in the others."""
    ranked = found["metric"] == rank
    for rows, scores in ((found[ranked], rank.label), (found[~ranked], "the other scores")):
        if len(rows):
            folded = f"Every pair by {scores}"
            shown_at_once = scores == rank.label and len(rows) <= SHOWN_PAIRS
            document.table(*pairs_table(rows), "" if shown_at_once else folded)
    sure = [row for row in found[ranked].itertuples() if row.holm < DECIDED]
    document.text(
        "Decided in {score} (corrected p < {decided}): {sure}.",
        score=rank.label, decided=DECIDED,
        sure="; ".join(
            f"{row.first} is {'below' if row.mean < 0 else 'above'} {row.second}" for row in sure
        ) or "no pair",
    )  # fmt: skip


def beside(names: Sequence[str]) -> list[tuple[str, str]]:
    """Return the pairs of each method with `PLAIN`; none without it."""
    return [(name, PLAIN) for name in names if name != PLAIN] if PLAIN in names else []


def compared(
    named: Named, sides: Sequence[tuple[str, str]], metrics: Sequence[Metric]
) -> pd.DataFrame | None:
    """Return the difference of each pair, a row a pair and metric; None without any.

    It is over the repeats that both have, if these are two or more; see `differences`.
    """
    rows = pd.concat([runs.assign(side=name) for name, runs in named])
    found = differences(rows, sides, metrics, [k for k in REPEATS if k in rows], 2)
    return found if len(found) else None


def _add_uncertainty(document: Document, named: Named, heading: str) -> None:
    header, body = _table(named, UNCERTAINTY, best=False)
    if len(header) == 3:
        return
    document.heading(heading, 3)
    document.table(header, body)


def _add_courses(results: Results, document: Document, condition: str, rank: Metric) -> None:
    """Add a picture of a score over the rounds; none where no run has two of them."""
    named = results.last.set_index("run")
    table = results.table.assign(
        **{name: results.table["run"].map(named[name]) for name in ("condition", "arm")}
    )
    rows = table[(table["condition"] == condition) & table[rank.column].notna()]
    if not rows[rows["round"] > 0].groupby("run").size().max() >= 2:
        return
    drawn = courses(rounds_of(rows), [(rank.column, rank.scale, rank.label, BLUE)])
    document.figures(
        [("courses", drawn)],
        f"{condition}: after each round, a method's mean, and each of several runs as a thin line.",
    )


def _add_partitions(results: Results, document: Document) -> None:
    """Add a picture of each condition's partition, for its first seed."""
    table = results.table
    counts = table.get("label_counts", pd.Series("", table.index)).astype(str)
    starts = table[(table["round"] == 0) & counts.str.contains(r"\d")]  # numbers have no classes
    if starts.empty:
        return
    document.heading("Data")
    starts = starts.merge(results.last[["run", "condition"]])
    for number, (condition, rows) in enumerate(grouped(starts, "condition"), 1):
        row = rows.sort_values("seed").iloc[0]
        run = results.folder / "runs" / row["run"]
        named = read_signature(run) if (run / SIGNATURE).exists() else {}
        classes = named_classes(named.get("class-names", ()))
        drawn = partition_heatmap(np.array(json.loads(row["label_counts"])), (), classes)
        document.figures(
            [(f"partition-{number}", drawn)],
            f"Who holds what, held-out rows too: {condition}, seed {row['seed']}.",
        )


def _add_runs(document: Document, last: pd.DataFrame) -> None:
    """Add every run's settings and versions."""
    document.heading("Settings, versions, runs")
    settings = settings_of(last).assign(
        **{c: last[c] for c in last if c.startswith("versions.") or c == "device"}
    )
    known = {key: settings[key].replace("", np.nan).dropna() for key in settings}
    same = {key: values for key, values in known.items() if values.nunique() == 1}
    partly = " (not recorded by some runs)"
    rows = [
        [code(key), plain(values.iloc[0]) + (partly if len(values) < len(settings) else "")]
        for key, values in same.items()
    ]
    document.table(["setting or version", "in every run"], rows, "Common to all runs")
    other = [key for key in settings if key not in same and key not in NAMING]
    if "keep_best" in last and (last["keep_best"].fillna("none") != "none").any():
        other.append("round")
    body = [
        [code(row["run"]), *(plain(row[key]) for key in (*other, "commit", "started")),
         duration(row["duration"])]
        for row in last.to_dict("records")
    ]  # fmt: skip
    header = ["run", *(code(key) for key in other), "commit", "started", "took"]
    document.table(header, body, f"All {len(body)} runs")

"""Warnings to a reader of the means."""

from __future__ import annotations

from fedbary.report.document import Document
from fedbary.report.markup import Markup, code, listed
from fedbary.report.results import REPEATS, Results, grouped, written
from fedbary.runs.failing import verdict
from fedbary.runs.schema import BEHIND, FAILING
from fedbary.settings.config import bookkeeping
from fedbary.study.grid import NAMING
from fedbary.study.table import settings_of


def add_cautions(results: Results, document: Document) -> None:
    """Add warnings: skipped rounds, runs that did not learn, settings that differ."""
    skipped = results.table[results.table["round"] > 0].groupby("run")["skipped"].sum()
    if (skipped > 0).any():
        lost = [(code(str(run)), count) for run, count in skipped[skipped > 0].items()]
        document.text(
            """**Rounds were skipped**, for want of replies that were admitted, in
            {named}: their last round is not comparable with that of the other runs.""",
            named=listed([Markup(f"{run} ({count:.0f})") for run, count in lost]),
        )
    for word in [word for word in (FAILING, BEHIND) if word in results.last]:
        for run in results.last[results.last[word].notna()].to_dict("records"):
            said = verdict({word: run[word]})
            document.text("**{run}**: {said}.", run=code(str(run["run"])), said=said)
    for dataset, rows in grouped(results.last, "dataset"):
        settings = settings_of(rows)
        known = bookkeeping().union(NAMING, REPEATS, results.varied, ["method"])
        mixed = [k for k in settings if k not in known and settings[k].nunique() > 1]
        if mixed:
            document.text(
                """**Not all runs on {dataset} have the same {settings}**; the list of all
                runs below has each one's.""",
                dataset=written(dataset),
                settings=", ".join(mixed),
            )

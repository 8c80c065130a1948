"""Warnings to a reader of the means."""

from __future__ import annotations

from collections.abc import Iterable

from fedbary.report.document import Document
from fedbary.report.markup import Markup, code, listed
from fedbary.report.results import REPEATS, Results, grouped
from fedbary.runs.failing import verdict
from fedbary.runs.schema import BEHIND, FAILING
from fedbary.settings.config import bookkeeping
from fedbary.study.grid import NAMING
from fedbary.study.table import settings_of

NAMED = 3
"""The most runs that a caution names."""


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
        runs = results.last[results.last[word].notna()]
        if len(runs):
            document.text(
                "**{named}**{of_all}: {said}.",
                named=_named(runs["run"]),
                of_all=f" ({len(runs)} of {len(results.last)} runs; this is the first's line)"
                if len(runs) > 1
                else "",
                said=verdict({word: runs[word].iloc[0]}),
            )
    for condition, rows in grouped(results.last, "condition"):
        settings = settings_of(rows)
        known = bookkeeping().union(NAMING, REPEATS, results.varied, ["method"])
        mixed = [k for k in settings if k not in known and settings[k].nunique() > 1]
        if mixed:
            document.text(
                """**Not all runs on {condition} have the same {settings}**; the list of all
                runs below has each one's.""",
                condition=condition,
                settings=", ".join(mixed),
            )


def _named(runs: Iterable[object]) -> Markup:
    """Return the first runs' names, and how many more there are."""
    names = [code(str(run)) for run in runs]
    more = [f"and {len(names) - NAMED} more"] if len(names) > NAMED else []
    return listed([*names[:NAMED], *more])

"""Each client's own model beside the global one, on the client's data and on data like them."""

from __future__ import annotations

import re

import pandas as pd

from fedbary.report.cells import Metric
from fedbary.report.document import Document

_COLUMN = re.compile(r"personal\.held_out\.(?!global)(.+)\.weighted_accuracy")
_DATA = {"held_out": "own data", "shares": "test images of its shares"}
_PARTS = {"weighted_accuracy": "%", "worst10_accuracy": "worst tenth %"}


def add_own_models(document: Document, methods: list[tuple[str, pd.DataFrame]]) -> None:
    """Add a row for each model that clients have under a method, and for the global one beside it.

    Parameters
    ----------
    methods
        Names of methods with the last rounds of their runs; those without own models are left out.
    """
    body = [
        [name, _called(model), *_cells(runs, model)]
        for name, runs in methods
        if (own := _models(runs))
        for model in ("global", *own)
    ]
    if not body:
        return
    document.text(
        """Models of the clients' own, each beside the global one: on what a client holds out, and
        on test images drawn with the client's label shares. *Projected* models are the barycentre
        of a client's posterior, at weight λ, and the global one, at weight 1."""
    )
    header = [f"{data}: {part}" for data in _DATA.values() for part in _PARTS.values()]
    document.table(["method", "model", *header], body)


def _models(runs: pd.DataFrame) -> list[str]:
    found = [(match[1], c) for c in runs.columns if (match := _COLUMN.fullmatch(c))]
    return [model for model, column in found if runs[column].notna().any()]


def _called(model: str) -> str:
    kind, _, weight = model.partition("-")
    return f"projected, λ = {weight}" if weight else {"personal": "own"}.get(kind, kind)


def _cells(runs: pd.DataFrame, model: str) -> list[str]:
    columns = [f"personal.{data}.{model}.{part}" for data in _DATA for part in _PARTS]
    show = [Metric(column, "", 100, 2).show for column in columns]
    return [cell(runs[c]) if c in runs else "–" for cell, c in zip(show, columns, strict=True)]

"""Worth of the uncertainty: its parts, out-of-distribution detection, rejection."""

from __future__ import annotations

import pandas as pd

from fedbary.figures.comparison import rejection_curves
from fedbary.report.cells import DETECTION, MAHALANOBIS, REJECTED, UNCERTAINTY, Metric
from fedbary.report.document import Document
from fedbary.report.results import Results, grouped, repeat, written

TOLD_APART = 10
"""The most lines of a picture that a reader can tell apart."""


def add_uncertainty(results: Results, document: Document, explained: str) -> None:
    """Add the parts of uncertainty, out-of-distribution detection and accuracy after rejection.

    Parameters
    ----------
    explained : str
        The paragraph that says how to read it.
    """
    document.heading("What the uncertainty is worth")
    document.text(explained)
    for dataset, rows in grouped(results.last, "dataset"):
        document.heading(written(dataset), 3)
        shown = list(UNCERTAINTY)
        if DETECTION[0].column in rows and rows[DETECTION[0].column].notna().any():
            foreign = [
                written(name) for name in rows["ood_dataset"].dropna().unique() if name != "none"
            ]
            document.text(
                "Foreign images: the test images of {foreign}, resized.",
                foreign=" or ".join(foreign),
            )
            shown += [*DETECTION, *([MAHALANOBIS] if MAHALANOBIS.column in rows else [])]
        shown += [
            Metric(f"rejection.{part}", f"Accuracy %, {int(100 * float(part))} % rejected", 100, 2)
            for part in REJECTED
        ]
        body = [
            [
                *([variant] if results.varied else []),
                str(n),
                rule,
                *(m.show(runs[m.column]) if m.column in runs else "–" for m in shown),
            ]
            for (variant, n, rule), runs in grouped(rows, "variant", "bayesian_layers", "rule")
        ]
        header = ["n", "rule", *(metric.label for metric in shown)]
        document.table([*results.variant_header, *header], body)
    if not results.varied and results.last["rule"].nunique() <= TOLD_APART:
        document.figure(
            "rejection",
            rejection_curves(_rejections(results.last)),
            f"""Accuracy on what is left when the most uncertain predictions, by entropy,
            are put aside: mean and standard deviation over seeds, FedAvg and the rules at n
            = {results.last["bayesian_layers"].max()}.""",
        )


def _rejections(last: pd.DataFrame) -> pd.DataFrame:
    """Return accuracies after rejection in long form, of FedAvg and of the largest n."""
    largest = last["bayesian_layers"].isin((0, last["bayesian_layers"].max()))
    columns = [column for column in last if column.startswith("rejection.")]
    kept = last.assign(seed=repeat(last)).loc[largest, ["dataset", "rule", "seed", *columns]]
    long = kept.melt(["dataset", "rule", "seed"], var_name="rejected", value_name="accuracy")
    long["rejected"] = long["rejected"].str.removeprefix("rejection.").astype(float)
    return long.assign(dataset=long["dataset"].map(written))

"""Worth of the uncertainty: its parts, out-of-distribution detection, rejection."""

from __future__ import annotations

import pandas as pd

from fedbary.figures.comparison import rejection_curves
from fedbary.report.cells import DETECTION, MAHALANOBIS, REJECTED, UNCERTAINTY, Metric
from fedbary.report.document import Document
from fedbary.report.results import TOLD_APART, Results, grouped, repeat, written


def add_uncertainty(results: Results, document: Document, explained: str) -> None:
    """Add the parts of uncertainty, out-of-distribution detection and accuracy after rejection.

    Parameters
    ----------
    explained : str
        The paragraph that says how to read it.
    """
    document.heading("What the uncertainty is worth")
    document.text(explained)
    for condition, rows in grouped(results.last, "condition"):
        document.heading(condition, 3)
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
                str(n),
                arm,
                *(m.show(runs[m.column]) if m.column in runs else "–" for m in shown),
            ]
            for (n, arm), runs in grouped(rows, "bayesian_layers", "arm")
        ]
        document.table(["n", "method", *(metric.label for metric in shown)], body)
        curves = _rejections(rows)
        if 0 < curves["rule"].nunique() <= TOLD_APART:
            document.figure(
                "rejection",
                rejection_curves(curves),
                """Accuracy on what is left when the most uncertain predictions, by entropy,
                are put aside: mean and standard deviation over seeds, each method at its largest
                n.""",
            )


def _rejections(rows: pd.DataFrame) -> pd.DataFrame:
    """Return accuracies after rejection in long form, of each arm at its largest n."""
    largest = rows.groupby("arm")["bayesian_layers"].transform("max")
    columns = [column for column in rows if column.startswith("rejection.")]
    kept = rows.assign(seed=repeat(rows), dataset=rows["condition"], rule=rows["arm"])
    kept = kept.loc[rows["bayesian_layers"] == largest, ["dataset", "rule", "seed", *columns]]
    long = kept.melt(["dataset", "rule", "seed"], var_name="rejected", value_name="accuracy")
    long["rejected"] = long["rejected"].str.removeprefix("rejection.").astype(float)
    return long.dropna(subset=["accuracy"])

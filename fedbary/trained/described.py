"""What a run's model takes and answers, in words that JSON holds."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from fedbary.data.frame import MISSING
from fedbary.data.layout import Layout
from fedbary.settings.task_words import OfRows
from fedbary.tasks.survival import Survival
from fedbary.trained.run import Trained

FORMAT = 1
"""Version of the form of `schema.json`."""

CLASSES = {
    "probs": "probability of each class",
    "entropy": "total uncertainty, nats",
    "epistemic": "epistemic uncertainty, nats; NaN where one network predicts",
    "set": "whether each class is in the conformal set",
}
NUMBERS = {
    "mean": "mean, in the target's unit",
    "var": "variance, in the target's unit squared",
    "epistemic": "epistemic part of the variance",
    "low": "lower end of the conformal interval",
    "high": "upper end of the conformal interval",
}


def schema_of(trained: Trained) -> dict[str, Any]:
    """Return the input, the columns, the classes and the outputs of a run's model.

    The numbers of a column are in its own unit, the one that all sites use. Its ``mean`` and
    ``std`` are those of the training rows. A column of ``levels`` is a feature for each level, 1
    for the row's own and 0 for the others. The graph standardises the features.
    """
    task, layout = trained.task, trained.signature
    classes, idle = list(layout.classes), tuple[str, ...]()
    if isinstance(task, Survival):
        idle = task.beside_terms
        if task.predicts:
            at = f"{task.at(trained.facts):g}"
            classes = [f"no event until {at}", f"an event until {at}"]
    zeros = task.zeros(layout)
    dtype = "float64" if isinstance(layout, Layout) else "float32"
    found: dict[str, Any] = {
        "format": FORMAT,
        "task": trained.settings.task,
        "input": {
            "name": "x",
            "shape": ["N", *zeros.shape[1:]],
            "dtype": dtype if zeros.is_floating_point() else "int32",
        },
        "classes": classes,
        "outputs": {**(CLASSES if classes else NUMBERS)} if task.predicts else {},
    }
    if zeros.ndim == 4 and trained.data is not None:
        scale = 255 if trained.data.said["type"] == "uint8" else 1
        found["input"]["range"] = [trained.data.said[end] / scale for end in ("least", "most")]
    if isinstance(layout, Layout):
        found["target"] = trained.settings.of_task(OfRows).target
        held = columns_of(layout, trained.facts)
        found["columns"] = [{**one, "needed": one["name"] not in idle} for one in held]
        found["features"] = list(layout.features)
        found["missing"] = layout.missing
        found["missing words"] = [*sorted(MISSING), *layout.missing_words]
        found["marked if missing"] = list(layout.indicated)
    return found


def columns_of(layout: Layout, facts: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
    """Yield each column of a table: its levels, or the mean and std of its numbers."""
    place = 0
    for name, levels in layout.columns:
        told: dict[str, Any] = {"name": name}
        if levels:
            told["levels"] = list(levels)
        else:
            kept = ("mean", "std", "fill")
            told |= {word: _finite(facts[word][place]) for word in kept if word in facts}
        yield told
        place += max(1, len(levels))


def _finite(value: Any) -> float | None:
    """Return a number; None for the std of a column without spread, which is infinite."""
    return float(value) if float(value) < float("inf") else None

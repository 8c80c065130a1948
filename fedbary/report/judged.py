"""Sections on predictions beside the truth: of a run's test rows, or of labelled rows of a user."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor

from fedbary.figures import judged as pictures
from fedbary.figures.document import Document
from fedbary.predictive import Forecast, Prediction
from fedbary.predictive.conformal import interval
from fedbary.report.results import Metric
from fedbary.scores import binary
from fedbary.scores.metrics import Roc, accuracy_after_rejection
from fedbary.scores.regression import LEVELS
from fedbary.scores.survival import calibration
from fedbary.tasks.survival import Hazards
from fedbary.trained.judgement import Judged

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from fedbary.data.examples import Examples
    from fedbary.tasks import Task
    from fedbary.trained import Trained

LABELS = {
    metric.column: metric
    for metric in (
        Metric("accuracy", "Accuracy, %", 100, 1),
        Metric("nll", "NLL, nats"),
        Metric("ece", "ECE, %", 100, 1),
        Metric("brier", "Brier score"),
        Metric("auroc", "AUROC, %", 100, 1),
        Metric("sensitivity", "Sensitivity, %", 100, 1),
        Metric("rmse", "RMSE"),
        Metric("c_index", "C"),
        Metric("predicted_risk", "Predicted risk, %", 100, 1),
        Metric("observed_risk", "Observed risk, %", 100, 1),
        Metric("crps", "CRPS"),
        Metric("sharpness", "Mean standard deviation"),
        *(Metric(f"coverage_{level}", f"In the {level} % interval, %", 100, 1) for level in LEVELS),
    )
}
"""How scores are shown; others are shown by their names."""

MEANINGS = {
    "accuracy": "rows whose most probable class is the true one",
    "nll": "mean of −log of the probability, or density, of what was true; lower is better",
    "ece": "mean gap of confidence and accuracy; 0 is best, and chance alone makes it larger",
    "brier": "mean squared error of the probabilities; lower is better",
    "auroc": "how often a row with the event has a higher risk than one without; 50 % is a guess",
    "sensitivity": "rows with the event that are found, where so many without it raise no alarm",
    "rmse": "root of the mean squared error, in the target's unit; lower is better",
    "c_index": "pairs in which the row with the earlier event has the larger hazard; ½ is a guess",
    "predicted_risk": "mean risk of an event until the time that `--at` names",
    "observed_risk": "Kaplan and Meier's risk until then; near the predicted one is best",
    "crps": "distance of forecast and target, in the target's unit; lower is better",
    "sharpness": "width of the forecasts; lower is better only if the intervals hold the targets",
    **{f"coverage_{level}": f"targets in their interval; {level} % is right" for level in LEVELS},
}
"""What scores are, for readers who have not met them."""

RARE = 0.2
"""Share of the rarer of two classes below which a referral is told by the events that it finds."""

FEW_EVENTS = 100
"""Events, and rows without one, that a calibration needs at least (Van Calster et al. 2016)."""

REFERRED = (0.0, 0.05, 0.1, 0.2, 0.3, 0.5)
FLAGGED = (0.01, 0.02, 0.05, 0.1, 0.2, 0.5)


@dataclass(frozen=True)
class Goals:
    """Aims by which thresholds are chosen.

    Attributes
    ----------
    sensitivity
        Least fraction of events that a threshold finds.
    alerts
        Largest fraction of rows that reach another.
    """

    sensitivity: float = 0.9
    alerts: float = 0.05


def label(score: str, task: Task) -> Metric:
    """Return how a score is shown; a task's own score as its course is drawn."""
    own = {name: Metric(name, said, scale) for name, scale, said, _ in task.curves}
    found = LABELS.get(score, own.get(score, Metric(score, score)))
    if score == "sensitivity" and "specificity" in (words := dict(task.settings)):
        at = f"{100 * words['specificity']:g} %"
        return replace(found, label=f"{found.label}, at specificity {at}")
    return found


def percent(hits: int, count: int, known: bool = True) -> str:
    """Return a rate with its 95 % Clopper-Pearson interval; a dash without trials."""
    if not count:
        return "–"
    low, high = interval(hits, count)
    ends = f" [{100 * low:.1f}, {100 * high:.1f}]" if known else ""
    return f"{100 * hits / count:.1f}{ends}"


def shown(metric: Metric, found: Judged) -> str:
    """Return a score with its interval; of a number above 100 five digits."""
    value, low, high = (metric.scale * number for number in found)
    if math.isnan(value):
        return "–"
    places = metric.decimals
    if metric.scale == 1 and math.isfinite(value):
        places = max(0, min(places, 4 - len(f"{abs(value):.0f}")))
    ends = "" if math.isnan(low) else f" [{low:.{places}f}, {high:.{places}f}]"
    return f"{value:.{places}f}{ends}"


def add_scores(
    document: Document,
    found: Mapping[str, Mapping[str, Judged]],
    task: Task,
) -> None:
    """Add a table of scores, a column a model."""
    named = {score: label(score, task) for score in next(iter(found.values()))}
    rows = [
        [metric.label, *(shown(metric, held[score]) for held in found.values())]
        for score, metric in named.items()
    ]
    document.table(["", *found], rows)
    add_meanings(document, named)


def add_meanings(document: Document, scores: Iterable[str]) -> None:
    """Add what scores are, folded."""
    known = [[label_of.label, MEANINGS[s]] for s in scores if (label_of := LABELS.get(s))]
    if known:
        document.table(["score", "what it is"], known, "What the scores are")


def add_groups(document: Document, table: Mapping[str, list[Any]], task: Task) -> None:
    """Add scores by group, from columns as `fedbary.trained.judgement.scores` returns them."""
    names = [name for name in table if f"{name}_low" in table]
    counts = [name for name in ("examples", "positives") if name in table]
    rows = {}
    for at, group in enumerate(table["group"]):
        ends = [(table[n][at], table[f"{n}_low"][at], table[f"{n}_high"][at]) for n in names]
        cells = [shown(label(name, task), one) for name, one in zip(names, ends, strict=True)]
        rows[group] = [str(group), *(str(table[name][at]) for name in counts), *cells]
    head = ["group", *counts, *(label(name, task).label for name in names)]
    document.table(head, [*rows.values()])


def add_sets(
    document: Document,
    trained: Trained,
    rows: Iterable[tuple[str, Mapping[str, Any], str]],
    level: float,
) -> list[str]:
    """Add coverage and size of conformal sets or intervals; return cautions.

    `rows` are names of rows with their scores, see `fedbary.scores.coverage`, and the name of the
    coverage among these.
    """
    called, size = ("sets", "set_size") if trained.signature.classes else ("intervals", "width")
    document.heading(f"Conformal {called}")
    document.text(
        "They should hold the truth in {level} %. {empty}",
        level=f"{100 * level:g}",
        empty="A set may be empty: no class fits, and a person should look."
        if trained.signature.classes
        else "",
    )
    body, cautions = [], []
    for name, scores, covered in rows:
        held, width = _with_ends(scores, covered), _with_ends(scores, size)
        cells = shown(Metric("", "", 100, 1), held), shown(Metric("", "", 1, 2), width)
        body.append([name, str(scores["examples"]), *cells])
        if held[2] < level:
            cautions.append(
                f"The {called} hold the truth in {cells[0]} % of {name}, not in {100 * level:g} %. "
                "conformal_by=class or a column sets a threshold for each"
            )
    document.table(["rows", "number", "hold the truth, %", f"mean {size.replace('_', ' ')}"], body)
    return cautions


def _with_ends(scores: Mapping[str, Any], name: str) -> Judged:
    at, low, high = (scores.get(f"{name}{end}", math.nan) for end in ("", "_low", "_high"))
    return at, low, high


def write_evaluation(
    folder: Path,
    title: str,
    trained: Trained,
    prediction: Any,
    examples: Examples,
    found: Mapping[str, list[Any]],
    covered: Mapping[str, list[Any]],
    level: float,
    goals: Goals,
) -> None:
    """Write the report of a user's labelled rows to a folder.

    `found` is a table of scores by group, as `fedbary.trained.judgement.scores` returns it;
    `covered` one of conformal sets at a level, as `set_scores` returns it, or empty.
    """
    y, task, doubt = examples.y, trained.task, trained.doubt(examples)
    assert y is not None
    document = Document(folder, title)
    document.heading("Scores")
    document.text("On {rows} rows.", rows=len(y))
    add_groups(document, found, task)
    add_meanings(document, (name for name in found if f"{name}_low" in found))
    classes = tuple(trained.signature.classes)
    cautions = add_judgement(document, task, prediction, y, classes, goals, not doubt)
    if covered:
        of_group = [
            (name, {key: values[at] for key, values in covered.items()}, "coverage")
            for at, name in enumerate(covered["group"])
        ]
        cautions += add_sets(document, trained, of_group, level)
    if old := int(trained.trained_on(examples).sum()):
        cautions.append(f"{old} of {len(y)} rows are equal to rows trained on")
    if cautions := [*cautions, *([f"{doubt}: no interval is known"] if doubt else [])]:
        document.heading("Cautions")
        document.bullets(cautions)
    document.write()


def add_judgement(
    document: Document,
    task: Task,
    prediction: Any,
    y: Tensor,
    classes: tuple[str, ...],
    goals: Goals,
    known: bool,
) -> list[str]:
    """Add the sections that fit the kind of prediction; return cautions.

    `known` is whether the rows are independent, so that rates have intervals.
    """
    if isinstance(prediction, Hazards):
        if prediction.risk is not None:
            risk, (time, event) = prediction.risk.numpy(), y.double().numpy().T
            add_risks(document, calibration(risk, time, event, prediction.at), prediction.at)
        return []
    kind = prediction.mean if isinstance(prediction, Forecast) else prediction.probs
    y, drawn = y.to(kind.device), dict(task.judgement(prediction, y, ""))
    for kind, title in (("roc", "ROC"), ("coverage", "Coverage"), ("reliability", "Reliability")):
        if kind in drawn:
            axes = drawn[kind].axes[0]
            axes.set_title(f"{title}{axes.get_title().replace(chr(10), ': ')}", size=11)
    if isinstance(prediction, Forecast):
        _add_numbers(document, prediction, y, drawn, dict(task.settings).get("target", "target"))
    elif prediction.probs.ndim > 2:
        document.heading("Calibration")
        document.figures(drawn.items(), "Every pixel or label counts by itself.")
    elif prediction.probs.shape[1] == 2:
        return _add_event(document, prediction, y, classes, goals, known, drawn)
    else:
        _add_classes(document, prediction, y, classes, known, drawn)
    return []


def add_risks(document: Document, bins: binary.Bins, at: float) -> None:
    """Add the calibration of risks until a time."""
    document.heading(f"Risk until {at:g}")
    drawn = pictures.risk_calibration(bins, f"an event until {at:g}")
    caption = (
        "Groups of rows by predicted risk. Observed risks allow for times that were cut short."
    )
    document.figures([("calibration", drawn)], caption)
    add_bins(document, bins, f"events until {at:g}")


def add_bins(document: Document, bins: binary.Bins, events: str) -> None:
    """Add the table of a calibration by groups of predicted risk."""
    columns = (bins.risk, bins.observed, bins.low, bins.high, bins.events, bins.rows)
    body = [
        [f"{100 * p:.2f}", _with_interval(o, low, high), f"{k} of {n}"]
        for p, o, low, high, k, n in zip(*columns, strict=True)
    ]
    head = ["predicted, %", "observed, % [95 %]", events]
    document.table(head, body, "Calibration by tenths of the predicted risk")


def _with_interval(observed: float, low: float, high: float) -> str:
    if math.isnan(observed):
        return "–"
    ends = "" if math.isnan(low) else f" [{100 * low:.1f}, {100 * high:.1f}]"
    return f"{100 * observed:.2f}{ends}"


def _add_event(
    document: Document,
    prediction: Prediction,
    y: Tensor,
    classes: tuple[str, ...],
    goals: Goals,
    known: bool,
    drawn: dict[str, Figure],
) -> list[str]:
    name = classes[1]
    risk, event = prediction.probs[:, 1].double().cpu().numpy(), (y == 1).cpu().numpy()
    rows, events = len(event), int(event.sum())
    document.heading(f"Risk of {name}")
    if not 0 < events < rows:
        return [f"All {rows} rows have one class: risks cannot be judged on them"]
    bins, (slope, intercept) = binary.deciles(risk, event), binary.calibration_line(risk, event)
    if not known:
        slope, intercept = ((at, math.nan, math.nan) for at, *_ in (slope, intercept))
    number = Metric("", "", decimals=2)
    document.text(
        """{events} of {rows} rows are {name}: {share} %. The model predicts {mean} % on average.
        The calibration slope is {slope}: 1 is right, below 1 risks are too extreme, above 1 too
        much alike. Calibration in the large is {intercept}: 0 is right, below 0 risks are too
        high.""",
        events=events, rows=rows, name=name, share=percent(events, rows, known),
        mean=f"{100 * risk.mean():.1f}",
        slope="without an estimate" if math.isnan(slope[0]) else shown(number, slope),
        intercept=shown(number, intercept),
    )  # fmt: skip
    at_goal = binary.at_sensitivity(risk, event, goals.sensitivity)
    at_rate = binary.at_alerts(risk, event, goals.alerts)
    most = min(0.95, max(2 * events / rows, float(np.quantile(risk, 0.99)), 0.02))
    both = [
        ("calibration", pictures.risk_calibration(bins, name)),
        *((kind, figure) for kind, figure in drawn.items() if kind != "reliability"),
        (
            "precision-recall",
            pictures.precision_recall(Roc.of(prediction.probs[:, 1], y == 1), name),
        ),
        ("decision", pictures.decision_curve(risk, event, most)),
    ]
    document.figures(
        both,
        "Calibration: tenths of the rows by predicted risk. Decision curve: "
        "net benefit of acting from a risk on; it is worth it where the model is highest.",
    )
    add_bins(document, bins, name)
    document.heading("Thresholds", 3)
    document.text(
        """Rows whose predicted risk of {name} is at or above a threshold raise an alert. The
        thresholds are chosen on these rows. They do a little worse on new ones.""",
        name=name,
    )
    half = binary.cut_at(risk, event, 0.5)
    named = {
        f"at least {100 * goals.sensitivity:g} % of {name} found": at_goal,
        f"at most {100 * goals.alerts:g} % alerts": at_rate,
        "risk of 50 %": half,
    }
    document.numbers["thresholds"] = {
        why: {
            "risk": cut.threshold if cut.threshold < math.inf else None,
            "events found": cut.hits,
            "events missed": cut.missed,
            "false alerts": cut.alarms,
            "others": cut.spared,
        }
        for why, cut in named.items()
    }
    names = [rate for rate, *_ in half.rates()]
    body = [
        [
            why,
            f"{100 * cut.threshold:.2f}" if cut.threshold < math.inf else "none",
            f"{1000 * cut.alerts:.0f}",
            f"{1000 * cut.hits / rows:.1f}",
            f"{1000 * cut.missed / rows:.1f}",
            *(percent(hits, count, known) for _, hits, count in cut.rates()),
        ]
        for why, cut in named.items()
    ]
    head = ["threshold by", "risk, %", "alerts in 1,000", "found", "missed"]
    document.table([*head, *(f"{rate}, %" for rate in names)], body)
    body = [
        [why, *map(str, (cut.hits, cut.missed, cut.alarms, cut.spared))]
        for why, cut in named.items()
    ]
    head = [f"{name}, {word}" for name in reversed(classes) for word in ("alert", "no alert")]
    document.table(["threshold by", *head], body, "Confusion matrices: true class, alert")
    document.heading("Referral", 3)
    document.text(
        "If rows go to a person by their predicted risk of {name}, the highest first:", name=name
    )
    body = []
    for share in FLAGGED:
        cut = binary.at_alerts(risk, event, share)
        body.append(
            [f"{100 * share:g}", str(cut.hits + cut.alarms), percent(cut.hits, events, known)]
        )
    document.table(["referred, at most %", "rows", f"of all {name} among them, %"], body)
    if min(events, rows - events) >= RARE * rows:
        _add_referral(document, prediction, y, known)
    if min(events, rows - events) >= FEW_EVENTS:
        return []
    return [
        f"There are {events} rows of {name} and {rows - events} others. A calibration needs "
        f"{FEW_EVENTS} of each; with fewer its slope and its tenths are rough"
    ]


def _add_referral(document: Document, prediction: Prediction, y: Tensor, known: bool) -> None:
    kept = accuracy_after_rejection(prediction.probs, y, prediction.entropy, REFERRED)
    counts = [max(1, round(len(y) * (1 - share))) for share in REFERRED]
    body = [
        [f"{100 * share:g}", str(count), percent(round(right * count), count, known)]
        for share, right, count in zip(REFERRED, kept, counts, strict=True)
    ]
    document.text("If the rows of the highest total uncertainty go to a person:")
    document.table(["referred, %", "rows kept", "right among the kept, %"], body)


def _add_classes(
    document: Document,
    prediction: Prediction,
    y: Tensor,
    classes: tuple[str, ...],
    known: bool,
    drawn: dict[str, Figure],
) -> None:
    counts = np.zeros((len(classes), len(classes)), dtype=np.int64)
    answer = prediction.probs.argmax(1)
    np.add.at(counts, (y.cpu().numpy(), answer.cpu().numpy()), 1)
    document.heading("Classes and calibration")
    confusion = "confusion", pictures.confusion(counts, classes)
    said, how = "Confusion: predictions by true class.", "Reliability: accuracy, by confidence."
    if len(classes) > pictures.MOST_CELLS:
        document.figures([confusion], said)
        document.figures(drawn.items(), how)
    else:
        document.figures([confusion, *drawn.items()], f"{said} {how}")
    body = [
        [
            name,
            str(int(counts[k].sum())),
            percent(int(counts[k, k]), int(counts[k].sum()), known),
            percent(int(counts[k, k]), int(counts[:, k].sum()), known),
        ]
        for k, name in enumerate(classes)
    ]
    head = ["class", "rows", "found (recall), %", "right where predicted (precision), %"]
    document.table(head, body)
    document.heading("Referral", 3)
    _add_referral(document, prediction, y, known)


def _add_numbers(
    document: Document, forecast: Forecast, y: Tensor, drawn: dict[str, Figure], name: str
) -> None:
    mean, std = forecast.mean.double().cpu(), forecast.var.double().sqrt().cpu()
    z = (y.double().cpu() - mean) / std.clamp_min(torch.finfo(torch.float64).tiny)
    pit = torch.special.ndtr(z)
    document.heading("Calibration")
    extra = [
        ("pit", pictures.pit_histogram(pit.numpy())),
        ("residuals", pictures.residuals(mean.numpy(), y.cpu().numpy(), std.numpy(), name)),
    ]
    document.figures(
        [*drawn.items(), *extra],
        "PIT: where targets lie in their forecasts, flat if these are calibrated. High ends: "
        "intervals are too narrow. A high middle: too wide.",
    )
    document.text(
        """The mean of {name} − forecast is {bias}: 0 is right. Their standard deviation is
        {spread}. The forecasts' own is {own} on average.""",
        name=name,
        own=f"{float(std.mean()):.4g}",
        bias=f"{float((y.double().cpu() - mean).mean()):.4g}",
        spread=f"{float((y.double().cpu() - mean).std()):.4g}",
    )

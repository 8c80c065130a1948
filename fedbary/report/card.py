"""The model card of a run, with the numbers of its report.

Front matter and headings are those of Hugging Face's model cards. What people have to say of a
model is marked as missing. Reference: Mitchell et al., Model Cards for Model Reporting, 2019.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import yaml

from fedbary.data.forms import content_of
from fedbary.data.layout import Layout
from fedbary.figures.document import Document, Markup, escape, paragraph, table
from fedbary.report.judged import LABELS
from fedbary.runs import schema
from fedbary.runs.location import METRICS, POSTERIOR, RECORD, SETTINGS, is_deployed
from fedbary.runs.record import read_record
from fedbary.settings.config import read_yaml
from fedbary.study.arms import plain, written
from fedbary.texts import cut
from fedbary.trained.described import columns_of
from fedbary.trained.run import Trained

CARD = "card.md"

LEFT = "What left each site"
"""The report's section on messages."""

OPEN = Markup("**[More Information Needed]**")
"""Mark of what people have to fill in, as Hugging Face writes it."""

PIPELINES = {
    "classification": "image-classification",
    "regression": "tabular-regression",
    "tables": "tabular-classification",
    "text": "text-classification",
}

RESULTS = ("Scores", "Coefficients", "By group", "By site", "Temperature", "Uncertainty")

LOAD = """import fedbary

trained = fedbary.load("RUN")  # the folder in which this card lies
prediction = trained.predict(trained.read("new.csv"))"""

SHOWN_LEVELS = 8
"""Levels of a column that are named; more are counted."""


def card_of(trained: Trained, document: Document, load: str = LOAD) -> str:
    """Return the model card of a run.

    Parameters
    ----------
    trained, document
        The run's model and its report, of which the card takes all numbers.
    load
        Lines of Python that load the model and predict.
    """
    made, name = read_yaml(trained.folder / SETTINGS), trained.folder.resolve().name
    data = written(Path(trained.settings.dataset).name)
    parts = [
        f"---\n{yaml.safe_dump(_front(trained, name, data), sort_keys=False)}---",
        f"# {escape(name)}",
        *document.section("")[:-1],
        "Lines marked " + OPEN + " are left for people to fill in. All numbers were measured.",
        "## Model Details",
        *document.section("")[-1:],
        f"- **Developed by:** {OPEN}\n- **License:** {OPEN}",
        "## Uses",
        f"### Direct Use\n\n{OPEN}",
        f"### Out-of-Scope Use\n\n{OPEN}",
        "## Bias, Risks, and Limitations",
        *document.section("Cautions"),
        "Not tested:",
        _bullets(_untested(trained, document)),
        f"### Recommendations\n\n{OPEN}",
        f"## How to Get Started with the Model\n\n```python\n{load}\n```",
        "## Training Details",
        "### Training Data",
        *_dates(trained.folder),
        *document.section("Data"),
        *_inputs(trained),
        "### Training Procedure",
        _procedure(trained),
        f"### {LEFT}",
        *document.section(LEFT),
        _privacy(trained),
        "## Evaluation",
        *_results(document),
        "## Technical Specifications",
        *_versions(trained, made),
        f"## Model Card Contact\n\n{OPEN}",
    ]
    return "\n\n".join(parts) + "\n"


def _front(trained: Trained, name: str, data: str) -> dict[str, Any]:
    """Return the front matter: tags, and the scores of the round that the model is of."""
    settings, line = trained.settings, trained.line
    scored = {k: line[k] for k in LABELS if isinstance(line.get(k), float)}
    scored = {k: value for k, value in scored.items() if math.isfinite(value)}
    tags = ["federated-learning", "bayesian", "flower", settings.task, settings.strategy]
    found: dict[str, Any] = {"library_name": "fedbary", "tags": [str(tag) for tag in tags]}
    if settings.task not in PIPELINES:
        return found
    found["pipeline_tag"] = PIPELINES[settings.task]
    if scored:
        found["metrics"] = [*scored]
        result = {
            "task": {"type": found["pipeline_tag"]},
            "dataset": {"name": data if data != "none" else "the sites' own", "type": "private"},
            "metrics": [{"type": k, "value": round(v, 6)} for k, v in scored.items()],
        }
        found["model-index"] = [{"name": name, "results": [result]}]
    return found


def _untested(trained: Trained, document: Document) -> Iterator[str]:
    """Yield what the run did not test."""
    held = document.headings
    if "Coefficients" in held:
        yield "predictions of new rows: all rows train"
    elif "Scores" not in held:
        yield "rows at the server: the scores are those that sites sent of what they hold out"
    if not is_deployed(trained.folder):
        yield "real sites: the sites were simulated, and their rows are dealt from one data set"
    if "Coefficients" not in held:
        if "By group" not in held:
            yield "groups: no column of levels was there to score apart"
        if "By site" not in held:
            yield "sites: none sent scores of rows that it holds out"
        if "ood" not in trained.line:
            yield "inputs unlike the training data (ood_dataset=)"
        if not trained.sites:
            yield "a guarantee: the run has no conformal sets or intervals (conformal=)"
    yield "other sites, and later data"


def _dates(folder: Path) -> Iterator[str]:
    """Yield when the run began and ended, if it has a record."""
    if (folder / RECORD).exists() and (events := read_record(folder / RECORD)[0]):
        yield f"Training ran from {events[0]['time']} to {events[-1]['time']}."


def _inputs(trained: Trained) -> Iterator[str]:
    """Yield the columns and the classes."""
    layout = trained.signature
    if layout.classes:
        yield paragraph("Classes: {names}.", names=_listed(layout.classes))
    if not isinstance(layout, Layout):
        shape = tuple(trained.task.zeros(layout).shape[1:])
        yield paragraph("An input has the shape {shape}.", shape=str(shape))
        return
    rows = []
    for column in columns_of(layout, trained.facts):
        numbers = [column.get(word) for word in ("mean", "std")]
        cells = ["" if value is None else f"{value:.4g}" for value in numbers]
        rows.append([column["name"], _listed(column.get("levels", ())) or "numbers", *cells])
    yield table(["column", "levels", "mean", "standard deviation"], rows)
    yield paragraph(
        "Numbers are in the columns' own units. Empty cells: {missing}.", missing=layout.missing
    )


def _procedure(trained: Trained) -> str:
    settings = trained.settings
    return paragraph(
        "Method {method} on the model {model}, {rounds} rounds with Flower, seed {seed}.",
        method=settings.strategy,
        model=settings.model,
        rounds=str(trained.rounds[-1][schema.ROUND]),
        seed=str(settings.seed),
    )


def _privacy(trained: Trained) -> str:
    """Return the noise with a guarantee, if sites added some."""
    words = dict(trained.settings)
    epsilon = words.get("epsilon") if words.get("max_norm") else None
    if not epsilon:
        return "Sites added no noise: there is no differential privacy."
    return paragraph(
        """Each site added Gaussian noise to its sums: for each example ε = {epsilon} and
        δ = {delta} in this run, with norms cut at {norm}. A site's log has ε over all runs.""",
        epsilon=plain(epsilon),
        delta=plain(words["delta"]),
        norm=plain(words["max_norm"]),
    )


def _results(document: Document) -> Iterator[str]:
    """Yield the report's sections on the model's quality, a level lower."""
    begun = ("Risk of", "Classes and", "Calibration", "Conformal")
    for heading in document.headings:
        if heading in RESULTS or heading.startswith(begun):
            yield f"### {heading}"
            for part in document.section(heading):
                yield f"#{part}" if part.startswith("#") else part


def _versions(trained: Trained, made: Mapping[str, Any]) -> Iterator[str]:
    """Yield versions and digests."""
    rows = [[name, str(version)] for name, version in made["versions"].items()]
    rows += [["commit of fedbary", str(made["commit"])], ["device", str(made["device"])]]
    if trained.data is not None:
        rows.append(["digest of the data", str(trained.data.said["content"])])
    for name in (POSTERIOR, SETTINGS, METRICS):
        digest = hashlib.sha256(content_of(trained.folder / name)).hexdigest()
        rows.append([f"sha256 of {name}", digest])
    yield table(["", ""], rows)


def _bullets(lines: Iterable[str]) -> str:
    return "\n".join(f"- {escape(line)}" for line in lines)


def _listed(names: Sequence[str]) -> str:
    shown = ", ".join(cut(name, 60) for name in names[:SHOWN_LEVELS])
    more = len(names) - SHOWN_LEVELS
    return f"{shown}, {more} more" if more > 0 else shown

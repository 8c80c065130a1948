"""Fills the tables of docs/howto/leaving.md: what leaves a site, from runs of the code.

`python docs/_leaving.py` writes them: each task and each method makes two rounds on a tiny network,
every reply of the sites is kept, and the names in it are the rows. What they mean stands here; a
name without a meaning is an error.
"""

from __future__ import annotations

import re
import sys
import tempfile
from collections.abc import Callable, Mapping, Sequence
from itertools import chain
from logging import ERROR
from pathlib import Path
from typing import Any

import numpy as np
from flwr.app import Message
from flwr.supercore.logger import FLOWER_LOGGER

from fedbary.aggregation.covariance import STRUCTURES
from fedbary.data.sites import WITHHOLDABLE
from fedbary.errors import RunError, SettingError
from fedbary.inference import INFERENCE
from fedbary.server_app.engine.inline import InlineGrid
from fedbary.settings.config import Settings, completed
from fedbary.settings.owners import methods

PAGE = Path(__file__).parent / "howto" / "leaving.md"

TELLING = {"calibrate": "temperature", "holdout": 0.1, "conformal": 0.9}
"""Settings under which sites that predict one class tell most."""

RUNS: Mapping[str, Sequence[Mapping[str, Any]]] = {
    "classification": (
        {**TELLING, "normalise": "channels"},
        {
            **TELLING,
            "normalise": "channels",
            "dataset": "features",
            "features": 4,
            "model": "linear",
        },
        {"projection": "WB", "holdout": 0.1, "compress": "all", "normalise": "none"},
    ),
    "text": ({**TELLING, "dataset": "texts", "backbone": "texts", "text": "body", "features": 4},),
    "tables": ({**TELLING, "missing": "median"},),
    "regression": (
        {"method": "FedAG", "missing": "median", "holdout": 0.1, "conformal": 0.9},
        {"rule": "RKLB", "holdout": 0.1, "conformal": 0.9},
    ),
    "glm": ({"terms": "`mean area` spline(`mean texture`,4)", "errors": "robust"},),
    "survival": ({"dataset": "times", "target": "days", "event": "died"},),
}
"""Each task, with runs in which its sites tell most together."""

INFERENCES: Mapping[str, Mapping[str, Any]] = {
    **{f"inference={name}": {"inference": name} for name in INFERENCE if name != "laplace"},
    "method=SCAFFOLD inference=curvature bayesian_layers=1": {
        "method": "SCAFFOLD", "inference": "curvature", "bayesian_layers": 1,
    },
    **{
        f"method=PVI inference=laplace covariance={structure}": {
            "method": "PVI", "inference": "laplace", "covariance": structure, "model": "linear",
        }
        for structure in STRUCTURES
    },
}  # fmt: skip
"""Each local inference, with what it needs."""

_QUICK = {
    "engine": "inline", "pictures": False, "device": "cpu", "clients": 2, "rounds": 2,
    "local_epochs": 1, "samples": 2, "evaluate_clients": 1,
}  # fmt: skip
_LINEAR = {"task": "regression", "model": "linear", "noise": "learned", "holdout": 0}
_TERMS = {"task": "glm", "holdout": 0}
_NEEDED = ({}, {"server_fraction": 0.1}, {"local_epochs": 3}, {"rounds": 5}, _LINEAR, _TERMS)
"""What some methods need beside it, tried one after another."""

_TABLE = re.compile(r"(<!-- made: (\w+) -->\n\n.*\n.*\n)(?:\|.*\n)*")
"""The marker of a table, its two lines of head, and its rows."""

_MEANINGS = {
    "name": ("the site's name: its own word, or `site` and eight digits of a digest", "–", "name"),
    "code": ("a digest of its code of fedbary", "–", ""),
    "versions": ("versions of fedbary, Python and the libraries that it runs with", "–", ""),
    "content": ("a hash of the shared data set, or 32 bits of one of its own data", "–", ""),
    "partition-id": ("which part of a shared data set it holds; −1 for data of its own", "–", ""),
    "num-partitions": ("of how many", "–", ""),
    "num-examples": ("how many it trains on, or holds out in an evaluation", "examples", ""),
    "num-held-out": ("how many it holds out", "examples", ""),
    "numbers-left": ("numbers that its budget still allows; −1 without a budget", "–", ""),
    "share": ("`estimate` if it shares its own estimates", "–", "choose it"),
    "label-counts": ("how many of each class it holds", "examples", "label-counts"),
    "train-seconds": ("how long it trained", "seconds", "seconds"),
    "train-nll": ("mean loss of its last epoch", "nats", "scores"),
    "train-mse": ("mean squared error of its last epoch", "standardised units", "scores"),
    "kl": ("divergence of its posterior from the prior", "nats", "scores"),
    "accuracy": ("fraction that is right", "0 to 1", "scores"),
    "nll": ("negative log-likelihood", "nats", "scores"),
    "ece": ("expected calibration error", "0 to 1", "scores"),
    "brier": ("Brier score", "0 to 2", "scores"),
    "auroc": ("area under the ROC curve", "0 to 1", "scores"),
    "nll_std": ("standard error of the NLL", "nats", "scores"),
    "sensitivity": ("sensitivity at the chosen specificity", "0 to 1", "scores"),
    "nll-at": ("negative log-likelihood at each of 21 temperatures", "nats", "scores"),
    "count": ("rows, or pixels, that the sums are of", "examples", "answers"),
    "total": ("sum of each column less a shift; in tables by class too", "the column's", "answers"),
    "squares": ("sum of squares of each column, or of the residuals", "its square", "answers"),
    "cells": ("bins of conformal scores in which it holds examples out", "–", "scores"),
    "counts": ("how many it holds out in each", "examples", "scores"),
    "risk-cells": ("bins of uncertainty of right and of wrong predictions", "–", "scores"),
    "risk-counts": ("how many it holds out in each", "examples", "scores"),
    "mean": ("mean size of its sets, or width of its intervals", "classes or the target", "scores"),
    "std": ("standard deviation of these", "classes or the target", "scores"),
    "tests": ("observed less expected events of levels, and covariances", "events", "answers"),
    "clusters": ("rows, or groups of rows, whose scores it adds", "–", "answers"),
    "products": ("sum of products of each two entries of their scores", "–", "answers"),
    "pairs": ("five sums over pairs of rows, of which C is made", "pairs", "answers"),
    "risk-groups": ("ten groups by risk: rows, risks, events, expected events", "–", "answers"),
    "curves": ("rows at risk, events and time at risk, by interval and level", "–", "answers"),
    "proportional": ("sums of columns over rows at risk, by powers of log time", "–", "answers"),
    "equal": ("rows that equal another; 0 if fewer than five, or by chance", "examples", "answers"),
    "repeated": ("1 for a column in which a number far from all others repeats", "–", "answers"),
    "seen": ("values of each column that are not missing", "examples", "answers"),
    "below": ("values of each column below a number that the server names", "examples", "answers"),
    "moments": ("sum of products of each two features or terms, standardised", "–", "answers"),
    "spread": ("sum of the residuals' spread over the networks", "target's square", "answers"),
    "names": ("names of its columns", "–", "answers"),
    "kinds": ("kind of each: numbers, levels, texts, dates, …", "–", "answers"),
    "kept": ("why a column of numbers has no sums; empty if it has", "–", "answers"),
    "missing": ("missing cells of each column; −1 for one to four", "cells", "answers"),
    "levels": ("number of levels that it tells of each column", "–", "answers"),
    "level-names": ("their names; an empty one for rare levels together", "–", "answers"),
    "level-rows": ("their rows, five or more", "rows", "answers"),
    "edges": ("number of edges of each column's histogram", "–", "answers"),
    "places": ("places of these edges on the common grid", "–", "answers"),
    "cell-rows": ("rows of each cell, ten or more", "rows", "answers"),
    "digests": ("digests of the ids under a key that the server lacks", "–", "answers"),
    "packing": ("how the reply's arrays are packed, with `compress`", "–", ""),
}  # fmt: skip
"""Of each name what it is, its unit, and the word that withholds it."""

_ARRAYS = {
    "*": "weights",
    "*_mean": "means",
    "*_log_var": "log-variances",
    "gate/*": "a gating network",
    "teacher/*": "a sampled teacher's weights",
    "fisher/*": "squared gradients of each weight",
    "control/*": "the change of its mean gradient, its control variate",
    "inputs/*": "second moments of each layer's inputs",
    "slopes/*": "second moments of each layer's gradients",
    "log_var/*": "log-variances along its descent",
    "gradient/*": "the gradient of the shared layers",
    "head/*": "what it tells of its own head's weights",
    "sums/value": "sum of its negative log-likelihood at the server's point, nats",
    "sums/gradient": "the gradient of this sum",
    "sums/hessian": "the second derivatives of this sum: a number for each two weights",
    "sums/*": "means over its examples: shares, features by class, products of features",
    "curvature/*": "curvature of the last layer",
    "fairness/*": "its mean loss, in nats: the method needs it",
    "site/slope": "the gradient of its loss where it expands it, Σ (p − y) x̄ᵀ",
    "site/precision": "curvature of the loss: a number for each weight, with `full` for each two",
    "site/inputs": "products of each two of the layer's inputs, Σ x̄ x̄ᵀ",
    "site/outputs": "the sum of the loss's curvature in the outputs",
    "site/examples": "its number of examples",
}
"""Of each form of an array's name what it holds."""


class _Listening(InlineGrid):
    """A federation that keeps the names in every reply, by what was asked."""

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        self.heard: dict[str, dict[str, set[str]]] = {}

    def _answer(self, message: Message) -> Message:
        reply = super()._answer(message)
        asked = message.metadata.message_type
        if question := message.content["config"].get("question"):
            asked += f" {question}"
        for name, record in reply.content.items() if reply.has_content() else ():
            self.heard.setdefault(asked, {}).setdefault(name, set()).update(map(str, record))
        return reply


def heard(task: str, **changes: Any) -> dict[str, dict[str, set[str]]]:
    """Return the names in all replies of a run of two sites, by message and by record.

    Raises
    ------
    SettingError, RunError
        If the run cannot be made.
    """
    failed: Exception | None = None
    for needed in _NEEDED:
        with tempfile.TemporaryDirectory() as scratch:
            folder = Path(scratch) / "run"
            try:
                given = {**_QUICK, "task": task, "output": str(folder), **changes, **needed}
                return _heard(completed(_with_data(given, Path(scratch))), folder)
            except (SettingError, RunError) as error:
                failed = failed or error
    assert failed is not None
    raise failed


def _with_data(given: Mapping[str, Any], scratch: Path) -> dict[str, Any]:
    """Return settings with the small data that they ask for, written to a folder."""
    made = {**given, "data_dir": str(scratch)}
    if given.get("dataset") == "features":
        made["dataset"] = str(scratch / "features.npz")
        x = np.random.default_rng(0).normal(size=(300, 12)).astype(np.float32)
        y = np.arange(300) % 3
        trained, tested = slice(60, None), slice(60)
        np.savez(
            made["dataset"],
            x_train=x[trained], y_train=y[trained], x_test=x[tested], y_test=y[tested],
        )  # fmt: skip
    elif given.get("dataset") == "times":
        made["dataset"] = str(scratch / "times.csv")
        rows = (f"{1 + k % 17},{k % 2},{k * k % 11},{'ab'[k % 3 == 0]}" for k in range(200))
        Path(made["dataset"]).write_text("\n".join(["days,died,age,sex", *rows]), encoding="utf-8")
    elif given.get("dataset") == "texts":
        sys.path.append(str(Path(__file__).parents[1] / "tests"))
        from own_texts import texts, write_model, write_table

        made["dataset"] = str(write_table(scratch / "texts.csv", texts(240)))
        made["backbone"] = write_model(scratch / "model")
    return made


def _heard(settings: Settings, folder: Path) -> dict[str, dict[str, set[str]]]:
    from fedbary.client_app import app
    from fedbary.server_app import run

    grid, level = _Listening(app, settings.clients, settings.model_dump()), FLOWER_LOGGER.level
    FLOWER_LOGGER.setLevel(ERROR)
    try:
        run(grid, settings, folder)
    finally:
        FLOWER_LOGGER.setLevel(level)
    return grid.heard


def task_rows(task: str) -> list[str]:
    """Return the lines of a task's table: every name but those of arrays."""
    found: dict[str, set[str]] = {}
    for changes in RUNS[task]:
        for message, records in heard(task, **changes).items():
            names = chain(*(held for kind, held in records.items() if kind != "arrays"))
            found.setdefault(message, set()).update(map(_plain, names))
    return _rows(found)


def look_rows() -> list[str]:
    """Return the lines of the table of a look."""
    from fedbary.client_app import app
    from fedbary.server_app.look import hold

    settings = completed({**_QUICK, "task": "tables", "id": "mean area"})
    nodes = [
        {"partition-id": k, "num-partitions": settings.clients, "id-key": "of the sites alone"}
        for k in range(settings.clients)
    ]
    grid = _Listening(app, nodes, settings.model_dump())
    hold(grid, settings, True)
    return _rows({message: set(chain(*held.values())) for message, held in grid.heard.items()})


def _rows(found: Mapping[str, set[str]]) -> list[str]:
    """Return the lines of the names in messages."""
    rows = []
    for message in sorted(found, key=lambda m: (not m.startswith("query"), m == "evaluate", m)):
        for name in sorted(found[message]):
            what, unit, word = _MEANINGS[name.removeprefix("local-")]
            also = ", on the server's test set" if name.startswith("local-") else ""
            withheld = f"`{word}`" if word in WITHHOLDABLE else "choose it" if word else "–"
            what = f"`{name}` | {what}{also} | {unit}"
            rows.append(f"| {_SAID[message]} | {what} | {withheld} |")
    return rows


_SAID = {
    "query": "what it holds",
    "query.ask sums": "answer: sums",
    "query.ask moments": "answer: moments, with `features=N` or `task=glm`",
    "query.ask below": "answer: medians, knots of a spline or cuts of times, four times",
    "query.ask log-rank": "answer: log-rank tests",
    "query.ask equal": "answer: equal rows",
    "query.ask pairs": "answer: pairs, after the last round",
    "query.ask risk-groups": "answer: groups by risk, after the last round",
    "query.ask curves": "answer: curves, after the last round",
    "query.ask proportional": "answer: proportional hazards, after the last round",
    "query.ask noise": "answer: noise, after each round",
    "query.ask scores": "answer: scores, with `errors=robust` or `site`, after the last round",
    "query.ask conformal": "answer: conformal, after the last round",
    "query.ask conformal-sizes": "answer: sizes of sets, after the last round",
    "query.look": "what it holds",
    "query.look columns": "columns",
    "query.look sums": "sums",
    "query.look histograms": "histograms",
    "query.look moments": "products",
    "query.look ids": "ids, with an `id-key`",
    "query.look ids-repeated": "ids that other sites have",
    "train": "training",
    "evaluate": "evaluation",
}
"""What the page calls a message."""


def method_row(method: str) -> str:
    """Return the line of a method: the arrays of its training replies, and its metrics."""
    found = heard("tables", method=method, holdout=0.1)
    scored = found.get("evaluate", {}).get("metrics", set())
    own_scores = any(name.startswith("personal-") for name in scored)
    link = f"[{method}](../methods/{methods()[method].__module__.rpartition('.')[2]}.md)"
    return f"| {link} | {_training(found)} | {'yes' if own_scores else 'no'} |"


def inference_row(words: str) -> str:
    """Return the line of a local inference: arrays and metrics of its training replies."""
    return f"| `{words}` | {_training(heard('tables', **INFERENCES[words]))} |"


def _training(found: Mapping[str, Mapping[str, set[str]]]) -> str:
    """Return the cells of the arrays and the metrics of training replies.

    A message that the page does not name is an error.
    """
    if unknown := found.keys() - _SAID.keys():
        raise KeyError(unknown)
    held = found["train"]
    forms = sorted({_form(name) for name in held["arrays"]}, key=list(_ARRAYS).index)
    arrays = "; ".join(f"`{form}` {_ARRAYS[form]}" for form in forms)
    own = (m for m in held["metrics"] if not m.startswith("local-") and m != "num-examples")
    return f"{arrays} | {', '.join(f'`{name}`' for name in sorted(own) if _MEANINGS[name])}"


def _form(name: str) -> str:
    """Return the form of an array's name: its prefix or its suffix, and a star for the rest."""
    prefix, slash, _ = name.partition("/")
    if name in _ARRAYS:
        return name
    if slash:
        return f"{prefix}/*"
    return next((f"*{end}" for end in ("_mean", "_log_var") if name.endswith(end)), "*")


def _plain(name: str) -> str:
    """Return a metric's name without whose model it is of, and without the temperature."""
    name = re.sub(r"^(personal-|projected-[^-]*-)?(share-)?", "", name)
    return "nll-at" if name.startswith("nll-at") else name


def filled(text: str, rows: Callable[[str], list[str]]) -> str:
    """Return the page with the rows of each table, whose marker says of what: a task, or methods.

    A table's head stays as it stands.
    """

    def table(match: re.Match[str]) -> str:
        return match[1] + "".join(f"{row}\n" for row in rows(match[2]))

    return _TABLE.sub(table, text)


def rows_of(name: str) -> list[str]:
    """Return the rows of the table that a marker names."""
    if name == "look":
        return look_rows()
    if name == "inferences":
        return [inference_row(words) for words in INFERENCES]
    return task_rows(name) if name in RUNS else [method_row(method) for method in methods()]


if __name__ == "__main__":
    PAGE.write_text(filled(PAGE.read_text(encoding="utf-8"), rows_of), encoding="utf-8")

"""A run's model as a folder that loads elsewhere, without fedbary."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

from fedbary.errors import SettingError
from fedbary.figures.document import Document
from fedbary.report.card import CARD, card_of
from fedbary.report.judged import Goals
from fedbary.report.run import report_of
from fedbary.runs import schema
from fedbary.runs.location import POSTERIOR
from fedbary.runs.run_folder import NETWORKS
from fedbary.settings.task_words import OfClasses, OfGuarantees
from fedbary.tasks import edges
from fedbary.tasks.glm import Glm
from fedbary.tasks.survival import Survival
from fedbary.texts import listed
from fedbary.trained import fedbary_model, writing
from fedbary.trained.described import schema_of
from fedbary.trained.risks import survival_of
from fedbary.trained.run import Trained

MODEL, SCHEMA, THRESHOLDS, README = "model.onnx", "schema.json", "thresholds.json", "README.md"

FILES = {
    MODEL: "the model as one graph of ONNX: it standardises its input and draws no numbers",
    SCHEMA: "input, columns with levels, means and standard deviations, classes, outputs",
    THRESHOLDS: "thresholds of risk and what they were chosen on, temperature, conformal sets",
    POSTERIOR: "the posterior: `NAME_mean` with `NAME_log_var` is Gaussian, `NAME` a point",
    f"{NETWORKS}.safetensors": "the networks that predict together, stacked",
    "coefficients.csv": "coefficients in the columns' own units, with 95 % intervals",
    "covariance.csv": "covariance of the coefficients, in the order of that table",
    "survival.csv": "survival of the sites' rows by time, with 95 % intervals",
    CARD: "the model card: data, scores, limits, what left each site, digests",
    "fedbary_model.py": "reads these files: numpy and onnxruntime, no fedbary",
}

TABLE = """import pandas
from fedbary_model import Model  # in this folder

rows = pandas.read_csv("new.csv", dtype=str, keep_default_na=False)
print(pandas.DataFrame(Model(".").predict(rows)))"""

ARRAY = """import numpy
from fedbary_model import Model  # in this folder

x = numpy.load("new.npy")  # (N, {shape}), {dtype}
print(Model(".").predict(x))"""

COEFFICIENTS = """import pandas

print(pandas.read_csv("coefficients.csv"))"""


def write_export(trained: Trained, folder: Path, force: bool, **how: Any) -> int | None:
    """Write a run's model to a folder, whole or not at all, and return what `export_run` does.

    With `force` an earlier export there is replaced as a whole. `how` is as for `export_run`.

    Raises
    ------
    SettingError, RunError
        As `export_run`; if the folder holds anything else, or another command is writing it.
    """
    folder = folder.resolve()
    if folder.suffix == ".onnx":
        raise SettingError("DEST", str(folder), f"the name of a folder; it will hold {MODEL}")
    with writing.only_writer(folder, force=force) as partial:
        if folder.exists():
            held = {each.name for each in folder.iterdir()} if folder.is_dir() else {folder.name}
            if other := sorted(held - {*FILES, README}):
                allowed = "a new folder, or one that holds an export alone"
                raise SettingError("DEST", f"{folder} with {listed(other)}", allowed)
        networks = export_run(trained, partial, **how)
        if folder.exists():
            folder.rename(partial.with_name("before"))
        partial.rename(folder)
        shutil.rmtree(partial.with_name("before"), ignore_errors=True)
    return networks


def export_run(
    trained: Trained,
    place: Path,
    goals: Goals,
    samples: int | None = None,
    level: float | None = None,
    site: str | None = None,
) -> int | None:
    """Write a run's model to an empty folder.

    Parameters
    ----------
    trained
        The model.
    place
        The folder.
    goals
        What thresholds of risk are chosen by.
    samples, level, site
        As for `Trained.export`.

    Returns
    -------
    int or None
        Networks in the graph, as `Trained.export` says; None where the model does not predict.

    Raises
    ------
    SettingError
        As `Trained.export` and, for tables of coefficients, `Trained.coefficients`.
    """
    networks = None
    if trained.task.predicts:
        networks = trained.export(place / MODEL, samples, level=level, site=site)
        shutil.copyfile(str(fedbary_model.__file__), place / "fedbary_model.py")
    if isinstance(trained.task, Glm):
        _write_coefficients(trained, place)
    document = report_of(trained, goals)
    chosen, others = _thresholds(trained, document, level, site), _of_others(trained, samples)
    if others:
        chosen.pop("conformal", None)
    if chosen:
        _write_json(place / THRESHOLDS, chosen)
    described = schema_of(trained)
    _write_json(place / SCHEMA, described)
    for name in (POSTERIOR, f"{NETWORKS}.safetensors"):
        if (trained.folder / name).exists():
            shutil.copyfile(trained.folder / name, place / name)
    start = _start(trained, described)
    (place / CARD).write_text(card_of(trained, document, start), encoding="utf-8")
    told = {**FILES, MODEL: FILES[MODEL] + others}
    lines = [f"| `{name}` | {what} |" for name, what in told.items() if (place / name).exists()]
    text = _README.format(
        name=trained.folder.resolve().name, files="\n".join(lines), start=start, file=POSTERIOR
    )
    (place / README).write_text(text, encoding="utf-8")
    return networks


_README = """# {name}

A model that fedbary trained over sites. Read `card.md` before you use it.

```python
{start}
```

| file | what |
|---|---|
{files}

`safetensors.numpy.load_file("{file}")` reads the posterior.
"""


def _start(trained: Trained, described: dict[str, Any]) -> str:
    """Return lines of Python that load the model and predict, without fedbary."""
    if not trained.task.predicts:
        return COEFFICIENTS
    if "columns" in described:
        return TABLE
    wanted = described["input"]
    shape = ", ".join(map(str, wanted["shape"][1:]))
    dtype = wanted["dtype"] + (" or bytes" if len(wanted["shape"]) == 4 else "")
    return ARRAY.format(shape=shape, dtype=dtype)


def _of_others(trained: Trained, samples: int | None) -> str:
    """Return that the scores are of other networks than the graph's; "" if they are of these."""
    held = trained.settings.samples
    if samples in (None, held):
        return ""
    return f". It has {samples or 'no'} draws, and the scores of `{CARD}` are of {held}"


def _thresholds(
    trained: Trained, document: Document, level: float | None, site: str | None
) -> dict[str, Any]:
    """Return thresholds, temperature and sets, each with what it was chosen on."""
    found: dict[str, Any] = {}
    if chosen := document.numbers.get("thresholds"):
        found["risk"] = {
            "of": trained.signature.classes[1],
            "chosen on": "the test rows of card.md: they do a little worse on new rows",
            "alert": "p >= risk; null: no row",
            "thresholds": chosen,
        }
    if schema.TEMPERATURE in trained.line:
        found["temperature"] = {
            "value": trained.line[schema.TEMPERATURE],
            "chosen on": "what the sites hold out",
            "use": f"{MODEL} has applied it",
        }
    if trained.sites:
        by, settings = trained.thresholds(level, site), trained.settings
        largest = edges(settings, trained.signature, by)
        found["conformal"] = {
            "level": by.level,
            "by": settings.of_task(OfGuarantees).conformal_by,
            "score": settings.of_task(OfClasses).conformal_score
            if trained.signature.classes
            else "|y - mean| / std",
            "site": site or "all together",
            "chosen on": f"{by.examples} examples that the sites hold out",
            "largest score": {k: v if v < float("inf") else None for k, v in largest.items()},
        }
    return found


def _write_coefficients(trained: Trained, place: Path) -> None:
    """Write the coefficients, their covariance and, with intervals of time, the survival."""
    found = trained.coefficients()
    writing.write_table(place / "coefficients.csv", found.table)
    held = found.factors.contrasts
    names = [f"{outcome}: {term}" for outcome in held.outcomes for term in held.terms]
    columns = dict(zip(names, found.factors.covariance.T, strict=True))
    writing.write_table(place / "covariance.csv", {"": names, **columns})
    if isinstance(trained.task, Survival) and (survival := survival_of(trained)):
        writing.write_table(place / "survival.csv", survival)


def _write_json(file: Path, content: dict[str, Any]) -> None:
    text = json.dumps(content, indent=1, ensure_ascii=False, allow_nan=False)
    file.write_text(text + "\n", encoding="utf-8")

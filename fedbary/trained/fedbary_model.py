"""Predict by an exported model without fedbary: a folder with `model.onnx` and `schema.json`.

It needs numpy and onnxruntime, and no other file. `Model(folder).predict(rows)` takes a table, a
DataFrame or columns by name, in the columns' own units; or an array of images or features.
"""

from __future__ import annotations

import json
import re
import unicodedata
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np


class Model:
    """A model in a folder that `fedbary export` wrote.

    Parameters
    ----------
    folder
        The folder.
    """

    def __init__(self, folder: str | Path) -> None:
        import onnxruntime

        folder = Path(folder)
        self.schema = json.loads((folder / "schema.json").read_text(encoding="utf-8"))
        self._session = onnxruntime.InferenceSession(
            str(folder / "model.onnx"), providers=["CPUExecutionProvider"]
        )

    def predict(self, data: Any) -> dict[str, np.ndarray]:
        """Return what the model answers, arrays (N, ...) by name.

        Classes: ``class``, ``p(NAME)`` for each, ``entropy`` and ``epistemic`` in nats, and with
        conformal sets ``set``. Numbers: ``mean``, ``std``, ``epistemic std``, ``low``, ``high``.

        Raises
        ------
        ValueError
            If a column is missing, a cell is no number or no known level, or an array has another
            shape.
        """
        names = [output.name for output in self._session.get_outputs()]
        names = [name for name in names if name != "networks"]
        answers = self._session.run(names, {"x": self.inputs(data)})
        found = dict(zip(names, answers, strict=True))
        if "var" in found:
            found["std"] = np.sqrt(found.pop("var"))
            found["epistemic std"] = np.sqrt(found.pop("epistemic"))
        if "probs" in found and found["probs"].ndim == 2:
            classes = np.array(self.schema["classes"], dtype=object)
            probs, sets = found.pop("probs"), found.pop("set", None)
            each = {f"p({name})": probs[:, k] for k, name in enumerate(classes)}
            found = {"class": classes[probs.argmax(1)], **each, **found}
            if sets is not None:
                held = [" | ".join(classes[row]) for row in sets]
                found["set"] = np.array(held, dtype=object)
        return found

    def inputs(self, data: Any) -> np.ndarray:
        """Return the graph's input: features (N, D) of a table, or an array as it is."""
        wanted = self.schema["input"]
        if "columns" in self.schema and not isinstance(data, np.ndarray):
            return self._features(data)
        x = np.asarray(data)
        if x.dtype == np.uint8:
            x = x / np.float32(255)
        sides = zip(x.shape[1:], wanted["shape"][1:], strict=False)
        if x.ndim != len(wanted["shape"]) or any(have != side for have, side in sides):
            raise ValueError(f"x: an array {x.shape}; expected {tuple(wanted['shape'])}")
        if "range" in wanted and x.size:
            least, most = wanted["range"]
            low, high, width = float(x.min()), float(x.max()), most - least
            if not (least - width <= low and high <= most + width):
                said = f"x: numbers from {low:.3g} to {high:.3g}"
                raise ValueError(f"{said}; expected {least:.3g} to {most:.3g}, as in training")
        return np.ascontiguousarray(x, dtype=wanted["dtype"])

    def _features(self, rows: Mapping[str, Any]) -> np.ndarray:
        columns = self.schema["columns"]
        needed = [one["name"] for one in columns if one["needed"]]
        if gone := [name for name in needed if name not in rows]:
            raise ValueError(f"columns that are missing: {', '.join(gone)}")
        parts, empty = [], {}
        for column in columns:
            name, levels = column["name"], column.get("levels", ())
            if not column["needed"]:  # any known cell will do
                any_level = np.eye(max(1, len(levels)))[:1]
                parts.append(any_level.repeat(len(rows[needed[0]]), axis=0))
                continue
            cells = [_text(cell) for cell in rows[name]]
            empty[name] = np.array([self._is_missing(cell) for cell in cells], dtype=bool)
            if empty[name].any() and self.schema["missing"] == "refuse":
                raise ValueError(f"row {empty[name].argmax() + 1}, {name}: empty; expected a value")
            if levels:
                part = np.array([[cell == one for one in levels] for cell in cells], dtype=float)
                part = part.reshape(-1, len(levels))
                bad, allowed = ~empty[name] & ~part.any(1), ", ".join(levels)
            else:
                part = np.array([_number(cell) for cell in cells], dtype=float).reshape(-1, 1)
                bad, allowed = ~empty[name] & ~np.isfinite(part[:, 0]), "a finite number"
            if bad.any():
                row = bad.argmax()
                raise ValueError(f"row {row + 1}, {name}: {cells[row]!r}; expected {allowed}")
            part[empty[name]] = np.nan
            parts.append(part)
        marks = [empty[name][:, None].astype(float) for name in self.schema["marked if missing"]]
        return np.ascontiguousarray(np.concatenate([*parts, *marks], axis=1))

    def _is_missing(self, cell: str) -> bool:
        words = [_text(word) for word in self.schema["missing words"]]
        return cell in words or cell.casefold() in words


def _text(cell: Any) -> str:
    """Return a cell as names are compared: whole numbers without a point, None as an empty one."""
    if cell is None or cell != cell:
        return ""
    text = unicodedata.normalize("NFC", str(cell)).strip()
    whole = re.fullmatch(r"([+-]?(?:0|[1-9][0-9]*))\.0+", text)
    return whole[1] if whole else {"true": "True", "false": "False"}.get(text.casefold(), text)


def _number(cell: str) -> float:
    try:
        return float(cell)
    except ValueError:
        return np.nan


class _Table:
    """A model for MLflow, whose answers are a DataFrame."""

    def __init__(self, model: Model) -> None:
        self._model = model

    def predict(self, data: Any) -> Any:
        import pandas

        found = self._model.predict(data)
        flat = all(values.ndim == 1 for values in found.values())
        return pandas.DataFrame(found) if flat else found


def _load_pyfunc(folder: str) -> _Table:
    """Load the model as MLflow does."""
    return _Table(Model(folder))

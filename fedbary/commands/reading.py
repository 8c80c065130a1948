"""Helpers of the commands on a run's model: reading examples, and lines for people."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fedbary.errors import SettingError
from fedbary.texts import SCREEN, one_line, shown

if TYPE_CHECKING:
    from fedbary.data.examples import Examples
    from fedbary.trained import Trained


def tell(line: str) -> None:
    """Print a line beside the command's output."""
    print(one_line(line, SCREEN), file=sys.stderr)


def learned(trained: Trained) -> Trained:
    """Return a trained model; warn if it has learned nothing."""
    from fedbary.runs.failing import verdict

    if said := verdict(trained.line):
        print(said, file=sys.stderr)
    return trained


def read(trained: Trained, data: Path, target: str, by: str | None = None) -> Examples:
    """Read examples; name unused columns, and count converted pictures."""
    examples = trained.read(data, target)
    if target and examples.y is None:
        raise SettingError("--target", target, f"the column of {data} to predict")
    if unused := [name for name in examples.unused if name != by]:
        tell(f"{data}: unused columns: {', '.join(unused)}")
    if examples.notes:
        tell(f"{data}: {'; '.join(examples.notes)}")
    if examples.unknown:
        first = examples.names[examples.unknown[0]]
        said = f"{len(examples.unknown)} of {len(examples.names)} rows (first: {first}) hold "
        tell(f"{data}: {said}{examples.lacking}, and go to a person")
    if examples.converted:
        form = "grey" if examples.x.shape[1] == 1 else "colour"
        said = f"{len(examples.converted)} of {len(examples.names)} images (first: "
        said += f"{examples.converted[0]}) were converted to {form}, as the model needs"
        tell(f"{data}: {said}")
    return examples


def not_trained_on(trained: Trained, examples: Examples, source: Path) -> Examples:
    """Return the examples that were not trained on, and say how many were."""
    old = trained.trained_on(examples)
    if not old.any():
        return examples
    said = f"{int(old.sum())} of {len(old)} examples"
    if old.all():
        allowed = "examples that were not trained on"
        raise SettingError("--held-out", f"{source}, {said} equal to ones trained on", allowed)
    tell(f"{source}: {said} are equal to ones trained on and are left out")
    return examples.part((~old).nonzero().squeeze(1))


def names_of(trained: Trained, examples: Examples) -> dict[str, Any]:
    """Return the examples' names, and the run's column of ids."""
    from fedbary.parts.parameters import told
    from fedbary.settings.task_words import OfRows

    names: dict[str, Any] = {"example": list(examples.names)}
    column = told(OfRows, trained.settings).id
    if column in examples.columns:
        names[column] = examples.columns[column]
    return names


def aligned(found: dict[str, list[object]]) -> Iterator[str]:
    """Yield the scores as lines of a table."""
    rows = [list(found), *map(list, zip(*found.values(), strict=True))]
    cells = [[f"{c:.4g}" if isinstance(c, float) else shown(c) for c in row] for row in rows]
    widths = [max(map(len, column)) for column in zip(*cells, strict=True)]
    for row in cells:
        yield "  ".join(c.rjust(w) for c, w in zip(row, widths, strict=True))

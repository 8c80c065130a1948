"""The conformal sets of a run in its folder: each site's histogram, and thresholds for people."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path

from torch import Tensor

from fedbary.data.paths import content_of
from fedbary.errors import SettingError
from fedbary.parts.parameters import told
from fedbary.predictive.conformal import Conformal
from fedbary.predictive.histograms import HeldOut, believed, together, upper_edge
from fedbary.runs.whole import write_whole
from fedbary.settings.config import Settings
from fedbary.settings.task_words import OfSets

CONFORMAL = "conformal.json"
"""The file's name."""


def write_conformal(
    folder: Path,
    found: Conformal,
    sites: Mapping[str, HeldOut],
    classes: Sequence[str],
    tested: Mapping[str, Mapping[str, float]],
) -> None:
    """Write a run's conformal sets.

    Parameters
    ----------
    folder
        The run's.
    found
        Thresholds of the sets.
    sites
        Each site's histogram by its name; their sum is that of `found`.
    classes
        The names of the classes.
    tested
        Coverage and size of the sets on the server's test set, in all and by class.
    """
    names = list(classes) if len(found.counts) > 1 else ["all"]
    edges = [upper_edge(number) for number in found.thresholds.tolist()]
    content = {
        "score": found.score,
        "level": found.level,
        "examples": found.examples,
        "thresholds": dict(zip(names, edges, strict=True)),
        "too_few": [names[row] for row in found.short],
        "test": dict(tested),
        "sites": {
            name: {
                "examples": held.examples,
                "covered_by_others": _by_others(found, held.scores),
                **held.told(),
            }
            for name, held in sites.items()
        },
    }
    write_whole(folder / CONFORMAL, json.dumps(content).encode() + b"\n")


def read_held_out(folder: Path, settings: Settings, classes: int) -> HeldOut | None:
    """Return the sum of the sites' histograms in a run's folder; None where it has none.

    Raises
    ------
    SettingError
        If the file is damaged.
    """
    file = folder / CONFORMAL
    own = told(OfSets, settings)
    if own.conformal is None or not file.is_file():
        return None
    height = classes if own.conformal_by == "class" else 1
    try:
        sites = json.loads(content_of(file))["sites"]
        return together([believed(site, height) for site in sites.values()], height)
    except (OSError, ValueError, LookupError, TypeError, AttributeError, RecursionError) as error:
        raise SettingError(str(file), error, "the file as the run wrote it") from None


def _by_others(found: Conformal, counts: Tensor) -> float | None:
    """Return the part of a site's examples that the other sites' thresholds cover."""
    others = found.without(counts)
    return others.covered(counts) / int(counts.sum()) if others.examples else None

"""A run's conformal sets or intervals in its folder: sites' histograms, thresholds for people."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from torch import Tensor

from fedbary.data.forms import content_of
from fedbary.errors import SettingError
from fedbary.predictive.conformal import (
    HeldOut,
    Thresholds,
    believed,
    interval,
    without_intervals,
)
from fedbary.runs.whole import write_whole

CONFORMAL = "conformal.json"
"""The file's name."""


def write_conformal(
    folder: Path,
    found: Thresholds,
    sites: Mapping[str, HeldOut],
    edges: Mapping[str, float],
    tested: Mapping[str, Mapping[str, float]],
    sizes: Mapping[str, Mapping[str, float]],
) -> None:
    """Write a run's conformal sets or intervals.

    Parameters
    ----------
    folder
        The run's.
    found
        What makes them.
    sites
        Each site's histogram by its name; their sum is that of `found`.
    edges
        The largest score of each row by its name.
    tested
        How they do on the server's test set, in all and by class.
    sizes
        Each site's mean size or width, by its name, if it is known.
    """
    names = list(edges)
    content = {
        "level": found.level,
        "examples": found.examples,
        "thresholds": {name: edge if edge < math.inf else None for name, edge in edges.items()},
        "too_few": [names[row] for row in found.short],
        "test": dict(tested),
        "sites": {
            name: {
                "examples": held.examples,
                **_as_known(held, _by_others(found, held.scores) | {**sizes.get(name, {})}),
                **held.told(),
            }
            for name, held in sites.items()
        },
    }
    write_whole(folder / CONFORMAL, json.dumps(content).encode() + b"\n")


def read_sites(folder: Path, height: int, risks: int) -> dict[str, HeldOut]:
    """Return each site's histograms in a run's folder; none where it has no file.

    `height` and `risks` are as in `believed`.

    Raises
    ------
    SettingError
        If the file is damaged.
    """
    file = folder / CONFORMAL
    if not file.is_file():
        return {}
    try:
        sites = json.loads(content_of(file))["sites"]
        return {name: believed(site, height, risks) for name, site in sites.items()}
    except (OSError, ValueError, LookupError, TypeError, AttributeError, RecursionError) as error:
        raise SettingError(str(file), error, "the file as the run wrote it") from None


def tested(folder: Path) -> dict[str, dict[str, float]]:
    """Return how a run's sets do on the server's test set, in all and by class."""
    return dict(json.loads(content_of(folder / CONFORMAL))["test"])


def table_of_sites(folder: Path) -> dict[str, list[Any]]:
    """Return each site's examples, coverage and sizes in a run's folder, as columns.

    A site that did not say its sizes has NaN there.
    """
    sites = json.loads(content_of(folder / CONFORMAL))["sites"]
    columns = dict.fromkeys(key for site in sites.values() for key in site)
    kept = [key for key in columns if not key.endswith(("cells", "counts"))]
    found = {key: [site.get(key, math.nan) for site in sites.values()] for key in kept}
    return {"site": list(sites), **found}


def _as_known(held: HeldOut, scores: Mapping[str, float]) -> Mapping[str, float]:
    """Return a site's scores, without intervals if its examples may not be independent."""
    return without_intervals(scores) if held.repeated else scores


def _by_others(found: Thresholds, counts: Tensor) -> dict[str, float]:
    """Return the part of a site's examples that the others' thresholds cover, and its interval."""
    others, held = found.without(counts), int(counts.sum())
    if not others.examples:
        return {}
    hits = others.covered(counts)
    low, high = interval(hits, held)
    name = "covered_by_others"
    return {name: hits / held, f"{name}_low": low, f"{name}_high": high}

"""A grid of runs, from a file that names what varies.

    title: Heading of the report about: The comparison and its reason, for a reader who has not seen
    the file. settings: {protocol: short, engine: inline}      # for every run grid:
    # blocks; each is a product of its lists
      - {dataset: digits, rule: FedAvg, bayesian_layers: 0, seed: [0, 1, 2]}
      - {dataset: digits, rule: [RKLB, WB], bayesian_layers: [1, 2, 3], seed: [0, 1, 2]}

Runs come in the order of the file; the last list of a block changes fastest. A setting that a block
names must be used by at least one of its runs; a setting that it varies, by every run. `settings`
may also hold unused ones.
"""

from __future__ import annotations

import itertools
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from fedbary.errors import SettingError
from fedbary.settings.config import Settings, bookkeeping, completed, read_yaml
from fedbary.settings.uses import require_used, require_used_by_some

KEYS = ("title", "about", "settings", "grid")

NAMING = ("dataset", "rule", "bayesian_layers", "seed")
"""Settings in every run's name; others are in it only if runs differ in nothing else.

If the method is not the barycentre, its name replaces the rule.
"""


@dataclass(frozen=True)
class Experiment:
    """A grid's text and its runs by name."""

    title: str
    about: str
    runs: dict[str, Settings]


def read_experiment(
    file: Path, overrides: Mapping[str, Any], only: Mapping[str, Sequence[str]]
) -> Experiment:
    """Return the experiment that a file describes.

    Parameters
    ----------
    file
        A YAML file as the module's text shows.
    overrides
        Settings for every run, over the file's own; none that the grid varies.
    only
        Values of some settings, as texts, of the runs to keep.

    Raises
    ------
    SettingError
        If the file cannot be read, is not valid, names a setting that has no use, or describes no
        run or one run twice. The message names the file and the block.
    """
    content = read_yaml(file)
    for key in content:
        if key not in KEYS:
            raise SettingError(f"{file}: unknown key", key, ", ".join(KEYS))
    common, blocks = content.get("settings") or {}, content.get("grid")
    if not isinstance(common, dict):
        raise SettingError(f"{file}: settings", common, "lines of the form key: value")
    if (
        not isinstance(blocks, list)
        or not blocks
        or not all(isinstance(b, dict) and b for b in blocks)
    ):
        raise SettingError(f"{file}: grid", blocks, "a list of blocks, each with lines key: value")
    runs: list[Settings] = []
    for number, block in enumerate(blocks, start=1):
        if clash := sorted(overrides.keys() & block.keys()):
            allowed = (
                f"settings that the grid does not vary; to run a part of it: --only {clash[0]}=…"
            )
            raise SettingError("argument", clash[0], allowed)
        try:
            points = [{**common, **point, **overrides} for point in _points(block)]
            of_block = [completed(point) for point in points]
            require_used_by_some(block, of_block)
            for settings in of_block:
                require_used({key: v for key, v in block.items() if _values(v)[1:]}, settings)
        except SettingError as error:
            where = f"{file}, block {number}: {error.setting}"
            raise SettingError(where, error.value, error.allowed) from None
        runs += of_block
    told = [{**settings.model_dump(), "rule": settings.strategy} for settings in runs]
    require_used_by_some(overrides, runs)
    for key in only:
        if not any(key in run for run in told):
            raise SettingError("--only", key, "a setting that the grid varies")
    names = _names(told, file)
    kept = {
        name: settings
        for name, settings, run in zip(names, runs, told, strict=True)
        if _is_kept(run, only)
    }
    if not kept:
        raise SettingError("--only", _words(only), f"what some run has: {_present(told, only)}")
    title = str(content.get("title") or file.stem)
    return Experiment(title, " ".join(str(content.get("about") or "").split()), kept)


def _alike(runs: Sequence[Mapping[str, Any]]) -> list[list[Mapping[str, Any]]]:
    groups: dict[tuple[Any, ...], list[Mapping[str, Any]]] = defaultdict(list)
    for run in runs:
        groups[tuple(run[key] for key in NAMING)].append(run)
    return list(groups.values())


def _differing_in(group: Sequence[Mapping[str, Any]]) -> list[str]:
    keys = dict.fromkeys(key for run in group for key in run if key not in bookkeeping())
    return [key for key in keys if len({run[key] for run in group if key in run}) > 1]


def _points(block: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
    for key, value in block.items():
        if value == []:
            raise SettingError(str(key), value, "a value, or a list of at least one")
    for combination in itertools.product(*map(_values, block.values())):
        yield dict(zip(block, combination, strict=True))


def _values(value: Any) -> list[Any]:
    return value if isinstance(value, list) else [value]


def _names(runs: Sequence[Mapping[str, Any]], file: Path) -> list[str]:
    extra: dict[int, list[str]] = {}
    for group in _alike(runs):
        extra |= dict.fromkeys(map(id, group), _differing_in(group))
    datasets = Counter(Path(dataset).name for dataset in {run["dataset"] for run in runs})
    for dataset, count in datasets.items():
        if count > 1:
            allowed = "data sets of different names: results tell them apart by these"
            raise SettingError(f"{file}: dataset", dataset, allowed)
    names: dict[str, None] = {}
    for run in runs:
        words = [Path(run["dataset"]).stem, run["rule"], f"n{run['bayesian_layers']}"]
        words += [f"{key}={run[key]}".replace("/", "_") for key in extra[id(run)] if key in run]
        name = "-".join([*words, f"seed{run['seed']}"])
        if name in names:
            raise SettingError(f"{file}: grid", name, "each run once")
        names[name] = None
    return list(names)


def _is_kept(run: Mapping[str, Any], only: Mapping[str, Sequence[str]]) -> bool:
    return all(
        key in run and any(_is_same(run[key], value) for value in values)
        for key, values in only.items()
    )


def _is_same(value: Any, text: str) -> bool:
    try:
        return float(value) == float(text)
    except ValueError:
        return str(value).lower() == text.lower()


def _present(runs: Sequence[Mapping[str, Any]], only: Mapping[str, Sequence[str]]) -> str:
    found = {key: dict.fromkeys(str(run[key]) for run in runs if key in run) for key in only}
    return _words(found)


def _words(only: Mapping[str, Iterable[str]]) -> str:
    return " ".join(f"{key}={','.join(values)}" for key, values in only.items())

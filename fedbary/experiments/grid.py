"""A grid of runs, from a file that names what varies.

    title: What the report is headed by
    about: What is compared and why, for a reader who has not seen the file.
    settings: {protocol: short, engine: inline}      # for every run
    grid:                                            # blocks; each is a product of its lists
      - {dataset: digits, rule: FedAvg, bayesian_layers: 0, seed: [0, 1, 2]}
      - {dataset: digits, rule: [RKLB, WB], bayesian_layers: [1, 2, 3], seed: [0, 1, 2]}

Runs come in the order of the file, the last list of a block changing fastest.
"""

from __future__ import annotations

import itertools
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from fedbary.config import BOOKKEEPING, Settings, read_yaml, resolve
from fedbary.errors import SettingError

KEYS = ("title", "about", "settings", "grid")

NAMING = ("dataset", "rule", "bayesian_layers", "seed")
"""What every run's name says; other settings are in it only where runs differ in nothing else."""


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
        For some settings the values, as texts, of the runs to keep.

    Raises
    ------
    SettingError
        If the file cannot be read, holds what it must not, or describes no run or one run twice;
        the message names the file and the block.
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
    runs = []
    for number, block in enumerate(blocks, start=1):
        if clash := sorted(overrides.keys() & block.keys()):
            allowed = (
                f"settings that the grid does not vary; to run a part of it: --only {clash[0]}=…"
            )
            raise SettingError("argument", clash[0], allowed)
        for point in _points(block):
            try:
                runs.append(resolve({**common, **point, **overrides}))
            except SettingError as error:
                where = f"{file}, block {number}: {error.setting}"
                raise SettingError(where, error.value, error.allowed) from None
    named = _named(runs, file)
    kept = {name: settings for name, settings in named.items() if _is_kept(settings, only)}
    if not kept:
        raise SettingError("--only", _words(only), f"what some run has: {_present(runs, only)}")
    title = str(content.get("title") or file.stem)
    return Experiment(title, " ".join(str(content.get("about") or "").split()), kept)


def differing(runs: Sequence[Mapping[str, Any]]) -> list[str]:
    """Return the settings, but for bookkeeping, in which runs equal in `NAMING` differ."""
    return list(dict.fromkeys(key for group in _alike(runs) for key in _differing_in(group)))


def _alike(runs: Sequence[Mapping[str, Any]]) -> list[list[Mapping[str, Any]]]:
    groups: dict[tuple[Any, ...], list[Mapping[str, Any]]] = defaultdict(list)
    for run in runs:
        groups[tuple(run[key] for key in NAMING)].append(run)
    return list(groups.values())


def _differing_in(group: Sequence[Mapping[str, Any]]) -> list[str]:
    return [
        key
        for key in group[0]
        if key not in BOOKKEEPING and any(run[key] != group[0][key] for run in group)
    ]


def _points(block: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
    values = [value if isinstance(value, list) else [value] for value in block.values()]
    for combination in itertools.product(*values):
        yield dict(zip(block, combination, strict=True))


def _named(runs: Sequence[Settings], file: Path) -> dict[str, Settings]:
    dumped = [settings.model_dump() for settings in runs]
    extra = {id(run): _differing_in(group) for group in _alike(dumped) for run in group}
    names = Counter(Path(dataset).name for dataset in {run["dataset"] for run in dumped})
    for dataset, count in names.items():
        if count > 1:
            allowed = "data sets of different names: results tell them apart by these"
            raise SettingError(f"{file}: dataset", dataset, allowed)
    named: dict[str, Settings] = {}
    for settings, run in zip(runs, dumped, strict=True):
        words = [Path(settings.dataset).stem, settings.rule, f"n{settings.bayesian_layers}"]
        words += [f"{key}={run[key]}".replace("/", "_") for key in extra[id(run)]]
        name = "-".join([*words, f"seed{settings.seed}"])
        if name in named:
            raise SettingError(f"{file}: grid", name, "each run once")
        named[name] = settings
    return named


def _is_kept(settings: Settings, only: Mapping[str, Sequence[str]]) -> bool:
    for key, values in only.items():
        if key not in Settings.model_fields:
            raise SettingError("--only", key, "a setting that the grid varies")
        if not any(_is_same(getattr(settings, key), value) for value in values):
            return False
    return True


def _is_same(value: Any, text: str) -> bool:
    try:
        return float(value) == float(text)
    except ValueError:
        return str(value).lower() == text.lower()


def _present(runs: Sequence[Settings], only: Mapping[str, Sequence[str]]) -> str:
    found = {key: dict.fromkeys(str(getattr(run, key)) for run in runs) for key in only}
    return _words(found)


def _words(only: Mapping[str, Iterable[str]]) -> str:
    return " ".join(f"{key}={','.join(values)}" for key, values in only.items())

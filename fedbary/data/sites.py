"""Data of a node: a part of a named data set, or data of its own."""

from __future__ import annotations

import hashlib
import math
import zlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields, replace

from fedbary.data.ids import SHORTEST_KEY
from fedbary.errors import SettingError

LONGEST_NAME = 64
"""Characters of a site's name."""

WITHHOLDABLE = ("label-counts", "seconds", "scores", "answers")
"""Facts that a site may withhold: its number of examples of each class, its training time, its
losses and scores, and its answers to a task's questions, such as sums of columns."""


UNBOUNDED = -1
"""The answer of a site without a budget to how many numbers it may still send."""


SHAREABLE = ("estimate",)
"""Facts that a site may share: its own estimates in tables and pictures, beside all sites'."""


@dataclass(frozen=True)
class Limits:
    """Limits of what a site tells of its rows, over all runs; the server cannot loosen them.

    Parameters
    ----------
    min_rows : int
        Rows below which it answers nothing.
    min_cell : int
        Rows of a class, below which it answers nothing unless there are none; and of a level, or of
        other values than the usual one, below which it leaves out its rows. Statistics of tables
        keep this limit.
    max_columns : float
        Columns for each row above which it answers nothing.
    budget : float
        Numbers that it sends over all runs, for each number that it holds; 0 for no bound. The rows
        of a level have such a budget of their own, see `fedbary.runs.sent`.
    """

    min_rows: int = 10
    min_cell: int = 5
    max_columns: float = 0.33
    budget: float = 0.25

    def stricter(self, **others: float | None) -> Limits:
        """Return the stricter of these limits and others, by their names; None is no limit."""
        found = {name: limit for name, limit in others.items() if limit is not None}
        for name in found.keys() & {"min_rows", "min_cell"}:
            found[name] = max(found[name], getattr(self, name))
        for name in found.keys() & {"max_columns", "budget"}:
            own = getattr(self, name)
            found[name] = min(found[name], own or math.inf if name == "budget" else own)
        return replace(self, **found)  # type: ignore[arg-type]


@dataclass(frozen=True)
class Site:
    """Data of a node, as its config names them.

    Parameters
    ----------
    name : str
        The name of the site in the results.
    data_path : str
        Its own ``.npz`` file or image folder; for a partition the folder of the named data set,
        "" for the settings' ``data_dir``.
    partition, partitions : int
        Index of its part of the named data set, and number of all parts; None and 0 with data of
        its own.
    cpus : int
        Threads that it trains on; 0 for the number in the settings.
    state_path : str
        A folder for what its methods keep between rounds; "" for none (a partition: the run's).
    withheld : frozenset of str
        Facts of `WITHHOLDABLE` that it does not tell the server.
    limits : Limits, optional
        Limits of what it tells of its rows; None for the task's.
    shared : frozenset of str
        Words of `SHAREABLE`; a partition shares all.
    id_key : str
        The sites' common key, by which a look compares ids; "" for none.
    """

    name: str
    data_path: str
    partition: int | None = None
    partitions: int = 0
    cpus: int = 0
    state_path: str = ""
    withheld: frozenset[str] = frozenset()
    limits: Limits | None = None
    shared: frozenset[str] = frozenset(SHAREABLE)
    id_key: str = field(default="", repr=False)

    @property
    def key(self) -> int:
        """The number that its seeds are derived from."""
        return zlib.crc32(self.name.encode()) if self.partition is None else self.partition


def site_from(node_config: Mapping[str, bool | int | float | str]) -> Site:
    """Read a node's config.

    Known keys: ``data-path``; ``partition-id`` with ``num-partitions``; ``name``, by default a
    digest of the path, which does not show it; ``cpus``; ``state-path``; ``withhold``, words of
    `WITHHOLDABLE` with spaces between, or ``all``; ``min-rows``, ``min-cell``,
    ``max-columns`` and ``budget``, the numbers of `Limits`; ``share``, words of `SHAREABLE`;
    ``id-key``, text that all sites share and the server lacks. Other keys are ignored.

    Raises
    ------
    SettingError
        If it says neither which partition the node holds nor where its own data lie.
    """
    path, cpus = str(node_config.get("data-path", "")), _whole(node_config, "cpus", 0)
    state_path, withheld = (
        str(node_config.get("state-path", "")),
        _words(node_config, "withhold", WITHHOLDABLE),
    )
    if "partition-id" in node_config or "num-partitions" in node_config:
        partitions = _whole(node_config, "num-partitions", 1)
        partition = _whole(node_config, "partition-id", 0)
        if partition >= partitions:
            allowed = f"a whole number below num-partitions, {partitions}"
            raise SettingError("node config: partition-id", partition, allowed)
        name = str(node_config.get("name", f"partition {partition}"))
        found = Site(name, path, partition, partitions, cpus, state_path, withheld)
        return replace(found, id_key=_id_key(node_config))
    if not path:
        allowed = "data-path, the site's own data, or partition-id with num-partitions"
        raise SettingError("node config", dict(node_config), allowed)
    unnamed = f"site {hashlib.sha256(path.encode()).hexdigest()[:8]}"
    name = str(node_config.get("name", unnamed))
    limits, shared = _limits(node_config), _words(node_config, "share", SHAREABLE)
    key = _id_key(node_config)
    return Site(name, path, None, 0, cpus, state_path, withheld, limits, shared, key)


def _id_key(config: Mapping[str, bool | int | float | str]) -> str:
    key = str(config.get("id-key", ""))
    if 0 < len(key) < SHORTEST_KEY:
        allowed = f"{SHORTEST_KEY} characters or more, the same at all sites, unknown to the server"
        raise SettingError("node config: id-key", f"{len(key)} characters", allowed)
    return key


def _limits(config: Mapping[str, bool | int | float | str]) -> Limits | None:
    named = {key: key.replace("_", "-") for key in (each.name for each in fields(Limits))}
    told = {key: config[word] for key, word in named.items() if word in config}
    for key, value in told.items():
        if isinstance(value, bool | str) or not math.isfinite(value) or value < 0:
            raise SettingError(f"node config: {named[key]}", value, "a number from 0 up")
    return Limits(**told) if told else None  # type: ignore[arg-type]


def _words(
    config: Mapping[str, bool | int | float | str], key: str, known: Sequence[str]
) -> frozenset[str]:
    words = str(config.get(key, "")).replace(",", " ").split()
    if unknown := [word for word in words if word not in (*known, "all")]:
        raise SettingError(f"node config: {key}", unknown[0], ", ".join([*known, "all"]))
    return frozenset(known if "all" in words else words)


def _whole(config: Mapping[str, bool | int | float | str], key: str, least: int) -> int:
    value = config.get(key, least if key == "cpus" else None)
    if not isinstance(value, int) or isinstance(value, bool) or value < least:
        raise SettingError(f"node config: {key}", value, f"a whole number from {least} up")
    return value

"""Data of a node: a part of a named data set, or data of its own."""

from __future__ import annotations

import hashlib
import zlib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

from torch import Tensor

from fedbary.data.deal import Deal, Shard, site_shard
from fedbary.data.forms import user_path
from fedbary.data.image_folder import described, read_classes
from fedbary.data.image_layout import ImageLayout, of_pictures
from fedbary.data.images._dataset import read_own_npz, tensors
from fedbary.data.unchanged import Kept, state_of
from fedbary.errors import SettingError

LONGEST_NAME = 64
"""Characters of a site's name."""

WITHHOLDABLE = ("label-counts", "seconds", "scores", "answers")
"""Facts that a site may withhold: its number of examples of each class, its training time, its
losses and scores, and its answers to a task's questions, such as sums of columns."""


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
    """

    name: str
    data_path: str
    partition: int | None = None
    partitions: int = 0
    cpus: int = 0
    state_path: str = ""
    withheld: frozenset[str] = frozenset()

    @property
    def key(self) -> int:
        """The number that its seeds are derived from."""
        return zlib.crc32(self.name.encode()) if self.partition is None else self.partition


def site_from(node_config: Mapping[str, bool | int | float | str]) -> Site:
    """Read a node's config.

    Known keys: ``data-path``; ``partition-id`` with ``num-partitions``; ``name``, by default a
    digest of the path, which does not show it; ``cpus``; ``state-path``; and ``withhold``, words of
    `WITHHOLDABLE` with spaces between, or ``all``. Other keys are ignored.

    Raises
    ------
    SettingError
        If it says neither which partition the node holds nor where its own data lie.
    """
    path, cpus = str(node_config.get("data-path", "")), _whole(node_config, "cpus", 0)
    state_path, withheld = str(node_config.get("state-path", "")), _withheld(node_config)
    if "partition-id" in node_config or "num-partitions" in node_config:
        partitions = _whole(node_config, "num-partitions", 1)
        partition = _whole(node_config, "partition-id", 0)
        if partition >= partitions:
            allowed = f"a whole number below num-partitions, {partitions}"
            raise SettingError("node config: partition-id", partition, allowed)
        name = str(node_config.get("name", f"partition {partition}"))
        return Site(name, path, partition, partitions, cpus, state_path, withheld)
    if not path:
        allowed = "data-path, the site's own data, or partition-id with num-partitions"
        raise SettingError("node config", dict(node_config), allowed)
    unnamed = f"site {hashlib.sha256(path.encode()).hexdigest()[:8]}"
    name = str(node_config.get("name", unnamed))
    return Site(name, path, cpus=cpus, state_path=state_path, withheld=withheld)


def _withheld(config: Mapping[str, bool | int | float | str]) -> frozenset[str]:
    words = str(config.get("withhold", "")).replace(",", " ").split()
    if unknown := [word for word in words if word not in (*WITHHOLDABLE, "all")]:
        allowed = ", ".join([*WITHHOLDABLE, "all"])
        raise SettingError("node config: withhold", unknown[0], allowed)
    return frozenset(WITHHOLDABLE if "all" in words else words)


def _whole(config: Mapping[str, bool | int | float | str], key: str, least: int) -> int:
    value = config.get(key, least if key == "cpus" else None)
    if not isinstance(value, int) or isinstance(value, bool) or value < least:
        raise SettingError(f"node config: {key}", value, f"a whole number from {least} up")
    return value


_own: Kept[tuple[Tensor, Tensor]] = Kept(4)
_shards: Kept[Shard] = Kept(4)


def own_data(path: str, task: ImageLayout, resize: str = "none") -> tuple[Tensor, Tensor]:
    """Return a site's own images and labels, read once, and anew where its files have changed.

    Parameters
    ----------
    path : str
        An ``.npz`` file with arrays ``x`` and ``y``, or ``x_train`` and ``y_train``; or a folder
        with a folder of images for each class, named as the class. Images of a folder become
        grey or coloured as the task has it.
    task : ImageLayout
        Layout that they must fit.
    resize : str
        Treatment of a folder's images of another size, see `fedbary.data.image_files.read_image`.

    Returns
    -------
    x : Tensor
        Images, (N, C, H, W), uint8 or float32.
    y : Tensor
        Labels, int64, in the order of the task's classes.

    Raises
    ------
    SettingError
        If they cannot be read or do not fit; the message says why.
    """
    state = state_of(user_path(path))
    return _own.get((path, task, resize), state, lambda: _read(path, task, resize))


def _read(path: str, task: ImageLayout, resize: str) -> tuple[Tensor, Tensor]:
    file = user_path(path)
    if not file.is_dir() and not file.is_file():
        raise SettingError("data-path", path, "an .npz file or a folder; there is none")
    try:
        x, y = _read_folder(file, task, resize) if file.is_dir() else read_own_npz(file)
    except MemoryError as error:
        raise SettingError("data-path", error, "data that fit into memory") from error
    if tuple(x.shape[1:]) != task.shape:
        wanted = "images of" if len(task.shape) == 3 else "features:"
        raise SettingError(path, _sides(x.shape[1:]), f"{wanted} {_sides(task.shape)}")
    if (last := int(y.max())) >= len(task.classes):
        allowed = f"labels from 0 to {len(task.classes) - 1}, as there are {len(task.classes)}"
        raise SettingError(path, last, f"{allowed} classes")
    return x, y


def own_shard(path: str, task: ImageLayout, resize: str, deal: Deal, key: int) -> Shard:
    """Return what a site trains on and holds out of its own images, see `own_data`."""
    by = path, task, resize
    state = state_of(user_path(path))
    return _shards.get((by, deal, key), state, lambda: site_shard(*own_data(*by), deal, key))


def own_notes(path: str, task: ImageLayout) -> tuple[str, ...]:
    """Return a line on the read and unread files of a site's own folder; none for a file."""
    folder = user_path(path)
    return (f"{path}: {described(folder, task.classes)}",) if folder.is_dir() else ()


def _read_folder(folder: Path, task: ImageLayout, resize: str) -> tuple[Tensor, Tensor]:
    images, labels = read_classes(folder, task.classes, of_pictures(task.shape), resize)
    return tensors({"images": images, "labels": labels}, ("images", "labels"), str(folder))


def _sides(shape: Iterable[int]) -> str:
    return "×".join(map(str, shape))

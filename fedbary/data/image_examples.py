"""Images of a user's own, to predict; and of a site's own, to train on."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from fedbary.data.deal import Deal, Shard, site_shard
from fedbary.data.examples import Examples
from fedbary.data.formats.npz import read_npz_arrays
from fedbary.data.forms import Kept, source_of, state_of, user_path
from fedbary.data.grouping import group_numbers
from fedbary.data.image_files import IMAGES, read_image, shape_of
from fedbary.data.image_folder import (
    FOLDER,
    UNNAMED,
    contents,
    described,
    read_classes,
    treated,
)
from fedbary.data.image_layout import ImageLayout, of_pictures
from fedbary.data.images._dataset import (
    groups_of,
    images_of,
    labels_of,
    read_own_npz,
    require_pixels,
    tensors,
)
from fedbary.data.readers import Reading, saved_sets
from fedbary.data.sources import hf
from fedbary.errors import SettingError
from fedbary.texts import composed, printable


def read_images(path: Path, layout: ImageLayout, resize: str = "none", group: str = "") -> Examples:
    """Read images, with labels where they have some.

    Parameters
    ----------
    path
        An ``.npz`` file with ``x`` or ``x_test``, and perhaps ``y`` or ``y_test``; an image; or a
        folder of images, at any depth. The first level whose folders are all named as classes
        labels them.
    layout
        Shape and classes of the model.
    resize
        Treatment of image files of another size, see `fedbary.data.image_files.read_image`.
    group
        The array, with or without ``_test``, that names the groups; or `FOLDER`, for folders of
        labelled images. It need not be there.

    Raises
    ------
    SettingError
        If an image cannot be read or has another shape, or a label is no class.
    """
    if path.is_dir():
        examples = _folder(path, layout, resize, group)
    elif path.suffix.lower() == ".npz":
        examples = _npz(path, group)
    elif path.is_file() and path.suffix.lower() in IMAGES:
        pixels = read_image(path, of_pictures(layout.shape), resize)
        x = images_of(pixels[None], str(path))
        name = printable(path.name)
        converted = _converted([path], [name], layout)
        notes = tuple(treated([path]))
        examples = Examples(x, None, files=(name,), converted=converted, notes=notes)
    else:
        allowed = f"an .npz file, an image ({', '.join(IMAGES)}), or a folder of images"
        raise SettingError("data", str(path), allowed)
    if len(examples.x) > 1:  # a single image may be dark
        require_pixels(examples.x, str(path))
    _require_fit(examples.x, examples.y, layout, str(path))
    return examples


def _npz(path: Path, group: str) -> Examples:
    arrays = read_npz_arrays(path, ("x", "y", "x_test", "y_test", group, f"{group}_test"))
    end = "" if "x" in arrays else "_test"
    if f"x{end}" not in arrays:
        raise SettingError(str(path), ", ".join(arrays) or "no array", "the array x, or x_test")
    x = images_of(arrays[f"x{end}"], f"{path}: x{end}")
    y = labels_of(arrays[f"y{end}"], f"{path}: y{end}") if f"y{end}" in arrays else None
    if y is not None and len(y) != len(x):
        raise SettingError(str(path), f"{len(x)} images, {len(y)} labels", "a label for each image")
    groups = groups_of(arrays, f"{group}{end}", len(x), str(path)) if group else None
    return Examples(x, y, groups=groups)


def _folder(path: Path, layout: ImageLayout, resize: str, group: str) -> Examples:
    held = contents(path)
    files = list(held.pictures)
    if not files:
        there = "; ".join([str(path), *held.unread()])
        raise SettingError("data", there, f"a folder with images ({', '.join(IMAGES)})")
    pixels = np.stack([read_image(file, of_pictures(layout.shape), resize) for file in files])
    inside = [file.relative_to(path) for file in files]
    depth = max(len(file.parts) for file in inside) - 1
    levels = [
        [composed(file.parts[level]) if level < len(file.parts) - 1 else "" for file in inside]
        for level in range(max(depth, 1))
    ]
    classes = [composed(name) for name in layout.classes]
    labels = next((level for level in levels if set(level) <= set(classes)), None)
    below = [] if labels is None else levels[levels.index(labels) + 1 :]
    groups = group_numbers(below[0]) if group == FOLDER and below and all(below[0]) else None
    y = None if labels is None else torch.tensor([classes.index(name) for name in labels])
    names = tuple(printable(str(file)) for file in inside)
    converted = _converted(files, names, layout)
    columns = {
        f"folder {number}" if number > 1 else "folder": np.array(list(map(printable, level)))
        for number, level in enumerate(levels, 1)
    }
    notes = (*held.unread(), *treated(files))
    return Examples(
        images_of(pixels, str(path)),
        y,
        files=names,
        columns=columns,
        converted=converted,
        notes=notes,
        groups=groups,
    )


def _converted(files: list[Path], names: Sequence[str], layout: ImageLayout) -> tuple[str, ...]:
    """Return the names of the files that are grey and become coloured, or the other way round."""
    channels = layout.shape[0]
    return tuple(n for f, n in zip(files, names, strict=True) if shape_of(f)[0] != channels)


Own = tuple[Tensor, Tensor, Tensor | None]
"""Images, labels, and groups if they have some."""

_images: Kept[Own] = Kept(4)
_shards: Kept[Shard] = Kept(4)


def own_data(
    path: str, task: ImageLayout, resize: str = "none", target: str = UNNAMED
) -> tuple[Tensor, Tensor]:
    """Return a site's own images and labels, read once, and anew where its files have changed.

    Parameters
    ----------
    path : str
        An ``.npz`` file with arrays ``x`` and ``y``, or ``x_train`` and ``y_train``; or a folder
        with a folder of images for each class, named as the class; or a folder that `save_to_disk`
        of Hugging Face's datasets made, with or without ``hf:``, whose labels are classes by name.
        Images of a folder become grey or coloured as the task has it.
    task : ImageLayout
        Layout that they must fit.
    resize : str
        Treatment of a folder's images of another size, see `fedbary.data.image_files.read_image`.
    target : str
        The column of the classes, of a saved folder that has several.

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
    return _own(path, task, resize, target)[:2]


def _own(path: str, task: ImageLayout, resize: str, target: str, group: str = "") -> Own:
    by = path, task, resize, target, group
    return _images.get(by, state_of(_place(path)), lambda: _read_own(*by))


def _place(path: str) -> Path:
    return user_path(path.removeprefix("hf:"))


def _read_own(path: str, task: ImageLayout, resize: str, target: str, group: str) -> Own:
    file = _place(path)
    if not file.is_dir() and not file.is_file():
        raise SettingError("data-path", path, "an .npz file or a folder; there is none")
    try:
        if file.is_file():
            x, y, groups = read_own_npz(file, group)
        else:
            shape = of_pictures(task.shape)
            if saved_sets(file):
                reading = Reading(Path(), False, target, shape, resize, group=group)
                images, labels, groups = hf.own_images(source_of(path), reading, task.classes)
            else:
                images, labels, groups = read_classes(file, task.classes, shape, resize, group)
            x, y = tensors({"images": images, "labels": labels}, ("images", "labels"), path)
    except MemoryError as error:
        raise SettingError("data-path", error, "data that fit into memory") from error
    _require_fit(x, y, task, path)
    return x, y, groups


def own_shard(by: tuple[str, ImageLayout, str, str, str], deal: Deal, key: int) -> Shard:
    """Return what a site trains on and holds out of its own images.

    The tuple has the arguments of `own_data`, and what names the images' groups.
    """

    def read() -> Shard:
        x, y, groups = _own(*by)
        return site_shard(x, y, deal, key, groups)

    return _shards.get((by, deal, key), state_of(_place(by[0])), read)


def own_notes(
    path: str, task: ImageLayout, resize: str = "none", target: str = UNNAMED
) -> tuple[str, ...]:
    """Return a line on what was read of a site's own folder, and what not; none for a file."""
    if saved_sets(folder := _place(path)):
        y = own_data(path, task, resize, target)[1]
        return (f"{path}: {len(y)} images in {len(y.unique())} of {len(task.classes)} classes",)
    return (f"{path}: {described(folder, task.classes)}",) if folder.is_dir() else ()


def _require_fit(x: Tensor, y: Tensor | None, layout: ImageLayout, name: str) -> None:
    if tuple(x.shape[1:]) != layout.shape:
        held, wanted = ("×".join(map(str, shape)) for shape in (x.shape[1:], layout.shape))
        kind = "images of" if len(layout.shape) == 3 else "features:"
        raise SettingError(name, held, f"{kind} {wanted}")
    if y is not None and (last := int(y.max())) >= len(layout.classes):
        allowed = f"labels from 0 to {len(layout.classes) - 1}, as there are {len(layout.classes)}"
        raise SettingError(name, last, f"{allowed} classes")

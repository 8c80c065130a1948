"""Images of files, decoded only once their size is known to be right."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterable
from io import BytesIO
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

import numpy as np

from fedbary.data.image_pixels import channels_of, require_readable, seen, traits, upright_size
from fedbary.errors import SettingError

if TYPE_CHECKING:
    from PIL.Image import Image

Found = TypeVar("Found")

FORMATS = {
    "PNG": (".png", ".apng"),
    "JPEG": (".jpg", ".jpeg", ".jpe", ".jfif"),
    "BMP": (".bmp", ".dib"),
    "TIFF": (".tif", ".tiff"),
    "PPM": (".ppm", ".pgm", ".pbm", ".pnm"),
    "WEBP": (".webp",),
    "GIF": (".gif",),
    "AVIF": (".avif",),
    "JPEG2000": (".jp2", ".j2k"),
}
"""Formats that are read, whatever the file's ending. Others are refused: Pillow knows some that run
programs."""

IMAGES = {ending: kind for kind, endings in FORMATS.items() for ending in endings}
"""Endings, in small letters, of the files that count as images in a folder, and their formats."""

LARGEST_FILE = 16 * 2**20
"""Bytes of an image file; the pixels of 64×64 take 12 kB."""

LARGEST_IMAGE = 64 * 2**20
"""Pixels of an image that is decoded in order to be resized."""

Shape = tuple[int, int, int]
Held = Path | bytes
"""An image file, or its content."""


def read_image(held: Held, shape: Shape, resize: str = "none", name: str = "") -> np.ndarray:
    """Return an image as uint8, (H, W) where one channel is wanted, else (H, W, 3).

    It is as viewers show it: turned as EXIF says, with white behind transparent parts.

    Parameters
    ----------
    held : Path or bytes
        A regular file, or its content.
    shape : tuple of int
        Channels (1 or 3), height and width wanted. Colours are converted.
    resize : str
        Treatment of another size. ``none``: refuse. ``crop``: scale, then cut off what juts out.
        ``pad``: scale, then add black. ``stretch``: scale each side by itself. Scaling is bilinear,
        without aliasing.
    name : str
        Its name in errors; by default the file.

    Raises
    ------
    SettingError
        If it is not a whole image, or not of that size and cannot be resized; or it has more than 8
        bits a channel, or several pages. An image that is refused for its size is not decoded.
    """
    called = name or str(held)

    def pixels(picture: Image) -> np.ndarray:
        return fitted(picture, shape, resize, called)

    return _decoded(held, called, lambda picture: _check(called, picture, shape, resize), pixels)


def shape_of(held: Held, name: str = "") -> Shape:
    """Return channels (1 for grey, else 3), height and width of an image; it is not decoded."""
    called = name or str(held)

    def known(picture: Image) -> Shape:
        return picture_shape(picture, called)

    return _decoded(held, called, known, known)


def picture_shape(picture: Image, name: str) -> Shape:
    """Return channels, height and width of an open picture; a SettingError for other pixels."""
    require_readable(picture, name)
    return channels_of(picture), *upright_size(picture)


def traits_of(held: Held) -> frozenset[str]:
    """Return the conversions of a readable image, from its header alone."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        with _opened(held) as picture:
            return traits(picture)


def common_shape(shapes: Iterable[tuple[str, Shape]]) -> Shape:
    """Return the common shape of some images, each with its name.

    Raises
    ------
    SettingError
        If two differ: `input_shape` must say what they are to become.
    """
    (first, shape), *others = shapes
    for name, other in others:
        if other != shape:
            said = "×".join(map(str, shape))
            allowed = f"{said}, as {first}; or input_shape=CHANNELSxHEIGHTxWIDTH for all, and "
            allowed += "resize=crop, pad or stretch for other sizes"
            raise SettingError(name, "×".join(map(str, other)), allowed)
    return shape


def fitted(picture: Image, shape: Shape, resize: str, name: str) -> np.ndarray:
    """Return the pixels of an open picture as `read_image` does, resized to a shape if needed."""
    from PIL import Image, ImageOps

    _check(name, picture, shape, resize)
    converted = seen(picture, shape[0])
    size = shape[2], shape[1]
    if converted.size == size:
        return np.asarray(converted)
    if resize == "stretch":
        return np.asarray(converted.resize(size, Image.Resampling.BILINEAR))
    scaled = ImageOps.fit if resize == "crop" else ImageOps.pad
    return np.asarray(scaled(converted, size, method=Image.Resampling.BILINEAR))


def _decoded(
    held: Held, name: str, check: Callable[[Image], object], read: Callable[[Image], Found]
) -> Found:
    """Check an image whose header alone is read, verify that it is whole, and read it."""
    size = len(held) if isinstance(held, bytes) else held.stat().st_size
    if size > LARGEST_FILE:
        allowed = f"an image file of up to {LARGEST_FILE // 2**20} MiB"
        raise SettingError(name, f"{size / 2**20:.1f} MiB", allowed)

    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            with _opened(held) as picture:
                check(picture)
                picture.verify()
            with _opened(held) as picture:
                return read(picture)
    except SettingError:
        raise
    except Exception as error:  # a stranger's file may raise any error
        raise SettingError(name, error, "an image") from error


def _opened(held: Held) -> Image:
    from PIL import Image

    Image.init()
    formats = [kind for kind in FORMATS if kind in Image.OPEN]  # a Pillow may lack AVIF
    return Image.open(BytesIO(held) if isinstance(held, bytes) else held, formats=formats)


def _check(name: str, picture: Image, shape: Shape, resize: str) -> None:
    _, height, width = shape
    found = upright_size(picture)
    said = f"{found[0]}×{found[1]} pixels"
    if resize == "none" and found != (height, width):
        wanted = f"{height}×{width}, which the model takes"
        allowed = f"{wanted}; or a run with resize=crop, pad or stretch"
        raise SettingError(name, said, allowed)
    if picture.height * picture.width > LARGEST_IMAGE:
        raise SettingError(name, said, f"an image of up to {LARGEST_IMAGE:,} pixels")
    require_readable(picture, name)

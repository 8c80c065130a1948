"""Images of files, decoded only once their size is known to be right."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterable
from io import BytesIO
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np

from fedbary.errors import SettingError

if TYPE_CHECKING:
    from PIL.Image import Image

Found = TypeVar("Found")

IMAGES = (".png", ".jpg", ".jpeg", ".bmp", ".tif", ".tiff", ".pgm", ".ppm")
"""Endings of the files that count as images in a folder."""

FORMATS = ("PNG", "JPEG", "BMP", "TIFF", "PPM")
"""Formats that are read, whatever the file's ending: Pillow knows some that run programs."""

GREY = ("1", "L", "LA")
"""Pillow's modes of pictures without colours."""

EIGHT_BITS = (*GREY, "P", "PA", "RGB", "RGBA")
"""Pillow's modes of pictures with at most 8 bits a channel."""

LARGEST_FILE = 16 * 2**20
"""Bytes of an image file; the pixels of 64×64 take 12 kB."""

LARGEST_IMAGE = 64 * 2**20
"""Pixels of an image that is decoded in order to be resized."""

Shape = tuple[int, int, int]
Held = Path | bytes
"""An image file, or its content."""


def read_image(held: Held, shape: Shape, resize: str = "none", name: str = "") -> np.ndarray:
    """Return an image as uint8, (H, W) where one channel is wanted, else (H, W, 3).

    Parameters
    ----------
    held : Path or bytes
        A regular file, or its content.
    shape : tuple of int
        Channels (1 or 3), height and width wanted. Colours are converted.
    resize : str
        What is done with another size: ``none``, it is refused; ``crop``, the image is scaled and
        what juts out is cut off; ``pad``, it is scaled and black is added; ``stretch``, each side
        is scaled by itself. Scaling is bilinear, without aliasing.
    name : str
        What errors call it; by default the file.

    Raises
    ------
    SettingError
        If it is no whole image of that size, or that can be resized, with at most 8 bits a
        channel. Nothing is decoded of one that is refused for its size.
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
    _check_mode(name, picture)
    return 1 if picture.mode in GREY else 3, picture.height, picture.width


def common_shape(shapes: Iterable[tuple[str, Shape]]) -> Shape:
    """Return the shape of all of some images, each with its name.

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
    """Return the pixels of an open picture as `read_image` does, of a shape, resized if it must."""
    from PIL import Image, ImageOps

    _check(name, picture, shape, resize)
    converted = picture.convert("L" if shape[0] == 1 else "RGB")
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
    from PIL import Image

    size = len(held) if isinstance(held, bytes) else held.stat().st_size
    if size > LARGEST_FILE:
        allowed = f"an image file of up to {LARGEST_FILE // 2**20} MiB"
        raise SettingError(name, f"{size / 2**20:.1f} MiB", allowed)

    def opened() -> Any:
        return Image.open(BytesIO(held) if isinstance(held, bytes) else held, formats=FORMATS)

    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            with opened() as picture:
                check(picture)
                picture.verify()
            with opened() as picture:
                return read(picture)
    except SettingError:
        raise
    except Exception as error:  # whatever decoding a stranger's file raises
        raise SettingError(name, error, "an image") from error


def _check(name: str, picture: Image, shape: Shape, resize: str) -> None:
    _, height, width = shape
    said = f"{picture.height}×{picture.width} pixels"
    if resize == "none" and picture.size != (width, height):
        wanted = f"{height}×{width}, which the model takes"
        allowed = f"{wanted}; or a run with resize=crop, pad or stretch"
        raise SettingError(name, said, allowed)
    if picture.height * picture.width > LARGEST_IMAGE:
        raise SettingError(name, said, f"an image of up to {LARGEST_IMAGE:,} pixels")
    _check_mode(name, picture)


def _check_mode(name: str, picture: Image) -> None:
    if picture.mode not in EIGHT_BITS:
        allowed = "8 bits a channel; others go into an .npz, as floats in 0 to 1"
        raise SettingError(name, f"pixels of mode {picture.mode}", allowed)

"""Images of files and columns, decoded only once their size is known to be right."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterable
from io import BytesIO
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

import numpy as np

from fedbary.errors import SettingError

if TYPE_CHECKING:
    from PIL.Image import Image


GREY = ("1", "L", "LA")
"""Pillow's modes of pictures without colours."""

EIGHT_BITS = (*GREY, "P", "PA", "RGB", "RGBA", "RGBX", "CMYK", "YCbCr")
"""Pillow's modes of pictures with at most 8 bits a channel that become grey or RGB."""

DEEPER = ("I", "F")
"""First letters of the modes with more bits."""

ORIENTATION = 0x0112
"""EXIF's tag of the camera's orientation."""

REDUCED = 0x00FE
"""TIFF's tag of a page that is another's smaller copy: its lowest bit."""


def require_readable(picture: Image, name: str) -> None:
    """Raise a SettingError for more than 8 bits a channel, other colours, or a stack of pages."""
    if picture.mode.startswith(DEEPER):
        allowed = "8 bits a channel; others go into an .npz, as floats in 0 to 1"
        raise SettingError(name, f"pixels of mode {picture.mode}", allowed)
    if picture.mode not in EIGHT_BITS:
        allowed = "a picture in grey, RGB, CMYK or YCbCr"
        raise SettingError(name, f"pixels of mode {picture.mode}", allowed)
    if picture.format == "TIFF" and _has_pages(picture):
        raise SettingError(name, "several pages", "one picture a file; split the stack first")


def channels_of(picture: Image) -> int:
    """Return 1 for a picture without colours, else 3."""
    return 1 if picture.mode in GREY else 3


def upright_size(picture: Image) -> tuple[int, int]:
    """Return the height and width that a picture has the right way up; nothing is decoded."""
    height, width = picture.height, picture.width
    lies = _orientation(picture) in (5, 6, 7, 8)
    return (width, height) if lies and not _turns_itself(picture) else (height, width)


def traits(picture: Image) -> frozenset[str]:
    """Return the conversions of a picture, in words that follow a number."""
    found = {
        "turned as EXIF says": _orientation(picture) in range(2, 9),
        "composed on white": _is_transparent(picture),
        "converted from CMYK": picture.mode == "CMYK",
        "animated, the first frame seen": picture.format not in ("MPO", "TIFF")
        and getattr(picture, "is_animated", False),
    }
    return frozenset(words for words, holds in found.items() if holds)


def seen(picture: Image, channels: int) -> Image:
    """Return a picture as a viewer shows it: upright, on white, grey (1 channel) or RGB (3)."""
    from PIL import Image

    picture.load()
    way = {2: 0, 3: 3, 4: 1, 5: 5, 6: 4, 7: 6, 8: 2}.get(_orientation(picture))
    if _is_transparent(picture):
        above = picture.convert("RGBA")
        picture = Image.alpha_composite(Image.new("RGBA", above.size, "white"), above)
    picture = picture.convert("L" if channels == 1 else "RGB")
    return picture if way is None else picture.transpose(Image.Transpose(way))


def _is_transparent(picture: Image) -> bool:
    return picture.mode in ("LA", "PA", "RGBA") or "transparency" in picture.info


def _orientation(picture: Image) -> int:
    """Return a picture's orientation in EXIF's numbers: 1 is upright, and the default."""
    from PIL import Image

    try:  # PNG's own method would decode the picture
        return int(Image.Image.getexif(picture).get(ORIENTATION, 1))
    except Exception:  # noqa: BLE001 - a stranger's tags are damaged in many ways
        return 1


def _turns_itself(picture: Image) -> bool:
    """Return whether Pillow has already exchanged a TIFF's sides, as it does from version 11.1."""
    held = getattr(picture, "tag_v2", {})
    return (picture.height, picture.width) == (held.get(0x0100), held.get(0x0101))


def _has_pages(picture: Image) -> bool:
    """Return whether a TIFF has a second page that is not a smaller copy of the first."""
    try:
        picture.seek(1)
        return not int(picture.tag_v2.get(REDUCED, 0)) & 1  # type: ignore[attr-defined]
    except EOFError:
        return False
    finally:
        picture.seek(0)


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

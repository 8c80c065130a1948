"""Pixels of an open picture: its page, orientation, background and mode."""

from __future__ import annotations

from typing import TYPE_CHECKING

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

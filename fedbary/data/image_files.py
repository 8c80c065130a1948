"""One image of a file, decoded only once its size is known to be right."""

from __future__ import annotations

import warnings
from pathlib import Path

import numpy as np

from fedbary.errors import SettingError

IMAGES = (".png", ".jpg", ".jpeg", ".bmp", ".tif", ".tiff", ".pgm", ".ppm")
"""Endings of the files that count as images in a folder."""

FORMATS = ("PNG", "JPEG", "BMP", "TIFF", "PPM")
"""Formats that are read, whatever the file's ending: Pillow knows some that run programs."""

EIGHT_BITS = ("1", "L", "LA", "P", "PA", "RGB", "RGBA")
"""Pillow's modes of pictures with at most 8 bits a channel."""

LARGEST_FILE = 16 * 2**20
"""Bytes of an image file; the pixels of 64×64 take 12 kB."""


def read_image(file: Path, shape: tuple[int, int, int]) -> np.ndarray:
    """Return an image as uint8, (H, W) where one channel is wanted, else (H, W, 3).

    Parameters
    ----------
    file : Path
        A regular file.
    shape : tuple of int
        Channels (1 or 3), height and width wanted. Colours are converted, sizes are not.

    Raises
    ------
    SettingError
        If it is no whole image of that size with at most 8 bits a channel. Nothing is decoded of
        one that has another size.
    """
    from PIL import Image

    if (size := file.stat().st_size) > LARGEST_FILE:
        allowed = f"an image file of up to {LARGEST_FILE // 2**20} MiB"
        raise SettingError(str(file), f"{size / 2**20:.1f} MiB", allowed)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            with Image.open(file, formats=FORMATS) as picture:
                _check(file, picture.mode, picture.size, shape)
                picture.verify()
            with Image.open(file, formats=FORMATS) as picture:
                return np.asarray(picture.convert("L" if shape[0] == 1 else "RGB"))
    except SettingError:
        raise
    except Exception as error:  # whatever decoding a stranger's file raises
        raise SettingError(str(file), error, "an image") from error


def _check(file: Path, mode: str, size: tuple[int, int], shape: tuple[int, int, int]) -> None:
    _, height, width = shape
    if size != (width, height):
        held = f"{size[1]}×{size[0]} pixels"
        raise SettingError(str(file), held, f"{height}×{width}, as input_shape says")
    if mode not in EIGHT_BITS:
        allowed = "8 bits a channel; others go into an .npz, as floats in 0 to 1"
        raise SettingError(str(file), f"pixels of mode {mode}", allowed)

"""A picture is seen as a viewer shows it, whatever its format, way up, ground and mode."""

import io

import numpy as np
import pytest
from PIL import Image, ImageOps, features

from fedbary.data.image_files import FORMATS, IMAGES, read_image, shape_of, traits_of
from fedbary.errors import SettingError

RNG = np.random.default_rng(0)
COLOURS = Image.fromarray(np.kron(RNG.integers(0, 256, (2, 3, 3)), np.ones((8, 8, 1))).astype("u1"))
"""Six squares of 8×8 pixels, 16×24."""

SHAPE = (3, 16, 24)
LOSSY = ("JPEG", "JPEG2000", "AVIF", "GIF")


def encoded(picture, kind, **how):
    file = io.BytesIO()
    picture.save(file, kind, **how)
    return file.getvalue()


def refused(match, *arguments):
    with pytest.raises(SettingError, match=match):
        read_image(*arguments)


@pytest.mark.parametrize("kind", FORMATS)
def test_every_format_is_read_and_its_endings_are_known(kind):
    if kind == "AVIF" and not features.check("avif"):
        pytest.skip("this Pillow has no AVIF")
    how = {"lossless": True} if kind == "WEBP" else {}
    found = read_image(encoded(COLOURS, kind, **how), SHAPE)
    error = np.abs(found.astype(int) - np.array(COLOURS)).mean()
    assert error <= (8 if kind in LOSSY else 0)
    assert {IMAGES[ending] for ending in FORMATS[kind]} == {kind}


@pytest.mark.parametrize("kind", ["JPEG", "PNG", "TIFF", "WEBP"])
@pytest.mark.parametrize("way", range(1, 9))
@pytest.mark.parametrize("resize", ["none", "crop"])
def test_a_picture_is_turned_as_exif_says(kind, way, resize):
    exif = Image.Exif()
    exif[0x0112] = way
    how = {"lossless": True} if kind == "WEBP" else {"quality": 100} if kind == "JPEG" else {}
    held = encoded(COLOURS, kind, exif=exif, **how)
    expected = np.array(ImageOps.exif_transpose(Image.open(io.BytesIO(held))).convert("RGB"))
    shape = (3, *expected.shape[:2])
    assert shape_of(held) == shape == (3, *((24, 16) if way > 4 else (16, 24)))
    assert np.array_equal(read_image(held, shape, resize), expected)
    assert ("turned as EXIF says" in traits_of(held)) == (way > 1)
    if way > 4:
        refused("'24×16 pixels'; expected 16×24", held, SHAPE, "none", "scan")


def test_damaged_exif_turns_nothing():
    held = encoded(COLOURS, "PNG", exif=b"Exif\0\0II*\0\xff\xff\xff\xff")
    assert np.array_equal(read_image(held, SHAPE), np.array(COLOURS))


@pytest.mark.parametrize("mode", ["LA", "RGBA", "PA", "P", "L", "RGB"])
@pytest.mark.parametrize("channels", [1, 3])
def test_what_is_transparent_is_white(mode, channels):
    """A black square stands on a transparent ground; half of a colour shows half of it."""
    ink = np.zeros((8, 8), np.uint8)
    ink[2:6, 2:6] = 255
    if mode in ("LA", "RGBA"):
        bands = [Image.fromarray(ink * 0)] * (len(mode) - 1)
        held = encoded(Image.merge(mode, [*bands, Image.fromarray(ink)]), "PNG")
    elif mode == "PA":
        held = encoded(Image.fromarray(255 - ink), "PNG", transparency=255)
    else:
        ground = Image.fromarray(np.where(ink, 0, 7).astype(np.uint8)).convert(mode)
        see_through = {"RGB": (7, 7, 7), "L": 7, "P": 7}[mode]
        held = encoded(ground, "PNG", transparency=see_through)
    found = read_image(held, (channels, 8, 8))
    expected = 255 - ink if channels == 1 else np.repeat((255 - ink)[..., None], 3, 2)
    assert np.array_equal(found, expected)
    assert traits_of(held) == {"composed on white"}


def test_what_is_half_transparent_is_half_white():
    half = Image.new("RGBA", (6, 6), (0, 100, 200, 128))
    (colour,) = {tuple(row) for row in read_image(encoded(half, "PNG"), (3, 6, 6)).reshape(-1, 3)}
    assert np.abs(np.array(colour) - [127, 177, 227]).max() <= 1


@pytest.mark.parametrize("kind", ["JPEG", "TIFF"])
def test_cmyk_is_converted_and_other_colours_are_refused_in_their_own_words(kind):
    held = encoded(COLOURS.convert("CMYK"), kind)
    assert np.abs(read_image(held, SHAPE).astype(int) - np.array(COLOURS)).mean() < 10
    assert traits_of(held) == {"converted from CMYK"}
    lab = encoded(Image.new("LAB", (24, 16)), "TIFF")
    refused("mode LAB'; expected a picture in grey, RGB, CMYK or YCbCr", lab, SHAPE)
    deep = encoded(Image.fromarray(np.zeros((16, 24), np.uint16)), "PNG")
    refused("mode I;16'; expected 8 bits a channel", deep, SHAPE)


def test_a_stack_of_pages_is_refused_and_a_smaller_copy_is_no_page():
    pages = [Image.new("L", (24, 16), shade) for shade in (10, 20, 30)]
    stack = encoded(pages[0], "TIFF", save_all=True, append_images=pages[1:])
    refused("'several pages'; expected one picture a file", stack, SHAPE)
    pages[1].encoderinfo = {"tiffinfo": {0x00FE: 1}}
    thumbnail = encoded(pages[0], "TIFF", save_all=True, append_images=pages[1:2])
    assert (read_image(thumbnail, (1, 16, 24)) == 10).all()


@pytest.mark.parametrize("kind", ["GIF", "WEBP", "PNG"])
def test_of_an_animation_the_first_frame_is_seen_and_said(kind):
    frames = [Image.new("L", (24, 16), shade) for shade in (40, 200)]
    how = {"lossless": True} if kind == "WEBP" else {}
    held = encoded(frames[0], kind, save_all=True, append_images=frames[1:], **how)
    assert (read_image(held, (1, 16, 24)) == 40).all()
    assert traits_of(held) == {"animated, the first frame seen"}

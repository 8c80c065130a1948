"""Files that attack who reads them: bombs, cut and random bytes, what is no file at all."""

import io
import os
import struct
import tracemalloc
import zipfile

import hypothesis.strategies as st
import numpy as np
import pytest
import torch
from hypothesis import given
from PIL import Image, ImageFile

from fedbary.data.batches import scale_pixels
from fedbary.data.formats.npz import read_npz_arrays
from fedbary.data.image_examples import own_data
from fedbary.data.image_files import FORMATS, LARGEST_FILE, read_image
from fedbary.data.image_layout import ImageLayout
from fedbary.data.images import load
from fedbary.data.tables import load as load_table
from fedbary.errors import SettingError

TASK = ImageLayout((1, 8, 8), ("0", "1"))
PIXELS = np.random.default_rng(0).integers(0, 256, (6, 8, 8), np.uint8)
LABELS = np.arange(6) % 2
CHECKSUM = 4
"""Bytes at the end of a PNG without which it is whole: its last chunk holds nothing."""


def encoded(pixels=PIXELS[0], kind="PNG"):
    file = io.BytesIO()
    Image.fromarray(pixels).save(file, kind)
    return file.getvalue()


def npz(**arrays):
    file = io.BytesIO()
    np.savez_compressed(file, **arrays)
    return file.getvalue()


def refused(read, *arguments):
    """The message with which a file is refused; None where it is taken."""
    try:
        read(*arguments)
    except SettingError as error:
        assert len(str(error).splitlines()) == 1
        return str(error)
    return None


@pytest.fixture
def folder(tmp_path):
    (tmp_path / "0").mkdir()
    (tmp_path / "0" / "good.png").write_bytes(encoded())
    return tmp_path


def test_what_is_no_file_is_skipped_and_blocks_nobody(folder):
    os.mkfifo(folder / "0" / "pipe.png")
    os.mkfifo(folder / "pipe.npz")
    (folder / "0" / "folder.png").mkdir()
    (folder / "0" / "away.png").symlink_to(folder / "nowhere.png")
    x, _ = own_data(str(folder), TASK)
    assert torch.equal(x, torch.from_numpy(PIXELS[:1, None]))
    assert "there is none" in refused(own_data, str(folder / "pipe.npz"), TASK)
    assert "there is none" in refused(load, str(folder / "pipe.npz"), folder, False)
    assert refused(load_table, str(folder / "pipe.npz"), folder)


@pytest.mark.slow
def test_of_an_image_of_another_size_nothing_is_decoded(folder, monkeypatch):
    decoded = []
    load_before = ImageFile.ImageFile.load
    monkeypatch.setattr(
        ImageFile.ImageFile, "load", lambda image: decoded.append(image) or load_before(image)
    )
    read_image(folder / "0" / "good.png", TASK.shape)
    assert decoded
    decoded.clear()
    (folder / "0" / "bomb.png").write_bytes(encoded(np.zeros((12_000, 12_000), bool)))
    assert "'12000×12000 pixels'; expected 8×8" in refused(own_data, str(folder), TASK)
    assert all(image.size == (8, 8) for image in decoded)


def test_a_large_file_of_a_small_image_is_left_unread(folder):
    with open(folder / "0" / "good.png", "r+b") as file:
        file.truncate(LARGEST_FILE + 1)
    assert "up to 16 MiB" in refused(own_data, str(folder), TASK)


@pytest.mark.slow
@pytest.mark.parametrize("length", range(len(encoded()) - CHECKSUM))
def test_a_png_that_was_cut_off_is_refused_wherever(folder, length):
    (folder / "0" / "good.png").write_bytes(encoded()[:length])
    assert "good.png" in refused(own_data, str(folder), TASK)


def spoilt(whole, places, values):
    changed = bytearray(whole)
    for place, value in zip(places, values, strict=False):
        changed[place % len(whole)] = value
    return bytes(changed)


PLACES, VALUES = st.lists(st.integers(0, 10**6), max_size=4), st.binary(min_size=4, max_size=4)


@pytest.mark.slow
@given(st.sampled_from(sorted(set(FORMATS) - {"AVIF"})), PLACES, VALUES, st.integers(0, 3000))
def test_images_with_random_bytes_are_read_or_refused(tmp_path, kind, places, values, length):
    file = tmp_path / "x.png"
    file.write_bytes(spoilt(encoded(kind=kind), places, values)[:length] or values)
    refused(read_image, file, TASK.shape)


@pytest.mark.slow
@given(PLACES, VALUES, st.integers(0, 3000))
def test_npz_files_with_random_bytes_are_read_or_refused(tmp_path, places, values, length):
    file = tmp_path / "x.npz"
    file.write_bytes(spoilt(npz(x=PIXELS, y=LABELS), places, values)[:length] or values)
    refused(own_data, str(file), TASK)
    refused(read_npz_arrays, file, ("x", "y"))


def claiming(shape, descr="|u1"):
    """An npz of which the array x has a header that says `shape`, and no more than some bytes."""
    header = repr({"descr": descr, "fortran_order": False, "shape": shape}).encode() + b"\n"
    file = io.BytesIO()
    with zipfile.ZipFile(file, "w") as archive:
        member = b"\x93NUMPY\x01\x00" + struct.pack("<H", len(header)) + header + bytes(100)
        archive.writestr("x.npy", member)
    return file.getvalue()


@pytest.mark.parametrize(
    "content",
    [
        npz(x=np.zeros((1_500_000, 8, 8), np.uint8), y=np.zeros(1_500_000, int)),
        claiming((10**15, 8, 8)),
        claiming((10**9, 8, 8), "<f8"),
        claiming((True, 8, 8)),
        claiming((-1, 8, 8)),
        claiming((8, 8), "|O"),
        claiming((3, 8, 8)),
        encoded(),
        b"",
    ],
)
def test_a_bomb_is_refused_before_it_takes_memory(tmp_path, content):
    (tmp_path / "x.npz").write_bytes(content)
    tracemalloc.start()
    for read in (
        lambda: own_data(str(tmp_path / "x.npz"), TASK),
        lambda: load(str(tmp_path / "x.npz"), tmp_path, False),
        lambda: load_table(str(tmp_path / "x.npz"), tmp_path),
    ):
        assert refused(read)
    assert tracemalloc.get_traced_memory()[1] < 40 * 2**20
    tracemalloc.stop()


def test_too_little_memory_is_said_in_one_line(folder, monkeypatch):
    def grasps(*arguments, **by_name):
        return np.empty(2**62, np.uint8)

    monkeypatch.setattr("fedbary.data.image_folder.read_image", grasps)
    assert "Unable to allocate" in refused(own_data, str(folder), TASK)
    monkeypatch.setattr("fedbary.data.formats.npz.read_npz_arrays", grasps)
    (folder / "x.npz").touch()
    assert "Unable to allocate" in refused(load, str(folder / "x.npz"), folder, False)


def test_floats_that_run_to_255_are_refused_and_scaled_ones_are_what_bytes_are(tmp_path):
    np.savez(tmp_path / "raw.npz", x=PIXELS.astype(np.float32), y=LABELS)
    assert "0 to 255 as uint8" in refused(own_data, str(tmp_path / "raw.npz"), TASK)
    np.savez(tmp_path / "negative.npz", x=-PIXELS.astype(float), y=LABELS)
    assert "0 to 255 as uint8" in refused(own_data, str(tmp_path / "negative.npz"), TASK)
    np.savez(tmp_path / "bytes.npz", x=PIXELS, y=LABELS)
    np.savez(tmp_path / "scaled.npz", x=PIXELS / np.float32(255), y=LABELS)
    one, other = (own_data(str(tmp_path / f"{n}.npz"), TASK)[0] for n in ("bytes", "scaled"))
    assert torch.equal(scale_pixels(one), scale_pixels(other))
    standardised = (PIXELS - PIXELS.mean()) / PIXELS.std()
    np.savez(tmp_path / "standardised.npz", x=standardised, y=LABELS)
    assert refused(own_data, str(tmp_path / "standardised.npz"), TASK) is None


def test_classes_of_a_file_cannot_steer_a_terminal_or_begin_a_line(tmp_path):
    """Escapes, bells, new lines and marks of direction are escaped; other scripts stay."""
    names = ["\x1b[31mred\x07", "one\ntwo", "\u202etxt.exe", "می\u200cشود"]
    x, y = np.zeros((8, 8, 8), np.uint8), np.arange(8) % 4
    np.savez(tmp_path / "x.npz", x_train=x, y_train=y, x_test=x, y_test=y, classes=names)
    held = load(str(tmp_path / "x.npz"), tmp_path, False)
    assert held.classes == (r"\x1b[31mred\x07", r"one\ntwo", r"\u202etxt.exe", names[-1])
    told = ImageLayout.from_config({"input-shape": [1, 2, 2], "class-names": names})
    assert told.classes == held.classes

"""What a folder holds is read or named, whatever stands among it."""

import unicodedata
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image
from refusals import refused

from fedbary.data.image_examples import own_data, own_notes, read_images
from fedbary.data.image_folder import contents
from fedbary.data.image_layout import ImageLayout, parse_classes
from fedbary.data.images import load
from fedbary.errors import SettingError

RNG = np.random.default_rng(0)
LAYOUT = ImageLayout((3, 8, 8), ("one", "two"))


def picture(file: Path):
    file.parent.mkdir(parents=True, exist_ok=True)
    Image.fromarray(RNG.integers(0, 256, (8, 8, 3), np.uint8)).save(file)


@pytest.fixture
def folder(tmp_path):
    place = tmp_path / "p"
    for number in range(4):
        picture(place / "one" / f"{number}.png")
        picture(place / "two" / f"{number}.{'WebP' if number % 2 else 'webp'}")
    return place


LITTER = [
    ".ipynb_checkpoints/0.png", "one/.ipynb_checkpoints/0.png", "one/._0.png", "__MACOSX/one/0.png",
    "Thumbs.db", "one/Thumbs.db", ".DS_Store", "desktop.ini", "one/@eaDir/0.png",
]  # fmt: skip


@pytest.mark.parametrize("litter", LITTER)
def test_hidden_files_and_folders_are_never_data_and_are_named(litter, folder):
    before = load(str(folder), folder, False)
    file = folder / litter
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_bytes(b"no picture")
    after = load(f"{folder}/", folder, False)
    assert after.classes == ("one", "two") and torch.equal(before.x_train, after.x_train)
    hidden = next(p for p in Path(litter).parts if p not in ("one", "0.png"))
    assert after.notes[0].endswith(f"hidden: {hidden}")
    x, _ = own_data(str(folder), LAYOUT)
    assert len(x) == 8 and own_notes(str(folder), LAYOUT)[0].endswith(f"hidden: {hidden}")
    read = read_images(folder, LAYOUT)
    assert len(read.x) == 8 and read.notes == (f"hidden: {hidden}",)


def test_one_line_says_what_was_read_and_what_was_not(folder):
    for place in ("one/a.heic", "one/b.HEIC", "two/deep/notes", "loose.txt"):
        (folder / place).parent.mkdir(exist_ok=True)
        (folder / place).touch()
    picture(folder / "loose.png")
    (said,) = load(str(folder), folder, False).notes
    expected = "4 PNG, 4 WEBP in 2 classes; 2 .heic, 1 without an ending, 1 .png, 1 .txt not read"
    assert said == f"{folder}: {expected}"
    layout = ImageLayout(LAYOUT.shape, ("one", "three", "two"))
    (site,) = own_notes(str(folder), layout)
    assert site == f"{folder}: {expected}; empty: three"


def test_parts_are_said_apart_and_a_third_is_not_read(folder, tmp_path):
    for part in ("Train", "Test", "val"):
        for name in ("one", "two"):
            picture(tmp_path / "parts" / part / name / "0.png")
    held = load("parts", tmp_path, False)
    assert held.classes == ("one", "two") and len(held.y_train) == len(held.y_test) == 2
    assert [line.rpartition("/")[2] for line in held.notes] == [
        "Train: 2 PNG in 2 classes", "Test: 2 PNG in 2 classes", "parts: not read: val",
    ]  # fmt: skip


def test_a_class_without_a_picture_is_refused_with_what_is_there(folder):
    (folder / "three").mkdir()
    (folder / "three" / "a.heic").touch()
    refused("three: 'no image; 1 .heic not read'", load, str(folder), folder, False)


@pytest.mark.parametrize("shape", [None, (3, 8, 8)])
def test_every_picture_that_is_refused_is_named_at_once(shape, folder):
    for name in ("one/1.png", "two/2.webp", "two/3.WebP"):
        whole = (folder / name).read_bytes()
        (folder / name).write_bytes(whole[: len(whole) // 2])
    with pytest.raises(SettingError) as caught:
        load(str(folder), folder, False, shape)
    assert caught.value.setting.endswith("one/1.png")
    assert str(caught.value.value).endswith("; refused too: 2.webp, 3.WebP")


def test_classes_without_an_example_are_named(tmp_path):
    x, y = RNG.integers(0, 256, (9, 8, 8), np.uint8), np.array([0, 2, 5] * 3)
    np.savez(tmp_path / "a.npz", x_train=x, y_train=y, x_test=x, y_test=y)
    (said,) = load("a.npz", tmp_path, False).notes
    assert said.endswith("a.npz: classes without a training example: 1, 3, 4")


def test_a_name_is_one_name_in_every_form_of_unicode(tmp_path):
    decomposed = unicodedata.normalize("NFD", "Bär")
    for name in (decomposed, "Kuh"):
        picture(tmp_path / "p" / name / "0.png")
        picture(tmp_path / "p" / name / "1.png")
    layout = ImageLayout((3, 8, 8), parse_classes("Bär,Kuh"))
    assert layout.classes == parse_classes(f"{decomposed},Kuh")
    assert load(str(tmp_path / "p"), tmp_path, False).classes == layout.classes
    assert own_data(str(tmp_path / "p"), layout)[1].tolist() == [0, 0, 1, 1]
    assert read_images(tmp_path / "p", layout).y.tolist() == [0, 0, 1, 1]
    picture(tmp_path / "p" / "Bär" / "0.png")
    refused("two folders Bär", load, f"{tmp_path}/p/", tmp_path, False)


def test_names_that_are_not_in_utf8_are_refused_of_classes_and_escaped_of_files(tmp_path):
    for name in ("a", "b"):
        picture(tmp_path / "p" / name / "B\udce4r.png")
        picture(tmp_path / "p" / name / "1.png")
    found = read_images(tmp_path / "p", ImageLayout((3, 8, 8), ("a", "b")))
    assert [name for name in found.names if "B" in name] == ["a/B\\udce4r.png", "b/B\\udce4r.png"]
    picture(tmp_path / "p" / "K\udcfche" / "0.png")
    refused(r"K\\+udcfche.*in UTF-8", load, f"{tmp_path}/p/", tmp_path, False)


def test_folders_that_are_linked_in_a_circle_end(folder):
    (folder / "one" / "again").symlink_to(folder)
    assert len(contents(folder).pictures) == 8


def test_what_is_done_to_pictures_is_said(folder):
    exif = Image.Exif()
    exif[0x0112] = 6
    Image.new("RGBA", (8, 8)).save(folder / "one" / "ink.png", exif=exif)
    said = "1 composed on white; 1 turned as EXIF says"
    assert load(str(folder), folder, False).notes[0].endswith(f"in 2 classes; {said}")
    assert "; ".join(read_images(folder, LAYOUT).notes) == said

"""Images from folders, Hugging Face, torchvision and functions of one's own."""

import datasets
import numpy as np
import own_data
import pytest
import torch
from image_files import SHAPE, picture, pictures
from PIL import Image
from refusals import refused

from fedbary.data.images import load
from fedbary.errors import SettingError
from fedbary.settings.config import resolve
from fedbary.tasks import task_of

# --- a folder of images by class ----------------------------------------------------------------


def test_a_folder_holds_each_picture_once_and_tests_a_tenth_of_each_class(tmp_path):
    held = load(str(pictures(tmp_path / "p")), tmp_path, False)
    assert (held.classes, held.shape) == (("cat", "dog"), (3, 9, 9))
    assert torch.bincount(held.y_test).tolist() == [1, 1]
    files = [f for name in held.classes for f in sorted((tmp_path / "p" / name).iterdir())]
    drawn = torch.stack([torch.from_numpy(np.array(Image.open(f))).permute(2, 0, 1) for f in files])
    both = torch.cat([held.x_train, held.x_test]).flatten(1)
    rows = [sorted(map(bytes, x.flatten(1).numpy())) for x in (drawn, both)]
    assert rows[0] == rows[1]


def test_names_of_folders_are_told_apart_as_names_of_classes_are(tmp_path):
    folder = pictures(tmp_path / "p", ("Cat", "cat", "dog "))
    held = load(str(folder), tmp_path, False)
    assert held.classes == ("Cat", "cat", "dog")
    assert any("'Cat' and 'cat' differ in case or blanks alone" in note for note in held.notes)
    pictures(folder, ("dog",))
    refused("two folders dog", load, f"{folder}/", tmp_path, True)


def test_hidden_labels_of_images_do_not_test(tmp_path):
    x, y = np.random.default_rng(0).integers(0, 256, (40, 8, 8)).astype(np.uint8), np.arange(40) % 2
    parts = {"x_train": x[:30], "y_train": y[:30], "x_test": x[30:], "y_test": np.full(10, -1)}
    np.savez(tmp_path / "hidden.npz", **parts)
    with pytest.warns(UserWarning, match="y_test has no labels"):
        held = load("hidden.npz", tmp_path, False)
    assert (len(held.y_train), held.y_test.tolist()) == (26, [1, 0, 1, 0])


@pytest.mark.parametrize(
    ("train", "test"), [("train", "test"), ("train", "validation"), ("Training", "testing")]
)
def test_a_folder_may_say_what_is_tested(train, test, tmp_path):
    pictures(tmp_path / "p" / test, ("9",), each=2)
    refused("beside train one of test", load, "p", tmp_path, False)
    pictures(tmp_path / "p" / train, ("10", "9"), each=3)
    held = load("p", tmp_path, False)
    assert held.classes == ("9", "10") and len(held.y_train) == 6
    assert held.y_test.tolist() == [0, 0]


@pytest.mark.parametrize("resize", ["crop", "pad", "stretch"])
def test_pictures_of_mixed_sizes_modes_and_formats_take_the_federation_s_shape(resize, tmp_path):
    pictures(tmp_path / "p")
    picture(side=30, grey=True).save(tmp_path / "p" / "cat" / "large.bmp")
    picture(side=5).convert("RGBA").save(tmp_path / "p" / "dog" / "alpha.tiff")
    picture(side=50).save(tmp_path / "p" / "dog" / "photograph.JPG")
    for shape in (SHAPE, (1, 7, 20)):
        assert load("p", tmp_path, False, shape, resize).shape == shape


def test_crop_keeps_what_pad_adds_to_and_stretch_distorts(tmp_path):
    wide = np.zeros((10, 20), np.uint8)
    wide[:, 5:15] = 200  # a square in the middle
    for name in ("a", "b"):
        (tmp_path / "p" / name).mkdir(parents=True)
        for number in range(2):
            Image.fromarray(wide).save(tmp_path / "p" / name / f"{number}.png")
    bright = {
        resize: load("p", tmp_path, False, (1, 10, 10), resize).x_train[0].double().mean() / 200
        for resize in ("crop", "pad", "stretch")
    }
    assert bright["crop"] == 1
    assert bright["stretch"] == pytest.approx(0.5, abs=0.01)
    assert bright["pad"] == pytest.approx(0.25, abs=0.03)


def test_folders_that_do_not_fit_are_refused_in_one_line(tmp_path):
    folder = pictures(tmp_path / "p")
    arguments = "p", tmp_path, False
    refused(
        "0.png: '9×9 pixels; refused.*12×12, which the model takes; or a run with",
        load,
        *arguments,
        SHAPE,
    )
    picture(side=10).save(folder / "dog" / "other.png")
    refused("other.png: '3×10×10';.*3×9×9, as .*0.png; or input_shape=.*resize=", load, *arguments)
    picture(grey=True).save(folder / "dog" / "other.png")
    refused("other.png: '1×9×9';.*3×9×9", load, *arguments)
    (folder / "dog" / "other.png").write_bytes((folder / "dog" / "0.png").read_bytes()[:60])
    refused("other.png: .*expected an image", load, *arguments)
    (folder / "train").mkdir()
    refused("'cat, dog, train';.*beside train one of test, testing", load, *arguments)
    (tmp_path / "none").mkdir()
    refused("'no folder';.*each of 2 classes", load, "none", *arguments[1:])
    for name in ("a", "b"):
        (tmp_path / "none" / name).mkdir()
    refused("none: a: 'no image'", load, "none", *arguments[1:])


def test_an_image_of_more_pixels_than_are_decoded_is_refused(tmp_path):
    folder = pictures(tmp_path / "p", each=2)
    Image.new("1", (10_000, 10_000)).save(folder / "cat" / "huge.png")
    refused("10000×10000 pixels';.*up to 67,108,864", load, "p", tmp_path, False, SHAPE, "crop")


# --- Hugging Face -------------------------------------------------------------------------------

CLASSES = datasets.ClassLabel(names=["ant", "bee", "cow"])


def hugging(count=30, labels=CLASSES, **columns):
    held = {"img": [picture() for _ in range(count)], "label": [i % 3 for i in range(count)]}
    kinds = datasets.Features({"img": datasets.Image(), "label": labels})
    for name, values in columns.items():
        held[name], kinds[name] = values, datasets.Image()
    return datasets.Dataset.from_dict(held, features=kinds)


def test_what_save_to_disk_wrote_is_read_picture_by_picture(tmp_path):
    made = hugging()
    made.save_to_disk(tmp_path / "one")
    datasets.DatasetDict(train=made, test=made.select(range(6))).save_to_disk(tmp_path / "two")
    held = load("hf:two", tmp_path, False)
    assert held.classes == ("ant", "bee", "cow") and held.y_test.tolist() == [0, 1, 2] * 2
    assert torch.equal(held.x_train[:6], held.x_test)
    assert np.array_equal(held.x_test[0].permute(1, 2, 0).numpy(), np.asarray(made[0]["img"]))
    assert len(load(f"hf:{tmp_path / 'one'}", tmp_path, False).y_test) == 3  # a tenth of each class


def test_folders_of_parquet_files_or_of_pictures_are_data_sets_too(tmp_path):
    made = hugging()
    (tmp_path / "parquet").mkdir()
    for part in ("train", "test"):
        made.to_parquet(tmp_path / "parquet" / f"{part}.parquet")
    held = load("hf:parquet", tmp_path, False)
    assert held.classes == ("ant", "bee", "cow") and torch.equal(held.x_train, held.x_test)
    pictures(tmp_path / "folder")
    assert load("hf:folder", tmp_path, False, SHAPE, "pad").classes == ("cat", "dog")


def test_each_part_s_classes_go_by_their_names(tmp_path):
    made = hugging()
    other = datasets.ClassLabel(names=["cow", "bee", "ant"])
    turned = [2 - label for label in made["label"]]
    test = made.remove_columns("label").add_column("label", turned, feature=other)
    datasets.DatasetDict(train=made, test=test).save_to_disk(tmp_path / "two")
    held = load("hf:two", tmp_path, False)
    assert torch.equal(held.y_train, held.y_test) and held.classes == ("ant", "bee", "cow")
    others = datasets.ClassLabel(names=["cow", "bee", "fly"])
    strange = made.remove_columns("label").add_column("label", turned, feature=others)
    datasets.DatasetDict(train=made, test=strange).save_to_disk(tmp_path / "strange")
    refused(
        "row 1, label: 'fly'; expected one of ant, bee, cow", load, "hf:strange", tmp_path, False
    )


def test_labels_without_names_are_classes_by_their_values(tmp_path):
    made = hugging(labels=datasets.Value("int64"))
    made = made.map(lambda row: {"label": 5 * row["label"]})
    made.save_to_disk(tmp_path / "one")
    held = load("hf:one", tmp_path, False)
    assert held.classes == ("0", "5", "10") and set(held.y_train.tolist()) == {0, 1, 2}


def test_the_column_of_the_classes_may_be_named(tmp_path):
    made = hugging()
    fine = [2 - i % 3 for i in range(30)]
    made = made.add_column("fine", fine, feature=CLASSES).add_column("age", [0.5] * 30)
    datasets.DatasetDict(train=made, test=made.select(range(3))).save_to_disk(tmp_path / "two")
    arguments = "hf:two", tmp_path, False, None, "none"
    assert load(*arguments).y_test.tolist() == [0, 1, 2]  # of two the one called label
    held = load(*arguments, "fine")
    assert held.classes == ("ant", "bee", "cow") and held.y_test.tolist() == [2, 1, 0]
    refused("target: 'img';.*a column of hf:two: label, fine, age$", load, *arguments, "img")
    refused("age: .*a class for each image", load, *arguments, "age")
    made.rename_column("label", "coarse").save_to_disk(tmp_path / "three")
    refused(r"coarse \(ClassLabel\), fine .*that target= names", load, "hf:three", *arguments[1:])
    refused("dataset=digits does not use it", resolve, {"target": "fine"})
    chosen = {"dataset": "hf:two", "data_dir": str(tmp_path), "target": "fine"}
    assert torch.equal(task_of(resolve(chosen)).held.y_train, held.y_train)


def test_a_parquet_file_of_pictures(tmp_path):
    made = hugging()
    made.to_parquet(tmp_path / "p.parquet")
    held = load("p.parquet", tmp_path, False)
    assert held.classes == ("ant", "bee", "cow") and held.y_test.tolist() == [0, 1, 2]
    pixels = np.stack(made["img"])
    assert (pixels == held.x_test[0].permute(1, 2, 0).numpy()).all((1, 2, 3)).sum() == 1
    columns = made.cast_column("img", datasets.Image(decode=False)).to_pandas()
    columns.to_parquet(tmp_path / "plain.parquet")  # no types of Hugging Face's
    plain = load(str(tmp_path / "plain.parquet"), tmp_path / "other", False)
    assert plain.classes == ("0", "1", "2") and torch.equal(plain.x_train, held.x_train)
    chosen = {"dataset": "p.parquet", "data_dir": str(tmp_path), "target": "label"}
    assert task_of(resolve(chosen)).signature().shape == held.shape
    refused(
        "absent.parquet';.*a Parquet file that is there", load, "absent.parquet", tmp_path, True
    )
    (tmp_path / "bad.parquet").write_bytes(b"PAR1")
    refused("bad.parquet: .*a data set that can be read", load, "bad.parquet", tmp_path, False)
    made.remove_columns("img").to_parquet(tmp_path / "table.parquet")
    refused(r"'label \(ClassLabel\)';.*a table needs", load, "table.parquet", tmp_path, False)


def test_hugging_face_data_that_do_not_fit_are_refused_in_one_line(tmp_path, monkeypatch):
    def saved(name, made):
        made.save_to_disk(tmp_path / name)
        return f"hf:{name}", tmp_path, False

    refused("'hf:owner/name';.*download=true", load, "hf:owner/name", tmp_path, False)
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    monkeypatch.setattr("datasets.config.HF_HUB_OFFLINE", True)
    refused(
        "hf:owner/name: .*the Hub.*hf:PATH, or hf:owner/name", load, "hf:owner/name", tmp_path, True
    )
    two = hugging(other=[picture() for _ in range(30)])
    refused(r"columns: 'img \(Image\), label .*, other \(Image\)'", load, *saved("a", two))
    plain = hugging().rename_column("label", "kind").cast_column("kind", datasets.Value("int64"))
    refused("columns: .*ClassLabel or called label", load, *saved("b", plain))
    broken = hugging().cast_column("img", datasets.Image(decode=False))
    broken = broken.map(lambda row, i: {"img": {"bytes": b"no", "path": None}} if i == 4 else {},
                        with_indices=True).cast_column("img", datasets.Image())  # fmt: skip
    refused("row 5: .*expected an image", load, *saved("c", broken))
    held = hugging(3).map(lambda row, i: {"label": -1} if i == 0 else row, with_indices=True)
    unknown = datasets.DatasetDict(train=hugging(), test=held)
    refused("row 1, label: -1;.*one of ant, bee, cow", load, *saved("d", unknown))
    parts = datasets.DatasetDict(north=hugging(3), south=hugging(3))
    refused("parts: 'north, south';.*called train", load, *saved("e", parts))
    (tmp_path / "f").mkdir()
    refused("hf:f: ", load, "hf:f", tmp_path, False)


def test_the_extra_that_is_missing_is_named(tmp_path, monkeypatch):
    monkeypatch.setitem(__import__("sys").modules, "datasets", None)
    (tmp_path / "one").mkdir()
    refused(r"pip install 'fedbary\[hf\]'", load, "hf:one", tmp_path, False)


# --- functions of one's own, and settings ---------------------------------------------------------


def test_a_function_of_one_s_own_returns_the_arrays(tmp_path):
    held = load("own_data:bars", tmp_path, False)
    assert held.num_classes == 8 and held.x_train.shape == (300, 1, 8, 8)
    assert np.array_equal(held.x_test[:, 0].numpy(), own_data.bars()["x_test"])


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("absent:bars", "package.module:function that can be imported.*No module"),
        ("own_data:stars", "that can be imported .*stars"),
        ("own_data:fails", "called without arguments .RuntimeError: no disk"),
        ("own_data:three", "a dict of x_train, y_train, x_test, y_test, not a int"),
    ],
)
def test_functions_that_return_no_arrays(name, message, tmp_path):
    refused(message, load, name, tmp_path, False)


def test_names_of_a_data_set_s_classes_keep_their_order(tmp_path):
    pictures(tmp_path / "p")

    def chosen(**more):
        return task_of(resolve({"dataset": f"{tmp_path}/p", "data_dir": str(tmp_path), **more}))

    assert chosen().signature().classes == ("cat", "dog")
    assert chosen(classes="cat,dog").signature().classes == ("cat", "dog")
    assert chosen(classes="2").signature().classes == ("0", "1")
    for wrong in ("dog,cat", "3", "benign,malignant"):
        with pytest.raises(SettingError, match="classes: .*in their order: cat, dog"):
            chosen(classes=wrong).signature()
    assert chosen(input_shape="1x12x12", resize="pad").signature().shape == (1, 12, 12)
    arrays = resolve({"input_shape": "1x28x28", "resize": "crop"})
    refused("input_shape: '1x28x28';.*auto or 1x8x8", lambda: task_of(arrays).signature())


@pytest.mark.parametrize("name", ["scans", "mnist", "", "hf", "scans.zip"])
def test_names_of_no_form_are_refused_with_all_forms(name):
    refused(r"dataset: .*digits.*\./scans.*hf:.*torchvision:", resolve, {"dataset": name})

"""Folders that `flwr-datasets create` made, as a site's own data and as a simulation's."""

import datasets
import numpy as np
import pytest
import torch
from image_files import picture
from saved_sets import DIGITS, digits, partitions, patients

from fedbary.data.image_examples import own_data, own_notes
from fedbary.data.image_layout import ImageLayout
from fedbary.data.images import load
from fedbary.data.tables import load_frame, load_labelled
from fedbary.errors import SettingError
from fedbary.settings.config import resolve
from fedbary.tasks import task_of

pytestmark = pytest.mark.slow

LAYOUT = ImageLayout((1, 8, 8), DIGITS)


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    folder = tmp_path_factory.mktemp("demo")
    return {"images": partitions(digits(), folder / "images"),
            "table": partitions(patients(), folder / "table")}  # fmt: skip


def in_order(x, y):
    return sorted((int(label), bytes(image.numpy())) for image, label in zip(x, y, strict=True))


def test_the_partitions_are_the_whole_set_each_image_once(made):
    parts = [own_data(str(place), LAYOUT) for place in made["images"]]
    x, y = (torch.cat(held) for held in zip(*parts, strict=True))
    whole = digits()
    images = [torch.from_numpy(np.array(image)) for image in whole["image"]]
    assert in_order(x, y) == in_order(images, whole["label"])


def test_with_and_without_hf_it_is_the_same(made):
    (place, _) = made["images"]
    one, other = own_data(str(place), LAYOUT), own_data(f"hf:{place}", LAYOUT)
    assert torch.equal(one[0], other[0]) and torch.equal(one[1], other[1])
    assert torch.equal(load(str(place), "", False).x_test, load(f"hf:{place}", "", False).x_test)
    one, other = (load_labelled(f"{by}{made['table'][0]}", "", "target") for by in ("", "hf:"))
    assert torch.equal(one.x, other.x) and torch.equal(one.y, other.y)


@pytest.mark.parametrize("kind", ["names in another order", "texts", "numbers"])
def test_labels_are_classes_by_name(kind, tmp_path):
    names = tuple(reversed(DIGITS)) if kind.startswith("names") else DIGITS
    held = digits(names=names)
    if kind != "names in another order":
        held = held.cast_column("label", datasets.Value("int64"))
    if kind == "texts":
        held = held.cast_column("label", datasets.Value("string"))
    held.save_to_disk(tmp_path / "own")
    digits().save_to_disk(tmp_path / "same")
    y = own_data(str(tmp_path / "own"), LAYOUT)[1]
    assert torch.equal(y, own_data(str(tmp_path / "same"), LAYOUT)[1])
    turned = ImageLayout((1, 8, 8), DIGITS[::-1])
    assert torch.equal(own_data(str(tmp_path / "own"), turned)[1], 9 - y)


def test_a_table_has_the_federation_s_classes_by_name(made, tmp_path):
    layout = load_labelled(str(made["table"][0]), "", "target").layout
    assert layout.classes == ("malignant", "benign")
    held = patients().rename_column("target", "kind")
    names = held.features["kind"].names
    held = held.add_column("target", [names[k] for k in held["kind"]]).remove_columns("kind")
    held.save_to_disk(tmp_path / "named")
    found = load_labelled(str(tmp_path / "named"), "", "target", layout=layout)
    assert found.strata.tolist() == patients()["target"]


def test_texts_are_a_column_of_a_saved_set(tmp_path):
    held = {"body": ["good day", "bad day"], "label": ["good", "bad"]}
    datasets.Dataset.from_dict(held).save_to_disk(tmp_path / "texts")
    frame = load_frame(str(tmp_path / "texts"), "", "label", False)
    assert frame.columns["body"].texts.tolist() == held["body"]
    assert frame.target.texts.tolist() == held["label"]


def test_the_column_of_the_classes_may_be_named(tmp_path):
    held = digits(20).add_column("odd", [k % 2 for k in digits(20)["label"]])
    held = held.cast_column("odd", datasets.ClassLabel(names=["0", "1"]))
    held.save_to_disk(tmp_path / "own")
    for target in ("odd", "label"):
        y = own_data(str(tmp_path / "own"), LAYOUT, "none", target)[1]
        assert y.tolist() == held[target]
        named = {"classes": 10, "input_shape": "1x8x8", "target": target}
        assert task_of(resolve({"dataset": "none", **named})).own.target == target
        chosen = resolve({"dataset": str(tmp_path / "own"), "target": target})
        assert len(task_of(chosen).signature().classes) == len(held.features[target].names)


def test_a_line_says_what_a_site_holds(made):
    (place, _) = map(str, made["images"])
    many = ImageLayout((1, 8, 8), (*DIGITS, "ten"))
    assert own_notes(place, many) == (f"{place}: 60 images in 10 of 11 classes",)


def test_reading_leaves_the_folder_as_it_is(made):
    (place, _) = made["images"]
    before = {file: file.stat().st_mtime_ns for file in place.iterdir()}
    own_data(str(place), ImageLayout((1, 9, 9), DIGITS), "pad")
    assert {file: file.stat().st_mtime_ns for file in place.iterdir()} == before


@pytest.mark.parametrize("prefix", ["", "hf:"])
def test_a_folder_of_all_partitions_is_refused_by_what_it_is(prefix, made):
    for name, read in {
        "images": lambda place: own_data(place, LAYOUT),
        "table": lambda place: load_labelled(place, "", "target"),
    }.items():
        folder = made[name][0].parent
        for look in (read, lambda place: load(place, "", False)):
            with pytest.raises(
                SettingError, match="2 data sets, such as partition_0'; expected the path of one"
            ):
                look(f"{prefix}{folder}")


def damaged(folder, kind):
    """A saved set with a fault of this kind; the word secret stands where a site's data do."""
    images, secret = [picture(8, True) for _ in range(4)], ["secret", "0", "1", "0"]
    held = {"secret": secret, "label": [0, 1, 0, 1]}
    if kind == "no image":
        datasets.Dataset.from_dict(held).save_to_disk(folder)
        return
    kinds = datasets.Features(
        {
            "image": datasets.Image(),
            "secret": datasets.Value("string"),
            "label": datasets.Value("int64"),
        }
    )
    if kind == "no picture":
        images[2] = {"bytes": b"secret", "path": "secret.png"}
    if kind == "gone":
        images[2] = None
    if kind == "no label":
        held["label"][2] = None
    datasets.Dataset.from_dict({"image": images, **held}, features=kinds).save_to_disk(folder)
    state, (arrow,) = folder / "state.json", folder.glob("*.arrow")
    if kind == "empty state":
        state.write_text("")
    if kind == "no arrow":
        arrow.unlink()
    if kind == "half an arrow":
        arrow.write_bytes(arrow.read_bytes()[: arrow.stat().st_size // 2])
    if kind == "an arrow of noise":
        arrow.write_bytes(b"secret" * 500)


FAULTS = ("no image", "no picture", "gone", "no label", "empty state", "no arrow", "half an arrow",
          "an arrow of noise", "another class")  # fmt: skip


@pytest.mark.parametrize("kind", FAULTS)
def test_a_damaged_set_ends_in_a_line_whose_expected_part_holds_nothing_of_it(kind, tmp_path):
    damaged(tmp_path / "own", kind)
    target = "secret" if kind == "another class" else "y"
    with pytest.raises(SettingError) as caught:
        own_data(str(tmp_path / "own"), LAYOUT, "none", target)
    assert "\n" not in str(caught.value)
    assert "secret" not in caught.value.allowed

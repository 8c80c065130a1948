"""Data sets as tensors: names, files, and what is refused."""

import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from image_files import small
from refusals import refused

from fedbary.data.images import Dataset, load
from fedbary.errors import SettingError
from fedbary.settings.config import resolve


def load_saved(folder: Path, arrays, name="mine.npz") -> Dataset:
    np.savez(folder / name, **arrays)
    return load(str(folder / name), folder, False)


# --- names -------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["mnist", "_dataset", "../digits", "", "Digits"])
def test_unknown_name_lists_the_allowed(name, tmp_path):
    refused(r"dataset: .*cifar10, .*digits, .*\.npz", load, name, tmp_path, False)


@pytest.mark.slow
def test_importing_is_light_and_settings_import_no_partitioners_that_they_do_not_name():
    heavy = "{'sklearn', 'torchvision', 'matplotlib', 'scipy', 'flwr'}"
    names = ("data.images", "data.partition", "scores.metrics", "figures.run_pictures")
    modules = ", ".join(f"fedbary.{name}" for name in names)
    code = f"import sys, {modules}; assert not {heavy} & set(sys.modules)\n"
    code += "from fedbary.settings.config import resolve; resolve({'partition': 'iid'})\n"
    code += "assert not {'datasets', 'flwr_datasets'} & set(sys.modules)"
    subprocess.run([sys.executable, "-c", code], check=True, cwd=Path(__file__).parents[2])


# --- digits ------------------------------------------------------------------------------------


def test_digits_are_real_digits(tmp_path):
    digits = load("digits", tmp_path, False)
    assert digits.x_train.shape == (1437, 1, 8, 8) and digits.x_test.shape == (360, 1, 8, 8)
    assert digits.x_train.dtype == torch.float32 and digits.y_train.dtype == torch.int64
    assert digits.x_train.min() == 0 and digits.x_train.max() == 1
    assert digits.x_train.is_contiguous()
    assert digits.num_classes == 10 and not digits.augment
    shares = torch.bincount(digits.y_test) / torch.bincount(digits.y_train)
    assert (shares - 0.25).abs().max() < 0.01

    centroids = torch.stack([digits.x_train[digits.y_train == c].mean(0) for c in range(10)])
    nearest = torch.cdist(digits.x_test.flatten(1), centroids.flatten(1)).argmin(1)
    assert (nearest == digits.y_test).float().mean() > 0.85


def test_digits_splits_share_no_example(tmp_path):
    from sklearn.datasets import load_digits

    digits = load("digits", tmp_path, False)
    everything = torch.cat([digits.x_train, digits.x_test]).flatten(1) * 16
    ours = np.sort(np.ascontiguousarray(everything.numpy()), axis=0)
    assert (ours == np.sort(load_digits().data, axis=0)).all()


def test_loaded_once_per_process(tmp_path):
    assert load("digits", tmp_path, False) is load("digits", str(tmp_path), True)


# --- .npz --------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("images", "shape"),
    [
        ((8, 9), (1, 8, 9)),
        ((8, 9, 1), (1, 8, 9)),
        ((8, 9, 3), (3, 8, 9)),
        ((3, 8, 9), (3, 8, 9)),
        ((1, 64, 64), (1, 64, 64)),
        ((5, 200, 3), (3, 5, 200)),
    ],
)
@pytest.mark.parametrize("dtype", [np.uint8, np.float32, np.float64])
def test_npz_layouts(images, shape, dtype, tmp_path):
    arrays = small(images, dtype=dtype)
    loaded = load_saved(tmp_path, arrays)
    assert loaded.shape == shape and loaded.num_classes == 3
    assert loaded.x_train.is_contiguous() and loaded.x_test.is_contiguous()
    assert loaded.x_train.dtype == (torch.uint8 if dtype == np.uint8 else torch.float32)
    expected = arrays["x_train"].astype(loaded.x_train.numpy().dtype)
    if images[-1] == 3:
        expected = expected.transpose(0, 3, 1, 2)
    assert (loaded.x_train.numpy() == expected.reshape(-1, *shape)).all()
    assert (loaded.y_test.numpy() == arrays["y_test"]).all()


def test_npz_path_relative_to_data_dir_or_working_directory(tmp_path, monkeypatch):
    np.savez(tmp_path / "mine.npz", **small())
    assert load("mine.npz", tmp_path, False).shape == (1, 8, 8)
    monkeypatch.chdir(tmp_path)
    assert load("mine.npz", tmp_path / "elsewhere", False).shape == (1, 8, 8)


def test_endings_may_be_in_capital_letters(tmp_path):
    np.savez(tmp_path / "mine.npz", **small())
    (tmp_path / "mine.npz").rename(tmp_path / "MINE.NPZ")
    assert load("MINE.NPZ", tmp_path, False).shape == (1, 8, 8)
    assert resolve({"dataset": "MINE.NPZ"}).dataset == "MINE.NPZ"


def test_named_data_set_laid_out_as_npz(tmp_path):
    load_saved(tmp_path, small((8, 8, 3)), "cifar10.npz")
    cifar = load("cifar10", tmp_path, False)
    assert (cifar.name, cifar.shape, cifar.augment) == ("cifar10", (3, 8, 8), True)


def test_extra_arrays_are_ignored(tmp_path):
    extra = np.array([object()], dtype=object)
    assert load_saved(tmp_path, small() | {"extra": extra}).num_classes == 3


def test_names_of_classes_may_stand_in_the_file(tmp_path):
    assert load_saved(tmp_path, small() | {"classes": ["c", "a", "b"]}).classes == ("c", "a", "b")


def test_labels_that_seem_to_count_from_1_are_said(tmp_path):
    arrays = small()
    shifted = arrays | {part: arrays[part] + 1 for part in ("y_train", "y_test")}
    with pytest.warns(UserWarning, match=r"one\.npz: no training label is 0"):
        load_saved(tmp_path, shifted, "one.npz")


def changed(**arrays):
    return lambda original: original | arrays


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda a: {"x_train": a["x_train"]}, "no y_train, x_test, y_test"),
        (changed(y_train=np.arange(11) % 3), "train: '12 inputs and 11 labels'"),
        (changed(y_test=np.arange(5) % 3), "test: '6 inputs and 5 labels'"),
        (changed(y_train=np.arange(12) % 3 - 1), "y_train: -1;.* labels from 0"),
        (changed(y_train=np.arange(12) / 2), "y_train: 'float64 of 1 dim.* one dimension of int"),
        (changed(y_train=np.zeros((12, 1), int)), "y_train: 'int64 of 2 dimensions'"),
        (changed(y_train=np.full(12, 400)), "labels: '0 to 400';.* no more than"),
        (changed(y_test=np.full(6, 3)), "y_test: 3; expected .* 0 to 2"),
        (changed(y_train=np.zeros(12, int), y_test=np.zeros(6, int)), "labels.* at least 2"),
        (changed(x_train=np.zeros((12, 64), np.uint8)), "x_train: '12×64';.*N×H×W"),
        (changed(x_train=np.zeros((12, 8, 8, 2), np.uint8)), "x_train: '12×8×8×2'"),
        (changed(x_train=np.zeros((12, 4, 8), np.uint8)), "x_train: '12×4×8';.*at least 5"),
        (changed(classes=["a", "b"]), "classes: '2 names for labels up to 2'"),
        (changed(classes=["a", "b", "a"]), "classes: .*another name for each"),
        (changed(x_train=np.zeros((0, 8, 8), np.uint8)), "x_train: '0×8×8';.*at least 1"),
        (changed(x_train=np.zeros((12, 8, 8), int)), "x_train: 'int64';.*uint8 or a float"),
        (changed(x_train=np.full((12, 8, 8), np.nan)), "x_train: .*not finite"),
        (changed(x_test=np.full((6, 8, 8), 1e300)), "x_test: .*not finite"),
        (changed(x_test=np.zeros((6, 9, 9), np.uint8)), "'1×8×8 uint8 and 1×9×9 uint8'"),
        (changed(x_test=np.zeros((6, 8, 8))), "'1×8×8 uint8 and 1×8×8 float32'"),
        (changed(x_train=np.array([None] * 12)), "without pickled objects"),
    ],
)
def test_npz_errors(change, message, tmp_path):
    with pytest.raises(SettingError, match=message) as caught:
        load_saved(tmp_path, change(small()))
    assert "mine.npz" in str(caught.value)


def test_npz_absent(tmp_path):
    refused("dataset: 'none.npz';.*there is none at", load, "none.npz", tmp_path, False)


@pytest.mark.parametrize("content", [b"", b"no archive", b"PK\x03\x04 cut short", "npy", "damaged"])
def test_npz_unreadable(content, tmp_path):
    path = tmp_path / "bad.npz"
    if content == "npy":
        with path.open("wb") as file:
            np.save(file, np.arange(3))
    elif content == "damaged":
        np.savez(path, **small())
        path.write_bytes(path.read_bytes().replace(b"NUMPY", b"NUMPI"))
    else:
        path.write_bytes(content)
    refused(r"bad\.npz: .* numpy\.savez", load, str(path), tmp_path, False)

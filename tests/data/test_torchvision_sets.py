"""Data sets of torchvision from its files, packed and unpacked; those that cannot be had."""

import gzip
import hashlib
import struct

import numpy as np
import pytest
from image_files import RNG, SHAPE, pictures, small
from refusals import refused

from fedbary.data.images import load


@pytest.mark.parametrize("name", ["fashionmnist", "cifar10", "svhn"])
def test_absent_and_no_download(name, tmp_path):
    refused(f"data_dir: .*{name}.npz .*download=true", load, name, tmp_path / "empty", False)


@pytest.mark.parametrize("name", ["fashionmnist", "cifar10", "svhn"])
def test_absent_and_no_network(name, tmp_path, monkeypatch):
    def refuse(*args, **kwargs):
        raise OSError("network is unreachable")

    monkeypatch.setattr("urllib.request.urlopen", refuse)
    refused("data_dir: .*download=true and a network", load, name, tmp_path, True)


def idx(array: np.ndarray) -> bytes:
    head = struct.pack(f">HBB{array.ndim}I", 0, 8, array.ndim, *array.shape)
    return head + array.astype(np.uint8).tobytes()


FASHION_FILES = {
    "x_train": "train-images-idx3-ubyte",
    "y_train": "train-labels-idx1-ubyte",
    "x_test": "t10k-images-idx3-ubyte",
    "y_test": "t10k-labels-idx1-ubyte",
}


def test_fashionmnist_from_unpacked_files(tmp_path):
    arrays = small((28, 28))
    raw = tmp_path / "FashionMNIST" / "raw"
    raw.mkdir(parents=True)
    for name, file in FASHION_FILES.items():
        (raw / file).write_bytes(idx(arrays[name].astype(np.uint8)))
    fashion = load("fashionmnist", tmp_path, False)
    assert (fashion.shape, fashion.classes[1], fashion.augment) == ((1, 28, 28), "Trouser", False)
    assert (fashion.x_train[:, 0].numpy() == arrays["x_train"]).all()
    assert (fashion.y_test.numpy() == arrays["y_test"]).all()


def test_fashionmnist_from_packed_files_without_network(tmp_path, monkeypatch):
    from torchvision.datasets import FashionMNIST

    arrays = small((28, 28))
    raw = tmp_path / "FashionMNIST" / "raw"
    raw.mkdir(parents=True)
    resources = []
    for name, file in FASHION_FILES.items():
        packed = gzip.compress(idx(arrays[name].astype(np.uint8)))
        (raw / f"{file}.gz").write_bytes(packed)
        resources.append((f"{file}.gz", hashlib.md5(packed).hexdigest()))
    monkeypatch.setattr(FashionMNIST, "resources", resources)
    fashion = load("fashionmnist", tmp_path, True)
    assert (fashion.x_test[:, 0].numpy() == arrays["x_test"]).all()


def test_fashionmnist_cut_short(tmp_path):
    raw = tmp_path / "FashionMNIST" / "raw"
    raw.mkdir(parents=True)
    for file in FASHION_FILES.values():
        (raw / file).write_bytes(idx(np.zeros((4, 28, 28), np.uint8))[:-5])
    refused("data_dir: .*fashionmnist", load, "fashionmnist", tmp_path, False)


def test_svhn_from_mat_files(tmp_path, monkeypatch):
    from scipy.io import savemat
    from torchvision.datasets import SVHN

    arrays = small((32, 32, 3))
    split_list = {}
    for split in ("train", "test"):
        file = f"{split}_32x32.mat"
        labels = np.where(arrays[f"y_{split}"] == 0, 10, arrays[f"y_{split}"]).astype(np.uint8)
        images = arrays[f"x_{split}"].transpose(1, 2, 3, 0)
        savemat(tmp_path / file, {"X": images, "y": labels[:, None]})
        digest = hashlib.md5((tmp_path / file).read_bytes()).hexdigest()
        split_list[split] = ["unused", file, digest]
    monkeypatch.setattr(SVHN, "split_list", split_list)
    svhn = load("svhn", tmp_path, False)
    assert (svhn.shape, svhn.num_classes, svhn.augment) == ((3, 32, 32), 3, False)
    assert svhn.x_train.is_contiguous()
    assert (svhn.x_train.permute(0, 2, 3, 1).numpy() == arrays["x_train"]).all()
    assert (svhn.y_train.numpy() == arrays["y_train"]).all()


def test_cifar10_from_batch_files(tmp_path, monkeypatch):
    import pickle

    from torchvision.datasets import CIFAR10

    arrays = small((32, 32, 3))
    folder = tmp_path / CIFAR10.base_folder
    folder.mkdir()

    def write(file, content):
        (folder / file).write_bytes(pickle.dumps(content))
        return [file, hashlib.md5((folder / file).read_bytes()).hexdigest()]

    for split, listed in (("train", "train_list"), ("test", "test_list")):
        rows = arrays[f"x_{split}"].transpose(0, 3, 1, 2).reshape(-1, 3072)
        batch = {"data": rows, "labels": arrays[f"y_{split}"].tolist()}
        monkeypatch.setattr(CIFAR10, listed, [write(f"{split}_batch", batch)])
    digest = write("batches.meta", {"label_names": ["a", "b", "c"]})[1]
    monkeypatch.setattr(CIFAR10, "meta", CIFAR10.meta | {"md5": digest})
    cifar = load("cifar10", tmp_path, False)
    assert cifar.shape == (3, 32, 32) and cifar.augment and cifar.classes == ("a", "b", "c")
    assert (cifar.x_train.permute(0, 2, 3, 1).numpy() == arrays["x_train"]).all()


def test_a_set_with_the_parameter_train(tmp_path):
    raw = tmp_path / "KMNIST" / "raw"
    raw.mkdir(parents=True)
    images = {part: RNG.integers(0, 256, (20, 28, 28), np.uint8) for part in ("train", "t10k")}
    for part, held in images.items():
        (raw / f"{part}-images-idx3-ubyte").write_bytes(idx(held))
        (raw / f"{part}-labels-idx1-ubyte").write_bytes(idx(np.arange(20) % 10))
    held = load("torchvision:KMNIST", tmp_path, False)
    assert np.array_equal(held.x_train[:, 0].numpy(), images["train"])
    assert np.array_equal(held.x_test[:, 0].numpy(), images["t10k"])
    assert held.classes[:3] == ("o", "ki", "su") and held.y_test.tolist() == [*range(10)] * 2


def test_a_set_with_a_split_and_one_without_either(tmp_path):
    for part in ("train", "test"):
        pictures(tmp_path / "country211" / part, ("AD", "AE"), each=3)
    held = load("torchvision:Country211", tmp_path, False)
    assert held.classes == ("AD", "AE") and (len(held.y_train), len(held.y_test)) == (6, 6)
    pictures(tmp_path / "eurosat" / "2750", ("Forest", "River"))
    held = load("torchvision:EuroSAT", tmp_path, False, SHAPE, "stretch")
    assert held.shape == SHAPE and (len(held.y_train), len(held.y_test)) == (18, 2)


def test_a_set_of_several_names_which(tmp_path):
    raw = tmp_path / "EMNIST" / "raw"
    raw.mkdir(parents=True)
    for part in ("train", "test"):
        (raw / f"emnist-digits-{part}-images-idx3-ubyte").write_bytes(
            idx(np.full((20, 28, 28), 200))
        )
        (raw / f"emnist-digits-{part}-labels-idx1-ubyte").write_bytes(idx(np.arange(20) % 10))
    assert load("torchvision:EMNIST:digits", tmp_path, False).num_classes == 10


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("torchvision:KMNIST", "data_dir: .*torchvision's files of KMNIST, or download=true"),
        ("torchvision:EMNIST", "torchvision:EMNIST:SPLIT, as EMNIST has several"),
        ("torchvision:KMNIST:balanced", "expected torchvision:KMNIST$"),
        ("torchvision:Kuzushiji", "a data set of torchvision, such as torchvision:KMNIST"),
        ("torchvision:wrap_dataset_for_transforms_v2", "a data set of torchvision"),
    ],
)
def test_torchvision_s_sets_that_cannot_be_had(name, message, tmp_path):
    refused(message, load, name, tmp_path, False)

"""Partitions that Flower's own command saves, of a data set in a folder here."""

import datasets
import numpy as np
from flwr_datasets.cli.create import create
from PIL import Image
from sklearn.datasets import load_breast_cancer, load_digits

DIGITS = tuple(map(str, range(10)))


def partitions(held, folder, count=2):
    """Return the folders of `flwr-datasets create PLACE --num-partitions 2 --out-dir FOLDER`."""
    place = folder.with_name(f"{folder.name}-whole")
    place.mkdir()
    held.to_parquet(str(place / "train.parquet"))
    create(str(place), count, folder)
    return [folder / f"partition_{k}" for k in range(count)]


def digits(count=120, names=DIGITS):
    """Images of scikit-learn's digits; their labels number some names."""
    x, y = load_digits(return_X_y=True)
    images = [
        Image.fromarray(image) for image in (x[:count] * 15).astype(np.uint8).reshape(-1, 8, 8)
    ]
    labels = [names.index(str(label)) for label in y[:count]]
    kinds = {"image": datasets.Image(), "label": datasets.ClassLabel(names=list(names))}
    held = {"image": images, "label": labels}
    return datasets.Dataset.from_dict(held, features=datasets.Features(kinds))


def patients():
    """The table of scikit-learn's breast cancer; its classes have names."""
    held = datasets.Dataset.from_pandas(load_breast_cancer(as_frame=True).frame)
    return held.cast_column("target", datasets.ClassLabel(names=["malignant", "benign"]))

"""The experiment's data and model as the settings describe them, made once per process.

Server and clients compute the same split from the same settings; no data travel.
"""

from __future__ import annotations

from functools import lru_cache
from pathlib import Path

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional

from fedbary.data.image_layout import ImageLayout, parse_classes, parse_shape
from fedbary.data.images import Dataset, inputs, load
from fedbary.data.partition import keep_for_server, partition, split_holdout
from fedbary.data.shard import Shard
from fedbary.data.sites import Site, own_data
from fedbary.errors import SettingError
from fedbary.inference import prepare
from fedbary.models import build
from fedbary.seeds import derive_seed
from fedbary.settings.config import Settings

VALIDATION_FRACTION = 0.1

LUMINANCE = (0.299, 0.587, 0.114)
"""Weights of red, green and blue in an image's luminance, ITU-R BT.601."""


def torch_device(settings: Settings) -> torch.device:
    """Return the device to work on: for `auto` a GPU where there is one."""
    if settings.device == "cuda" and not torch.cuda.is_available():
        raise SettingError("device", "cuda", "auto or cpu, as there is no GPU that PyTorch can use")
    if settings.device == "auto":
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    return torch.device(settings.device)


def load_dataset(settings: Settings) -> Dataset:
    """Return the data set, read once per process."""
    return load(settings.dataset, Path(settings.data_dir), settings.download)


def task_of(settings: Settings) -> ImageLayout:
    """Return the task that the settings name, or else that of the data set.

    Raises
    ------
    SettingError
        If the two do not agree.
    """
    named_shape = parse_shape(settings.input_shape) if settings.input_shape != "auto" else None
    named_classes = parse_classes(settings.classes) if settings.classes != "auto" else None
    if settings.dataset == "none":
        return ImageLayout(parse_shape(settings.input_shape), parse_classes(settings.classes))
    dataset = load_dataset(settings)
    if named_shape is not None and named_shape != dataset.shape:
        shape = "x".join(map(str, dataset.shape))
        raise SettingError("input_shape", settings.input_shape, f"auto or {shape}, the data set's")
    if named_classes is not None and len(named_classes) != dataset.num_classes:
        allowed = f"auto, or {dataset.num_classes} classes, as the data set has"
        raise SettingError("classes", settings.classes, allowed)
    return ImageLayout(dataset.shape, named_classes or parse_classes(str(dataset.num_classes)))


def augments(settings: Settings) -> bool:
    """Whether training images of the data set are cropped and flipped."""
    return load_dataset(settings).augment if settings.augment == "auto" else settings.augment


def _dealt(settings: Settings) -> tuple[np.ndarray, np.ndarray]:
    """Training indices that clients may hold, and those that the server keeps to learn from."""
    seed = derive_seed(settings.seed, "server-data")
    return keep_for_server(_pool(settings)[0], settings.server_fraction, seed)


def _pool(settings: Settings) -> tuple[np.ndarray, np.ndarray]:
    """Training indices to be dealt, and those kept for validation (none for `test`)."""
    count = len(load_dataset(settings).y_train)
    if settings.evaluate_on == "test":
        return np.arange(count), np.arange(0)
    order = np.random.default_rng(derive_seed(settings.seed, "validation")).permutation(count)
    kept = int(count * VALIDATION_FRACTION)
    return np.sort(order[kept:]), np.sort(order[:kept])


@lru_cache(maxsize=4)
def evaluation_data(settings: Settings) -> tuple[Tensor, Tensor]:
    """Images and labels, on the device, on which the server and the clients score models."""
    dataset, device = load_dataset(settings), torch_device(settings)
    if settings.evaluate_on == "test":
        return dataset.x_test.to(device), dataset.y_test.to(device)
    kept = torch.from_numpy(_pool(settings)[1])
    return dataset.x_train[kept].to(device), dataset.y_train[kept].to(device)


@lru_cache(maxsize=4)
def ood_images(settings: Settings) -> Tensor | None:
    """Test images of `ood_dataset` in the shape of the data set, on the device; None for none.

    They are resized bilinearly; colours become their luminance, or grey becomes three channels.
    """
    if settings.ood_dataset == "none":
        return None
    other = load(settings.ood_dataset, Path(settings.data_dir), settings.download)
    channels, height, width = load_dataset(settings).shape
    images = inputs(other.x_test)
    if images.shape[1] > channels:
        images = (images * images.new_tensor(LUMINANCE).view(1, 3, 1, 1)).sum(1, keepdim=True)
    images = functional.interpolate(images, (height, width), mode="bilinear", antialias=True)
    return images.expand(-1, channels, -1, -1).contiguous().to(torch_device(settings))


@lru_cache(maxsize=4)
def client_indices(settings: Settings, clients: int) -> tuple[np.ndarray, ...]:
    """For each client the indices of its training examples, largest client first."""
    pool, _ = _dealt(settings)
    labels = load_dataset(settings).y_train.numpy()[pool]
    parts = partition(
        labels,
        settings.partition,
        clients,
        derive_seed(settings.seed, "partition"),
        alpha=settings.alpha,
        classes_per_client=settings.classes_per_client,
        min_examples=settings.min_examples,
    )
    return tuple(pool[part] for part in parts)


def server_shard(settings: Settings) -> Shard:
    """Return the training examples that the server keeps to learn from, on its device."""
    dataset, indices = load_dataset(settings), torch.from_numpy(_dealt(settings)[1])
    device = torch_device(settings)
    x, y = dataset.x_train[indices].to(device), dataset.y_train[indices].to(device)
    return Shard(x, y, x[:0], y[:0])


@lru_cache(maxsize=1024)
def client_shard(settings: Settings, clients: int, client: int) -> Shard:
    """Return one client's tensors, on its device, made once per process."""
    dataset = load_dataset(settings)
    indices = client_indices(settings, clients)[client]
    seed = derive_seed(settings.seed, "holdout", client)
    return _split(dataset.x_train, dataset.y_train, indices, settings, seed)


def _split(x: Tensor, y: Tensor, indices: np.ndarray, settings: Settings, seed: int) -> Shard:
    train, held_out = (torch.from_numpy(i) for i in split_holdout(indices, settings.holdout, seed))
    device = torch_device(settings)
    return Shard(
        x[train].to(device), y[train].to(device), x[held_out].to(device), y[held_out].to(device)
    )


@lru_cache(maxsize=4)
def site_shard(settings: Settings, site: Site, task: ImageLayout) -> Shard:
    """Return what a site trains on and holds out, on its device, made once per process.

    Raises
    ------
    SettingError
        If its data do not fit the task.
    """
    if site.partition is not None:
        dataset = load_dataset(settings)
        held = ImageLayout(dataset.shape, task.classes[: dataset.num_classes])
        if held != task or dataset.num_classes != len(task.classes):
            allowed = f"images of {task.shape} and {len(task.classes)} classes, as the server has"
            found = f"images of {dataset.shape} and {dataset.num_classes} classes"
            raise SettingError(settings.dataset, found, allowed)
        return client_shard(settings, site.partitions, site.partition)
    x, y = own_data(site.data_path, task)
    seed = derive_seed(settings.seed, "holdout", site.key)
    return _split(x, y, np.arange(len(y)), settings, seed)


def make_model(settings: Settings, task: ImageLayout | None = None) -> nn.Module:
    """Return the network for a task (default: the settings') on the device.

    It is initialised from the seed, and as the local method asks.
    """
    task = task or task_of(settings)
    model = build(
        settings.model,
        task.shape,
        len(task.classes),
        derive_seed(settings.seed, "model"),
        settings.bayesian_layers,
        settings.init_log_var,
        settings.model_dump(),
    )
    prepare(settings.inference, model)
    return model.to(torch_device(settings))

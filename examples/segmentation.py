"""A class for each pixel of an image: a task of one's own in one file.

    PYTHONPATH=examples fedbary simulate task=segmentation:Segmentation

Labels are masks (N, H, W); class 0 is the background. Predictions are the mean softmax of drawn
networks at each pixel, (N, H, W, classes). Scores are the mean intersection over union, and
accuracy, NLL, ECE and Brier score of the single pixels. `dataset` and `model` may be functions of
yours in place of `shapes` and `unet`; a site's own data are an ``.npz`` file of ``x`` and ``y``.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import lru_cache

import numpy as np
import torch
from torch import nn
from torch.nn import functional

from fedbary.data.batches import scale_pixels
from fedbary.data.images import Dataset
from fedbary.errors import SettingError
from fedbary.figures.sheet import SKY, sheet
from fedbary.parts.imports import call_own_function
from fedbary.parts.parameters import Checked, Count
from fedbary.tasks import Classes

KINDS = ("disc", "frame", "cross")
SHOWN = 6
"""Test images that are drawn with their masks."""


@dataclass(frozen=True)
class OfMasks(Checked):
    """Settings of the task.

    Parameters
    ----------
    pixels_at_once
        Most pixels of the images that networks answer together.
    """

    pixels_at_once: Count = 1 << 17


class Masks(Dataset):
    """Images with a mask each; they are dealt by their largest object."""

    @property
    def strata(self):
        """The class, besides 0, of most pixels of each mask, (N,)."""
        return most_seen(self.y_train)


class Segmentation(Classes):
    """Segmentation of images by networks that answer with a logit a class for each pixel."""

    Parameters = OfMasks
    defaults = {
        "dataset": f"{__name__}:shapes", "model": f"{__name__}:unet", "bayesian_layers": 1,
        "clients": 5, "rounds": 10, "lr": 0.1,
    }  # fmt: skip
    one_class = False
    limits = {**Classes.limits, "iou": (0.0, 1.0)}
    best_by = (*Classes.best_by, "iou")
    curves = (("iou", 100, "Mean IoU (%)", SKY), *Classes.curves[1:])

    @property
    def held(self):
        """The images and masks that the settings name."""
        return masks_of(self.settings.dataset)

    def strata(self, targets):
        """Return the class by which each image is dealt and counted."""
        return most_seen(targets)

    def network_answer(self, signature):
        """Return (classes, H, W)."""
        return (len(signature.classes), *signature.shape[1:])

    def at_once(self, x):
        """Return the number of images that networks answer at a time."""
        most = self.settings.of_task(OfMasks).pixels_at_once
        return min(super().at_once(x), max(1, most // x[0, 0].numel()))

    def adjusting(self, facts):
        """Return the function that puts classes last, (networks, batch, H, W, classes)."""
        return lambda answer: answer.movedim(2, -1)

    def judged(self, prediction, y):
        """Return the mean IoU beside the pixels' scores."""
        probs = prediction.probs
        iou = mean_iou(probs.argmax(-1), y.to(probs.device), probs.shape[-1])
        return {**super().judged(prediction, y), "iou": iou}

    def said(self, scores):
        """Return the mean IoU and the pixels' scores."""
        line = super().said(scores)
        return line if math.isnan(scores["iou"]) else f"IoU {100 * scores['iou']:.2f} %  {line}"

    def answers(self, prediction, signature):
        """Return each class's share of the pixels, and the pixels' mean uncertainties in nats."""
        found = functional.one_hot(prediction.probs.argmax(-1), len(signature.classes))
        shares = found.double().mean((1, 2)).cpu().numpy()
        return {
            **{f"share({name})": shares[:, k] for k, name in enumerate(signature.classes)},
            "total uncertainty": prediction.entropy.double().mean((1, 2)).cpu().numpy(),
            "epistemic uncertainty": prediction.epistemic.double().mean((1, 2)).cpu().numpy(),
        }

    def pictures(self, prediction, facts):
        """Yield the reliability diagram, and images with true and found masks and uncertainty."""
        yield from super().pictures(prediction, facts)
        held = self.evaluation_examples()
        found, unsure = prediction.probs[:SHOWN].argmax(-1), prediction.entropy[:SHOWN]
        yield "masks", masks_picture(held.x[:SHOWN], held.y[:SHOWN], found, unsure)


@lru_cache(maxsize=4)
def masks_of(dataset):
    """Return the images and masks of a function of that name, the same object each time."""
    arrays = call_own_function("dataset", dataset)
    parts = {name: torch.from_numpy(np.asarray(arrays[name])) for name in arrays if name[1] == "_"}
    for end in ("train", "test"):
        x, y = parts[f"x_{end}"], parts[f"y_{end}"].long()
        if x.ndim != 4 or y.shape != (len(x), *x.shape[2:]):
            said = f"{tuple(x.shape)} and {tuple(y.shape)}"
            raise SettingError("dataset", said, "images (N, C, H, W) and masks (N, H, W)")
        parts |= {f"x_{end}": x if x.dtype == torch.uint8 else x.float(), f"y_{end}": y}
    return Masks(dataset, **parts, classes=tuple(arrays["classes"]))


def most_seen(masks):
    """Return the class, besides 0, of most pixels of each mask (N, H, W); 0 where there is none."""
    highest = max(1, int(masks.max())) if masks.numel() else 1
    each = torch.stack([(masks == c).sum((1, 2)) for c in range(1, 1 + highest)])
    return torch.where(each.amax(0) > 0, 1 + each.argmax(0), 0)


def mean_iou(predicted, labels, classes):
    """Return the mean over the classes of intersection over union, TP / (TP + FP + FN).

    Pixels of all images count together. A class that is neither predicted nor true is left out.
    """
    both = torch.bincount(labels[predicted == labels].flatten(), minlength=classes).double()
    each = torch.bincount(torch.cat([predicted.flatten(), labels.flatten()]), minlength=classes)
    union = each - both
    return float((both / union)[union > 0].mean())


def masks_picture(images, labels, found, unsure):
    """Draw a row an image: itself, its mask, the predicted mask, the entropy of each pixel."""
    figure = sheet(6.0, 1.6 * len(images))
    rows = figure.subplots(len(images), 4, squeeze=False)
    of_class = {"cmap": "tab10", "vmin": 0, "vmax": 9, "interpolation": "nearest"}
    shown = zip(rows, scale_pixels(images).mean(1), labels, found.cpu(), unsure.cpu(), strict=True)
    for row, image, label, mask, entropy in shown:
        row[0].imshow(image.numpy(), cmap="gray")
        row[1].imshow(label.numpy(), **of_class)
        row[2].imshow(mask.numpy(), **of_class)
        row[3].imshow(entropy.numpy(), cmap="viridis", vmin=0)
        for axes in row:
            axes.set_axis_off()
    for axes, title in zip(rows[0], ("image", "label", "found", "entropy"), strict=True):
        axes.set_title(title, fontsize=9)
    return figure


def shapes():
    """Return 800 pictures for training and 200 for testing, 16×16, with up to three shapes each.

    Later shapes cover earlier ones. Their grey does not depend on their kind. The noise has the
    standard deviation 0.1.
    """
    rng = np.random.default_rng(0)
    x, masks = np.full((1000, 16, 16), 0.4), np.zeros((1000, 16, 16), np.int64)
    down, right = np.mgrid[:16, :16]
    for picture, mask in zip(x, masks, strict=True):
        for _ in range(rng.integers(0, 4)):
            kind, radius = rng.integers(1, 1 + len(KINDS)), rng.integers(2, 5)
            (y, z), grey = rng.integers(radius, 16 - radius, 2), rng.choice([0.1, 0.7, 0.9])
            a, b = np.abs(down - y), np.abs(right - z)
            inside = (
                a**2 + b**2 <= radius**2,
                np.maximum(a, b) == radius,
                (np.minimum(a, b) == 0) & (np.maximum(a, b) <= radius),
            )[kind - 1]
            picture[inside], mask[inside] = grey, kind
    x = np.clip(x + 0.1 * rng.standard_normal(x.shape), 0, 1)[:, None]
    held = {"x_train": x[:800], "y_train": masks[:800], "x_test": x[800:], "y_test": masks[800:]}
    return {**held, "classes": ("background", *KINDS)}


def unet(shape, outputs):
    """Return a small U-Net (Ronneberger, Fischer and Brox, MICCAI 2015) for sides of 4·n pixels."""
    return UNet(shape[0], outputs)


class UNet(nn.Module):
    """Two convolutions at full size, two at half and two at a quarter of it, and back up."""

    def __init__(self, colours, outputs, width=8):
        super().__init__()
        self.down = convolutions(colours, width)
        self.below = convolutions(width, 2 * width)
        self.bottom = convolutions(2 * width, 4 * width)
        self.above = convolutions(6 * width, 2 * width)
        self.up = convolutions(3 * width, width)
        self.answer = nn.Conv2d(width, outputs, 1)

    def forward(self, x):
        """Return a logit a class for each pixel, (batch, outputs, H, W)."""
        near = self.down(x)
        middle = self.below(functional.max_pool2d(near, 2))
        far = self.bottom(functional.max_pool2d(middle, 2))
        middle = self.above(torch.cat([middle, functional.interpolate(far, scale_factor=2)], 1))
        near = self.up(torch.cat([near, functional.interpolate(middle, scale_factor=2)], 1))
        return self.answer(near)


def convolutions(channels, width):
    """Return two convolutions; group norm has no running moments, which would be one client's."""
    layers = []
    for first in (channels, width):
        convolution = nn.Conv2d(first, width, 3, padding=1, bias=False)
        nn.init.kaiming_normal_(convolution.weight)
        layers += [convolution, nn.GroupNorm(8, width), nn.ReLU()]
    return nn.Sequential(*layers)

"""Images with the class of each pixel, true and predicted, and its uncertainty."""

from __future__ import annotations

from typing import TYPE_CHECKING

from torch import Tensor

from fedbary.data.batches import inputs
from fedbary.figures.sheet import sheet

if TYPE_CHECKING:
    from matplotlib.figure import Figure


def masks_picture(images: Tensor, labels: Tensor, found: Tensor, unsure: Tensor) -> Figure:
    """Draw a row an image: itself, its mask, the predicted mask, the entropy of each pixel in nats.

    Parameters
    ----------
    images
        (N, C, H, W), bytes or floats.
    labels, found
        Classes of pixels, (N, H, W), int64.
    unsure
        (N, H, W).
    """
    figure = sheet(6.0, 1.6 * len(images))
    rows = figure.subplots(len(images), 4, squeeze=False)
    highest = max(1, int(labels.max()), int(found.max()))
    classes = {"cmap": "tab10", "vmin": 0, "vmax": max(9, highest), "interpolation": "nearest"}
    seen = inputs(images.cpu()).mean(1)
    for row, image, label, mask, entropy in zip(
        rows, seen, labels.cpu(), found.cpu(), unsure.cpu(), strict=True
    ):
        row[0].imshow(image.numpy(), cmap="gray")
        row[1].imshow(label.numpy(), **classes)
        row[2].imshow(mask.numpy(), **classes)
        row[3].imshow(entropy.numpy(), cmap="viridis", vmin=0)
        for axes in row:
            axes.set_axis_off()
    for axes, title in zip(rows[0], ("image", "label", "found", "entropy"), strict=True):
        axes.set_title(title, fontsize=9)
    return figure

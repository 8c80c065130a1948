"""What a test looks for in a picture: its pixels, its legend, texts that overlap."""

import io
import itertools

import numpy as np
from PIL import Image


def picture(figure) -> np.ndarray:
    """The pixels that the figure is written as; nothing of it is cut off at the border."""
    file = io.BytesIO()
    figure.savefig(file, format="png")
    with Image.open(file) as image:
        pixels = np.asarray(image.convert("RGB"))
    assert pixels.shape[:2] == tuple((figure.get_size_inches() * 160).round()[::-1])
    border = np.concatenate([pixels[0], pixels[-1], pixels[:, 0], pixels[:, -1]])
    assert (border == 255).all()
    return pixels


def legend(figure) -> list[str]:
    (found,) = figure.legends
    return [text.get_text() for text in found.get_texts()]


def assert_no_text_overlaps(figure):
    figure.draw_without_rendering()
    boxes = []
    for axes in figure.axes:
        texts = [*axes.texts, axes.title, axes.xaxis.label, axes.yaxis.label]
        boxes += [text.get_window_extent() for text in texts if text.get_text()]
    boxes += [found.get_window_extent() for found in figure.legends]
    assert boxes
    for one, two in itertools.combinations(boxes, 2):
        assert not one.overlaps(two)

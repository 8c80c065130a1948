"""What a test looks for in a picture: its pixels, its legend."""

import io

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

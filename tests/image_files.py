"""Files of pictures."""

import numpy as np
from PIL import Image

RNG = np.random.default_rng(0)
SHAPE = (3, 12, 12)


def picture(side=9, grey=False):
    return Image.fromarray(RNG.integers(0, 256, (side, side, *([] if grey else [3])), np.uint8))


def pictures(folder, classes=("cat", "dog"), each=10, **how):
    for name in classes:
        (folder / name).mkdir(parents=True)
        for number in range(each):
            picture(**how).save(folder / name / f"{number}.png")
    return folder


def small(images=(8, 8), n=12, m=6, dtype=np.uint8):
    """Four arrays of a data set with three classes."""
    scale = 255 if dtype == np.uint8 else 1
    return {
        "x_train": (RNG.random((n, *images)) * scale).astype(dtype),
        "y_train": np.arange(n) % 3,
        "x_test": (RNG.random((m, *images)) * scale).astype(dtype),
        "y_test": np.arange(m) % 3,
    }

"""Images and labels to train on and to test on, as the four arrays of a data set."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from fedbary.data.image_folder import LabelledImages
from fedbary.data.tables._split import tenth_of_each_class
from fedbary.seeds import derive_seed


def arrays_of(
    classes: Sequence[str], train: LabelledImages, test: LabelledImages | None
) -> dict[str, Any]:
    """Return the four arrays and the classes' names; without a test part as `parted` has them."""
    if test is None:
        return {**parted(*train), "classes": classes}
    x, y = train
    return {"x_train": x, "y_train": y, "x_test": test[0], "y_test": test[1], "classes": classes}


def parted(x: np.ndarray, y: np.ndarray) -> dict[str, np.ndarray]:
    """Return the four arrays of examples of which a tenth of each class is tested, always alike."""
    tested = tenth_of_each_class(y, np.random.default_rng(derive_seed(0, "split")))
    return {"x_train": x[~tested], "y_train": y[~tested], "x_test": x[tested], "y_test": y[tested]}

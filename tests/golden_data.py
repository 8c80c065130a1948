"""Small data of golden runs, as `dataset=golden_data:…` names them: the same rows everywhere.

Numbers are whole before they are divided, so that no processor rounds them otherwise.
"""

import random

import numpy as np
import pandas as pd

ROWS, TEST = 60, 20


def _columns(rows, width):
    """Return columns of normal shape: sums of twelve dice, as whole numbers, over 8."""
    dice = random.Random(7)
    whole = [[sum(dice.randrange(8) for _ in range(12)) for _ in range(width)] for _ in range(rows)]
    return (np.array(whole) - 42) / 8


def _split(x, y):
    return {"x_train": x[:ROWS], "y_train": y[:ROWS], "x_test": x[ROWS:], "y_test": y[ROWS:]}


def classes():
    """Return rows of four columns in three classes."""
    table = _table(4)
    return table.assign(y=(table["a"] + table["b"] > 0).astype(int) + (table["c"] > 0.5))


def numbers():
    """Return rows of four columns with a number."""
    table = _table(5)
    return table.assign(y=table["a"] - table["b"] / 2 + table["e"] / 4).drop(columns="e")


def _table(width):
    return pd.DataFrame(_columns(ROWS + TEST, width), columns=list("abcde"[:width]))


def images():
    """Return grey images of 6 × 6 pixels in three classes: the bright third."""
    x = 16 * (_columns(ROWS + TEST, 36).reshape(-1, 6, 6) + 6)
    y = np.arange(ROWS + TEST) % 3
    for image, label in zip(x, y, strict=True):
        image[2 * label : 2 * label + 2] += 40
    return _split(x.clip(0, 255).astype(np.uint8), y)

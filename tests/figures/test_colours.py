"""Everyone tells the colours apart."""

import itertools

import numpy as np
import pytest

from fedbary.figures.sheet import COLORS


@pytest.mark.parametrize("vision", ["normal", "protan", "deutan"])
def test_colours_differ_for_everyone(vision):
    """In CIELAB, after the dichromat's view by Machado et al. (2009); 10 is plain to see."""
    see = {
        "normal": np.eye(3),
        "protan": [
            [0.152286, 1.052583, -0.204868],
            [0.114503, 0.786281, 0.099216],
            [-0.003882, -0.048116, 1.051998],
        ],
        "deutan": [
            [0.367322, 0.860646, -0.227968],
            [0.280085, 0.672501, 0.047413],
            [-0.011820, 0.042940, 0.968881],
        ],
    }[vision]
    codes = [[int(c[i : i + 2], 16) / 255 for i in (1, 3, 5)] for c in COLORS]
    srgb = np.array(codes)
    linear = np.where(srgb <= 0.04045, srgb / 12.92, ((srgb + 0.055) / 1.055) ** 2.4)
    to_xyz = [[0.4124, 0.3576, 0.1805], [0.2126, 0.7152, 0.0722], [0.0193, 0.1192, 0.9505]]
    xyz = np.clip(linear @ np.transpose(see), 0, 1) @ np.transpose(to_xyz) / [0.9505, 1, 1.089]
    f = np.where(xyz > 0.008856, np.cbrt(xyz), 7.787 * xyz + 16 / 116)
    lab = np.stack([116 * f[:, 1] - 16, 500 * (f[:, 0] - f[:, 1]), 200 * (f[:, 1] - f[:, 2])], 1)
    pairs = itertools.combinations(lab, 2)
    assert min(np.linalg.norm(one - two) for one, two in pairs) > 10

"""Sites' own files, cut from the digits."""

from pathlib import Path

import numpy as np
from PIL import Image

from fedbary.data.images import load


def cut(folder: Path) -> list[Path]:
    """Write three sites' own files, two .npz (the second laid out for training) and a folder."""
    digits = load("digits", folder, False)
    x, y = (digits.x_train[:, 0] * 255).byte().numpy(), digits.y_train.numpy()
    np.savez(folder / "a.npz", x=x[:400], y=y[:400])
    np.savez(folder / "b.npz", x_train=x[400:900], y_train=y[400:900])
    for index in range(900, 1200):
        (folder / "c" / str(y[index])).mkdir(parents=True, exist_ok=True)
        Image.fromarray(x[index]).save(folder / "c" / str(y[index]) / f"{index}.png")
    return [folder / "a.npz", folder / "b.npz", folder / "c"]

"""Cut three sites' own files out of the handwritten digits, to try a deployment on one machine.

    python examples/deployment/cut_sites.py FOLDER [STEP]

writes FOLDER/north.npz and FOLDER/south.npz, and FOLDER/west, a folder of images for each class.
With STEP, 2 or 3, these are new images: every second or third digit, moved by a pixel or two.
"""

import shutil
import sys
from pathlib import Path

import numpy as np
from PIL import Image
from sklearn.datasets import load_digits


def main() -> None:
    """Write the files."""
    folder = Path(sys.argv[1])
    step = int(sys.argv[2]) if len(sys.argv) > 2 else 1
    digits = load_digits()
    images, labels = (digits.images * 255 / 16).astype(np.uint8), digits.target
    images = np.roll(images, step - 1, axis=2)
    folder.mkdir(parents=True, exist_ok=True)
    for name, part in (("north", slice(0, 600, step)), ("south", slice(600, 1300, step))):
        np.savez(folder / f"{name}.npz", x=images[part], y=labels[part])
    shutil.rmtree(folder / "west", ignore_errors=True)
    for number in range(1300, len(labels), step):
        place = folder / "west" / str(labels[number])
        place.mkdir(parents=True, exist_ok=True)
        Image.fromarray(images[number]).save(place / f"{number}.png")


if __name__ == "__main__":
    main()

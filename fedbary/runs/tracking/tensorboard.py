"""TensorBoard: event files in `tensorboard` in the run folder; `tensorboard --logdir runs`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import yaml
from safetensors.numpy import load_file

if TYPE_CHECKING:
    from fedbary.runs.tracking import Export

LIBRARY = "torch.utils.tensorboard"


class Tracker:
    """Writes scalars, settings as text, pictures as images, and the posterior's histograms."""

    reopens = False

    def __init__(self, folder: Path, settings: Mapping[str, Any]) -> None:
        from torch.utils.tensorboard import SummaryWriter

        self._writer = SummaryWriter(str(folder / "tensorboard"))
        listed = yaml.safe_dump({**settings}, sort_keys=False)
        self._writer.add_text("settings", "    " + listed.replace("\n", "\n    "))
        self._step = 0

    def scalars(self, values: Mapping[str, float], step: int) -> None:
        """Write a round's numbers."""
        self._step = step
        for name, value in values.items():
            self._writer.add_scalar(name, value, step)
        self._writer.flush()

    def stop(self, killed: bool) -> None:
        """Close the file, in which the rounds stand."""
        self._writer.close()

    def end(self, pictures: Sequence[Path], posterior: Path, export: Export) -> None:
        """Write pictures and the histogram of every tensor of the posterior."""
        from PIL import Image

        for picture in pictures:
            pixels = np.asarray(Image.open(picture).convert("RGB"))
            self._writer.add_image(picture.stem, pixels, self._step, dataformats="HWC")
        for name, tensor in load_file(posterior).items():
            self._writer.add_histogram(f"posterior/{name}", tensor, self._step)
        self._writer.close()

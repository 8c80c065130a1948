"""Pixels that are no pixels, or not those of training, are refused or said, never seen as black."""

from types import SimpleNamespace

import numpy as np
import pytest
import torch
from refusals import refused

from fedbary.data.image_examples import own_data, read_images
from fedbary.data.image_layout import ImageLayout
from fedbary.data.images import load
from fedbary.settings.config import resolve
from fedbary.tasks._images import compared
from fedbary.trained.run import Trained

CHANCE = np.random.default_rng(0)
LAYOUT = ImageLayout((1, 8, 8), ("0", "1"))
LABELS = np.arange(12) % 2


def pixels(most, dtype=np.uint8):
    x = CHANCE.integers(0, most + 1, (12, 8, 8))
    x[0, 0, 0] = most
    return x.astype(dtype)


@pytest.mark.parametrize("most", [1, 2, 9, 15, 16])
def test_counts_and_ink_in_bytes_are_refused_everywhere(most, tmp_path):
    x, good = pixels(most), pixels(255)
    for name, (train, test) in {"a": (x, x), "b": (x, good), "c": (good, x)}.items():
        file = tmp_path / f"{name}.npz"
        np.savez(file, x_train=train, y_train=LABELS, x_test=test, y_test=LABELS)
        refused("bytes of at most 16'; expected .*x / x.max", load, str(file), tmp_path, False)
    np.savez(tmp_path / "own.npz", x=x, y=LABELS)
    refused("x: 'bytes of at most 16'", own_data, str(tmp_path / "own.npz"), LAYOUT)
    refused("own.npz: 'bytes of at most 16'", read_images, tmp_path / "own.npz", LAYOUT)
    np.savez(tmp_path / "one.npz", x=x[:1])
    assert read_images(tmp_path / "one.npz", LAYOUT).x.max() == most


@pytest.mark.parametrize(
    ("x", "said"),
    [(pixels(255), 0), (pixels(63), 1), (pixels(1, float), 0), (pixels(9, float) / 255, 1)],
)
def test_dark_images_are_said(x, said, tmp_path):
    np.savez(tmp_path / "a.npz", x_train=x, y_train=LABELS, x_test=x, y_test=LABELS)
    notes = load(str(tmp_path / "a.npz"), tmp_path, False).notes
    assert len(notes) == said and all("all images are dark" in note for note in notes)


BYTES = {"type": "uint8", "least": 0, "most": 255}
FLOATS = {"type": "float32", "least": 0.0, "most": 1.0}
STANDARD = {"type": "float32", "least": -2.1, "most": 2.8}


@pytest.mark.parametrize("said", [BYTES, FLOATS])
@pytest.mark.parametrize(
    ("x", "verdict"),
    [
        (pixels(255), ""), (pixels(255) / 255, ""), (pixels(100), ""),
        (pixels(1), "narrow"), (pixels(16) / 255, "narrow"), (pixels(255) / 255 * 4 - 2, "refused"),
        (pixels(9, float), "refused"), (pixels(255) / 255 * 1.2 - 0.1, ""),
    ],
)  # fmt: skip
def test_the_range_of_what_is_predicted_is_that_of_training(said, x, verdict):
    held = torch.from_numpy(x)[:, None]
    if verdict == "refused":
        refused(
            "images: 'pixels from .* to .*'; expected 0 to 1, as in training", compared, held, said
        )
    else:
        assert len(compared(held, said)) == (verdict == "narrow")


def test_bytes_are_not_what_standardised_floats_were():
    held = torch.from_numpy(pixels(255))[:, None]
    refused(
        "'bytes, pixels from 0 to 1'; expected floats from -2.1 to 2.8", compared, held, STANDARD
    )
    assert compared(held.float() / 60 - 2, STANDARD) == ()


def test_a_run_s_model_compares_what_it_reads(tmp_path):
    np.savez(tmp_path / "a.npz", x=pixels(255) / 255 * 4 - 2)
    data = SimpleNamespace(said=BYTES)
    trained = Trained(None, None, resolve({}), LAYOUT, {}, [], data)
    refused("expected 0 to 1, as in training", trained.read, tmp_path / "a.npz")
    np.savez(tmp_path / "a.npz", x=pixels(20))
    assert "as in training" in trained.read(tmp_path / "a.npz").notes[0]

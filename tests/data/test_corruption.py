"""Corrupted images are what their names say, more so with every strength, and the same again."""

import pytest
import torch
from runs_of import lines

from fedbary.data.batches import (
    CONTRAST,
    CORRUPTIONS,
    NOISE_STD,
    STRENGTHS,
    corrupted,
    require_pixels,
)
from fedbary.errors import SettingError
from fedbary.server_app.engine.inline import run_inline
from fedbary.settings.config import resolve

IMAGES = 0.5 + 0.05 * torch.randn(40, 3, 32, 32, generator=torch.Generator().manual_seed(0))


@pytest.mark.parametrize("kind", CORRUPTIONS)
def test_each_strength_changes_an_image_more_and_within_its_bounds(kind):
    made = [corrupted(IMAGES, kind, strength, seed=1) for strength in STRENGTHS]
    distances = [float((other - IMAGES).square().mean()) for other in made]
    assert distances == sorted(distances) and distances[0] > 0
    assert all(0 <= other.min() and other.max() <= 1 for other in made)
    assert torch.equal(corrupted(IMAGES, kind, 2, seed=1), made[2])
    assert torch.equal(corrupted(IMAGES, kind, 2, seed=2), made[2]) == (kind != "noise")
    flat = torch.full((1, 1, 8, 8), 0.5)
    assert torch.allclose(corrupted(flat, kind, 4, 0), flat) == (kind != "noise")


def test_noise_and_contrast_have_their_strengths():
    for strength in STRENGTHS:
        noise = corrupted(IMAGES, "noise", strength, 0) - IMAGES
        assert float(noise.std()) == pytest.approx(NOISE_STD[strength], rel=0.02)
        spread = corrupted(IMAGES, "contrast", strength, 0).std((-2, -1)) / IMAGES.std((-2, -1))
        assert torch.allclose(spread, torch.full_like(spread, CONTRAST[strength]), rtol=1e-3)


def test_images_beyond_0_to_1_are_refused():
    require_pixels(IMAGES.clamp(0, 1))
    with pytest.raises(SettingError, match="corruptions: True; expected false for images from"):
        require_pixels(IMAGES - 1)


@pytest.mark.slow
def test_a_run_is_scored_on_them_after_its_last_round(tmp_path):
    chosen = resolve({
        "engine": "inline", "pictures": False, "device": "cpu", "model": "mlp",
        "bayesian_layers": 1, "rounds": 2, "corruptions": True,
    })  # fmt: skip
    run_inline(chosen, tmp_path / "run")
    before, last = lines(tmp_path / "run")[1:]
    assert "corrupted" not in before
    found = last["corrupted"]
    assert found.keys() == CORRUPTIONS.keys()
    assert all(scores.keys() == set("12345") for scores in found.values())
    assert found["contrast"]["5"]["nll"] > last["nll"]

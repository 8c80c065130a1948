"""Batches of images: drawn, augmented, scaled."""

import numpy as np
import pytest
import torch

from fedbary.data.batches import batch_source, draw_crops, scale_pixels


def test_inputs_scales_bytes_and_keeps_floats():
    image = torch.tensor([0, 51, 255], dtype=torch.uint8)
    assert torch.equal(scale_pixels(image), torch.tensor([0, 0.2, 1]))
    assert image.tolist() == [0, 51, 255]
    floats = torch.tensor([-3.0, 0.5])
    assert torch.equal(scale_pixels(floats), floats)


def images(n=40, side=12, channels=3):
    generator = torch.Generator().manual_seed(0)
    return torch.randint(256, (n, channels, side, side), generator=generator, dtype=torch.uint8)


def taken(x, augment, indices, generator):
    """A batch, with crops from a generator, where the images lie."""
    crops = draw_crops(len(indices), augment, generator)
    return batch_source(x, augment)(indices.to(x.device), crops.to(x.device))


def test_plain_batches_are_rows():
    x, generator = images(), torch.Generator().manual_seed(1)
    before = generator.get_state()
    indices = torch.tensor([3, 3, 0])
    assert torch.equal(taken(x, False, indices, generator), x[indices])
    assert torch.equal(generator.get_state(), before)


def views_of(image: np.ndarray) -> dict[bytes, tuple[int, int, bool]]:
    """Every flipped and shifted view of an image, built one at a time."""
    views = {}
    side = image.shape[-1]
    for flip in (False, True):
        turned = image[..., ::-1] if flip else image
        padded = np.pad(turned, ((0, 0), (4, 4), (4, 4)), mode="reflect")
        for top in range(9):
            for left in range(9):
                crop = padded[:, top : top + side, left : left + side]
                views[crop.tobytes()] = (top, left, flip)
    return views


def test_augmented_images_are_crops_of_the_padded_image():
    x, generator = images(n=3), torch.Generator().manual_seed(1)
    original = x.clone()
    views = [views_of(image.numpy()) for image in x]
    assert all(len(view) == 162 for view in views)
    indices = torch.arange(1500) % 3
    batch = taken(x, True, indices, generator)
    assert batch.shape == (1500, 3, 12, 12) and batch.dtype == torch.uint8
    assert scale_pixels(batch).is_contiguous()
    seen = [views[i][crop.numpy().tobytes()] for i, crop in zip(indices, batch, strict=True)]
    assert len(set(seen)) == 162
    flips = np.mean([flip for *_, flip in seen])
    assert abs(flips - 0.5) < 0.05
    assert torch.equal(x, original)


def test_crops_alone_and_flips_alone():
    x, indices = images(n=1, side=12), torch.zeros(1500, dtype=torch.long)
    (views,) = (views_of(image.numpy()) for image in x)
    seen = {
        augment: {
            views[image.numpy().tobytes()]
            for image in taken(x, augment, indices, torch.Generator().manual_seed(1))
        }
        for augment in ("crop", "flip")
    }
    assert seen["crop"] == {view for view in views.values() if not view[2]}
    assert seen["flip"] == {views[x[0].numpy().tobytes()], views[x[0].flip(-1).numpy().tobytes()]}


def test_one_image_twice_in_a_batch_gets_two_crops():
    batch = taken(images(), True, torch.zeros(64, dtype=torch.long), torch.Generator())
    assert len({crop.numpy().tobytes() for crop in batch}) > 20


def test_crops_follow_the_generator():
    x, indices = images(), torch.arange(20)
    first, again, other = (
        taken(x, True, indices, torch.Generator().manual_seed(seed)) for seed in (1, 1, 2)
    )
    assert torch.equal(first, again) and not torch.equal(first, other)


def test_crops_do_not_depend_on_the_memory_format():
    x, indices = images(), torch.arange(40)
    rows, pixels = (
        taken(x.to(memory_format=memory_format), True, indices, torch.Generator())
        for memory_format in (torch.contiguous_format, torch.channels_last)
    )
    assert torch.equal(rows, pixels)


def test_augmentation_of_floats_and_oblong_images():
    x = torch.rand(5, 1, 8, 20)
    batch = taken(x, True, torch.arange(5), torch.Generator())
    assert batch.shape == x.shape and batch.dtype == torch.float32
    assert set(batch[2].unique().tolist()) <= set(x[2].unique().tolist())


@pytest.mark.cuda
def test_crops_do_not_depend_on_the_device():
    x, indices = images(), torch.arange(40)
    on_cpu, on_gpu = (
        taken(x.to(device), True, indices, torch.Generator().manual_seed(1))
        for device in ("cpu", "cuda")
    )
    assert on_gpu.is_cuda and torch.equal(on_cpu, on_gpu.cpu())

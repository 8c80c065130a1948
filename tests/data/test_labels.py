"""What labels look like: read, refused and dealt, of each kind."""

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from fedbary.data.images import load, names
from fedbary.data.labels import CLASSES, MASKS, SETS
from fedbary.errors import SettingError

KINDS = {"classes": CLASSES, "masks": MASKS, "sets": SETS}


def arrays(kind, seed=0, count=12):
    """Four arrays of 6×8 images with random labels of three classes."""
    rng = np.random.default_rng(seed)
    shape = {"classes": (), "masks": (6, 8), "sets": (3,)}[kind]
    found = {}
    for part in ("train", "test"):
        found[f"x_{part}"] = rng.random((count, 6, 8))
        found[f"y_{part}"] = rng.integers(0, 2 if kind == "sets" else 3, (count, *shape))
    found["y_train"].flat[0] = found["y_test"].flat[0] = 1 if kind == "sets" else 2
    found["y_train"].flat[-1] = 0
    return found


@pytest.mark.parametrize("kind", KINDS)
@settings(deadline=None, max_examples=10)
@given(seed=st.integers(0, 999))
def test_a_file_gives_back_its_labels_and_strata_are_classes(kind, seed, tmp_path_factory):
    labels, given = KINDS[kind], arrays(kind, seed)
    path = tmp_path_factory.mktemp("data") / "mine.npz"
    np.savez(path, **given)
    held = load(str(path), path.parent, False, labels=labels)
    assert held.num_classes == 3
    assert (held.y_train.numpy() == given["y_train"]).all()
    assert held.strata.shape == (12,) and 0 <= int(held.strata.min()) <= int(held.strata.max()) < 3
    counts = labels.counts(held.y_train, 3).tolist()
    expected = held.y_train.sum(0) if kind == "sets" else torch.bincount(held.y_train.flatten())
    assert counts == expected.tolist()


def test_a_mask_is_dealt_by_its_largest_object_and_a_set_by_its_first_label():
    masks = torch.zeros(4, 3, 3, dtype=torch.int64)
    masks[1, 0, 0], masks[2, 0], masks[2, 1, :2], masks[3] = 2, 1, 2, 3
    assert MASKS.strata(masks).tolist() == [0, 2, 1, 3]
    assert MASKS.strata(masks[:1]).tolist() == [0]
    assert SETS.strata(torch.tensor([[0, 1, 1], [1, 0, 1], [0, 0, 0]])).tolist() == [1, 0, 0]


@pytest.mark.parametrize("kind", ["masks", "sets"])
def test_floats_that_are_whole_numbers_are_labels(kind, tmp_path):
    labels = {part: array for part, array in arrays(kind).items() if part[0] == "y"}
    floats = {part: array.astype(np.float32) for part, array in labels.items()}
    np.savez(tmp_path / "mine.npz", **(arrays(kind) | floats))
    held = load(str(tmp_path / "mine.npz"), tmp_path, False, labels=KINDS[kind])
    assert held.y_train.tolist() == labels["y_train"].tolist()


@pytest.mark.parametrize(
    ("kind", "change", "said"),
    [
        ("masks", {"y_train": np.zeros(12, int)}, "y_train: 'int64 of 1 dim.*each pixel"),
        ("masks", {"y_test": np.zeros((12, 8, 6), int)}, "y_test: '8×6'; expected 6×8"),
        ("masks", {"y_test": np.full((12, 6, 8), 3)}, "y_test: 3; expected labels .* 0 to 2"),
        ("masks", {"y_train": np.full((12, 6, 8), 0.5)}, "float64 of 3 dimensions"),
        ("masks", {"y_train": np.full((12, 6, 8), 255)}, "y_train: 255; .* divide masks of 0 and"),
        ("masks", {"classes": np.array(["a", "b"])}, "2 names for labels up to 2"),
        ("sets", {"y_train": np.zeros(12, int)}, "y_train: 'int64 of 1 dim.* 0 and 1"),
        ("sets", {"y_train": np.full((12, 3), 2)}, "y_train: 2; expected 0 or 1"),
        ("sets", {"y_train": np.full((12, 3), -1)}, "y_train: -1; expected labels from 0"),
        ("sets", {"y_test": np.zeros((12, 4), int)}, "y_test: 3; expected labels of the training"),
        ("sets", {"y_train": np.full((12, 3), "a")}, "y_train: '<U1 of 2 dim"),
        ("classes", {"y_train": np.zeros((12, 6, 8), int)}, "one dimension of integers"),
    ],
)
def test_labels_of_another_look_are_refused_in_a_line(kind, change, said, tmp_path):
    np.savez(tmp_path / "mine.npz", **(arrays(kind) | change))
    with pytest.raises(SettingError, match=said):
        load(str(tmp_path / "mine.npz"), tmp_path, False, labels=KINDS[kind])


@pytest.mark.slow
def test_shapes_are_in_sight_where_their_masks_are(tmp_path):
    masks, sets = (load("shapes", tmp_path, False, labels=k) for k in (MASKS, SETS))
    assert torch.equal(masks.x_train, sets.x_train)
    for kind, name in enumerate(sets.classes):
        there = (masks.y_test == masks.classes.index(name)).flatten(1).any(1)
        assert torch.equal(there, sets.y_test[:, kind] == 1)
    assert "shapes" in names(MASKS) and "shapes" in names(SETS) and "shapes" not in names()

"""Features on disk: those that were computed, or they are computed anew; for the owner alone."""

import os
import random
import stat

import pytest
import torch
from safetensors.torch import load_file, save_file

from fedbary.backbones._store import Store
from fedbary.runs.whole import write_tensors

X = torch.randn(6, 2, 3, generator=torch.Generator().manual_seed(0))
OF = f"digest {(2, 3)} {X.dtype}"


def made(x):
    """The features of inputs: rows are told apart."""
    return torch.stack([x.flatten(1).sum(1), x.flatten(1).amax(1)], 1)


@pytest.fixture
def file(tmp_path):
    """The only file of a folder of features."""
    assert torch.equal(Store(tmp_path, "digest").features(X, made), made(X))
    (found,) = tmp_path.rglob("*.safetensors")
    return found


def passes(tmp_path, digest="digest"):
    """How many inputs are computed where features of all were kept; they are right in any case."""
    passed = []

    def counting(x):
        passed.append(len(x))
        return made(x)

    assert torch.equal(Store(tmp_path, digest).features(X, counting), made(X))
    return sum(passed)


def test_what_was_kept_is_not_computed_again_and_the_owner_alone_may_read_it(file, tmp_path):
    assert passes(tmp_path) == 0
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    for folder in (file.parents[0], file.parents[1], file.parents[2]):
        assert stat.S_IMODE(folder.stat().st_mode) == 0o700
    assert file.parents[2] == tmp_path / "features"


def test_an_open_folder_is_closed(tmp_path):
    (tmp_path / "features").mkdir(mode=0o755)
    passes(tmp_path)
    assert stat.S_IMODE((tmp_path / "features").stat().st_mode) == 0o700


def test_any_flipped_bit_is_noticed(file, tmp_path, caplog):
    whole, rng = file.read_bytes(), random.Random(0)
    for place in rng.sample(range(8 * len(whole)), 200):
        spoilt = bytearray(whole)
        spoilt[place // 8] ^= 1 << place % 8
        file.write_bytes(spoilt)
        assert passes(tmp_path) == len(X), place
        assert "computed anew" in caplog.text
        caplog.clear()


def spoilt_with_digest(change):
    def spoil(file):
        write_tensors(file, change(load_file(file)), {"of": OF})

    return spoil


def with_features(change):
    return spoilt_with_digest(lambda held: {**held, "features": change(held["features"])})


def piped(file):
    file.unlink()
    os.mkfifo(file)


def with_nan(features):
    return features.index_fill(0, torch.tensor([3]), torch.nan)


SPOILS = {
    "a pipe": piped,
    "no digest": lambda file: save_file(load_file(file), file),
    "cut": lambda file: file.write_bytes(file.read_bytes()[:-9]),
    "nan": with_features(with_nan),
    "another type": with_features(lambda features: features.double()),
    "fewer features": with_features(lambda features: features[:-1]),
    "one dimension": with_features(lambda features: features[:, 0].clone()),
    "rows of two dimensions": spoilt_with_digest(lambda h: {**h, "rows": h["rows"][:, None]}),
    "rows of floats": spoilt_with_digest(lambda h: {**h, "rows": h["rows"].double()}),
    "no rows": spoilt_with_digest(lambda h: {"features": h["features"]}),
}


@pytest.mark.parametrize("name", SPOILS)
def test_a_file_that_is_not_as_it_was_written_is_computed_anew(name, file, tmp_path, caplog):
    SPOILS[name](file)
    assert passes(tmp_path) == len(X)
    assert "computed anew" in caplog.text


def test_a_file_of_another_backbone_does_not_serve(file, tmp_path):
    other = tmp_path / "features" / "other" / file.parent.name
    other.mkdir(parents=True)
    file.rename(other / file.name)
    assert passes(tmp_path, "other") == len(X)


def test_files_of_unlike_widths_are_computed_anew(file, tmp_path):
    held = load_file(file)
    wide = torch.cat([held["features"], held["features"]], 1)
    some = {"rows": held["rows"][:2].clone(), "features": wide[:2].clone()}
    write_tensors(file.with_name("0.safetensors"), some, {"of": OF})
    assert passes(tmp_path) == len(X)

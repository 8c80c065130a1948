"""Data and model of a run follow from its settings alone."""

import numpy as np
import pytest
import torch
from runs_of import network

from fedbary.data import deal
from fedbary.seeds import derive_seed
from fedbary.settings.config import resolve
from fedbary.tasks import task_of
from fedbary.tasks._images import augments, load_dataset, ood_images


def client_indices(settings, clients):
    return deal.client_rows(task_of(settings).held, task_of(settings).deal, clients)


def evaluation_data(settings):
    return task_of(settings).scored_by_clients({})


def test_shards_hold_what_the_split_deals_and_keep_a_part_out():
    settings = resolve({"holdout": 0.25})
    dataset = load_dataset(settings)
    total = 0
    for client, indices in enumerate(client_indices(settings, 10)):
        shard = deal.client_shard(task_of(settings).held, task_of(settings).deal, 10, client)
        total += len(indices)
        assert len(shard.y) + len(shard.y_held_out) == len(indices)
        assert abs(len(shard.y_held_out) - 0.25 * len(indices)) <= 1
        held = torch.cat([shard.x, shard.x_held_out]).flatten(1)
        given = dataset.x_train[indices].flatten(1)
        rows = [np.sort(x.numpy(), axis=0) for x in (held, given)]
        assert np.array_equal(*rows)
    assert total == len(dataset.y_train)


def test_validation_examples_are_kept_from_every_client_and_from_the_test_set():
    test, validation = resolve({}), resolve({"evaluate_on": "validation"})
    assert torch.equal(evaluation_data(test)[0], load_dataset(test).x_test)
    dealt = np.concatenate(client_indices(validation, 10))
    count = len(load_dataset(test).y_train)
    kept = np.setdiff1d(np.arange(count), dealt)
    assert len(kept) == count // 10
    x, y = evaluation_data(validation)
    assert torch.equal(x, load_dataset(test).x_train[kept])
    assert torch.equal(y, load_dataset(test).y_train[kept])


def test_seeds_decide_split_and_model():
    one, same, other = (client_indices(resolve({"seed": s}), 10) for s in (0, 0, 1))
    assert all(np.array_equal(a, b) for a, b in zip(one, same, strict=True))
    assert not all(np.array_equal(a, b) for a, b in zip(one, other, strict=True))
    states = [network(resolve({"seed": s})).state_dict() for s in (0, 0, 1)]
    assert torch.equal(states[0]["fc1.weight_mean"], states[1]["fc1.weight_mean"])
    assert not torch.equal(states[0]["fc1.weight_mean"], states[2]["fc1.weight_mean"])


def test_derived_seeds_differ_by_purpose_client_and_round_and_never_change():
    seeds = {
        derive_seed(seed, purpose, client, server_round)
        for seed in range(3)
        for purpose in ("train", "predict")
        for client in range(5)
        for server_round in range(5)
    }
    assert len(seeds) == 150
    assert all(0 <= seed < 2**63 for seed in seeds)
    assert derive_seed(0, "train", 3, 7) == 2021496061153313823


def test_foreign_images_take_the_shape_of_the_data_set(tmp_path):
    rng = np.random.default_rng(0)
    arrays = {"y_train": np.arange(4) % 2, "y_test": np.arange(4) % 2}
    colours = rng.integers(0, 256, (4, 12, 12, 3), dtype=np.uint8)
    np.savez(tmp_path / "colour.npz", x_train=colours, x_test=colours, **arrays)
    grey = {"dataset": "digits", "data_dir": str(tmp_path)}
    as_grey = ood_images(resolve({**grey, "ood_dataset": "colour.npz"}))
    assert as_grey.shape == (4, 1, 8, 8)
    luminance = colours.astype(float) @ np.array([0.299, 0.587, 0.114]) / 255
    assert as_grey.mean().item() == pytest.approx(luminance.mean(), abs=0.01)
    as_colour = ood_images(
        resolve({"dataset": "colour.npz", "data_dir": str(tmp_path), "ood_dataset": "digits"})
    )
    assert as_colour.shape[1:] == (3, 12, 12)
    assert torch.equal(as_colour[:, 0], as_colour[:, 2])
    assert ood_images(resolve(grey)) is None


def test_augmentation_is_the_data_sets_choice_unless_it_is_set():
    assert augments(resolve({})) is False
    assert augments(resolve({"augment": "true"})) is True
    assert augments(resolve({"augment": False})) is False
    assert augments(resolve({"augment": "flip"})) == "flip"

"""Adapters: with A frozen, what a rule makes of B it makes of ΔW = s B A."""

import copy
import sys

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from runs_of import low_rank
from torch import nn

from fedbary import Posterior
from fedbary.aggregation import aggregate
from fedbary.errors import SettingError
from fedbary.variational import gaussian_layers
from fedbary.variational.adapters import (
    Adapters,
    adapter_names,
    gaussian_adapters,
    merged,
    with_adapters,
)
from fedbary.variational.layers import seeded

few = settings(max_examples=15, deadline=None)
SEEDS = st.integers(0, 2**32 - 1)
NAMES = ["0", "2.0", "4"]


def body(seed=0):
    """Return a network of two convolutions, one of which is within a block, and a linear layer."""
    with seeded(seed):
        parts = [nn.Conv2d(2, 6, 3, stride=2, padding=1), nn.BatchNorm2d(6)]
        parts += [nn.Sequential(nn.Conv2d(6, 5, 1), nn.ReLU()), nn.Flatten(), nn.Linear(45, 7)]
        return nn.Sequential(*parts).eval().requires_grad_(False)


def images(count=3):
    return torch.rand(count, 2, 6, 6, generator=torch.Generator().manual_seed(1))


def filled(network, seed):
    """Return a copy whose B are random."""
    network = copy.deepcopy(network)
    generator = torch.Generator().manual_seed(seed)
    for name, tensor in network.named_parameters():
        if ".lora_B." in name and not name.endswith("log_var"):
            tensor.data.normal_(generator=generator)
    return network


def weights(network):
    """Return what trains."""
    return {n: t.detach() for n, t in network.named_parameters() if t.requires_grad}


def root(matrix):
    """Return the square root of a positive semi-definite matrix."""
    values, vectors = np.linalg.eigh(matrix)
    return vectors * np.sqrt(values.clip(0)) @ vectors.T


def mean_of(maps, parts):
    return {n: sum(w * m[n] for w, m in zip(parts, maps, strict=True)) for n in maps[0]}


@pytest.mark.slow
def test_new_adapters_change_no_answer_and_b_alone_trains():
    plain = body()
    adapted = with_adapters(plain, Adapters(rank=2), seed=3)
    assert torch.equal(adapted(images()), plain(images()))
    assert set(weights(adapted)) == {f"{name}.lora_B.default.weight" for name in NAMES}
    assert adapter_names(adapted) == NAMES and not adapter_names(plain)
    own = adapted[0].base_layer.weight
    assert own.data_ptr() == plain[0].weight.data_ptr()


@pytest.mark.slow
@few
@given(SEEDS)
def test_a_has_orthonormal_rows_from_the_seed_alone(seed):
    one, other = (with_adapters(body(), Adapters(rank=3), seed) for _ in range(2))
    for name in NAMES:
        rows = one.get_submodule(name).lora_A["default"].weight
        assert torch.equal(rows, other.get_submodule(name).lora_A["default"].weight)
        flat = rows.flatten(1)
        torch.testing.assert_close(flat @ flat.t(), torch.eye(3), atol=1e-3, rtol=0)


@pytest.mark.slow
@few
@given(SEEDS)
def test_the_fedavg_of_delta_w_is_the_delta_w_of_fedavg(seed):
    start = with_adapters(body(), Adapters(rank=3, alpha=6), seed=0)
    clients = [filled(start, seed + k) for k in range(3)]
    parts = [0.5, 0.3, 0.2]
    averaged = copy.deepcopy(start)
    averaged.load_state_dict(mean_of([weights(c) for c in clients], parts), strict=False)
    found, wanted = low_rank(averaged), mean_of([low_rank(c) for c in clients], parts)
    for name in NAMES:
        torch.testing.assert_close(found[name], wanted[name], atol=1e-5, rtol=1e-4)


@pytest.mark.slow
@few
@given(SEEDS, SEEDS)
def test_distances_of_delta_w_are_those_of_b(one, other):
    start = with_adapters(body(), Adapters(rank=3, alpha=6), seed=0)
    pair = [filled(start, seed) for seed in (one, other)]
    for name in NAMES:
        far = torch.dist(*(low_rank(each)[name] for each in pair))
        apart = torch.dist(*(weights(each)[f"{name}.lora_B.default.weight"] for each in pair))
        torch.testing.assert_close(far, 2 * apart, atol=1e-4, rtol=1e-3)


def test_the_barycentre_of_delta_w_is_the_delta_w_of_the_barycentre():
    """W2 with full covariances S_k of ΔW: S = Σ w_k (S^½ S_k S^½)^½ (Agueh and Carlier 2011)."""
    rank, parts = 3, [0.5, 0.3, 0.2]
    layer = with_adapters(body(), Adapters(rank=rank, alpha=rank), seed=0)[4]
    rows = layer.lora_A["default"].weight.double().numpy()
    rng = np.random.default_rng(0)
    means, log_vars = rng.normal(size=(3, rank)), rng.normal(size=(3, rank))
    clients = [
        Posterior({"b": torch.tensor(m)}, {"b": torch.tensor(v)})
        for m, v in zip(means, log_vars, strict=True)
    ]
    found = aggregate("WB", clients, parts)
    of_each = [rows.T @ np.diag(np.exp(v)) @ rows for v in log_vars]
    covariance = rows.T @ np.diag(found.log_var["b"].exp().numpy()) @ rows
    half = root(covariance)
    mixed = sum(w * root(half @ each @ half) for w, each in zip(parts, of_each, strict=True))
    assert mixed == pytest.approx(covariance, abs=1e-3)
    assert np.allclose(found.mean["b"].numpy() @ rows, parts @ (means @ rows))


@pytest.mark.slow
@few
@given(SEEDS)
def test_merged_weights_answer_alike(seed):
    adapted = filled(with_adapters(body(), Adapters(rank=3), seed=0), seed)
    plain = merged(adapted)
    assert not adapter_names(plain) and adapter_names(adapted)
    assert {n for n, _ in plain.named_parameters()} == {n for n, _ in body().named_parameters()}
    torch.testing.assert_close(plain(images()), adapted(images()), atol=1e-4, rtol=1e-3)


def test_the_last_adapters_are_gaussian_with_b_as_their_mean():
    adapted = filled(with_adapters(body(), Adapters(rank=2), seed=0), 5)
    before, answer = low_rank(adapted), adapted(images())
    gaussian_adapters(adapted, 2, init_log_var=-9.0)
    names = [f"{name}.lora_B.default" for name in NAMES[1:]]
    assert list(gaussian_layers(adapted)) == names
    assert all(torch.equal(before[name], tensor) for name, tensor in low_rank(adapted).items())
    torch.testing.assert_close(adapted(images()), answer)
    assert {n.rpartition(".")[2] for n in weights(adapted)} == {
        "weight", "weight_mean", "weight_log_var",
    }  # fmt: skip


@pytest.mark.parametrize(
    ("targets", "names"),
    [("all", NAMES), ("2", ["2.0"]), ("2.0, 4", ["2.0", "4"]), ("0", ["0", "2.0"])],
)
def test_targets_are_layers_or_blocks(targets, names):
    assert adapter_names(with_adapters(body(), Adapters(2, targets), 0)) == names


@pytest.mark.parametrize(
    ("how", "said"),
    [
        (Adapters(2, "query"), "targets: 'query'; expected all, or of 0, 2.0, 4"),
        (Adapters(6), "rank: 6; expected up to 5, the full rank of 2.0, or targets without it"),
    ],
)
def test_what_no_layer_allows_is_refused(how, said):
    with pytest.raises(SettingError) as refused:
        with_adapters(body(), how, 0)
    assert said in str(refused.value)


def test_layers_whose_weights_others_read_have_no_adapter():
    encoder = nn.TransformerEncoderLayer(8, 2, 8, batch_first=True)
    network = nn.Sequential(nn.Linear(8, 8), encoder, nn.Conv2d(4, 4, 1, groups=2))
    assert adapter_names(with_adapters(network, Adapters(2), 0)) == ["0"]


def test_an_absent_library_is_named(monkeypatch):
    monkeypatch.setitem(sys.modules, "peft", None)
    with pytest.raises(SettingError, match=r"adapters: 'lora'.*pip install 'fedbary\[adapters\]'"):
        with_adapters(body(), Adapters(2), 0)

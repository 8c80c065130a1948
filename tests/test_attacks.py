"""Hostile clients: what they send, and what becomes of a federation that has some."""

import json

import pytest
import torch
from safetensors.torch import load_file

from fedbary.attacks import ATTACKS, hostile_clients
from fedbary.errors import SettingError
from fedbary.gaussian import Posterior
from fedbary.settings.config import resolve
from server_app.inline import run_inline


def posterior(mean, log_var, plain, steps):
    means = {"w": torch.tensor(mean), "steps": torch.tensor(steps), "b": torch.tensor(plain)}
    return Posterior(means, {"w": torch.tensor(log_var)})


@pytest.mark.parametrize(
    ("attack", "mean", "plain", "log_var"),
    [
        ("sign_flip", [0.5, 2.0], [1.0], [-6.0, -5.0]),
        ("scaling", [6.0, 2.0], [-10.0], [-6.0, -5.0]),
        ("variance_collapse", [0.5, 2.0], [1.0], [-30.0, -30.0]),
    ],
)
def test_an_attack_moves_the_update_from_where_the_round_began(attack, mean, plain, log_var):
    received = posterior([1.0, 2.0], [-7.0, -7.0], [0.0], 1)
    fitted = posterior([1.5, 2.0], [-6.0, -5.0], [-1.0], 2)
    sent = Posterior.from_state_dict(ATTACKS[attack](received.state_dict(), fitted.state_dict()))
    assert list(sent.mean) == ["w", "steps", "b"]
    assert sent.mean["w"].tolist() == mean
    assert sent.mean["b"].tolist() == plain
    assert sent.mean["steps"] == 2
    assert sent.log_var["w"].tolist() == log_var
    assert fitted.mean["w"].tolist() == [1.5, 2.0]


@pytest.mark.parametrize("attack", ATTACKS)
def test_changes_that_a_client_sends_are_updates_themselves(attack):
    sent = ATTACKS[attack]({"w": torch.ones(2)}, {"delta/w": torch.tensor([0.5, -2.0])})
    factor = {"scaling": 10}.get(attack, -1)
    assert sent["delta/w"].tolist() == [0.5 * factor, -2.0 * factor]


def test_the_seed_chooses_the_hostile_clients():
    chosen = [hostile_clients(0.3, 10, seed) for seed in range(20)]
    assert all(len(clients) == 3 and clients <= set(range(10)) for clients in chosen)
    assert hostile_clients(0.3, 10, 0) == chosen[0]
    assert set.union(*map(set, chosen)) == set(range(10))
    assert hostile_clients(0.0, 10, 0) == frozenset()
    assert hostile_clients(1.0, 4, 0) == set(range(4))


def test_an_unknown_attack_lists_the_names():
    with pytest.raises(SettingError, match="attack: 'flip'.*none, sign_flip, scaling"):
        resolve({"attack": "flip"})


MARGIN = 0.1
"""How much accuracy of the honest federation a hostile client may cost."""


def accuracy(folder, **changes):
    """The accuracy on digits of five clients after four short rounds."""
    short = {
        "engine": "inline", "clients": 5, "partition": "iid", "rounds": 4, "local_epochs": 3,
        "pictures": False,
        "lr": 0.05, "bayesian_layers": 2, "holdout": 0, "samples": 3, "evaluate_clients": 0,
    }  # fmt: skip
    run_inline(resolve({**short, **changes}), folder)
    lines = (folder / "metrics.jsonl").read_text().splitlines()
    return json.loads(lines[-1])["accuracy"]


def test_one_client_of_tiny_variances_ruins_rklb_but_not_with_a_bound_nor_the_median(tmp_path):
    honest = accuracy(tmp_path / "honest", rule="RKLB")
    hostile = {"attack": "variance_collapse", "hostile_fraction": 0.2}
    assert accuracy(tmp_path / "ruined", rule="RKLB", **hostile) < honest - 5 * MARGIN
    bounded = accuracy(tmp_path / "bounded", rule="RKLB", max_precision_ratio=1.5, **hostile)
    assert bounded > honest - MARGIN
    assert accuracy(tmp_path / "median", rule="Median", **hostile) > honest - MARGIN


@pytest.mark.parametrize("attack", ATTACKS)
def test_the_point_weights_of_fedag_are_attacked_too(attack, tmp_path):
    """One client of three sends what its attack makes of its network; the others' are honest."""
    short = {
        "task": "regression",
        "engine": "inline",
        "pictures": False,
        "clients": 3,
        "rounds": 1,
        "local_epochs": 1,
    }
    for name, changes in {"honest": {}, "hostile": {"attack": attack}}.items():
        run_inline(resolve({**short, "hostile_fraction": 0.3, **changes}), tmp_path / name)
    honest, sent = (load_file(tmp_path / k / "networks.safetensors") for k in ("honest", "hostile"))
    for name, tensor in honest.items():
        same = [network for network in sent[name].tolist() if network in tensor.tolist()]
        assert len(same) == 2

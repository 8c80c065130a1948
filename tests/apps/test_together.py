"""A round whose clients train side by side is the round in which they train one after another."""

import json

import pytest
import torch
from safetensors.torch import load_file

import client_app
from client_app.together import Together
from fedbary.settings.config import resolve
from server_app import run
from server_app.engine.inline import InlineGrid
from server_app.grids.watched import Watched

QUICK = {
    "engine": "inline", "clients": 3, "rounds": 2, "local_epochs": 1, "samples": 3,
    "pictures": False, "device": "cpu", "train_fraction": 0.3,
}  # fmt: skip


def ran(folder, together=None, **changes):
    """Run; return the grid, the posterior and the metrics' lines."""
    chosen = resolve({**QUICK, "output": str(folder), **changes})
    grid = InlineGrid(client_app.app, chosen.clients, chosen.model_dump(), together)
    run(grid, chosen, folder)
    lines = (folder / "metrics.jsonl").read_text().splitlines()
    return grid, load_file(folder / "posterior.safetensors"), [json.loads(line) for line in lines]


@pytest.mark.parametrize(
    "changes",
    [
        {"projection": "WB"},
        {"method": "PVI"},
        {"inference": "clamped_sgd", "compress": "all", "attack": "sign_flip"},
        {"method": "FedProx", "bayesian_layers": 0},
    ],
    ids=lambda changes: "-".join(map(str, changes.values())),
)
def test_the_round_is_the_same_to_rounding(changes, tmp_path):
    _, one, said = ran(tmp_path / "one", **changes)
    grid, other, also_said = ran(tmp_path / "other", Together, **changes)
    assert not grid.together.hindrance
    atol = 1e-2 if "compress" in changes else 1e-4  # it rounds at random, by the last bits
    torch.testing.assert_close(one, other, rtol=1e-3, atol=atol)
    for line, same in zip(said[1:], also_said[1:], strict=True):
        assert line["admitted"] == same["admitted"] == 3
        for client, like in zip(line["clients"], same["clients"], strict=True):
            assert client.keys() == like.keys() and like["train-seconds"] > 0
            assert client["train-nll"] == pytest.approx(like["train-nll"], rel=1e-3)


def test_where_it_cannot_be_the_clients_train_one_after_another_and_it_is_said(tmp_path, caplog):
    changes = {"inference": "ivon", "log_var_lr": 0.003, "kl_weight": 0.01, "rounds": 1}
    _, one, _ = ran(tmp_path / "one", **changes)
    _, other, _ = ran(tmp_path / "other", Together, **changes)
    assert all(torch.equal(one[name], other[name]) for name in one)
    assert caplog.text.count("one after another: inference=ivon") == 1


def test_a_bar_lets_a_round_train_side_by_side(tmp_path):
    pushed = []

    class Grid(InlineGrid):
        def push_messages(self, messages):
            pushed.append(len(messages))
            return super().push_messages(messages)

    chosen = resolve({**QUICK, "rounds": 1, "evaluate_clients": 0})
    grid = Grid(client_app.app, 3, chosen.model_dump(), Together)
    run(Watched(grid, tmp_path / "progress.json", 1), chosen, tmp_path / "run")
    assert pushed[-1] == 3 and grid.together.hindrance == ""

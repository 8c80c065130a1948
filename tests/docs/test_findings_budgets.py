"""Sides of equal budgets vary what they say, begin alike, and report their best."""

import json

import pandas as pd
import pytest
import torch

from fedbary.settings.config import resolve
from findings.budgets.measure import begun, best
from findings.budgets.sides import LOG_VARS, RANGES, SIDES, tried
from findings.when.page import at_ends

WORDS = {
    "engine": "inline", "device": "cpu", "clients": 2, "model": "mlp", "normalise": "none",
    "evaluate_clients": 0,
}  # fmt: skip
OF = {
    "RKLB": {"rule": "RKLB", "bayesian_layers": 2},
    "FedAvg": {"rule": "FedAvg", "bayesian_layers": 0},
    "SCAFFOLD": {"method": "SCAFFOLD", "bayesian_layers": 0},
}


@pytest.mark.parametrize("side", SIDES)
def test_a_side_has_its_budget_of_settings_that_runs_accept_within_their_ranges(side):
    budget = 64 if SIDES[side][0] > 1 else 1
    settings = tried(side, budget)
    assert len({json.dumps(own) for own in settings}) == budget
    for number, own in enumerate(settings):
        start = own.pop("start", 1.0)
        if number % 8 == 0:
            resolve({**WORDS, **OF[side.split(",")[0]], **own})
        assert start in (1.0, 0.1, 0.0)
        for key, value in own.items():
            if key in RANGES and isinstance(value, float) and value:
                low, high = RANGES[key]
                assert 0.95 * low <= value <= 1.05 * high
        assert LOG_VARS[0] <= own.get("init_log_var", -7.0) <= LOG_VARS[1]


@pytest.mark.parametrize("start", [1.0, 0.1, 0.0])
def test_sides_begin_with_the_same_means_whose_last_layer_is_scaled(start):
    gaussian, plain = (
        begun(resolve({**WORDS, **OF[name], "seed": 3}), start).model for name in ("RKLB", "FedAvg")
    )
    whole = begun(resolve({**WORDS, **OF["RKLB"], "seed": 3}), 1.0).model
    for name, tensor in plain.items():
        mean = f"{name}_mean" if f"{name}_mean" in gaussian else name
        assert torch.equal(gaussian[mean], tensor)
        assert torch.equal(tensor, whole[mean] * (start if name.startswith("output") else 1.0))
    for name in gaussian:
        if name.endswith("_log_var"):
            assert torch.equal(gaussian[name], whole[name])


def test_the_best_have_the_least_mean_and_settings_at_an_end_are_named():
    own = [{"rule": "FedAvg", "lr": lr} for lr in (0.01, 0.1, 0.99)]
    other = {"method": "SCAFFOLD", "lr": 0.1}
    rows = [
        {"side": json.dumps(side), "nll": nll}
        for side, of_seeds in ((own[0], (1.0, 4.0)), (own[1], (2.0, 2.0)), (own[2], (9.0, 0.0)),
                               (other, (0.0, 0.0)))
        for nll in of_seeds
    ]  # fmt: skip
    assert best(pd.DataFrame(rows), own) == [own[1], own[0], own[2]]
    assert [at_ends(each) for each in own] == [["`lr` low"], [], ["`lr` high"]]

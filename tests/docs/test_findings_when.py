"""Sides of equal budgets report the best of their samples, and settings at an end are named."""

import json

import pandas as pd
import yaml

from findings.when.page import at_ends, budgets_tables

SIDES = {
    "FedAvg": [{"rule": "FedAvg", "lr": lr} for lr in (0.01, 0.1, 0.99)],
    "SCAFFOLD": [{"method": "SCAFFOLD", "lr": 0.1}],
    "RKLB": [{"rule": "RKLB", "lr": 0.2}],
    "RKLB, no dropout": [{"rule": "RKLB", "lr": 0.3}],
}
NLL = {
    "FedAvg": [(1.0, 4.0), (2.0, 2.0), (9.0, 0.0)], "SCAFFOLD": [(0.0, 0.0)], "RKLB": [(3.0, 3.0)],
    "RKLB, no dropout": [(2.0, 3.0)],
}  # fmt: skip


def test_the_best_have_the_least_mean_and_stand_against_each_other(tmp_path):
    rows = [
        {"sample": sample, "side": json.dumps(own), "seed": seed, "nll": nll, "plain_nll": nll,
         "accuracy": 0.5, "ece": 0.1, "temperature": 1.0}
        for sample, settings in SIDES.items()
        for own, nlls in zip(settings, NLL[sample], strict=True)
        for seed, nll in enumerate(nlls)
    ]  # fmt: skip
    table = pd.DataFrame(rows)
    for name in ("first", "choice", "scores"):
        table.to_csv(tmp_path / f"{name}.csv.xz", index=False)
    plan = {"first": {"rounds": 1}, "grid": [{"sample": sample} for sample in SIDES]}
    (tmp_path / "plan.yaml").write_text(yaml.safe_dump(plan))
    best, _, tests, _ = budgets_tables(tmp_path)
    found = {line.split("|")[1].strip(): line for line in best.splitlines()[2:]}
    assert "| 2.000 | `lr=0.1` | – |" in found["FedAvg"]
    assert [line.split("|")[1].strip() for line in tests.splitlines()[2:]] == [
        "RKLB, no dropout − FedAvg", "RKLB, no dropout − SCAFFOLD", "FedAvg − SCAFFOLD",
    ]  # fmt: skip


def test_settings_at_an_end_are_named():
    assert [at_ends(own) for own in SIDES["FedAvg"]] == [["`lr` low"], [], ["`lr` high"]]
    assert at_ends({"init_log_var": -11.9, "dropout": 0.051}) == ["`init_log_var` low"]
    assert at_ends({"init_log_var": -3.5, "dropout": 0.0}) == ["`init_log_var` high"]

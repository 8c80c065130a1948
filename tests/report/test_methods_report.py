"""Methods side by side in a report: ranked, compared with plain FedAvg, with advice in words."""

from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fedbary.report.cells import NLL
from fedbary.report.document import Document
from fedbary.report.method_tables import _by_nll, beside_plain
from fedbary.report.own_models import add_own_models
from fedbary.report.report import write_report
from fedbary.report.results import Results
from fedbary.scores.stats import corrected
from fedbary.study.table import read_table, with_methods, write_table

ROOT = Path(__file__).resolve().parents[2]
NLLS = {"FedAvg": 0.40, "RKLB": 0.35, "PVI": 0.30, "FedProx": 0.40, "pFedBayes": 0.50}


@pytest.fixture(scope="module")
def results(tmp_path_factory):
    """Five methods at three seeds; a difference from FedAvg moves by seed a hundredth of itself."""
    folder = tmp_path_factory.mktemp("methods")
    best = read_table(ROOT / "findings" / "best")
    best = best[best["dataset"] == "fashionmnist"]
    runs = []
    for name, nll in NLLS.items():
        method, n = ("barycentre", 3) if name == "RKLB" else (name, 0 if "Fed" in name[:3] else 3)
        rule = name if name in ("RKLB", "FedAvg") else "RKLB"
        for seed in range(3):
            made = best[best["run"] == best["run"].iloc[0]].assign(
                run=f"{name}-{seed}", seed=seed, rule=rule, bayesian_layers=n, nll=nll,
                method="barycentre" if name == "FedAvg" else method,
            )  # fmt: skip
            noise = 0.001 * seed + (nll - 0.4) * 0.01 * seed
            noise += 0.01 * (seed - 1) if name == "FedProx" else 0
            runs.append(made.assign(nll=nll + noise, **{"bytes.up": 1e6 * (1 + (n > 0))}))
    write_table(folder, runs)
    write_report(folder)
    return folder


def rows(results, heading):
    """The body of the first table after a heading."""
    text = (results / "report.md").read_text().partition(heading)[2]
    lines = [line for line in text.splitlines() if line.startswith("|")]
    ends = [i for i, line in enumerate(lines) if " --- " in line]
    body = lines[2 : (ends[1] - 1 if len(ends) > 1 else None)]
    return [[cell.strip() for cell in line.split("|")[1:-1]] for line in body]


def test_methods_are_ranked_by_nll(results):
    ranked = rows(results, "## Methods side by side")
    assert [row[0] for row in ranked] == [
        "PVI",
        "RKLB",
        *sorted(["FedAvg", "FedProx"]),
        "pFedBayes",
    ]
    assert "**" in ranked[0][4] and all(row[2] == "3" for row in ranked)


def test_a_difference_that_every_seed_shows_is_told_and_noise_is_not(results):
    text = (results / "report.md").read_text()
    (lower,) = [line for line in text.splitlines() if line.startswith("NLL lower than")]
    (higher,) = [line for line in text.splitlines() if line.startswith("NLL higher than")]
    assert "PVI" in lower and "RKLB" in lower and "FedProx" not in lower
    assert "pFedBayes" in higher and "FedProx" not in higher
    text = (results / "report.md").read_text().partition("clients and costs")[2]
    header = next(line for line in text.splitlines() if line.startswith("|")).split("|")[1:-1]
    (sent,) = [index for index, name in enumerate(header) if "up" in name]
    assert "1.00" in rows(results, "clients and costs")[2][sent]


def test_pairs_are_of_one_seed_whatever_the_order_of_the_rows(results):
    table = with_methods(read_table(results)).sample(frac=1, random_state=0)
    last = Results.of(table, results).last
    for found in beside_plain(last, [NLL]).itertuples():
        mine, plain = (
            last[last["rule"] == each].set_index("seed")["nll"] for each in (found.first, "FedAvg")
        )
        assert found.mean == pytest.approx(float((mine - plain).mean())) and found.pairs == 3


def test_runs_of_other_settings_are_no_repeats_and_a_failed_seed_wins_nothing(results):
    """PVI at two rates and with two n; FedProx, best of all, but for a seed without a score."""
    table = read_table(results)
    pvi = table[table["method"] == "PVI"]
    other = [
        pvi.assign(run=pvi["run"] + "-lr", lr=0.1, nll=pvi["nll"] + 0.1),
        pvi.assign(run=pvi["run"] + "-n", bayesian_layers=1, nll=pvi["nll"] + 0.2),
    ]
    last = Results.of(pd.concat([table, *other], ignore_index=True), results).last
    last.loc[last["rule"] == "FedProx", "nll"] = [0.01, 0.01, np.nan]
    found = beside_plain(last, [NLL]).set_index("first")["mean"].to_dict()
    assert sum("PVI" in name for name in found) == 3
    (plain,) = [name for name in found if name.startswith("PVI, n = 3") and "0.1" not in name]
    assert found[plain] == pytest.approx(-0.101)
    assert [name for name, _ in _by_nll(last)][-1] == "FedProx"


def test_plain_averaging_that_predicts_by_dropout_is_a_method_beside_fedavg(results):
    table = read_table(results)
    plain = table[table["rule"] == "FedAvg"]
    dropped = plain.assign(predictive="dropout", run=plain["run"] + "-d", nll=plain["nll"] - 0.05)
    both = Results.of(pd.concat([table, dropped], ignore_index=True), results).last
    found = beside_plain(both, [NLL]).set_index("first")["mean"].to_dict()
    assert found["MC dropout"] == pytest.approx(-0.05) and "FedAvg" not in found


@given(st.lists(st.floats(0, 1), min_size=1, max_size=12), st.floats(0.001, 0.999))
def test_holm_rejects_as_stepping_down_does(p_values, level):
    """From the least p on, reject while p ≤ level / (those that are left)."""
    rejected, order = set(), sorted(range(len(p_values)), key=p_values.__getitem__)
    for done, i in enumerate(order):
        if (len(order) - done) * p_values[i] > level:
            break
        rejected.add(i)
    found = corrected(p_values)
    assert {i for i, p in enumerate(found) if p <= level} == rejected
    assert all(p >= before for p, before in zip(found, p_values, strict=True))


def test_what_was_not_tested_does_not_count():
    found = corrected([0.02, np.nan, 0.04])
    assert found[0] == 0.04 and np.isnan(found[1]) and found[2] == 0.04


def test_every_own_model_stands_below_the_global_one_on_the_same_data(tmp_path):
    def scores(**models):
        return pd.DataFrame(
            {f"personal.held_out.{m}.weighted_accuracy": v for m, v in models.items()}
        )

    runs = scores(**{"global": [0.5, 0.7], "personal": [0.8, 0.8], "projected-1/2": [0.9, 0.7]})
    none = scores(**{"global": [0.5, 0.7], "personal": [np.nan, np.nan]})
    document = Document(tmp_path, "Methods")
    add_own_models(document, [("PVI", none), ("FedHB", runs)])
    document.write()
    body = rows(tmp_path, "Models of the clients' own")
    assert [row[:3] for row in body] == [
        ["FedHB", "global", "60.00 ± 14.14"],
        ["FedHB", "own", "80.00 ± 0.00"],
        ["FedHB", "projected, λ = 1/2", "80.00 ± 14.14"],
    ]
    assert all(cell == "–" for row in body for cell in row[3:])

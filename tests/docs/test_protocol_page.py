"""The page on the papers' protocol: where runs turn, and when log-variances pass their clamp."""

import shutil
from dataclasses import replace

import numpy as np
import pandas as pd
import pytest
import torch

from fedbary.errors import SettingError
from fedbary.gaussian import Posterior
from fedbary.report.cells import ACCURACY, NLL
from fedbary.runs.metrics import read_rounds
from fedbary.settings.config import resolve
from fedbary.study.table import FORMAT, write_table
from fedbary.trained import load
from findings.protocol import last_round
from findings.protocol import page as protocol
from findings.published import published, table1
from server_app.engine.inline import run_inline

ROUNDS = range(51)
ARMS = {"FedAvg": 0, "RKLB": 3}
LAYERS = ("fc1", "fc3")
BEST, THAW = {"FedAvg": 7, "RKLB": 13}, 25
"""The rounds in which the NLL is least; the first round in which log-variances are above −8."""


@pytest.fixture(scope="module")
def results(tmp_path_factory):
    folder, rng, rows = tmp_path_factory.mktemp("table1"), np.random.default_rng(0), []
    for rule, layers in ARMS.items():
        for number in ROUNDS:
            log_var = -8 + (number - THAW + 0.5) / 20
            of_layers = {f"log_var.{layer}.weight": log_var for layer in LAYERS}
            of_layers |= {f"log_var_spread.{layer}.weight": rng.uniform() for layer in LAYERS}
            scores = {metric.column: rng.uniform() for metric in protocol.BY_ROUND}
            rows.append(
                {
                    "format": FORMAT, "run": rule, "dataset": "fashionmnist", "rule": rule,
                    "bayesian_layers": layers, "rounds": ROUNDS[-1], "round": number, **scores,
                    "nll": 0.5 + 0.01 * abs(number - BEST[rule]),
                    "uncertainty.epistemic": rng.uniform(), **(of_layers if layers else {}),
                }
            )  # fmt: skip
    write_table(folder, [pd.DataFrame(rows)])
    return folder


def cells(text, *start):
    rows = [[cell.strip() for cell in line.strip("|").split("|")] for line in text.splitlines()]
    return next(row for row in rows if tuple(row[: len(start)]) == start)


def test_the_papers_numbers_are_at_hand():
    assert published("fashionmnist", 0, "FedAvg", "accuracy") == (87.88, 0.79)
    assert published("cifar10", 3, "RKLB", "nll")[0] == 1.00
    assert published("cifar10", 3, "pFedVem", "nll") == (2.44, 0.10)
    assert np.isnan(published("cifar10", 3, "PVI", "nll")[0])
    assert np.isnan(published("digits", 0, "FedAvg", "nll")[0])
    assert len(table1()) == 3 * 3 * (1 + 5 * 3)


def test_scores_of_the_last_round_stand_beside_the_paper_s(results):
    rows = protocol.read(results)
    text = protocol.paper_table(rows[rows["round"] == ROUNDS[-1]])
    for name, run in protocol.arms(rows):
        rule, layers = run[["rule", "bayesian_layers"]].iloc[0]
        _, _, ours, theirs = cells(text, name, ACCURACY.label)
        assert float(ours) == pytest.approx(100 * run["accuracy"].iloc[-1], abs=0.006)
        mean, std = published("fashionmnist", layers, rule, "accuracy")
        assert theirs == f"{mean:.2f} ± {std:.2f}"


def test_overfitting_begins_after_the_least_test_nll(results):
    text = protocol.turns_table(protocol.read(results))
    for name, run in protocol.arms(protocol.read(results)):
        best = BEST[run["rule"].iloc[0]]
        train = run.set_index("round")["train_nll"]
        _, least, last, then, at_end, *_ = cells(text, name)
        assert least == f"0.500 in round {best}" and last.endswith(f"in round {ROUNDS[-1]}")
        assert [float(then), float(at_end)] == pytest.approx([train[best], train[50]], abs=6e-5)


def test_log_variances_are_bold_from_the_round_in_which_they_are_above_the_clamp(results):
    _, gaussian = (run for _, run in protocol.arms(protocol.read(results)))
    for line in protocol.variances_table(gaussian).splitlines()[2:]:
        number, *rest = (cell.strip() for cell in line.strip("|").split("|"))
        assert [cell.startswith("**") for cell in rest[: len(LAYERS)]] == [int(number) >= THAW] * 2


def test_points_have_no_variances_and_curves_are_those_of_the_table(results):
    rows = protocol.read(results)
    plain, gaussian = (run for _, run in protocol.arms(rows))
    assert not protocol.layers_of(plain) and list(protocol.layers_of(gaussian)) == list(LAYERS)
    axes = protocol.picture(results).axes
    for line, run in zip(axes[1].lines, (plain, gaussian), strict=True):
        assert np.allclose(line.get_ydata(), run[NLL.column].iloc[1:])
    *log_vars, clamp = axes[4].lines
    assert [line.get_label() for line in log_vars] == list(LAYERS)
    assert set(clamp.get_ydata()) == {-8.0}


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    folder = tmp_path_factory.mktemp("run") / "run"
    words = {"engine": "inline", "device": "cpu", "pictures": False, "train_fraction": 0.3}
    run_inline(
        resolve({**words, "clients": 3, "rounds": 3, "local_epochs": 1, "rule": "WB"}), folder
    )
    return folder


def test_the_last_round_again_is_the_run_s_and_its_own_rule_gives_the_run_s_scores(trained):
    rows = last_round.under_every_rule(load(trained), *last_round.last_round(trained))
    rows = rows.set_index("rule")
    assert rows.loc["WB", "nll"] == pytest.approx(read_rounds(trained)[-1]["nll"], rel=1e-5)
    assert rows.loc["WB", [last_round.SHIFT, last_round.LOG_VAR]].tolist() == [0, 0]
    assert rows.loc["RKLB", last_round.SHIFT] > 0 and rows.loc["RKLB", last_round.LOG_VAR] > 0


def test_the_table_of_the_last_round_is_among_the_page_s(trained, results, tmp_path, monkeypatch):
    shutil.copytree(results, tmp_path, dirs_exist_ok=True)
    assert "under every rule" not in protocol.tables(tmp_path)
    monkeypatch.setattr("sys.argv", ["last_round", str(trained), str(tmp_path)])
    last_round.main()
    assert last_round.tables(tmp_path) in protocol.tables(tmp_path)
    assert cells(last_round.tables(tmp_path), "RKLB")[1:3] != ["", ""]


@pytest.mark.parametrize("spoil", ["mean", "log_var", "points"])
def test_a_posterior_that_is_not_the_rule_s_is_refused(trained, spoil):
    clients, weights = last_round.last_round(trained)
    kept = load(trained)
    moved = {n: t + 0.01 for n, t in kept.posterior.state_dict().items() if n.endswith(spoil)}
    posterior = Posterior.from_state_dict({**kept.posterior.state_dict(), **moved})
    if spoil == "points":
        clients = [Posterior({"w": torch.zeros(2)}, {}) for _ in clients]
        posterior = clients[0]
    with pytest.raises(SettingError, match="whose posterior is.*its rule's"):
        last_round.under_every_rule(replace(kept, posterior=posterior), clients, weights)

"""Scripts of findings/ that make or score runs: their numbers are those of the runs."""

import shutil
from dataclasses import replace

import pandas as pd
import pytest
import torch
from every_method import night

from fedbary.errors import SettingError
from fedbary.gaussian import Posterior
from fedbary.runs.location import read_rounds
from fedbary.settings.config import resolve
from fedbary.study.table import read_run, write_table
from fedbary.trained import load
from findings.protocol import last_round
from findings.protocol import page as protocol
from findings.rules import draws
from findings.rules import page as rules
from server_app.engine.inline import run_inline


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
    assert rows.loc["WB", ["mean_shift", "log_var_shift"]].tolist() == [0, 0]
    assert rows.loc["RKLB", "mean_shift"] > 0 and rows.loc["RKLB", "log_var_shift"] > 0


def test_the_table_of_the_last_round_is_that_of_its_file(trained, tmp_path, capsys):
    last_round.main(str(trained), str(tmp_path))
    rows = pd.read_csv(tmp_path / protocol.LAST_ROUND)
    assert protocol.last_round(rows) in capsys.readouterr().out


@pytest.mark.parametrize("spoil", ["mean", "log_var", "points"])
def test_a_posterior_that_is_not_the_rule_s_is_refused(trained, spoil):
    clients, weights = last_round.last_round(trained)
    kept = load(trained)
    moved = {n: t + 0.01 for n, t in kept.posterior.state_dict().items() if n.endswith(spoil)}
    posterior = Posterior.from_state_dict({**kept.posterior.state_dict(), **moved})
    if spoil == "points":
        clients = [Posterior({"w": torch.zeros(2)}, {}) for _ in clients]
        posterior = clients[0]
    spoilt = replace(kept, predictive=replace(kept.predictive, posterior=posterior))
    with pytest.raises(SettingError, match="whose posterior is.*its rule's"):
        last_round.under_every_rule(spoilt, clients, weights)


@pytest.fixture(scope="module")
def kept(tmp_path_factory):
    """Two rules' runs and the null, at two seeds; one folder is not there any more."""
    folder = tmp_path_factory.mktemp("kept")
    words = {
        "protocol": "short", "engine": "inline", "device": "cpu", "clients": 3, "rounds": 1,
        "local_epochs": 1, "samples": draws.NUMBERS[0], "pictures": False, "train_fraction": 0.3,
    }  # fmt: skip
    rows = []
    for rule, replicate in (("RKLB", 0), ("WB", 0), ("WB", 1)):
        for seed in range(2):
            run = folder / "runs" / f"{rule}-{replicate}-{seed}"
            run_inline(resolve({**words, "rule": rule, "replicate": replicate, "seed": seed}), run)
            rows.append(read_run(run.name, run))
    write_table(folder, rows)
    shutil.rmtree(folder / "runs" / "RKLB-0-1")
    return folder


@night  # by day a loaded model scores what its run recorded
def test_kept_posteriors_score_as_the_runs_did_with_their_draws_and_otherwise_with_more(
    kept, capsys
):
    assert "draws" not in "".join(rules.tables(kept))
    draws.main(str(kept))
    found = pd.read_csv(kept / rules.DRAWS).set_index(["run", "draws"])
    runs = rules.result_rows(rules.read(kept)).set_index("run")
    assert set(found.index) == {
        (run, number) for run in runs.index if run != "RKLB-0-1" for number in draws.NUMBERS
    }
    columns = [metric.column for metric in draws.METRICS]
    own, more = (found.xs(number, level="draws") for number in draws.NUMBERS)
    assert own["arm"].to_dict() == runs.loc[own.index, "arm"].to_dict()
    expected = runs.loc[own.index, columns].astype(float)
    pd.testing.assert_frame_equal(own[columns], expected, rtol=1e-4, check_names=False)
    assert (more["nll"] != own["nll"]).all()
    made = rules.draws_table(pd.read_csv(kept / rules.DRAWS))
    assert made in capsys.readouterr().out and made in [*rules.tables(kept)]

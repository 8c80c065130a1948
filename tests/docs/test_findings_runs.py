"""Scripts of findings/ that make or score runs: their numbers are those of the runs."""

from dataclasses import replace

import pandas as pd
import pytest
import torch

from fedbary.errors import SettingError
from fedbary.gaussian import Posterior
from fedbary.runs.location import read_rounds
from fedbary.settings.config import resolve
from fedbary.trained import load
from findings.protocol import last_round
from findings.protocol import page as protocol
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

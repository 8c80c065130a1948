"""A run of real servers that has ended goes on to more rounds."""

import pytest
import yaml
from every_method import night, of_tables, same
from processes import deployed
from runs_of import lines

from fedbary.commands import start
from fedbary.errors import SettingError
from fedbary.runs.location import is_whole
from fedbary.server_app.engine.inline import run_inline

CONSTANT = {"lr_schedule": "constant", "server_momentum": 0.5}


@night  # by day tests/runs/test_longer goes on in one process, and the walkthrough is on servers
@pytest.mark.slow
def test_one_round_on_real_servers_and_one_more_are_two(tmp_path):
    settings, run = of_tables("barycentre", rounds=1, **CONSTANT), tmp_path / "run"
    deployed(settings, tmp_path)
    with pytest.raises(SettingError, match="repeat its command with rounds=2 output=.*resume=last"):
        start.resume(run, "last", ["rounds=2"])
    for words, why in (
        (("resume=last",), "rounds= above its 1 goes on"),
        (("resume=last", "rounds=2", "lr=0.5"), "lr: 0.5; expected"),
    ):
        assert why in deployed(settings, tmp_path, *words, code=2).stderr and is_whole(run)
    deployed(settings, tmp_path, "resume=last", "rounds=2")
    assert [line["round"] for line in lines(run)] == [0, 1, 2]
    assert yaml.safe_load((run / "settings.yaml").read_text())["rounds_before"] == [
        {"rounds": 1, "round": 1}
    ]
    run_inline(of_tables("barycentre", rounds=2, **CONSTANT), tmp_path / "simulated")
    assert same(run, tmp_path / "simulated")

"""A run of real servers that has ended goes on to more rounds."""

import subprocess

import forked
import pytest
import yaml
from every_method import of_tables
from processes import marked, servers_of
from runs_of import lines, posterior, same

from fedbary.commands import start
from fedbary.errors import SettingError
from fedbary.runs.location import is_whole
from server_app.engine.inline import run_inline

CONSTANT = {"lr_schedule": "constant", "server_momentum": 0.5}


@pytest.mark.slow
def test_one_round_on_real_servers_and_one_more_are_two(tmp_path):
    settings = of_tables("barycentre", rounds=1, **CONSTANT)
    (tmp_path / "settings.yaml").write_text(yaml.safe_dump(settings.model_dump()))

    def deployed(*words):
        command = [forked.command(), "deploy", "settings.yaml", "output=run", *words]
        done = subprocess.run(
            command, cwd=tmp_path, env=marked(tmp_path), capture_output=True, text=True,
            timeout=400, check=False,
        )  # fmt: skip
        assert servers_of(tmp_path) == []
        return done

    run = tmp_path / "run"
    done = deployed()
    assert done.returncode == 0, done.stdout + done.stderr
    with pytest.raises(SettingError, match="repeat its command with rounds=2 output=.*resume=last"):
        start.resume(run, "last", ["rounds=2"])
    for words, why in (
        (("resume=last",), "rounds= above its 1 goes on"),
        (("resume=last", "rounds=2", "lr=0.5"), "lr: 0.5; expected"),
    ):
        refused = deployed(*words)
        assert refused.returncode == 2 and why in refused.stderr and is_whole(run)
    done = deployed("resume=last", "rounds=2")
    assert done.returncode == 0, done.stdout + done.stderr
    assert [line["round"] for line in lines(run)] == [0, 1, 2]
    assert yaml.safe_load((run / "settings.yaml").read_text())["rounds_before"] == [
        {"rounds": 1, "round": 1}
    ]
    run_inline(of_tables("barycentre", rounds=2, **CONSTANT), tmp_path / "simulated")
    assert same(posterior(run), posterior(tmp_path / "simulated"))
